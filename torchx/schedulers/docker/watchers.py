"""Starts the watcher of a job, and holds the lock that ensures there is only one."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torchx.schedulers.docker.plain_http import ENVIRONMENT, EngineHttp
from torchx.settings import FIRST_SAMPLE_S, SAMPLE_S

if TYPE_CHECKING:
    import subprocess

    Process = subprocess.Popen[bytes]

GO = b"go"
"""Written to the stdin of a watcher when its job is submitted, and followed by the program to run at the end."""

# All that it needs to start and to reach the engine. No other variables: they may hold secrets of the caller.
_KEPT_ENVIRONMENT = (
    *("PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "LANG", "LC_ALL", "LC_CTYPE", "PYTHONUTF8", "TMPDIR"),
    *ENVIRONMENT,
    *("HOME", "USER", "SSH_AUTH_SOCK", "PYTHONPATH"),
)
_HAS_NAMES = sys.platform == "linux"  # abstract socket names, which are in no file system


def start(app_id: str, environ: Mapping[str, str], every_s: float = SAMPLE_S, *, later: bool = False) -> Process:
    """Start a watcher, as a process that forks and end at once. It exits if the job already has one.

    Pass :data:`GO` to ``communicate`` when the job is submitted; without it, the watcher cancels what was submitted. It
    samples the resource usage every ``every_s`` seconds (0: never); if it starts ``later``, it does nothing else, and
    sleeps until the first sample is due. Raises OSError if no process can be started.
    """
    import subprocess

    program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "watcher.py")
    kept = {name: environ[name] for name in _KEPT_ENVIRONMENT if name in environ}
    delay_s = min(FIRST_SAMPLE_S, every_s) if later else 0.0
    argv = [sys.executable, "-I", "-S", program, app_id, f"{every_s:g}", f"{delay_s:g}"]
    nothing = subprocess.DEVNULL
    return subprocess.Popen(argv, env=kept, stdin=subprocess.PIPE, stdout=nothing, stderr=nothing)


def engine_environment(given: Any | None, environ: Mapping[str, str]) -> dict[str, str] | None:
    """Return the environment by which a watcher reaches the engine of a ``given`` client;
    None if only this process can.
    """
    found = dict(environ)
    if given is not None:
        for name in ENVIRONMENT:
            found.pop(name, None)
        path = getattr(getattr(given.api, "_custom_adapter", None), "socket_path", None)
        url = given.api.base_url
        found["DOCKER_HOST"] = f"unix://{path}" if path else url if url.startswith("http://") else "none://"
    try:
        EngineHttp(found)
    except ValueError:
        return None
    return found


def place() -> str:
    """Identify the scope of the lock: this machine, or a network namespace on it."""
    try:
        network = os.stat("/proc/self/ns/net").st_ino if _HAS_NAMES else 0
    except OSError:
        network = 0
    return f"{os.uname().nodename}/{network}"


def lives(app_id: str) -> bool:
    """Whether the job has a watcher at this :func:`place`."""
    if not _HAS_NAMES:
        lock = _held_file(app_id)
        if lock is not None:
            lock.close()
        return lock is None
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(_name(app_id))
        except OSError:
            return False
        return True


def hold(app_id: str) -> socket.socket | _File | None:
    """Acquires the lock of a job's watcher, until it is closed or the process ends; None if it is held already."""
    if not _HAS_NAMES:
        return _held_file(app_id)
    lock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        lock.bind(_name(app_id))
    except OSError:
        lock.close()
        return None
    return lock


def _name(app_id: str) -> str:
    return f"\0torchx-warden/{app_id}"


class _File:
    """A locked file, which is removed when it is closed."""

    def __init__(self, path: str, fd: int) -> None:
        self._path = path
        self._fd = fd

    def close(self) -> None:
        if self._fd >= 0:
            os.unlink(self._path)
            os.close(self._fd)
            self._fd = -1

    __del__ = close


def _held_file(app_id: str) -> _File | None:
    import fcntl
    import tempfile

    path = os.path.join(tempfile.gettempdir(), f"torchx-warden-{os.getuid()}-{app_id}")
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.stat(path).st_ino == os.fstat(fd).st_ino:
                return _File(path, fd)
        except FileNotFoundError:
            pass  # the previous holder has just removed it
        except OSError:
            os.close(fd)
            return None
        os.close(fd)
