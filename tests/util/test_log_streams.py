"""Log lines of many replicas in one file are complete and have the right prefix."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

from torchx.errors import BackendError, NotFoundError
from torchx.util.log_streams import JsonFormat, LineFormat, Sink, copy_in_turn, copy_together


class Chunked:
    """A source that can be read in blocks."""

    def __init__(self, *chunks: bytes) -> None:
        self._chunks = chunks

    def __iter__(self) -> Iterator[str]:
        raise AssertionError("the blocks are to be taken")

    def chunks(self) -> Iterator[bytes]:
        return iter(self._chunks)


def binary() -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BytesIO(), encoding="utf-8")


def written(file: io.TextIOWrapper) -> bytes:
    file.flush()
    return file.buffer.getvalue()  # type: ignore[attr-defined]


CASES = {
    "lines": (["a\n", "b\n"], "t/0 a\nt/0 b\n"),
    "no last line end": (["a\n", "b"], "t/0 a\nt/0 b\n"),
    "empty lines": (["\n", "\n"], "t/0 \nt/0 \n"),
    "progress bar": (["1%\r2%\r3%\n"], "t/0 1%\rt/0 2%\rt/0 3%\n"),
    "dos": (["a\r\n", "b\r\n"], "t/0 a\nt/0 b\n"),
    "nothing": ([], ""),
}


@pytest.mark.parametrize(("lines", "shown"), CASES.values(), ids=CASES)
def test_prefix(lines: list[str], shown: str) -> None:
    """Each line and each state of a progress bar gets the prefix, line by line and in a block."""
    show = LineFormat("t/0 ")
    assert b"".join(show.chunk(line.encode()) for line in lines) == shown.encode()
    assert (show.chunk("".join(lines).encode()) if lines else b"") == shown.encode()


def test_json_lines() -> None:
    """Each line is a JSON object, whatever its content; lines and blocks give the same result."""
    show = JsonFormat('a"b', 3)
    lines = ['say "hi"\\\n', "é漢\x00\n", "no end"]
    expected = [{"role": 'a"b', "replica": 3, "line": line.removesuffix("\n")} for line in lines]
    shown = b"".join(show.chunk(line.encode()) for line in lines)
    assert [json.loads(line) for line in shown.splitlines()] == expected
    assert show.chunk("".join(lines).encode()) == shown
    assert json.loads(show.chunk(b"\xff\n"))["line"] == "\ufffd"


@pytest.mark.parametrize("copy", [copy_in_turn, copy_together], ids=["in turn", "together"])
def test_bytes_that_are_no_text_arrive_as_they_are(copy: Callable[..., None]) -> None:
    """Blocks are copied byte by byte; lines keep bytes that were decoded as surrogates."""
    raw = bytes(range(256)).replace(b"\n", b"").replace(b"\r", b"") + b"\n"
    file = binary()
    lines = [raw.decode("utf-8", "surrogateescape")]
    copy([(LineFormat(""), lambda: Chunked(raw, raw)), (LineFormat(""), lambda: lines)], Sink(file))
    assert written(file) == raw * 3


def test_a_file_without_bytes() -> None:
    """Text files without a binary buffer, such as StringIO, get text."""
    file = io.StringIO()
    copy_in_turn([(LineFormat("x "), lambda: ["a\n"]), (LineFormat("y "), lambda: Chunked(b"b\n"))], Sink(file))
    assert file.getvalue() == "x a\ny b\n"


@pytest.mark.parametrize("count", [1, 32])
def test_nothing_is_lost_and_no_line_is_torn(count: int) -> None:
    """With many sources, every line arrives complete, once, and in the order of its source."""
    each = 3000

    def source(k: int) -> Callable[[], Iterable[str]]:
        return lambda: (f"line {i} of {k}\n" for i in range(each))

    file = binary()
    copy_together([(LineFormat(f"r/{k} "), source(k)) for k in range(count)], Sink(file))
    found: dict[str, list[str]] = {}
    for line in written(file).decode().splitlines():
        name, _, text = line.partition(" ")
        found.setdefault(name, []).append(text)
    assert found == {f"r/{k}": [f"line {i} of {k}" for i in range(each)] for k in range(count)}


def test_a_slow_reader_holds_the_writers_back() -> None:
    """If the output is not read, the sources are not read either, so memory is bounded."""
    import threading

    taken = 0
    go_on = threading.Event()

    class Slow(io.BytesIO):
        def write(self, data: object) -> int:
            go_on.wait(600)
            return super().write(data)  # type: ignore[arg-type]

    def lines() -> Iterator[str]:
        nonlocal taken
        for _ in range(400_000):
            taken += 1
            if taken == 150_000:
                go_on.set()  # far more than may be pending: the reader was not held back
                overrun.append(True)
            yield "x\n"

    overrun: list[bool] = []
    file = io.TextIOWrapper(Slow(), encoding="utf-8")
    thread = threading.Thread(target=copy_together, args=([(LineFormat(""), lines)], Sink(file)))
    thread.start()
    # The source stops by itself once enough is pending; then the reader takes all.
    last = -1
    while last != taken or taken == 0:
        last = taken
        thread.join(0.05)
    assert not overrun
    go_on.set()
    thread.join()
    assert taken == 400_000
    assert len(written(file)) == 800_000


def test_one_source_that_fails() -> None:
    """The error of a source is raised after the lines of the others have been copied."""

    def bad() -> Iterator[str]:
        yield "before\n"
        raise ValueError("boom")

    file = binary()
    with pytest.raises(ValueError, match="boom"):
        copy_together([(LineFormat(""), bad), (LineFormat(""), lambda: ["other\n"])], Sink(file))
    assert sorted(written(file).splitlines()) == [b"before", b"other"]


def test_threads_are_bounded(monkeypatch) -> None:
    """The number of threads is limited; no line is lost, and a message reports the limit."""
    import threading
    import time

    import torchx.util.log_streams as module

    monkeypatch.setattr(module, "MAX_THREADS", 4)
    most = 0
    lock = threading.Lock()
    running = 0

    def source(k: int) -> Iterator[str]:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        yield f"first of {k}\n"
        time.sleep(0)
        yield f"second of {k}\n"
        with lock:
            running -= 1

    said: list[str] = []
    file = binary()
    copy_together([(LineFormat(""), lambda k=k: source(k)) for k in range(40)], Sink(file), said.append)  # type: ignore[misc]  # mypy cannot infer the default of a lambda
    assert sorted(written(file).decode().splitlines()) == sorted(
        f"{which} of {k}" for k in range(40) for which in ("first", "second")
    )
    assert most <= 4
    assert said == ["4 of 40 replicas are followed at a time; each that ends makes room for another"]


@pytest.mark.parametrize("copy", [copy_in_turn, copy_together], ids=["in turn", "together"])
def test_a_replica_without_a_log_hides_no_other(copy: Any, caplog: pytest.LogCaptureFixture) -> None:
    """The others are shown, and a warning names those without one; if none has a log, that is the error."""

    def missing() -> Iterator[str]:
        raise NotFoundError("their pods are gone")
        yield ""

    def opener(k: int) -> Any:
        return missing if k != 1 else lambda: iter(["one\n"])

    file = io.StringIO()
    copy([(LineFormat(f"\033[32mw/{k}\033[0m "), opener(k)) for k in range(7)], Sink(file))
    assert file.getvalue() == "\033[32mw/1\033[0m one\n"
    (said,) = [record.getMessage() for record in caplog.records]
    assert said.endswith(" and 2 others: their pods are gone") and "w/1" not in said and said.startswith("no log of w/")
    with pytest.raises(NotFoundError, match="their pods are gone"):
        copy([(JsonFormat("w", k), missing) for k in range(2)], Sink(file))


@pytest.mark.parametrize("copy", [copy_in_turn, copy_together], ids=["in turn", "together"])
def test_an_error_of_one_replica_comes_after_the_logs_of_the_others(copy: Any) -> None:
    """All that can be read is shown, and the exit code says that something is missing."""

    def broken() -> Iterator[str]:
        raise BackendError("the node is away")
        yield ""

    file = io.StringIO()
    with pytest.raises(BackendError, match="the node is away"):
        copy([(LineFormat("w/0 "), broken), (LineFormat("w/1 "), lambda: ["one\n"])], Sink(file))
    assert file.getvalue() == "w/1 one\n"
