"""A process inside a container whose engine loses it, over a socket of the test's own."""

from __future__ import annotations

import socket
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.schedulers.docker.test_plain_http import Server
from torchx.errors import BackendError, NotFoundError, NotSupportedError
from torchx.schedulers.docker import inside
from torchx.schedulers.docker.inside import ContainerProcess
from torchx.schedulers.docker.plain_http import EngineHttp
from torchx.schedulers.docker_scheduler import create_scheduler
from torchx.schedulers.kit.inside import Tty
from torchx.specs.api import AppDef, Resource, Role

GONE = b'HTTP/1.0 404 Not Found\r\n\r\n{"message":"No such exec instance: e"}'


@pytest.mark.parametrize(
    ("answer", "reason"), [(GONE, "No such exec instance"), (b"", "closed the connection")], ids=["removed", "stopped"]
)
def test_the_end_of_a_lost_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: bytes, reason: str) -> None:
    """If the container is removed, or the engine stops, the exit code is not known, and the error says so."""
    monkeypatch.chdir(tmp_path)
    path = "/proc/self/cwd/s"  # a socket's path has 108 characters at most
    answers = [b'HTTP/1.0 201 Created\r\n\r\n{"Id":"e"}', b"HTTP/1.1 101 UPGRADED\r\n\r\n", answer]
    with closing(Server(path, answers)):
        process = ContainerProcess(EngineHttp({"DOCKER_HOST": f"unix://{path}"}), "c", ["true"], None)
        with process:
            assert process.read() is None
            with pytest.raises(BackendError, match=f"exit code of the command is not known: .*{reason}"):
                process.wait()


class Engine:
    """Starts processes that have ended, and records the sizes of their terminals."""

    def __init__(self) -> None:
        self.sizes: list[dict[str, int]] = []

    def call(self, _: str, path: str, params: Any = None, *, body: Any = None) -> Any:
        if path == "/exec/e/resize":
            self.sizes.append(params)
        return {"Id": "e"}

    def upgrade(self, *_: object) -> tuple[socket.socket, bytes]:
        ours, theirs = socket.socketpair()
        theirs.close()
        return ours, b""


def test_sizes_of_a_terminal_are_sent_one_after_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """Podman loses the second of two that come within a millisecond or so: there are 20 ms at least between them."""
    engine, naps = Engine(), list[float]()
    clock = iter([100.0, 100.0, 100.005, 100.02, 200.0, 200.0])
    with ContainerProcess(engine, "c", ["sh"], Tty(63, 17)) as process:  # type: ignore[arg-type]
        with monkeypatch.context() as patch:
            patch.setattr(inside, "time", SimpleNamespace(monotonic=lambda: next(clock), sleep=naps.append))
            process._mark.who = "6"
            for columns in (40, 41, 42):
                process.resize(columns, 9)
        assert process.read() is None
    assert naps == [0.0, pytest.approx(0.015), 0.0]
    assert engine.sizes == [{"h": 9, "w": columns} for columns in (40, 41, 42)]


def test_who_cannot_be_entered() -> None:
    """A replica that has ended, and one of an engine that only the given client reaches."""
    pytest.importorskip("docker")
    from tests.schedulers.docker.fake_docker import FakeDocker

    fake = FakeDocker()
    scheduler = create_scheduler("s", docker_client=fake)
    role = Role("r", "img", entrypoint="prog", resource=Resource(cpu=1, gpu=0, memMB=64))
    app_id = scheduler.submit(AppDef("a", [role]), {})
    with pytest.raises(NotSupportedError, match="cannot carry a stream"):
        scheduler.enter(app_id, "r", 0, ["true"])
    [made] = fake.containers_made
    fake.set(made, "exited")
    with pytest.raises(NotFoundError, match=f"replica r/0 of `{app_id}` is not running: it is SUCCEEDED"):
        scheduler.archive(app_id, "r", 0, "/x", into=False)
