"""The connection to a login node that all commands share, by OpenSSH's multiplexing.

https://man.openbsd.org/ssh_config#ControlMaster. The user's ``~/.ssh/config`` decides how to connect (keys, agent,
jumps, ports). This module adds only what an unattended connection needs, and overrides nothing that the user has set.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import subprocess
import threading
import time
from typing import IO

from torchx.errors import CommandError, ConfigError, TransientError
from torchx.schedulers.batch.ssh.errors import LoginError, login_error
from torchx.settings import make_private, torchx_home

LOGIN_S = 30.0
"""Time limit of a login without prompts."""

DIALOGUE_S = 180.0
"""Time limit for a person to enter a password or a second factor."""

_PERSIST_S = 1800  # when idle
_CONNECT_S = 10
_ANSWER_S = 30.0  # of the local master process: long, because a slow one is still alive
_ALIVE_S, _ALIVE_COUNT = 15, 3
_LONGEST_SOCKET = 80  # 104 on macOS, minus the 17 characters that ssh appends while it creates the socket
_TARGET = re.compile(r"[A-Za-z0-9_.%+@:\[\]/~^-]+")
_UNATTENDED = (
    *("-o", "RequestTTY=no", "-o", "RemoteCommand=none", "-o", "PermitLocalCommand=no"),
    *("-o", "ClearAllForwardings=yes", "-o", "ForwardX11=no", "-o", "LogLevel=ERROR"),
)
# A session without a master must fail instead of logging in by itself.
_NEVER_ALONE = ("-o", "ControlMaster=no", "-o", "BatchMode=yes", "-o", "ProxyCommand=false")


class Master:
    """The shared connection to one login node, any target of ``ssh``; raises ConfigError if it is not a valid one."""

    def __init__(self, target: str) -> None:
        if not _TARGET.fullmatch(target) or target.startswith("-"):
            raise ConfigError(
                f"`{target}` is not an SSH target", hint="write `host`, `user@host`, or a `Host` of ~/.ssh/config"
            )
        self.target = target
        self._socket = ""
        self._config: dict[str, str] | None = None

    # -- sessions --------------------------------------------------------------------------------

    def session(self) -> list[str]:
        """Return the ``ssh`` command line of one session, up to the remote command."""
        if self._is_users():
            return ["ssh", *_UNATTENDED, *_NEVER_ALONE, self.target]
        # The connection exists, so ssh need not read the configuration.
        return ["ssh", "-F", "none", "-S", self.socket, *_UNATTENDED, *_NEVER_ALONE, self.target]

    @property
    def socket(self) -> str:
        """Path of the control socket."""
        if not self._socket:
            users = self._users_socket()
            self._socket = users or os.path.join(_socket_folder(), f"{_prefix()}{_digest(self.target)}")
        return self._socket

    def is_up(self) -> bool:
        """Whether a master process runs. It may not have noticed yet that the network is down."""
        return os.path.exists(self.socket) and self._control("check")

    def ensure(self) -> None:
        """Log in, unless there is a connection. Concurrent processes share one login.

        Raises:
            TransientError: the login node cannot be reached at the moment.
            LoginError: it rejects the login.
            ConfigError: ssh cannot read its configuration.
        """
        if not os.path.exists(self.socket):  # a session reports a stale socket
            self.login()

    def abandon(self) -> None:
        """Abandon an unresponsive connection to its current sessions; the next one opens a new connection."""
        self._control("stop")

    # -- the login -------------------------------------------------------------------------------

    def login(self) -> None:
        """Log in, unless a master runs. Errors: see :meth:`ensure`."""
        lock = _lock(self.socket + ".lock", self.target)
        try:
            if self.is_up():
                return  # another process was quicker
            if not self._is_users():
                _unlink(self.socket)
            code, said = self._start(batch=True)
            if code and _needs_dialogue(said) and _has_terminal():
                code, said = self._start(batch=False)
            if code:
                error = login_error(self.target, said)
                if isinstance(error, LoginError) and _needs_dialogue(said) and not _has_terminal():
                    error.hint += "; if a password or a code is needed, log in once from a terminal"
                raise error
        finally:
            os.close(lock)

    def _start(self, *, batch: bool) -> tuple[int, str]:
        """Start the master; returns exit code and stderr of ssh, which may ask on the terminal without ``batch``."""
        import tempfile

        # In a dialogue ssh shows its prompts only; torchx reports errors.
        mode = ["-o", "BatchMode=yes"] if batch else ["-o", "BatchMode=no", "-o", "LogLevel=QUIET"]
        args = [*mode, *self._start_options(), "-N", "-f", self.target]
        # A file, not a pipe: the master process may keep it open.
        with tempfile.TemporaryFile() if batch else open(_TERMINAL, "wb") as said:
            code, _, error = _ssh(args, LOGIN_S if batch else DIALOGUE_S, stderr=said)
            if not batch:
                return code, error or ("Permission denied" if code else "")
            said.seek(0)
            return code, error or said.read().decode("utf-8", "replace")

    def _start_options(self) -> list[str]:
        config = self._read_config()
        options = [*_UNATTENDED]
        if not self._is_users():
            options += ["-M", "-S", self.socket, "-o", f"ControlPersist={_PERSIST_S}"]
        if config.get("connecttimeout", "none") == "none":
            options += ["-o", f"ConnectTimeout={_CONNECT_S}"]
        if config.get("serveraliveinterval", "0") == "0":
            options += ["-o", f"ServerAliveInterval={_ALIVE_S}", "-o", f"ServerAliveCountMax={_ALIVE_COUNT}"]
        return options

    # -- the user's configuration ----------------------------------------------------------------

    def _read_config(self) -> dict[str, str]:
        """Return the options that ``ssh -G`` reports for the target, names in lower case. It does not connect."""
        if self._config is None:
            code, said, error = _ssh(["-G", self.target], LOGIN_S)
            if code:
                raise login_error(self.target, error)
            self._config = {key: value for key, _, value in (line.partition(" ") for line in said.splitlines())}
        return self._config

    def _users_socket(self) -> str:
        """Return the control socket of the user's own configuration, if that shares connections; otherwise empty.

        Then a login that the user made in another window counts.
        """
        config = self._read_config()
        path = os.path.expanduser(config.get("controlpath", "none"))
        keeps = config.get("controlpersist", "no") not in ("no", "false")
        shared = config.get("controlmaster", "no") in ("auto", "yes", "true")
        there = "%" not in path and os.path.isdir(os.path.dirname(path))  # without its folder ssh shares nothing
        return path if there and keeps and shared else ""

    def _is_users(self) -> bool:
        return self.socket == self._users_socket()

    def _control(self, command: str) -> bool:
        where = [] if self._is_users() else ["-F", "none", "-S", self.socket]
        return _ssh([*where, "-O", command, self.target], _ANSWER_S)[0] == 0


def end_all() -> None:
    """Close all connections that were opened with the current ``$TORCHX_HOME``."""
    folder = _socket_folder()
    for name in os.listdir(folder):
        path = os.path.join(folder, name)
        if not name.startswith(_prefix()):
            continue
        if not name.endswith(".lock"):
            _ssh(["-F", "none", "-S", path, "-O", "exit", "torchx"], _ANSWER_S)
        _unlink(path)


# -- sockets ---------------------------------------------------------------------------------------


def _socket_folder() -> str:
    """Return a private folder with a path short enough for a socket.

    Raises ConfigError if other users can write to it.
    """
    folder = torchx_home("ssh")
    if len(os.path.join(folder, "x" * 18)) > _LONGEST_SOCKET:
        folder = f"/tmp/torchx-ssh-{os.getuid()}"  # noqa: S108  # created with mode 0700, and checked
    try:
        if not os.path.isdir(folder):
            make_private(folder)
        status = os.lstat(folder)
    except OSError as e:
        raise ConfigError(f"folder `{folder}` for SSH connections cannot be made: {e.strerror}") from e
    if not os.path.isdir(folder) or os.path.islink(folder) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise ConfigError(
            f"folder `{folder}` for SSH connections is accessible to other users",
            hint=f"remove it, or `chmod 700 {folder}` if it is yours",
        )
    return folder


def _prefix() -> str:
    # Machines may share a home directory, but not a connection.
    return _digest(f"{os.uname().nodename} {torchx_home()}")[:6] + "-"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:10]


def _lock(path: str, target: str) -> int:
    """Lock a file until it is closed. The holder may be waiting for a person."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    deadline = time.monotonic() + DIALOGUE_S
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return fd
        except OSError:
            if time.monotonic() > deadline:
                os.close(fd)
                raise TransientError(
                    f"another process has been logging in to `{target}` for {DIALOGUE_S:g} s"
                ) from None
            time.sleep(0.05)


