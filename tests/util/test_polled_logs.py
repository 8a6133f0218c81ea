"""Sources that can be polled: many followers, one thread."""

from __future__ import annotations

import io
import threading

import pytest

from torchx.util.log_streams import LineFormat, Sink, copy_together


class Polled:
    """A source of given blocks; it raises exceptions among them."""

    def __init__(self, *blocks: bytes | Exception) -> None:
        self.blocks = list(blocks)
        self.threads: set[int] = set()

    def poll(self) -> bytes | None:
        self.threads.add(threading.get_ident())
        if not self.blocks:
            return None
        block = self.blocks.pop(0)
        if isinstance(block, Exception):
            raise block
        return block


def _copied(*sources: Polled | Exception, file: io.TextIOWrapper | None = None) -> str:
    def opener(source):
        def lines():
            if isinstance(source, Exception):
                raise source
            return source

        return lines

    file = file or _file()
    try:
        copy_together([(LineFormat(f"r/{k} "), opener(source)) for k, source in enumerate(sources)], Sink(file))
    finally:
        file.seek(0)
    return file.read()


def _file() -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BytesIO(), encoding="utf-8")


def test_blocks_are_taken_in_turn() -> None:
    """Blocks are written in order with their prefix; an empty block is not the end; no thread is started."""
    before = threading.active_count()
    sources = [Polled(b"a\n", b"", b"", b"b\nc\n"), Polled(b"", b"x"), Polled()]
    assert _copied(*sources).splitlines() == ["r/0 a", "r/1 x", "r/0 b", "r/0 c"]
    assert {thread for source in sources for thread in source.threads} == {threading.get_ident()}
    assert threading.active_count() <= before  # one of another test may have ended


@pytest.mark.parametrize("bad", [0, 1], ids=["the first", "another"])
@pytest.mark.parametrize("when", ["opened", "read"])
def test_one_that_fails_does_not_stop_the_others(bad: int, when: str) -> None:
    """The error is raised after the other sources have ended."""
    failing = OSError("gone") if when == "opened" else Polled(b"first\n", OSError("gone"))
    good = Polled(b"", b"", b"fine\n")
    if bad == 0 and when == "opened":
        good.__class__ = type("Lines", (Polled,), {"__iter__": lambda self: iter(["fine\n"]), "poll": None})
    file = _file()
    with pytest.raises(OSError, match="gone"):
        _copied(*([failing, good] if bad == 0 else [good, failing]), file=file)
    shown = file.read()
    assert f"r/{1 - bad} fine\n" in shown
    assert ("first" in shown) == (when == "read")


def test_one_that_is_busy_does_not_make_the_quiet_ones_expensive(monkeypatch) -> None:
    """Each source is polled less often the longer it is quiet, independently of the others."""
    clock = [0.0]
    asked: list[float] = []

    def advance(seconds: float) -> None:
        clock[0] += seconds

    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    monkeypatch.setattr("time.sleep", advance)

    class Busy(Polled):
        def poll(self) -> bytes | None:
            advance(0.001)
            return super().poll()

    class Quiet(Polled):
        def poll(self) -> bytes | None:
            asked.append(clock[0])
            return b"" if busy.blocks else None

    busy = Busy(*[b"x\n"] * 5000)
    _copied(busy, Quiet())
    assert 5.0 < clock[0] < 5.2
    assert 45 < len(asked) < 80
    assert asked[1] - asked[0] < 0.01
