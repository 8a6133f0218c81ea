"""Login nodes for tests: real OpenSSH servers on loopback, each with keys and a configuration of its own, and their faults."""

from __future__ import annotations

import contextlib
import os
import selectors
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tests import ports

PROGRAMS = {
    "sshd": "openssh-server",
    "ssh": "openssh-client",
    "rsync": "rsync",
    "tcsh": "tcsh",
    "fish": "fish",
}


def install() -> None:
    """Install what is missing, as root; quick when nothing is."""
    missing = sorted({package for program, package in PROGRAMS.items() if which(program) is None})
    if missing:
        env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        for words in (["update"], ["install", "-y", "--no-install-recommends", *missing]):
            done = subprocess.run(["apt-get", "-qq", *words], env=env, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr


def which(program: str) -> str | None:
    return shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin:/sbin")


class Sshd:
    """One server; its users are those of this machine, and come in by the key of :class:`Keys`.

    Args:
        folder: becomes its own: configuration, host key, log.
        options: further lines of ``sshd_config``, for example a ``ForceCommand``.
    """

    def __init__(self, folder: Path, authorized_keys: Path, *options: str) -> None:
        self.folder = folder
        folder.mkdir(parents=True)
        self.port = ports.free()
        self._process: subprocess.Popen[bytes] | None = None
        self.host_key = folder / "host_key"
        make_key(self.host_key)
        lines = [
            f"Port {self.port}",
            "ListenAddress 127.0.0.1",
            f"HostKey {self.host_key}",
            f"AuthorizedKeysFile {authorized_keys}",
            "PermitRootLogin prohibit-password",
            "PasswordAuthentication no",
            "KbdInteractiveAuthentication no",
            "UsePAM no",
            "StrictModes no",
            "PidFile none",
            "PrintMotd no",
            "LogLevel VERBOSE",
            *options,
        ]
        (folder / "sshd_config").write_text("\n".join(lines) + "\n")

    @property
    def pid(self) -> int:
        assert self._process is not None, "the server is not up"
        return self._process.pid

    def start(self) -> None:
        """Comes up, and takes connections when this returns."""
        os.makedirs("/run/sshd", mode=0o755, exist_ok=True)  # sshd's own, for its unprivileged half
        program = which("sshd")
        assert program is not None
        argv = [program, "-D", "-e", "-f", str(self.folder / "sshd_config")]
        with open(self.folder / "log", "ab") as log:
            self._process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self._until(lambda: _listens(self.port))
        self._until(lambda: not self.connections())  # the question was one, too

    def stop(self) -> None:
        """Takes no new connections, and drops those that there are."""
        if self._process is not None:
            connections = self.connections()
            self._process.terminate()
            self._process.wait(60)
            self._process = None
            _kill(connections)

    def _until(self, condition: Callable[[], bool]) -> None:
        assert self._process is not None
        deadline = time.monotonic() + 60
        while not condition():
            assert self._process.poll() is None and time.monotonic() < deadline, (self.folder / "log").read_text()
            time.sleep(0.02)

    def connections(self) -> list[int]:
        """Ids of the server's processes that each serve one connection."""
        return children(self.pid)

    def cut(self) -> int:
        """Kill the processes that serve connections, as the kernel's memory killer might; returns how many there were.

        The commands that run under them are left alone, as they are when a login node loses its network.
        """
        return _kill(self.connections())

    def logins(self) -> int:
        """How often somebody has logged in."""
        return (self.folder / "log").read_text().count("Accepted publickey")


class Keys:
    """A person's keys, configuration and list of known hosts, in a folder that stands for ``~/.ssh``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(mode=0o700, parents=True)
        self.key = folder / "id"
        make_key(self.key)
        self.authorized = folder / "authorized_keys"
        shutil.copy(f"{self.key}.pub", self.authorized)
        self.known_hosts = folder / "known_hosts"
        self.known_hosts.touch()
        self.config = folder / "config"
        self.config.touch()

    def knows(self, server: Sshd, port: int | None = None) -> None:
        """Put the server's host key on record."""
        public = Path(f"{server.host_key}.pub").read_text().split()
        with self.known_hosts.open("a") as f:
            f.write(f"[127.0.0.1]:{port or server.port} {public[0]} {public[1]}\n")

    def host(self, name: str, port: int, *options: str) -> None:
        """Add a ``Host`` to the configuration."""
        lines = [
            f"Host {name}",
            "HostName 127.0.0.1",
            f"Port {port}",
            "User root",
            f"UserKnownHostsFile {self.known_hosts}",
            "IdentityAgent none",
            *options,
            "ConnectTimeout 60",  # a server on a busy machine may take its time
        ]
        if not any(option.startswith("IdentityFile") for option in options):
            lines += [f"IdentityFile {self.key}", "IdentitiesOnly yes"]
        with self.config.open("a") as f:
            f.write("\n  ".join(lines) + "\n")

    def prefer(self, name: str, *options: str) -> None:
        """From now on these options of a ``Host`` count, and not what was said of them before: in ssh_config(5) the first
        value is the one that is used."""
        self.config.write_text("\n  ".join([f"Host {name}", *options]) + "\n" + self.config.read_text())

    def program(self, folder: Path) -> Path:
        """A folder for PATH whose ``ssh`` reads this configuration: the real one finds ``~/.ssh`` through the system's list of users."""
        folder.mkdir(exist_ok=True)
        program = folder / "ssh"
        program.write_text(f'#!/bin/sh\nexec {which("ssh")} -F "{self.config}" "$@"\n')
        program.chmod(0o755)
        return folder


class Link:
    """The network between two ends: a TCP proxy on loopback that can be stalled and cut.

    Args:
        target: a port of this machine, or the path of a socket.
    """

    def __init__(self, target: int | str) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._flows = threading.Event()
        self._flows.set()
        self.carried = 0
        """Bytes that came through so far, both ways."""
        self._cut_at: int | None = None
        self._open = True
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def stall(self) -> None:
        """From now on nothing comes through, and nobody is told: as when a cable is pulled."""
        self._flows.clear()

    def flow(self) -> None:
        """Undo :meth:`stall`."""
        self._flows.set()

    def cut(self) -> None:
        """Reset all connections."""
        pairs, self._pairs = self._pairs, []
        for pair in pairs:
            for end in pair:
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)

    def cut_after(self, more: int | None) -> None:
        """Reset all connections once just so many more bytes have come through; None: do not."""
        self._cut_at = None if more is None else self.carried + more

    def close(self) -> None:
        self._open = False
        self.flow()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()
        for thread in self._threads:
            thread.join(60)

    def _accept(self) -> None:
        while self._open:
            try:
                near, _ = self._listener.accept()
                far = self._connect()
            except OSError:
                continue
            self._pairs.append((near, far))
            thread = threading.Thread(target=self._carry, args=(near, far), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _connect(self) -> socket.socket:
        if isinstance(self._target, int):
            return socket.create_connection(("127.0.0.1", self._target))
        far = socket.socket(socket.AF_UNIX)
        try:
            far.connect(self._target)
        except BaseException:
            far.close()
            raise
        return far

    def _carry(self, near: socket.socket, far: socket.socket) -> None:
        other = {near: far, far: near}
        with near, far, selectors.DefaultSelector() as ready:
            ready.register(near, selectors.EVENT_READ)
            ready.register(far, selectors.EVENT_READ)
            while True:
                for key, _ in ready.select():
                    end: socket.socket = key.fileobj  # type: ignore[assignment]
                    self._flows.wait()
                    try:
                        data = end.recv(1 << 16)
                        if self._cut_at is not None:
                            data = data[: self._cut_at - self.carried]  # what is beyond does not come through
                        other[end].sendall(data)
                        if not data:  # the end of one way; the other one goes on
                            other[end].shutdown(socket.SHUT_WR)
                        self.carried += len(data)
                        if self._cut_at is not None and self.carried >= self._cut_at:
                            self._cut_at = None
                            self.cut()
                    except OSError:
                        return
                    if not data:
                        ready.unregister(end)
                        if not ready.get_map():
                            return


def make_key(path: Path) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "test", "-f", str(path)], check=True)


def children(pid: int) -> list[int]:
    """Those that have not ended."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{pid}/children") as f:
        return [child for child in map(int, f.read().split()) if is_alive(child)]
    return []


def is_alive(pid: int) -> bool:
    """Whether it runs: a process that has ended may stay on record until its parent has asked."""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except OSError:
        return False


def _kill(pids: list[int]) -> int:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return len(pids)


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


@contextlib.contextmanager
def running(server: Sshd) -> Iterator[Sshd]:
    server.start()
    try:
        yield server
    finally:
        server.stop()
