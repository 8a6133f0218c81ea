"""Whether a whole job is silent: sees it by the sizes of its logs and its marks of progress, and has it looked into."""
# ruff: noqa: SIM105  # contextlib costs more at start-up than it saves

from __future__ import annotations

import os

from torchx.supervisor.layout import HANG_FILE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_LOOKS = 20  # at the sizes, before a job counts as silent
_MOST_LOOK_S = 30.0
_PATIENCE_S = 90.0  # with the program that looks into the job
_BUSY = 3  # so many times as long may a job be silent whose ranks compute: a slow start, a long evaluation
BUSY = "busy"
"""The first line of an answer by which ranks compute; then there is another line, the sentence."""


class Watchdog:
    """Watches a job; one that was not asked for never has anything to do.

    Args:
        asked: ``seconds``, ``action`` (``stacks``, ``cancel`` or ``retry``), ``program`` (looks into the job, and
            writes a sentence to the file ``answer``), ``files`` (logs and marks of progress). All may be missing.
        env: of that program.

    Attributes:
        due: when :meth:`turn` is to be called, by the monotonic clock; None: never.
        action: what is to be done once :meth:`turn` has said that the job is silent.
        silent: it is.
        text: what was said last.
    """

    def __init__(self, asked: dict[str, Any], env: dict[str, str]) -> None:
        self._asked = asked
        self._env = env
        self._seconds: float = asked.get("seconds", 0)
        self.action: str = asked.get("action", "")
        self.due: float | None = None
        self.silent = False
        self.text = ""
        self._seen: list[tuple[int, int]] = []
        self._since = self._answer_by = 0.0
        self._patience = 1

    def begin(self, now: float) -> None:
        """An attempt starts."""
        if self._seconds:
            self._seen, self._since, self._patience, self._answer_by = self._look(), now, 1, 0.0
            self.silent, self.due = False, now

    def forget(self) -> None:
        """The attempt is being ended."""
        self.due = None

    def turn(self, now: float) -> str | None:
        """Looks whether the job has written something; what is to be said of it now, None while nothing is new."""
        if self._answer_by:
            return self._wait_for_answer(now)
        self.due = now + min(self._seconds / _LOOKS, _MOST_LOOK_S)
        seen = self._look()
        if seen != self._seen:
            self._seen, quiet_s, self._since, self._patience = seen, now - self._since, now, 1
            if self.silent:
                self.silent = False
                self.text = f"it went on after {_span(quiet_s)}; then there was {self.text}"
                return self.text
        elif not self.silent and now - self._since >= self._seconds * self._patience:
            self.silent = True
            self._answer_by = now + _PATIENCE_S
            self._start()
        return None

    def _start(self) -> None:
        null = [(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_RDWR, 0) for fd in (0, 1, 2)]
        try:
            os.unlink(self._asked["answer"])
        except OSError:
            pass
        try:
            program = self._asked["program"]
            os.posix_spawn(program[0], program, self._env, file_actions=null, setsid=True)
        except OSError:
            self._answer_by = 0.001  # nobody will answer

    def _wait_for_answer(self, now: float) -> str | None:
        try:
            with open(self._asked["answer"], encoding="utf-8", errors="replace") as f:
                said = f.read().strip()
        except OSError:
            said = ""
        if not said and now < self._answer_by:
            self.due = now + 0.2
            return None
        self._answer_by, self.due = 0.0, now + min(self._seconds / _LOOKS, _MOST_LOOK_S)
        busy, newline, sentence = said.partition("\n")
        if newline and busy == BUSY:
            said = sentence
            if self._patience == 1:
                self._patience, self.silent = _BUSY, False
                return None
        self.text = f"no output for {_span(now - self._since)}: {said or 'what the ranks are doing is not known'}"
        return self.text

    def _look(self) -> list[tuple[int, int]]:
        return [_mark(path) for path in self._asked.get("files", ())]


def put_down(folder: str, text: str) -> None:
    """Writes down what was seen of a job; without, when that cannot be written."""
    path = os.path.join(folder, HANG_FILE)
    try:
        with open(f"{path}.new", "w", encoding="utf-8") as f:
            f.write(text)
        os.replace(f"{path}.new", path)
    except OSError:
        pass  # a full disk


def seen(folder: str) -> str:
    """What was seen of a job when it was silent last; empty when it never was."""
    try:
        with open(os.path.join(folder, HANG_FILE), encoding="utf-8", errors="replace") as f:
            return f.read()
    except OSError:
        return ""


def _mark(path: str) -> tuple[int, int]:
    try:
        found = os.stat(path)
    except OSError:
        return (0, 0)
    return (found.st_size, found.st_mtime_ns)


def _span(seconds: float) -> str:
    """Seconds as people say them.

    >>> _span(12), _span(600), _span(5400)
    ('12 s', '10 min', '1 h 30 min')
    """
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s"
    return f"{whole // 60} min" if whole < 3600 else f"{whole // 3600} h {whole // 60 % 60} min"
