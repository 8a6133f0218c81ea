"""A login node on loopback for each test that wants one; no connection, server or file of it is left behind."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.backends.ssh import sshd
from tests.backends.ssh.sshd import Keys, Link, Sshd
from torchx.schedulers.batch.ssh import master as ssh_master
from torchx.schedulers.batch.ssh.runner import SSHCommandRunner


@pytest.fixture(scope="session", autouse=True)
def _installed() -> None:
    if sys.platform != "linux" or os.geteuid() != 0:
        pytest.skip("needs root on Debian or Ubuntu: it installs and starts OpenSSH servers")
    sshd.install()


@pytest.fixture
def there(tmp_path: Path) -> Path:
    """The home folder on the login node."""
    home = tmp_path / "there"
    home.mkdir()
    return home


@pytest.fixture
def keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Keys]:
    """What the user has in ``~/.ssh``; all connections are ended in the end."""
    mine = Keys(tmp_path / "dot-ssh")
    monkeypatch.setenv(
        "PATH", f"{mine.program(tmp_path / 'bin')}:{os.path.dirname(sys.executable)}:{os.environ['PATH']}"
    )
    yield mine
    ssh_master.end_all()
    with contextlib.suppress(OSError):
        os.rmdir(f"/tmp/torchx-ssh-{os.getuid()}")


Serve = Callable[..., Sshd]


@pytest.fixture
def serve(tmp_path: Path, keys: Keys, there: Path) -> Iterator[Serve]:
    """Start a login node; its host key is known. Arguments: its name, further lines of its configuration."""
    servers: list[Sshd] = []

    def start(name: str = "login", *options: str, host: bool = True, env: str = "") -> Sshd:
        setenv = f"SetEnv HOME={there} TORCHX_HOME={there}/.torchx {env}"
        server = Sshd(tmp_path / f"sshd-{name}", keys.authorized, setenv, *options)
        servers.append(server)
        server.start()
        keys.knows(server)
        if host:
            keys.host(name, server.port)
        return server

    yield start
    for server in servers:
        server.stop()


@pytest.fixture
def login(serve: Serve) -> Sshd:
    """A login node, ``login`` in the user's configuration."""
    return serve()


@pytest.fixture
def runner(login: Sshd) -> SSHCommandRunner:
    return SSHCommandRunner("login")


@pytest.fixture
def link(serve: Serve, keys: Keys) -> Iterator[Link]:
    """A network between us and the login node ``far``, that can be stalled and cut."""
    server = serve("behind", host=False)
    between = Link(server.port)
    keys.knows(server, between.port)
    keys.host("far", between.port)
    yield between
    between.close()


class Endless:
    """A script for the login node that says when it runs, and ends with the test."""

    def __init__(self, folder: Path) -> None:
        self.began = folder / "began"
        self.goes_on = folder / "goes-on"
        self.goes_on.touch()
        self.script = f"touch {self.began}; while [ -e {self.goes_on} ]; do sleep 0.1; done"

    def end(self) -> None:
        self.goes_on.unlink(missing_ok=True)


@pytest.fixture
def endless(there: Path) -> Iterator[Endless]:
    made = Endless(there)
    yield made
    made.end()


@contextlib.contextmanager
def cut_when(server: Sshd, file: Path) -> Iterator[None]:
    """Cut the server's connections once the file is there."""
    over = threading.Event()

    def cut() -> None:
        while not file.exists():
            if over.wait(0.02):
                return
        server.cut()

    thread = threading.Thread(target=cut)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
