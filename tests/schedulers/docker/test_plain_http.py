"""HTTP to an engine, over a socket of the test's own: answers, streams, and what is no answer."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from torchx.errors import BackendError, ParseError
from torchx.schedulers.docker.containers import list_jobs
from torchx.schedulers.docker.plain_http import EngineHttp, RefusedError, target
from torchx.schedulers.docker_scheduler import DockerScheduler, has_docker
from torchx.workspace.images.engine_errors import engine_errors, objects


def _is_whole(asked: bytes) -> bool:
    """Whether a request has arrived with its body."""
    end = (b"\r\n0\r\n\r\n",) if asked.startswith(b"PUT") else (b"\r\n\r\n", b"}")
    return asked.endswith(end)


class Server:
    """Answers each connection with the next of these texts, and closes it.

    Attributes:
        asked: the requests.
    """

    def __init__(self, path: str, answers: list[bytes]) -> None:
        self.asked: list[str] = []
        self._answers = answers
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(path)
        self._listener.listen(100)
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while self._answers:
            connection, _ = self._listener.accept()
            with connection:
                asked = b""
                while not _is_whole(asked) and (data := connection.recv(4096)):
                    asked += data
                self.asked.append(asked.decode())
                connection.sendall(self._answers.pop(0))

    def close(self) -> None:
        self._thread.join(50)
        self._listener.close()
        assert not self._thread.is_alive()


@pytest.fixture
def serve(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., tuple]]:
    """Starts a server with answers; returns it, and a client of it."""
    made: list[Server] = []
    folder = tmp_path_factory.mktemp("w")
    monkeypatch.chdir(folder)

    def start(*answers: str | bytes) -> tuple[Server, EngineHttp]:
        short = Path("/proc/self/cwd/s")  # a socket's path has 108 characters at most
        made.append(Server(str(short), [a.encode() if isinstance(a, str) else a for a in answers]))
        return made[-1], EngineHttp({"DOCKER_HOST": f"unix://{short}"})

    yield start
    for server in made:
        server.close()


def test_an_answer(serve: Callable[..., tuple]) -> None:
    """The body ends with the connection; the query is quoted."""
    server, engine = serve('HTTP/1.0 200 OK\r\nA: b\r\n\r\n{"a":"\u00e9"}')
    assert engine.get("/x/json", {"all": 1, "f": '{"l": "\u00e9&?"}'}) == {"a": "\u00e9"}
    assert server.asked[0].splitlines()[0] == "GET /x/json?all=1&f=%7B%22l%22%3A%20%22%C3%A9%26%3F%22%7D HTTP/1.0"


DEEP = "[" * 100_000 + "]" * 100_000


@pytest.mark.parametrize("body", ["[]", "null", "7", '"x"', ""])
def test_an_answer_of_another_kind(serve: Callable[..., tuple], body: str) -> None:
    """An engine answers with an object, and lists containers; anything else is an error of its own."""
    _, engine = serve(f"HTTP/1.0 200 OK\r\n\r\n{body}")
    with pytest.raises(ParseError, match="the engine answered `GET /x` with an unexpected "):
        engine.get("/x")


LABELLED = '"torchx.pytorch.org/app-id": "a", "torchx.pytorch.org/role-name": "r", "torchx.pytorch.org/replica-id": "0"'


@pytest.mark.parametrize(
    "body",
    ["{}", "null", '["x"]', "[[]]", "[null]", '[{"Labels": "x"}]', f'[{{"Names": [7], "Labels": {{{LABELLED}}}}}]'],
)
def test_a_list_of_another_shape(serve: Callable[..., tuple], body: str) -> None:
    """One line that says so, of the kind that the watcher survives."""
    _, engine = serve(f"HTTP/1.0 200 OK\r\n\r\n{body}")
    with pytest.raises(ParseError, match="unexpected"):
        list_jobs(engine, "x")


def test_an_answer_that_is_nested_too_deeply(serve: Callable[..., tuple]) -> None:
    """It is no answer, and no RecursionError."""
    _, engine = serve(f"HTTP/1.0 200 OK\r\n\r\n{DEEP}")
    with pytest.raises(ConnectionError, match="nested too deeply"):
        engine.get("/x")


def test_the_client_library_reads_another_shape() -> None:
    """What its code raises is the engine's answer; what ours raises is a bug, and not changed."""
    auth = pytest.importorskip("docker.auth")
    with (
        pytest.raises(ParseError, match=r"it failed: the engine's answer cannot be read: .*'int'"),
        engine_errors("it failed"),
    ):
        auth.resolve_index_name(7)
    with pytest.raises(ParseError, match="it failed: the engine's answer cannot be read: "), engine_errors("it failed"):
        json.loads(DEEP)
    with pytest.raises(KeyError), engine_errors("it failed"):
        raise KeyError("bug")
    with pytest.raises(ParseError, match="the engine sent the event `x`, which is not an object"):
        list(objects([{}, "x"]))


