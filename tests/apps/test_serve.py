"""Registering a model: a server with TorchServe's documented management API fetches the archive."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import parse_qs, urlsplit
from urllib.request import urlopen

import pytest

from torchx.apps.serve import serve
from torchx.errors import BackendError, SpecError

pytest.importorskip("fsspec")


class Management:
    """The registration API of TorchServe: it fetches the URL while the client waits."""

    def __init__(self) -> None:
        self.asked: list[dict[str, str]] = []
        self.tokens: list[str | None] = []
        self.fetched: list[bytes] = []
        self.neighbours: list[int] = []
        self.answer = (200, {"status": 'Model "m" Version: 1.0 registered with 1 initial workers'})
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                parts = urlsplit(self.path)
                params = {name: values[0] for name, values in parse_qs(parts.query).items()}
                outer.tokens.append(self.headers["Authorization"])
                outer.asked.append({"path": parts.path, **params})
                if params["url"].startswith("http://127."):
                    outer.fetch(params["url"])
                code, body = outer.answer
                data = json.dumps(body).encode()
                self.send_response(code)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"

    def fetch(self, url: str) -> None:
        with urlopen(url, timeout=300) as found:
            self.fetched.append(found.read())
        parts = urlsplit(url)
        for path in ("/", "/etc/passwd", f"{parts.path}/../x"):  # nothing else is served
            try:
                urlopen(f"http://{parts.netloc}{path}", timeout=300).close()
            except HTTPError as e:
                self.neighbours.append(e.code)
                e.close()


@pytest.fixture
def management(monkeypatch: pytest.MonkeyPatch) -> Iterator[Management]:
    monkeypatch.setenv("no_proxy", "*")
    found = Management()
    thread = threading.Thread(target=found.server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield found
    found.server.shutdown()
    found.server.server_close()
    thread.join()


def words(management: Management, path: object, *more: str) -> list[str]:
    return ["--model_path", str(path), "--management_api", management.url, "--port", "0", *more]


def test_a_local_archive(management: Management, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The whole archive is fetched, with the parameters of the model; nothing else is served; the answer is printed."""
    data = b"archive" * 300_000  # more than one block
    (tmp_path / "m.mar").write_bytes(data)
    serve.main(words(management, tmp_path / "m.mar", "--model_name", "m x", "--initial_workers", "1"))
    (asked,) = management.asked
    assert asked.pop("url").endswith("/m.mar")
    assert asked == {"path": "/models", "model_name": "m x", "initial_workers": "1"}
    assert management.fetched == [data]
    assert management.neighbours == [404, 404, 404]
    assert "registered with 1 initial workers" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["my model.mar", "50%2B.mar", "größe?#1.mar"])
def test_any_name_of_an_archive(management: Management, tmp_path: Path, name: str) -> None:
    """Its URL is valid, and is answered with the file."""
    (tmp_path / name).write_bytes(b"weights")
    serve.main(words(management, tmp_path / name))
    assert management.fetched == [b"weights"]


def test_an_archive_on_the_web(management: Management) -> None:
    """A web URL is passed on: nothing is served from here."""
    serve.main(words(management, "https://models.example/m.mar"))
    assert management.asked == [{"path": "/models", "url": "https://models.example/m.mar"}]


