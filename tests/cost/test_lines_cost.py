"""A line of N bytes costs each reader of output N, not N squared: the CPU time of two sizes is compared."""

from __future__ import annotations

import asyncio
import io
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from torchx.cli import cmd_exec
from torchx.schedulers.docker.logs import pieces_of
from torchx.schedulers.docker.plain_http import EngineHttp
from torchx.supervisor.lines import Part
from torchx.util import log_streams
from torchx.util.log_streams import LineFormat, Sink
from torchx.util.secrets import mask_text

Reads = Callable[[int], object]


def _cost(read: Reads, size: int) -> float:
    """The least CPU time of some calls; that of other threads and of children does not count."""
    times = []
    for _ in range(3):
        began = time.thread_time()
        read(size)
        times.append(time.thread_time() - began)
    return min(times)


def is_linear(read: Reads, size: int) -> None:
    """Four times the size takes about four times as long; were it quadratic, sixteen times."""
    small, large = _cost(read, size), _cost(read, 4 * size)
    assert large < 8 * small + 0.05, f"{size} bytes: {small:.3f} s, {4 * size} bytes: {large:.3f} s"


def pieces(size: int, each: int) -> Iterator[bytes]:
    return (b"x" * each for _ in range(size // each))


def test_the_log_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`torchx log --json` writes a line in one piece, and the page reads it in many."""
    follow = pytest.importorskip("torchx.ui.follow")
    program = tmp_path / "log"
    monkeypatch.setattr(sys, "executable", str(program))
    monkeypatch.setattr(follow, "_CHUNK", 1 << 12)
    monkeypatch.setattr(follow, "_PAUSE_S", 0)

    def read(size: int) -> None:
        async def go() -> list[Any]:
            return [line async for batch in follow.log_lines("job", last=1, stream=None) for line in batch]

        program.write_text(f"#!/bin/sh\nprintf '\"'; head -c {size} /dev/zero | tr '\\0' x; echo '\"'\n")
        program.chmod(0o755)
        assert [len(line) for line in asyncio.run(go())] == [size]

    is_linear(read, 1_000_000)


def test_exec_in_several_replicas(monkeypatch: pytest.MonkeyPatch) -> None:
    """`torchx exec` prefixes whole lines."""

    class Process:
        def __init__(self, size: int) -> None:
            self._pieces = pieces(size, 1 << 10)

        def close_stdin(self) -> None:
            pass

        def read(self) -> tuple[int, bytes] | None:
            data = next(self._pieces, None)
            return None if data is None else (1, data)

        def wait(self) -> int:
            return 0

    def read(size: int) -> None:
        out = io.TextIOWrapper(io.BytesIO())
        monkeypatch.setattr(sys, "stdout", out)
        cmd_exec._with_prefix(Process(size), shown=LineFormat(""), lock=nullcontext(True))  # type: ignore[arg-type]
        assert len(out.buffer.getvalue()) == size // 1024 * 1024
        monkeypatch.undo()

    is_linear(read, 1_000_000)


class _Socket:
    def __init__(self, size: int) -> None:
        self._pieces = pieces(size, 1 << 10)
        self._head = b"HTTP/1.0 200 OK\r\n\r\n"

    def __enter__(self) -> _Socket:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def recv(self, _: int) -> bytes:
        data, self._head = self._head or next(self._pieces, b""), b""
        return data


def test_an_answer_of_docker(monkeypatch: pytest.MonkeyPatch) -> None:
    """A list of many containers is one line; it comes in pieces as small as the engine likes."""
    engine = EngineHttp({})

    def read(size: int) -> None:
        monkeypatch.setattr(engine, "_request", lambda *_: _Socket(size))
        assert len(engine.read("/containers/json")) == size // 1024 * 1024

    is_linear(read, 1_000_000)


def test_a_terminal_of_docker() -> None:
    """The log of a container with a terminal is read byte by byte; a long line comes in pieces of its time."""

    def read(size: int) -> None:
        stream = io.BytesIO(b"1970-01-01T00:00:01Z " + b"x" * size + b"\n1970-01-01T00:00:02Z y\n")
        found = list(pieces_of(stream.read))
        assert b"".join(piece.text for piece in found) == b"x" * size + b"\ny\n"
        assert {piece.time for piece in found[:-1]} == {10**9}
        assert found[-1].time == 2 * 10**9
        assert max(len(piece.text) for piece in found) <= 1 << 16

    is_linear(read, 100_000)


class _Terminal(io.TextIOWrapper):
    def isatty(self) -> bool:
        return True


def _written(blocks: list[bytes], out: io.TextIOWrapper) -> bytes:
    sink, name = Sink(out), LineFormat("t/0 ")
    for block in blocks:
        sink.block(name, block)
    sink.finish()
    return out.buffer.getvalue()  # type: ignore[attr-defined]


def test_a_line_after_a_progress_bar() -> None:
    """A line without carriage return is searched once, in a block that has one."""

    def read(size: int) -> None:
        line = b"x" * size
        assert _written([b"1%\r" + line + b"\n"], io.TextIOWrapper(io.BytesIO())) == b"t/0 " + line + b"\n"

    is_linear(read, 20_000)


def test_many_carriage_returns() -> None:
    """Carriage returns without an end are searched once."""
    is_linear(lambda size: _written([b"\r" * size + b"x"], io.TextIOWrapper(io.BytesIO())), 20_000)


@pytest.mark.parametrize("out", [io.TextIOWrapper, _Terminal])
def test_a_long_line_that_began_as_a_progress_bar(out: type[io.TextIOWrapper], monkeypatch: pytest.MonkeyPatch) -> None:
    """A long state is no progress bar: it is written as it comes, once, and not held in memory."""
    monkeypatch.setattr(log_streams, "LONG_LINE", 1 << 12)

    def read(size: int) -> None:
        parts = [Part(b"1%\r"), *map(Part, pieces(size, 1 << 10)), b"end\n"]
        found = _written(parts, out(io.BytesIO()))
        assert size <= found.count(b"x") < size + 6 * (1 << 12)  # a terminal shows its states until then
        assert found.removesuffix(b"\n").removesuffix(b"\x1b[K").endswith(b"xend")

    is_linear(read, 1 << 19)


@pytest.mark.parametrize("word", ["a-", "a.", "mariadb-", "eyJ-", "x"])
def test_masking(word: str) -> None:
    """Whatever a word consists of, it is searched once for each form of a credential."""
    is_linear(lambda size: mask_text("token: a://b@c AKIA " + word * (size // len(word))), 4_000)
