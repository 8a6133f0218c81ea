"""Lines of many replicas, copied to one file: each line whole, under the name of its replica.

A source of lines is any iterable of strings that end with a line feed. One that also has a method
``chunks() -> Iterator[bytes]`` (blocks of whole lines) is copied block by block, several times faster. One with
``poll() -> bytes | None`` (such a block, an empty one when there is nothing new, None at the end) needs no thread.
"""

from __future__ import annotations

from collections import deque
from itertools import islice

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any, TextIO

    Source = tuple["LineFormat", Callable[[], Iterable[str]]]

# Lines that wait to be written. When the reader of our output is slow, followers wait too: nothing is held in memory.
_MOST_PENDING = 50_000
_MOST_PENDING_CHUNKS = 64
_BATCH = 4096
_SOONEST_S = 0.005  # between two looks at those that can be polled
_LATEST_S = 0.1


class LineFormat:
    """How lines are shown: after a prefix.

    Args:
        prefix: what goes before each line; empty shows the lines as they are.

    >>> LineFormat("trainer/0 ").lines(["a\\n", "b"])
    'trainer/0 a\\ntrainer/0 b\\n'
    """

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self._bytes = prefix.encode("utf-8", "surrogateescape")

    def line(self, line: str) -> str:
        """One line, shown."""
        return prefix_line(self.prefix, line) if self.prefix else line

    def lines(self, batch: list[str]) -> str:
        """Many lines, shown."""
        prefix = self.prefix
        if not prefix:
            return "".join(batch)
        text = prefix + prefix.join(batch)
        if "\r" in text:
            return "".join([prefix_line(prefix, line) for line in batch])
        return text if text.endswith("\n") else text + "\n"

    def chunk(self, data: bytes) -> bytes:
        """A block of whole lines, shown; only the last line of all may lack its line feed."""
        prefix = self._bytes
        if not prefix:
            return data
        if b"\r" in data:
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\r" + prefix)
        text = data.replace(b"\n", b"\n" + prefix)
        if data.endswith(b"\n"):
            return b"".join((prefix, memoryview(text)[: -len(prefix)]))  # each copy of the block counts
        return b"".join((prefix, text, b"\n"))


class JsonFormat(LineFormat):
    """Each line as one JSON object: ``{"role": ..., "replica": ..., "line": ...}``, the line without its line feed.

    >>> JsonFormat("trainer", 0).line("a\\n")
    '{"role": "trainer", "replica": 0, "line": "a"}\\n'
    """

    def __init__(self, role: str, replica: int) -> None:
        import json

        super().__init__("")
        encode = json.JSONEncoder(ensure_ascii=False).encode
        self._encode = encode
        self._head = f'{{"role": {encode(role)}, "replica": {replica}, "line": '

    def line(self, line: str) -> str:
        text = line.removesuffix("\n").encode("utf-8", "surrogateescape").decode("utf-8", "replace")
        return f"{self._head}{self._encode(text)}}}\n"

    def lines(self, batch: list[str]) -> str:
        return "".join([self.line(line) for line in batch])

    def chunk(self, data: bytes) -> bytes:
        text = data.decode("utf-8", "surrogateescape").removesuffix("\n")
        return self.lines(text.split("\n")).encode("utf-8", "replace")


class Sink:
    """A text file that is written in blocks, past its encoder where it has a binary file behind it.

    Bytes that are no UTF-8 reach a binary file as they are.
    """

    def __init__(self, file: TextIO) -> None:
        file.flush()
        self._file = file
        self._binary = getattr(file, "buffer", None)

    def text(self, text: str) -> None:
        """Writes text."""
        self.data(text.encode("utf-8", "surrogateescape"))

    def data(self, data: bytes) -> None:
        """Writes bytes."""
        if self._binary is not None:
            self._binary.write(data)
        else:
            self._file.write(data.decode("utf-8", "replace"))

    def flush(self) -> None:
        """Shows what was written."""
        self._file.flush() if self._binary is None else self._binary.flush()


def copy_in_turn(sources: Iterable[Source], sink: Sink) -> None:
    """Copies sources that come to an end by themselves, one after the other."""
    for show, open_lines in sources:
        lines = open_lines()
        chunks = _chunks(lines)
        if chunks is not None:
            for data in chunks:
                sink.data(show.chunk(data))
        else:
            iterator = iter(lines)
            while batch := list(islice(iterator, _BATCH)):
                sink.text(show.lines(batch))
        sink.flush()


