"""AWS clients connected to a server that is not AWS."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator

import pytest

pytest.importorskip("boto3")

from torchx.errors import TransientError
from torchx.schedulers.aws.client import Clients, call


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[bytes], str]]:
    """Starts a server with this body as its only response; returns its address."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    listener = socket.create_server(("127.0.0.1", 0))
    threads = []

    def start(body: bytes) -> str:
        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(1 << 16)
                head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
                connection.sendall(head.encode() + body)

        threads.append(threading.Thread(target=serve))
        threads[-1].start()
        return f"http://127.0.0.1:{listener.getsockname()[1]}"

    yield start
    for thread in threads:
        thread.join(60)
    listener.close()


@pytest.mark.parametrize("body", [b"[]", b"\xff\x93", b"[" * 3000 + b"]" * 3000], ids=["a list", "no text", "deep"])
def test_an_answer_that_is_none(answers, body: bytes) -> None:
    """One sentence, and the class of an unknown outcome."""
    clients = Clients(options={"aws_region": "us-east-1", "aws_endpoint_url": answers(body)})
    with pytest.raises(TransientError, match="job `x` cannot be described: the answer is not valid") as e:
        call(clients.client("batch", retries=False), "describe_jobs", "job `x` cannot be described", jobs=["x"])
    assert "proxy" in e.value.hint
    clients.close()
