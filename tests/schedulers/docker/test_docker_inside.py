"""A process inside a container whose engine loses it, over a socket of the test's own."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from tests.schedulers.docker.test_plain_http import Server
from torchx.errors import BackendError
from torchx.schedulers.docker.inside import ContainerProcess
from torchx.schedulers.docker.plain_http import EngineHttp

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
