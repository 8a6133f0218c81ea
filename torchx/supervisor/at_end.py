"""Runs the programs that a job names: for its end, and to decide at the end of an attempt whether there is another."""

from __future__ import annotations

import os
import signal

from torchx.supervisor import proctree
from torchx.supervisor.layout import AT_END_FILE
from torchx.supervisor.statefile import read_bytes

ALARM = "TORCHX_ALARM"
_PATIENCE_S = 60.0
_TRIES = 3
_IGNORED = (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGPIPE, signal.SIGTERM)  # in our own processes


def start(folder: str, alarm: str = "") -> int:
    """Start the program in a new session and return its pid; 0 if the job has none or it cannot be started.

    The file contains the arguments, an empty string, and the environment, each terminated by NUL.

    >>> start("/no/such/folder")
    0
    """
    try:
        return spawn(read_bytes(os.path.join(folder, AT_END_FILE)), alarm)
    except OSError:
        return 0


def spawn(words: bytes, alarm: str = "") -> int:
    """Like :func:`start`, for the content of such a file. ``alarm``: of the watchdog; empty: the job has ended."""
    try:
        argv, env = parts(words)
        env[ALARM.encode()] = alarm.encode()
        null = [(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_RDWR, 0) for fd in (0, 1, 2)]
        return proctree.spawn(argv[0], argv, env, file_actions=null, setsigdef=_IGNORED)
    except (OSError, ValueError, IndexError):
        return 0


def parts(words: bytes) -> tuple[list[bytes], dict[bytes, bytes]]:
    r"""Parse the arguments and the environment of the program.

    >>> parts(b"/bin/echo\0x\0\0A=1\0")
    ([b'/bin/echo', b'x'], {b'A': b'1'})
    """
    found = words.split(b"\0")[:-1]
    env = found[found.index(b"") + 1 :]
    return found[: found.index(b"")], dict(variable.split(b"=", 1) for variable in env)


def become(words: bytes) -> None:
    """Replace this process by the program."""
    argv, env = parts(words)
    for number in _IGNORED:
        signal.signal(number, signal.SIG_DFL)
    os.execve(argv[0], argv, env)  # noqa: S606  # chosen by the user who submitted the job


def may_start_again(argv: list[str], env: dict[str, str]) -> bool:
    """Run the program that decides on a restart. True if it exits with 0 within a minute; killed, it runs again.

    >>> may_start_again(["/bin/true"], {}), may_start_again(["/bin/false"], {}), may_start_again(["/no/such"], {})
    (True, False, False)
    """
    import subprocess  # not at the head: most jobs have no such program

    null = subprocess.DEVNULL
    for _ in range(_TRIES):
        try:
            code = subprocess.call(argv, env=env, stdin=null, stdout=null, stderr=null, timeout=_PATIENCE_S)
        except (OSError, subprocess.TimeoutExpired):
            return False
        if code != -signal.SIGKILL:
            break
    return code == 0