def _unlink(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


# -- programs and people ---------------------------------------------------------------------------

_TERMINAL = "/dev/tty"


def c_locale() -> dict[str, str]:
    """Return this process's environment, with messages of commands in English."""
    return {**os.environ, "LC_ALL": "C"}


def _ssh(args: list[str], timeout_s: float, *, stderr: IO[bytes] | None = None) -> tuple[int, str, str]:
    """Run ssh; return exit code, stdout and stderr. With a file for ``stderr`` it returns neither output."""
    try:
        done = subprocess.run(
            ["ssh", *args],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL if stderr else subprocess.PIPE,
            stderr=stderr or subprocess.PIPE,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
            env=c_locale(),
        )
    except FileNotFoundError as e:
        said, hint = "`ssh` is not installed, or not on PATH", "install OpenSSH's client"
        raise CommandError(said, argv=["ssh"], returncode=127, hint=hint) from e
    except subprocess.TimeoutExpired:
        return 255, "", "timed out"
    return done.returncode, done.stdout or "", done.stderr or ""


def _needs_dialogue(said: str) -> bool:
    """Whether a person at a terminal could answer the questions that ssh was not allowed to ask."""
    return "Permission denied" in said or "Host key verification failed" in said or "host key is known for" in said


def _has_terminal() -> bool:
    """Whether a person can answer. Background threads must not prompt."""
    if threading.current_thread() is not threading.main_thread():
        return False
    try:
        os.close(os.open(_TERMINAL, os.O_RDWR | os.O_CLOEXEC))
    except OSError:
        return False
    return True