def test_a_refusal(serve: Callable[..., tuple]) -> None:
    """It has the status and the engine's message."""
    _, engine = serve('HTTP/1.0 404 Not Found\r\n\r\n{"message":"no such thing"}')
    with pytest.raises(RefusedError, match=r"HTTP 404: .*no such thing") as error:
        engine.get("/x")
    assert error.value.status == 404


def test_a_call_with_a_body(serve: Callable[..., tuple]) -> None:
    """It is sent as JSON; a response may be empty."""
    server, engine = serve("HTTP/1.0 201 Created\r\n\r\n{}", "HTTP/1.0 200 OK\r\n\r\n")
    assert engine.call("POST", "/x", body={"Cmd": ["true"]}) == {}
    assert engine.call("POST", "/x/resize", {"h": 3}) is None
    assert server.asked[0].startswith("POST /x HTTP/1.0\r\n")
    assert "Content-Type: application/json\r\nContent-Length: 17\r\n\r\n" in server.asked[0]
    assert server.asked[0].endswith('{"Cmd": ["true"]}')
    assert server.asked[1].startswith("POST /x/resize?h=3 HTTP/1.0\r\n")


def test_a_body_of_any_length(serve: Callable[..., tuple]) -> None:
    """It is sent in chunks, each after its length; the engine reports whether it accepted it."""
    server, engine = serve("HTTP/1.1 200 OK\r\n\r\n", "HTTP/1.1 403 Forbidden\r\n\r\nread-only")
    for refused in (False, True):
        with closing(engine.upload("/c/archive", {"path": "/a b"})) as upload:
            upload.write(b"x" * 17)
            upload.write(b"")
            if refused:
                with pytest.raises(RefusedError, match="read-only"):
                    upload.answer()
            else:
                upload.answer()
    assert server.asked[0].endswith("\r\n\r\n11\r\nxxxxxxxxxxxxxxxxx\r\n0\r\n\r\n")
    assert server.asked[0].startswith("PUT /c/archive?path=%2Fa%20b HTTP/1.1\r\n")


@pytest.mark.parametrize("answer", ["", "HTTP/1.0 200", "SSH-2.0-x\r\n\r\n", "HTTP/1.0 abc\r\n\r\n", "\r\n\r\n"])
def test_no_answer(serve: Callable[..., tuple], answer: str) -> None:
    """A lost connection, or another server, is a connection error."""
    _, engine = serve(answer)
    with pytest.raises(OSError):
        engine.get("/x")


def test_many_at_once(serve: Callable[..., tuple]) -> None:
    """Each gets its own response, in order; a lost one does not affect the others."""
    server, engine = serve("HTTP/1.0 204 No Content\r\n\r\n", "", "HTTP/1.0 409 Conflict\r\n\r\n{}")
    assert engine.post([target("/c/1/stop", {"t": 3}), "/c/2/stop", "/c/3/stop"]) == [204, 0, 409]
    assert server.asked[0].startswith("POST /c/1/stop?t=3 HTTP/1.0\r\n")
    assert "Content-Length: 0" in server.asked[0]


