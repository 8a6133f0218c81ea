"""The one connection to a login node that all commands share: OpenSSH's own multiplexing, started once and watched.

https://man.openbsd.org/ssh_config#ControlMaster. The user's ``~/.ssh/config`` decides how to get there (keys, agent,
jumps, ports). What is set here besides is only what an unattended connection needs, and nothing that the user has set.
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
from collections.abc import Mapping

from torchx.errors import CommandError, ConfigError, TransientError
from torchx.schedulers.batch.ssh.errors import LoginError, login_error
from torchx.settings import make_private, torchx_home

LOGIN_S = 30.0
"""How long a login without questions may take."""

DIALOGUE_S = 180.0
"""How long a person has for a password or a second factor."""

_PERSIST_S = 1800  # an idle connection ends then
_CONNECT_S = 10
_ANSWER_S = 30.0  # of the master, which is on this machine: one that is slow is not one that is gone
_ALIVE_S, _ALIVE_COUNT = 15, 3
_LONGEST_SOCKET = 80  # 104 on macOS, less the 17 characters that ssh adds while it makes the socket
_TARGET = re.compile(r"[A-Za-z0-9_.%+@:\[\]/~^-]+")
_UNATTENDED = (
    *("-o", "RequestTTY=no", "-o", "RemoteCommand=none", "-o", "PermitLocalCommand=no"),
    *("-o", "ClearAllForwardings=yes", "-o", "ForwardX11=no", "-o", "LogLevel=ERROR"),
)
# A session that finds no master must fail, not log in on its own.
_NEVER_ALONE = ("-o", "ControlMaster=no", "-o", "BatchMode=yes", "-o", "ProxyCommand=false")


class Master:
    """The shared connection to one login node.

    Args:
        target: ``host``, ``user@host``, a ``Host`` of ``~/.ssh/config``, or ``ssh://user@host:port``.

    Raises:
        ConfigError: ``target`` cannot be the name of a host.
    """

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
        """The beginning of the command line of one session; the remote command comes after it."""
        if self._is_users():
            return ["ssh", *_UNATTENDED, *_NEVER_ALONE, self.target]
        # No need to read the configuration again: the connection is there.
        return ["ssh", "-F", "none", "-S", self.socket, *_UNATTENDED, *_NEVER_ALONE, self.target]

    @property
    def socket(self) -> str:
        """Path of the control socket."""
        if not self._socket:
            users = self._users_socket()
            self._socket = users or os.path.join(_socket_folder(), f"{_prefix()}{_digest(self.target)}")
        return self._socket

    def is_up(self) -> bool:
        """Whether there is a master process. It may not have noticed yet that its network is gone."""
        return os.path.exists(self.socket) and self._tell("check")

    def ensure(self) -> None:
        """Log in, unless there is a connection. Processes that want one at the same time share one login.

        Raises:
            TransientError: the login node cannot be reached just now.
            LoginError: it does not let us in.
            ConfigError: ssh cannot read its configuration.
        """
        if not os.path.exists(self.socket):  # if it is there and nobody listens, the session says so
            self.login()

    def leave(self) -> None:
        """Leave a connection that does not answer to its other sessions; the next one is made anew."""
        self._tell("stop")

    def end(self) -> None:
        """End the connection, and whatever runs over it."""
        if os.path.exists(self.socket):
            self._tell("exit")

    # -- the login -------------------------------------------------------------------------------

    def login(self) -> None:
        """Log in, unless there is a master. Errors as of :meth:`ensure`."""
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
                    error.hint += "; where a password or a code is asked for, log in once from a terminal"
                raise error
        finally:
            os.close(lock)

    def _start(self, *, batch: bool) -> tuple[int, str]:
        """Start the master. With ``batch`` ssh asks no questions; else it talks to the terminal.

        Returns:
            ssh's exit code and what it said.
        """
        import tempfile

        # With questions, ssh shows them and nothing else: what went wrong is said by us, once.
        mode = ["-o", "BatchMode=yes"] if batch else ["-o", "BatchMode=no", "-o", "LogLevel=QUIET"]
        argv = ["ssh", *mode, *self._start_options(), "-N", "-f", self.target]
        # A file and not a pipe: the master, which stays, may keep it open.
        with tempfile.TemporaryFile() if batch else open(_TERMINAL, "wb") as said:
            try:
                code = subprocess.run(
                    argv,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=said,
                    timeout=LOGIN_S if batch else DIALOGUE_S,
                    check=False,
                    env={**os.environ, "LC_ALL": "C"},
                ).returncode
            except FileNotFoundError as e:
                raise _no_ssh() from e
            except subprocess.TimeoutExpired:
                return 255, "timed out"
            if not batch:
                return code, "" if code == 0 else "Permission denied"
            said.seek(0)
            return code, said.read().decode("utf-8", "replace")

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
        """What ``ssh -G`` says of the target: option in lower case to value. It connects to nothing."""
        if self._config is None:
            code, said, error = _ssh(["-G", self.target], LOGIN_S)
            if code:
                raise login_error(self.target, error)
            self._config = {key: value for key, _, value in (line.partition(" ") for line in said.splitlines())}
        return self._config

    def _users_socket(self) -> str:
        """The control socket of the user's own configuration, if it keeps connections; else empty.

        With it, a login that the user has made in another window counts here, too.
        """
        config: Mapping[str, str] = self._read_config()
        path = config.get("controlpath", "none")
        keeps = config.get("controlpersist", "no") not in ("no", "false")
        shared = config.get("controlmaster", "no") in ("auto", "yes", "true")
        return os.path.expanduser(path) if path != "none" and "%" not in path and keeps and shared else ""

    def _is_users(self) -> bool:
        return self.socket == self._users_socket()

    def _tell(self, command: str) -> bool:
        where = [] if self._is_users() else ["-F", "none", "-S", self.socket]
        return _ssh([*where, "-O", command, self.target], _ANSWER_S)[0] == 0


def end_all() -> None:
    """End all connections that were opened with the current ``$TORCHX_HOME``."""
    folder = _socket_folder()
    for name in os.listdir(folder):
        path = os.path.join(folder, name)
        if name.startswith(_prefix()) and not name.endswith(".lock"):
            _ssh(["-F", "none", "-S", path, "-O", "exit", "torchx"], _ANSWER_S)
            _unlink(path)
        if name.startswith(_prefix()) and name.endswith(".lock"):
            _unlink(path)


# -- sockets ---------------------------------------------------------------------------------------


def _socket_folder() -> str:
    """A folder that is ours alone, with a path that leaves room for a socket.

    Raises:
        ConfigError: somebody else can write into it.
    """
    folder = torchx_home("ssh")
    if len(os.path.join(folder, "x" * 18)) > _LONGEST_SOCKET:
        folder = f"/tmp/torchx-ssh-{os.getuid()}"  # noqa: S108  # made 0700, and checked
    try:
        if not os.path.isdir(folder):
            make_private(folder)
        status = os.lstat(folder)
    except OSError as e:
        raise ConfigError(f"folder `{folder}` for SSH connections cannot be made: {e.strerror}") from e
    if not os.path.isdir(folder) or os.path.islink(folder) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise ConfigError(
            f"folder `{folder}` for SSH connections is not ours alone",
            hint=f"remove it, or `chmod 700 {folder}` if it is yours",
        )
    return folder


def _prefix() -> str:
    # A home directory may be shared by machines; a connection is not.
    return _digest(f"{os.uname().nodename} {torchx_home()}")[:6] + "-"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:10]


def _lock(path: str, target: str) -> int:
    """A file that is locked until it is closed. Who holds it may be waiting for a person."""
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


def _ssh(args: list[str], timeout_s: float) -> tuple[int, str, str]:
    try:
        done = subprocess.run(
            ["ssh", *args],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
            env={**os.environ, "LC_ALL": "C"},
        )
    except FileNotFoundError as e:
        raise _no_ssh() from e
    except subprocess.TimeoutExpired:
        return 255, "", "timed out"
    return done.returncode, done.stdout, done.stderr


def _no_ssh() -> CommandError:
    return CommandError(
        "`ssh` is not installed, or not on PATH", argv=["ssh"], returncode=127, hint="install OpenSSH's client"
    )


def _needs_dialogue(said: str) -> bool:
    """Whether a person at a terminal could answer what ssh was not allowed to ask."""
    return "Permission denied" in said or "Host key verification failed" in said or "host key is known for" in said


def _has_terminal() -> bool:
    """Whether somebody is there to answer. Nobody expects a question from a thread that works beside them."""
    if threading.current_thread() is not threading.main_thread():
        return False
    try:
        os.close(os.open(_TERMINAL, os.O_RDWR | os.O_CLOEXEC))
    except OSError:
        return False
    return True