def copy_together(sources: list[Source], sink: Sink) -> None:
    """Copies sources of one kind as they grow, until all have ended. Those that cannot be polled get a thread each.

    Raises:
        Exception: whatever the first source to fail raised, after the others have ended.
    """
    (show, open_first), *others = sources
    first = _opened(open_first)
    if callable(getattr(first, "poll", None)):
        _copy_polled([(show, first), *((show, _opened(open_lines)) for show, open_lines in others)], sink)
        return
    funnel = _Funnel([(show, lambda: _unless_failed(first)), *others])
    for text in funnel:
        sink.text(text) if isinstance(text, str) else sink.data(text)
        sink.flush()
    if funnel.errors:
        raise funnel.errors[0]


def _copy_polled(going: list[tuple[LineFormat, Any]], sink: Sink) -> None:
    import time

    errors = []
    pause = _SOONEST_S
    while going:
        moved = False
        ended = set()
        for show, lines in going:
            try:
                data = _unless_failed(lines).poll()
            except Exception as e:
                errors.append(e)
                data = None
            if data:
                sink.data(show.chunk(data))
                moved = True
            elif data is None:
                ended.add(id(lines))
        going = [source for source in going if id(source[1]) not in ended] if ended else going
        if moved:
            sink.flush()
            pause = _SOONEST_S
        elif going:
            time.sleep(pause)
            pause = min(pause * 1.5, _LATEST_S)
    if errors:
        raise errors[0]


def _opened(open_lines: Callable[[], Iterable[str]]) -> Any:
    """The lines, or why there are none: told when it is their turn."""
    try:
        return open_lines()
    except Exception as e:
        return e


def _unless_failed(lines: Any) -> Any:
    if isinstance(lines, Exception):
        raise lines
    return lines


def prefix_line(prefix: str, line: str) -> str:
    r"""A line after its prefix, which is repeated where a progress bar goes back to the start of the line.

    >>> prefix_line("t/0 ", "10%\r20%\r\n")
    't/0 10%\rt/0 20%\n'
    """
    body = line[:-1] if line.endswith("\n") else line
    if "\r" in body:
        body = body.removesuffix("\r").replace("\r", "\r" + prefix)
    return f"{prefix}{body}\n"


class _Funnel:
    """Joins sources: iterating yields what has come in since the last look, as one string or block."""

    def __init__(self, sources: list[Source]) -> None:
        import threading

        self.errors: list[BaseException] = []
        self._pending: deque[str | bytes] = deque()
        self._news = threading.Event()
        self._room = threading.Event()
        self._room.set()
        self._open = len(sources)
        self._lock = threading.Lock()
        previous = threading.stack_size(256 * 1024)  # there may be a thousand
        try:
            # Daemons: when the writer gives up (a broken pipe, Ctrl-C), readers that wait for news must not keep us.
            for source in sources:
                threading.Thread(target=self._read, args=source, daemon=True, name="torchx-log").start()
        finally:
            threading.stack_size(previous)

    def __iter__(self) -> Iterator[str | bytes]:
        while True:
            self._news.wait()
            self._news.clear()
            ended = self._open == 0  # looked at before the queue: what came before the end is in it
            yield from self._drain()
            if ended:
                return

    def _drain(self) -> Iterator[str | bytes]:
        count = len(self._pending)
        taken = [self._pending.popleft() for _ in range(count)]
        self._room.set()
        text: list[str] = []
        for item in taken:
            if isinstance(item, str):
                text.append(item)
            else:
                if text:
                    yield "".join(text)
                    text = []
                yield item
        if text:
            yield "".join(text)

    def _read(self, show: LineFormat, open_lines: Callable[[], Iterable[str]]) -> None:
        try:
            lines = open_lines()
            chunks = _chunks(lines)
            if chunks is not None:
                for data in chunks:
                    self._put(show.chunk(data))
            else:
                line = show.line
                for text in lines:
                    self._put(line(text))
        except Exception as e:
            self.errors.append(e)
        finally:
            with self._lock:
                self._open -= 1
            self._news.set()

    def _put(self, item: str | bytes) -> None:
        pending = self._pending
        pending.append(item)
        if not self._news.is_set():
            self._news.set()
        most = _MOST_PENDING if isinstance(item, str) else _MOST_PENDING_CHUNKS
        if len(pending) > most:
            self._room.clear()
            if len(pending) > most:  # still: else the writer has just made room
                self._room.wait()


def _chunks(lines: Any) -> Iterator[bytes] | None:
    chunks = getattr(lines, "chunks", None)
    found: Iterator[bytes] | None = chunks() if callable(chunks) else None
    return found
