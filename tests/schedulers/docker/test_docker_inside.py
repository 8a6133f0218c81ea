"""A process inside a container whose engine loses it, over a socket of the test's own."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from tests.schedulers.docker.test_plain_http import Server
from torchx.errors import BackendError, NotFoundError, NotSupportedError
from torchx.schedulers.docker.inside import ContainerProcess
from torchx.schedulers.docker.plain_http import EngineHttp
from torchx.schedulers.docker_scheduler import create_scheduler
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