def test_a_dryrun(management: Management, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The request is printed and not sent."""
    serve.main(words(management, tmp_path / "m.mar", "--dryrun", "--batch_size", "4"))
    assert management.asked == []
    out = capsys.readouterr().out
    assert out.startswith(f"POST {management.url}/models?url=http%3A%2F%2F127.0.0.1%3A0%2F")
    assert out.endswith("%2Fm.mar&batch_size=4\n")


def test_a_refusal(management: Management, tmp_path: Path) -> None:
    """The error has TorchServe's reason."""
    management.answer = (409, {"message": "Model version 1.0 is already registered"})
    (tmp_path / "m.mar").touch()
    with pytest.raises(BackendError, match=r"409 .*already registered"):
        serve.main(words(management, tmp_path / "m.mar"))


def test_no_server(tmp_path: Path, management: Management) -> None:
    """An unreachable server, and an invalid address, are named in the error."""
    (tmp_path / "m.mar").touch()
    management.url = "http://127.0.0.1:1"
    with pytest.raises(BackendError, match=r"`http://127\.0\.0\.1:1` cannot be reached: .*refused"):
        serve.main(words(management, tmp_path / "m.mar"))
    management.url = "localhost:8081"
    with pytest.raises(SpecError, match="`localhost:8081` is not a server address"):
        serve.main(words(management, tmp_path / "m.mar"))


def test_another_server(tmp_path: Path) -> None:
    """A server that does not speak HTTP, such as TorchServe's port for gRPC, is one line, too."""
    (tmp_path / "m.mar").touch()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(1 << 16)
                connection.sendall(b"\0\0\x18\4\0\0\0\0\0\n")

        threading.Thread(target=answer, daemon=True).start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(BackendError, match=f"`{url}` cannot be reached"):
            serve.main(["--model_path", f"{tmp_path}/m.mar", "--management_api", url])


def test_no_archive(tmp_path: Path) -> None:
    """A missing archive is one line and exit code 1."""
    argv = ["--model_path", f"{tmp_path}/no.mar", "--management_api", "http://127.0.0.1:1"]
    command = [sys.executable, "-m", "torchx.apps.serve.serve", *argv]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == f"serve: [Errno 2] there is no such file: '{tmp_path}/no.mar'\n"


def test_a_port_that_is_taken(management: Management, tmp_path: Path) -> None:
    """The error names the port, and how to choose another."""
    (tmp_path / "m.mar").touch()
    port = management.url.rpartition(":")[2]
    with pytest.raises(OSError, match=f"port {port} cannot be used.*--port takes another"):
        serve.main([*words(management, tmp_path / "m.mar"), "--port", port])


def test_every_parameter_is_an_option() -> None:
    """Every parameter of TorchServe is an option."""
    argv = [word for name in serve.TORCHSERVE_PARAMS for word in (f"--{name}", "1")]
    args = serve.parse_args(["--model_path", "m", "--management_api", "a", *argv])
    assert [getattr(args, name) for name in serve.TORCHSERVE_PARAMS] == ["1"] * len(serve.TORCHSERVE_PARAMS)


TORCHSERVE_KEYS = """{
  "management": {"key": "Whq8VlgU", "expiration time": "2026-11-22T01:20:33.834177402Z"},
  "inference": {"key": "i77oRyMG", "expiration time": "2026-11-22T01:20:33.834166807Z"},
  "API": {"key": "qQATXYlA"}
}"""


@pytest.mark.parametrize("content", [TORCHSERVE_KEYS, "Whq8VlgU\n"], ids=["key_file.json", "the token alone"])
def test_a_token_from_a_file(management: Management, tmp_path: Path, content: str) -> None:
    """TorchServe's own file is accepted, and so is a file with the bare token."""
    (tmp_path / "m.mar").touch()
    (tmp_path / "keys").write_text(content)
    serve.main(words(management, tmp_path / "m.mar", "--token_file", str(tmp_path / "keys")))
    assert management.tokens == ["Bearer Whq8VlgU"]


def test_a_token_from_the_environment(management: Management, monkeypatch: pytest.MonkeyPatch) -> None:
    """`$TORCHSERVE_TOKEN` is used without a file; without either no token is sent, and no command line contains it."""
    serve.main(words(management, "https://models.example/m.mar"))
    monkeypatch.setenv("TORCHSERVE_TOKEN", "abc")
    serve.main(words(management, "https://models.example/m.mar"))
    assert management.tokens == [None, "Bearer abc"]


@pytest.mark.parametrize("content", ['{"API": {"key": "x"}}', "a\nb"])
def test_a_file_without_a_token(management: Management, tmp_path: Path, content: str) -> None:
    """The error names the file, and what a valid one is."""
    (tmp_path / "keys").write_text(content)
    with pytest.raises(SpecError, match="keys` h") as e:
        serve.main(words(management, "https://models.example/m.mar", "--token_file", str(tmp_path / "keys")))
    assert "key_file.json" in e.value.hint
    assert management.asked == []


@pytest.mark.parametrize(
    ("code", "said", "hint"),
    [  # as TorchServe 0.12 says it
        (400, ("InvalidKeyException", "Token Authorization failed."), "--token_file"),
        (500, ("InternalServerException", "Model file already exists m.mar"), "another name"),
        (405, ("MethodNotAllowedException", "Requested method is not allowed"), "--enable-model-api"),
    ],
)
def test_what_to_do(management: Management, code: int, said: tuple[str, str], hint: str) -> None:
    """Common errors have a hint."""
    management.answer = (code, {"code": code, "type": said[0], "message": said[1]})  # type: ignore[dict-item]
    with pytest.raises(BackendError, match=f"{code} {said[0]}: {said[1]}") as e:
        serve.main(words(management, "https://models.example/m.mar"))
    assert hint in e.value.hint


def test_this_machine_alone_sees_it(management: Management, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For a server on loopback the archive is served on loopback, on a free port."""
    bound = []
    init = ThreadingHTTPServer.__init__
    monkeypatch.setattr(
        ThreadingHTTPServer,
        "__init__",
        lambda self, address, *args: (bound.append(address), init(self, address, *args))[1],
    )
    (tmp_path / "m.mar").touch()
    serve.main(["--model_path", f"{tmp_path}/m.mar", "--management_api", management.url])
    assert bound == [("127.0.0.1", 0)]
