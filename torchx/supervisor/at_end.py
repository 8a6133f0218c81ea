"""The program that is started when a job has ended, where the job's folder names one."""
# ruff: noqa: SIM105  # contextlib costs more at start-up than it saves

from __future__ import annotations

import os
import signal

from torchx.supervisor.layout import AT_END_FILE
from torchx.supervisor.statefile import StateFileError, read_bytes

_IGNORED = (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGPIPE, signal.SIGTERM)  # by our own processes


def start(folder: str) -> int:
    """Starts it, in a session of its own; returns its pid, 0 when there is none.

    The file has its arguments, an empty one, and its environment, each with a NUL at its end.

    >>> start("/no/such/folder")
    0
    """
    try:
        argv, variables = _parts(folder)
        env = dict(variable.split(b"=", 1) for variable in variables)
        null = [(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_RDWR, 0) for fd in (0, 1, 2)]
        return os.posix_spawn(argv[0], argv, env, file_actions=null, setsid=True, setsigdef=_IGNORED)
    except (OSError, StateFileError, ValueError, IndexError):
        return 0


def is_it(folder: str, pid: int) -> bool:
    """Whether a process is the program of this job: it goes on when who started it is killed.

    >>> is_it("/no/such/folder", 1)
    False
    """
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read().split(b"\0")[:-1] == _parts(folder)[0]
    except (OSError, ValueError):
        return False


def _parts(folder: str) -> tuple[list[bytes], list[bytes]]:
    words = read_bytes(os.path.join(folder, AT_END_FILE)).split(b"\0")[:-1]
    return words[: words.index(b"")], words[words.index(b"") + 1 :]


def run(folder: str) -> None:
    """Starts it, and waits for its end: whoever started it may be all that keeps it alive."""
    pid = start(folder)
    if pid:
        try:
            os.waitpid(pid, 0)
        except ChildProcessError:
            pass
