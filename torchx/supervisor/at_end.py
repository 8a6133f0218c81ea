"""The program that is started when a job has ended, where the job's folder names one."""

from __future__ import annotations

import os
import signal
from contextlib import suppress

from torchx.supervisor.layout import AT_END_FILE
from torchx.supervisor.statefile import StateFileError, read_bytes

ALARM = "TORCHX_ALARM"
_IGNORED = (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGPIPE, signal.SIGTERM)  # by our own processes


def start(folder: str, alarm: str = "") -> int:
    """Starts it, in a session of its own; returns its pid, 0 when there is none.

    The file has its arguments, an empty one, and its environment, each with a NUL at its end.

    >>> start("/no/such/folder")
    0
    """
    try:
        return spawn(_words(folder), alarm)
    except (OSError, StateFileError):
        return 0


def spawn(words: bytes, alarm: str = "") -> int:
    """Starts the program that the content of such a file names; returns as :func:`start` does.

    Args:
        alarm: for which of several it is started; empty: for none.
    """
    try:
        argv, env = parts(words)
        env[ALARM.encode()] = alarm.encode()
        null = [(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_RDWR, 0) for fd in (0, 1, 2)]
        return os.posix_spawn(argv[0], argv, env, file_actions=null, setsid=True, setsigdef=_IGNORED)
    except (OSError, ValueError, IndexError):
        return 0


def is_it(folder: str, pid: int) -> bool:
    """Whether a process is the program of this job: it goes on when who started it is killed.

    >>> is_it("/no/such/folder", 1)
    False
    """
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read().split(b"\0")[:-1] == parts(_words(folder))[0]
    except (OSError, ValueError):
        return False


def parts(words: bytes) -> tuple[list[bytes], dict[bytes, bytes]]:
    r"""Arguments and environment of the program.

    >>> parts(b"/bin/echo\0x\0\0A=1\0")
    ([b'/bin/echo', b'x'], {b'A': b'1'})
    """
    found = words.split(b"\0")[:-1]
    env = found[found.index(b"") + 1 :]
    return found[: found.index(b"")], dict(variable.split(b"=", 1) for variable in env)


def become(words: bytes) -> None:
    """The program takes the place of this process, which has nothing else to do."""
    argv, env = parts(words)
    for number in _IGNORED:
        signal.signal(number, signal.SIG_DFL)
    os.execve(argv[0], argv, env)  # noqa: S606  # of whoever submitted the job


def run(folder: str) -> None:
    """Starts it, and waits for its end: whoever started it may be all that keeps it alive."""
    pid = start(folder)
    if pid:
        with suppress(ChildProcessError):
            os.waitpid(pid, 0)


def _words(folder: str) -> bytes:
    return read_bytes(os.path.join(folder, AT_END_FILE))
