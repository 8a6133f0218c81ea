"""Whether a whole job is silent: sees it by its logs and its marks of progress, and has it looked into.

The same for each backend: whoever sees a job through (supervisor, watcher, batch script) lends it a clock.
"""

from __future__ import annotations

import os

from torchx.supervisor.layout import HANG_FILE, STACKS_FILE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

_LOOKS = 20  # at the sizes, before a job counts as silent
_MOST_LOOK_S = 30.0
_PATIENCE_S = 90.0  # with the program that looks into the job
_BUSY = 3  # so many times as long may a job be silent whose ranks compute: a slow start, a long evaluation
BUSY = "busy"
"""The first line that the program prints by which ranks compute; the next one, or the first, is the sentence, and the
stacks are below it."""


class Watchdog:
    """Watches a job; one that was not asked for never has anything to do.

    Args:
        asked: ``seconds``, ``action`` (``stacks``, ``cancel`` or ``retry``), ``program`` (looks into the job, and
            prints a sentence, and the stacks below it), ``files`` (logs and marks of progress). All may be missing.
        env: of that program.
        signs: returns what is another value once the job has written something; None: the files say it.

    Attributes:
        due: when :meth:`turn` is to be called, by the monotonic clock; None: never.
        action: what is to be done once :meth:`turn` has said that the job is silent.
        silent: it is.
        text: what was said last.
        stacks: of the last alarm, as text; empty when nobody has seen them.
    """

    def __init__(self, asked: dict[str, Any], env: dict[str, str], signs: Callable[[], object] | None = None) -> None:
        self._asked = asked
        self._env = env
        self._signs = signs or (lambda: marks(asked.get("files", ())))
        self._seconds: float = asked.get("seconds", 0)
        self.action: str = asked.get("action", "")
        self.due: float | None = None
        self.silent = False
        self.text = self.stacks = ""
        self._seen: object = None
        self._since = self._answer_by = 0.0
        self._patience = 1
        self._answer = -1
        self._said = b""

    def begin(self, now: float) -> None:
        """An attempt starts."""
        if self._seconds:
            self._hang_up()
            self._seen, self._since, self._patience = self._signs(), now, 1
            self.silent, self.due = False, now

    def forget(self) -> None:
        """The attempt is being ended."""
        self.due = None

    def turn(self, now: float) -> str | None:
        """Looks whether the job has written something; what is to be said of it now, None while nothing is new."""
        if self._answer_by:
            return self._wait_for_answer(now)
        self.due = now + min(self._seconds / _LOOKS, _MOST_LOOK_S)
        seen = self._signs()
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
        self._answer, printed = os.pipe()
        os.set_blocking(self._answer, False)
        streams: list[Any] = [(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_RDWR, 0) for fd in (0, 2)]
        streams.append((os.POSIX_SPAWN_DUP2, printed, 1))
        try:
            program = self._asked["program"]
            os.posix_spawn(program[0], program, self._env, file_actions=streams, setsid=True)
        except OSError:
            pass  # nobody answers
        finally:
            os.close(printed)

    def _hang_up(self) -> None:
        if self._answer >= 0:
            os.close(self._answer)
        self._answer, self._answer_by, self._said = -1, 0.0, b""

    def _wait_for_answer(self, now: float) -> str | None:
        try:
            while data := os.read(self._answer, 1 << 12):
                self._said += data
        except BlockingIOError:
            if now < self._answer_by:
                self.due = now + 0.2
                return None
        said = self._said.decode("utf-8", "replace").strip()
        self._hang_up()
        self.due = now + min(self._seconds / _LOOKS, _MOST_LOOK_S)
        if self._signs() != self._seen:  # it has gone on while it was looked into: no alarm
            self.silent = False
            return None
        busy = said.startswith(f"{BUSY}\n")
        if busy and self._patience == 1:
            self._patience, self.silent = _BUSY, False
            return None
        said, _, self.stacks = (said.partition("\n")[2] if busy else said).partition("\n")
        self.text = f"no output for {_span(now - self._since)}: {said or 'what the ranks are doing is not known'}"
        return self.text


def put_down(folder: str, dog: Watchdog) -> None:
    """Writes down what was seen of a job; without, when that cannot be written."""
    try:
        for name, text in ((STACKS_FILE, page(dog)), (HANG_FILE, dog.text)):
            path = os.path.join(folder, name)
            with open(f"{path}.new", "w", encoding="utf-8") as f:
                f.write(text)
            os.replace(f"{path}.new", path)
    except OSError:
        pass  # a full disk


def page(dog: Watchdog) -> str:
    """What was said last, and the stacks of then."""
    return f"{dog.text}\n{dog.stacks}\n"


def seen(folder: str) -> str:
    """What was seen of a job when it was silent last; empty when it never was."""
    try:
        with open(os.path.join(folder, HANG_FILE), encoding="utf-8", errors="replace") as f:
            return f.read()
    except OSError:
        return ""


def marks(paths: Iterable[str]) -> list[tuple[int, int]]:
    """The sizes of files, and when they changed last: something else once one of them has been written to."""
    return [_mark(path) for path in paths]


def _mark(path: str) -> tuple[int, int]:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)  # to open a file is to make NFS look at it
    except OSError:
        return (0, 0)
    found = os.fstat(fd)
    os.close(fd)
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