def test_nobody_listens(tmp_path: Path) -> None:
    """No engine, no answer."""
    engine = EngineHttp({"DOCKER_HOST": f"unix://{tmp_path}/none"})
    assert engine.post(["/x", "/y"]) == [0, 0]
    with pytest.raises(OSError):
        engine.get("/x")
    assert not engine.is_gone()
    assert EngineHttp({"DOCKER_HOST": f"unix://{tmp_path}/gone/none"}).is_gone()
    assert not EngineHttp({"DOCKER_HOST": "tcp://gone:1"}).is_gone()


def test_events(serve: Callable[..., tuple]) -> None:
    """They are split into lines, however the data arrives; the end of the stream is an error."""
    server, engine = serve('HTTP/1.0 200 OK\r\n\r\n{"a":1}\n\n{"a":2}\n{"a"')
    with closing(engine.events({"type": ["container"]}, 12.5)) as events:
        found = []
        with pytest.raises(ConnectionError):
            while True:
                found += events.wait(10)
    assert found == [{"a": 1}, {"a": 2}]
    assert "since=12.500000000" in server.asked[0]


def test_waiting_ends() -> None:
    """Without events, none are returned."""
    from torchx.schedulers.docker.plain_http import Events

    ours, theirs = socket.socketpair()
    with theirs, closing(Events(ours, b"")) as events:
        assert events.wait(0.0) == []
        theirs.sendall(b'{"a":3}\n')
        assert events.wait(10) == [{"a": 3}]


@pytest.mark.parametrize("host", ["npipe:////./pipe/docker_engine", "fd://", "none://", "docker"])
def test_ways_that_are_not_known(host: str) -> None:
    """They are rejected at once."""
    with pytest.raises(ValueError, match=host.partition(":")[0]):
        EngineHttp({"DOCKER_HOST": host})


@pytest.mark.parametrize("host", ["tcp://box:abc", "tcp://box:99999", "tcp://[::1"])
def test_an_address_that_is_invalid(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is rejected at once, and the job's scheduler reports it as such."""
    with pytest.raises(ValueError, match=r"\w"):
        EngineHttp({"DOCKER_HOST": host})
    monkeypatch.setenv("DOCKER_HOST", host)
    with pytest.raises(BackendError, match="no Docker engine answers"):
        DockerScheduler("s").list()
    assert not has_docker()


def test_an_answer_that_is_cut_off(serve: Callable[..., tuple]) -> None:
    """An engine that dies in the middle of its answer no longer answers; the answer is not taken for a whole one."""
    _, engine = serve('HTTP/1.0 200 OK\r\n\r\n[{"Id":"a"},{"I')
    with pytest.raises(ConnectionError, match="cut off"):
        engine.get("/containers/json")


def test_tcp(monkeypatch: pytest.MonkeyPatch) -> None:
    """Host and port, with the engine's own port as default."""
    asked: list[object] = []

    def connect(address: object, timeout: float) -> None:
        asked.append(address)
        raise ConnectionRefusedError

    monkeypatch.setattr(socket, "create_connection", connect)
    for environ in (
        {"DOCKER_HOST": "tcp://box:1234"},
        {"DOCKER_HOST": "tcp://:5"},
        {"DOCKER_HOST": "http://[::1]:7/"},
        {"DOCKER_HOST": "tcp://box:", "DOCKER_TLS_VERIFY": "1"},
        {"DOCKER_HOST": "tcp://box"},
        {"DOCKER_HOST": "tcp://[::1]"},
    ):
        assert EngineHttp(environ).post(["/x"]) == [0]
    assert asked == [("box", 1234), ("127.0.0.1", 5), ("::1", 7), ("box", 2376), ("box", 2375), ("::1", 2375)]
