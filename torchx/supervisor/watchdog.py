"""Detects that a job is silent, by its logs and marks of progress, and runs a program that inspects it.

All backends use it: the process that owns a job (supervisor, watcher, batch script) calls it regularly.
"""

from __future__ import annotations

import os
from contextlib import suppress

from torchx.supervisor import proctree
from torchx.supervisor.layout import HANG_FILE, STACKS_FILE, private

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from torchx.supervisor.layout import WatchdogRequest

_LOOKS = 20  # polls of the files before a job counts as silent
_MAX_LOOK_S = 30.0
_PATIENCE_S = 90.0  # timeout of the program that inspects the job
_BUSY = 3  # factor for the time that a job may be silent while its ranks compute: a slow start, a long evaluation
BUSY = "busy"
"""First line of the program's output if ranks compute. The sentence is the next line, or else the first, followed by
the stacks."""


class Watchdog:
    """Watches a job. Does nothing if ``options`` is empty.

    Args:
        options: see :class:`torchx.supervisor.layout.WatchdogRequest`.
        env: of that program.
        signs: returns a value that changes when the job writes something; None: sizes and times of the files.

    Attributes:
        due: when to call :meth:`turn`, by the monotonic clock; None: never.
        action: what to do when :meth:`turn` has reported that the job is silent.
        silent: whether the job is silent.
        text: the last report.
        stacks: of the last alarm, as text; empty if unknown.
    """

    def __init__(
        self, options: WatchdogRequest, env: dict[str, str], signs: Callable[[], object] | None = None
    ) -> None:
        self._options = options
        self._env = env
        self._signs = signs or (lambda: marks(options.get("files", ())))
        self._seconds: float = options.get("seconds", 0)
        self.action: str = options.get("action", "")
        self.due: float | None = None
        self.silent = False
        self.text = self.stacks = ""
        self._seen: object = None
        self._since = self._answer_by = 0.0
        self._patience = 1
        self._answer = -1
        self._said = b""

    def begin(self, now: float) -> None:
        """Start to watch a new attempt."""
        if self._seconds:
            self._hang_up()
            self._seen, self._since, self._patience = self._signs(), now, 1
            self.silent, self.due = False, now

    def forget(self) -> None:
        """Stop watching, because the attempt is being ended."""
        self.due = None

    def turn(self, now: float) -> str | None:
        """Check whether the job has written something. Returns a new report; None if there is none."""
        if self._answer_by:
            return self._wait_for_answer(now)
        self.due = now + min(self._seconds / _LOOKS, _MAX_LOOK_S)
        seen = self._signs()
        if seen != self._seen:
            self._seen, quiet_s, self._since, self._patience = seen, now - self._since, now, 1
            if self.silent:
                self.silent = False
                self.text = f"it continued after {span_text(quiet_s)}; before that, {self.text}"
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
        program = self._options["program"]
        with suppress(OSError):  # the report then says that nothing is known
            proctree.spawn(program[0], program, self._env, file_actions=streams)
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
        self.due = now + min(self._seconds / _LOOKS, _MAX_LOOK_S)
        if self._signs() != self._seen:  # it continued during the inspection
            self.silent = False
            return None
        busy = said.startswith(f"{BUSY}\n")
        if busy and self._patience == 1:
            self._patience, self.silent = _BUSY, False
            return None
        said, _, self.stacks = (said.partition("\n")[2] if busy else said).partition("\n")
        self.text = f"no output for {span_text(now - self._since)}: {said or 'what the ranks are doing is not known'}"
        return self.text


def put_down(folder: str, watchdog: Watchdog) -> None:
    """Write the last report to the job's folder."""
    with suppress(OSError):  # for example a full disk
        for name, text in ((STACKS_FILE, page(watchdog)), (HANG_FILE, watchdog.text)):
            path = os.path.join(folder, name)
            with open(f"{path}.new", "w", encoding="utf-8", opener=private) as f:
                f.write(text)
            os.replace(f"{path}.new", path)


def page(watchdog: Watchdog) -> str:
    """Return the last report with its stacks."""
    return f"{watchdog.text}\n{watchdog.stacks}\n"


def seen(folder: str) -> str:
    """Return the last report in a job's folder; empty if there is none."""
    try:
        with open(os.path.join(folder, HANG_FILE), encoding="utf-8", errors="replace") as f:
            return f.read()
    except OSError:
        return ""


def marks(paths: Iterable[str]) -> list[tuple[int, int]]:
    """Sizes and modification times of files, which change when one of them is written to."""
    return [_mark(path) for path in paths]


def _mark(path: str) -> tuple[int, int]:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)  # NFS refreshes its cached attributes when a file is opened
    except OSError:
        return (0, 0)
    found = os.fstat(fd)
    os.close(fd)
    return (found.st_size, found.st_mtime_ns)


def span_text(seconds: float) -> str:
    """Format seconds for people.

    >>> span_text(12), span_text(600), span_text(5400)
    ('12 s', '10 min', '1 h 30 min')
    """
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s"
    return f"{whole // 60} min" if whole < 3600 else f"{whole // 3600} h {whole // 60 % 60} min"
