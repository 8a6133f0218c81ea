"""Lines of many replicas, copied to one file: each line whole, under the name of its replica.

A source of lines is any iterable of strings that end with a line feed. One that :class:`ComesInChunks` is copied block
by block, several times faster; one that :class:`CanBePolled` needs no thread; one that :class:`FindsLastLines` need not
be read through for them. A block that is a :class:`Part` is a piece of a line too long to be held; the next block of
its source goes on with it.
"""

from __future__ import annotations

import re
import time
from abc import abstractmethod
from collections import deque
from itertools import groupby, islice
from typing import TYPE_CHECKING, Any, TextIO

from torchx.errors import NotFoundError
from torchx.supervisor.lines import Part
from torchx.util.abilities import Ability
from torchx.util.redaction import Redactor, knows_any
from torchx.util.term import is_tty, only_colors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    Source = tuple["LineFormat", Callable[[], Iterable[str]]]

# Blocks that wait to be written. When the reader of our output is slow, followers wait too: nothing is held in memory.
_MOST_PENDING = 256
_BATCH = 4096
MOST_THREADS = 256
"""The most sources that cannot be polled and are followed at the same time; another begins when one of them ends."""

_DRAWN_OVER = rb"[^\n]*\r(?=[^\r\n])"
_ERASE = b"\x1b[K"  # to the end of the line
_NO_WRAP, _WRAP = b"\x1b[?7l", b"\x1b[?7h"  # one that has become two could not be drawn over

_SOONEST_S = 0.005  # between two looks at those that can be polled
_LATEST_S = 0.1
_LATEST_EACH_S = 0.0004  # so that thousands of quiet ones cost no more than some hundred


class ComesInChunks(Ability):
    """Lines that can be had in blocks."""

    @abstractmethod
    def chunks(self) -> Iterator[bytes]:
        """Blocks of whole lines."""


class CanBePolled(Ability):
    """Lines that go on, and can be asked for without waiting."""

    @abstractmethod
    def poll(self) -> bytes | None:
        """The next block of whole lines, an empty one when there is nothing new; None at the end."""


class FindsLastLines(Ability):
    """Lines that find their own end."""

    @abstractmethod
    def last(self, count: int) -> Iterable[str]:
        """The last lines that there are now, and all that come after them."""


class LineFormat:
    """How lines are shown: after a prefix.

    Args:
        prefix: what goes before each line; empty shows the lines as they are.

    >>> LineFormat("trainer/0 ").chunk(b"a\\nb")
    b'trainer/0 a\\ntrainer/0 b\\n'
    """

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self._bytes = prefix.encode("utf-8", "surrogateescape")

    def chunk(self, data: bytes, *, begun: bool = False) -> bytes:
        """A block of whole lines, shown; only the last line of all may lack its line feed.

        Args:
            data: the block.
            begun: its first line goes on with one that was shown before, as :class:`Part` of the same source.
        """
        prefix = self._bytes
        if not prefix:
            return data
        if b"\r" in data:  # a progress bar goes back to the start of its line
            data = type(data)(data.replace(b"\r\n", b"\n").replace(b"\r", b"\r" + prefix))
        head = b"" if begun else prefix
        text = data.replace(b"\n", b"\n" + prefix)
        if data.endswith(b"\n"):
            return b"".join((head, memoryview(text)[: -len(prefix)]))  # each copy of the block counts
        return b"".join((head, text, b"" if isinstance(data, Part) else b"\n"))


class JsonFormat(LineFormat):
    """Each line as one JSON object: ``{"role": ..., "replica": ..., "line": ...}``, the line without its line feed.

    A piece of a long line is an object that has ``"partial": true``, too: the replica's next one goes on with the line.

    Args:
        timed: lines begin with their times, or ``-``; these become ``"time"``, which is null where there is none.

    >>> JsonFormat("trainer", 0).chunk(b"a\\n")
    b'{"role": "trainer", "replica": 0, "line": "a"}\\n'
    """

    def __init__(self, role: str, replica: int, *, timed: bool = False) -> None:
        import json

        super().__init__("")
        self._timed = timed
        self._stamp = "-"
        encode = json.JSONEncoder(ensure_ascii=False).encode
        self._encode = encode
        self._head = f'{{"role": {encode(role)}, "replica": {replica}, '

    def chunk(self, data: bytes, *, begun: bool = False) -> bytes:
        more = isinstance(data, Part)
        text = data.decode("utf-8", "surrogateescape")
        lines = [text] if more else text.removesuffix("\n").split("\n")
        return "".join([self._object(line, more=more, begun=begun and not i) for i, line in enumerate(lines)]).encode()

    def _object(self, line: str, *, more: bool, begun: bool) -> str:
        text = line.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
        more_keys = '"partial": true, ' if more else ""
        if self._timed:
            stamp, _, text = ("-", "", text) if begun else text.partition(" ")
            self._stamp = self._stamp if begun else stamp
            text = text.replace(f"\r{self._stamp} ", "\r")
            more_keys += f'"time": {"null" if stamp == "-" else self._encode(stamp)}, '
        return f'{self._head}{more_keys}"line": {self._encode(text)}}}\n'


class Sink:
    """A text file that is written in blocks, past its encoder where it has a binary file behind it.

    Args:
        raw: let all that a job wrote reach a terminal, too.

    Of a progress bar the last state is shown, in a pipe or a file once its line has ended. On a terminal one whose line
    is still open, a :class:`Part`, is drawn over what it was before. Bytes that are not UTF-8 reach a binary file as
    they are. No line is shared: where a source has left one open,
    a line feed comes before what another one writes.
    """

    def __init__(self, file: TextIO, *, raw: bool = False) -> None:
        file.flush()
        self._file = file
        self._for_people = is_tty(file) and not raw
        self._raw = raw
        self._held: dict[LineFormat, bytes] = {}  # states of progress bars, until it is known which is the last
        self._binary = getattr(file, "buffer", None)
        self._open: LineFormat | None = None  # whose line has no end yet
        self._bar: LineFormat | None = None  # whose that is, if it is a progress bar
        self._state = b""  # what is there of it
        self._redactors: dict[LineFormat, Redactor] = {}

    def block(self, show: LineFormat, data: bytes) -> None:
        """Writes a block of a source, shown."""
        begun = self._open is show
        if knows_any():
            data = self._masked(show, data)
        bars = show.prefix and not self._raw and (b"\r" in data or show in self._held)
        if bars:
            data = self._last_states(show, data)
            if not data:
                return
        if self._open is not None and not begun:
            self.data(b"\n")
        shown = show.chunk(data, begun=begun)
        if self._for_people and (bars or self._bar is show):
            self._draw(show, only_colors(shown))
        else:
            self.data(shown)
        self._open = None if shown.endswith(b"\n") else show

    def _last_states(self, show: LineFormat, data: bytes) -> bytes:
        """Each line without what has been drawn over; in a pipe, the last state of an open one waits for its end."""
        lines = re.sub(rb"\r+\n", b"\n", self._held.pop(show, b"") + data)
        if self._for_people:
            return type(data)(re.sub(_DRAWN_OVER, b"\r", lines))
        if isinstance(data, Part):
            self._held[show] = lines[lines.rfind(b"\r") :]
            return b""
        return re.sub(_DRAWN_OVER, b"", lines).replace(b"\r", b"")

    def _draw(self, show: LineFormat, shown: bytes) -> None:
        """Writes lines over an open progress bar, or one over itself: what it was before may have been longer."""
        if self._bar is show and not shown.startswith(b"\r"):  # it goes on: an open one was not shown beyond the edge
            shown = self._state + shown
        self._bar = None if shown.endswith(b"\n") else show
        self._state = shown[max(shown.rfind(b"\r"), 0) :]
        lines = shown.replace(b"\n", _ERASE + b"\n")
        self._write(lines if self._bar is None else b"".join((_NO_WRAP, lines, _ERASE, _WRAP)))

    def _masked(self, show: LineFormat, data: bytes) -> bytes:
        more = isinstance(data, Part)
        masked = self._redactors.setdefault(show, Redactor()).block(data, more=more)
        return Part(masked) if more else masked

    def data(self, data: bytes) -> None:
        """Writes bytes; to a terminal, those of a job's sequences that colour text and no others."""
        if self._for_people:
            data = only_colors(data)
        self._write(data)

    def _write(self, data: bytes) -> None:
        if self._binary is not None:
            self._binary.write(data)
        else:
            self._file.write(data.decode("utf-8", "replace"))

    def flush(self) -> None:
        """Shows what was written."""
        self._file.flush() if self._binary is None else self._binary.flush()

    def finish(self) -> None:
        """Ends the last line, where it stands after a name: a long one without an end."""
        for redactor in self._redactors.values():
            self.data(redactor.block(b"", more=False))
        for show in [*self._held]:
            self.block(show, b"\n")
        if self._open is not None and self._open.prefix:
            self.data(b"\n")
            self._open = None
        self.flush()


def copy_in_turn(sources: Iterable[Source], sink: Sink, *, some: bool = False) -> None:
    """Copies sources that come to an end by themselves, one after the other.

    Args:
        some: leave out those that are not found, unless that is all of them.
    """
    missing: NotFoundError | None = None
    found = False
    for show, open_lines in sources:
        try:
            for data in _chunks(open_lines(), _BATCH):
                sink.block(show, data)
            found = True
        except NotFoundError as e:
            if not some:
                raise
            missing = e
        sink.flush()
    sink.finish()
    if missing is not None and not found:
        raise missing


def copy_together(sources: list[Source], sink: Sink, say: Callable[[str], None] | None = None) -> None:
    """Copies sources of one kind as they grow, until all have ended.

    Those that cannot be polled get a thread each, but no more than :data:`MOST_THREADS` at the same time.

    Args:
        say: told in a sentence when some have to wait for that reason.

    Raises:
        Exception: whatever the first source to fail raised, after the others have ended.
    """
    (show, open_first), *others = sources
    first = _opened(open_first)
    if isinstance(first, CanBePolled):
        _copy_polled([(show, first), *((show, _opened(open_lines)) for show, open_lines in others)], sink)
        return
    if say is not None and len(sources) > MOST_THREADS:
        say(f"{MOST_THREADS} of {len(sources)} replicas are followed at a time; each that ends makes room for another")
    funnel = _Funnel([(show, lambda: _unless_failed(first)), *others])
    for show, data in funnel:
        sink.block(show, data)
        sink.flush()
    sink.finish()
    if funnel.errors:
        raise funnel.errors[0]


def _copy_polled(sources: list[tuple[LineFormat, Any]], sink: Sink) -> None:
    """Each is asked the less often the longer it has had no news."""
    from heapq import heappop, heappush

    errors = []
    latest_s = max(_LATEST_S, _LATEST_EACH_S * len(sources))
    turns = [(0.0, number, _SOONEST_S) for number in range(len(sources))]  # when, whose, and how long until the next
    while turns:
        due, number, pause = heappop(turns)
        if (early := due - time.monotonic()) > 0:
            sink.flush()
            time.sleep(max(early, _SOONEST_S))
        show, lines = sources[number]
        try:
            data = _unless_failed(lines).poll()
        except Exception as e:
            errors.append(e)
            continue
        if data is None:
            continue
        now = time.monotonic()
        if data:
            sink.block(show, data)
            heappush(turns, (now, number, _SOONEST_S))
        else:
            heappush(turns, (now + pause, number, min(pause * 1.5, latest_s)))
    sink.finish()
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


class _Funnel:
    """Joins sources: iterating yields what has come in since the last look, as blocks after their formats."""

    def __init__(self, sources: list[Source]) -> None:
        import threading
        from queue import Queue

        self.errors: list[BaseException] = []
        self._pending: Queue[tuple[LineFormat, bytes] | None] = Queue(_MOST_PENDING)
        self._waiting = deque(sources)
        self._open = min(len(sources), MOST_THREADS)
        previous = threading.stack_size(256 * 1024)
        try:
            # Daemons: when the writer gives up (a broken pipe, Ctrl-C), readers that wait for news must not keep us.
            for _ in range(self._open):
                threading.Thread(target=self._read, daemon=True, name="torchx-log").start()
        finally:
            threading.stack_size(previous)

    def __iter__(self) -> Iterator[tuple[LineFormat, bytes]]:
        while self._open:
            taken = [self._pending.get(), *(self._pending.get() for _ in range(self._pending.qsize()))]
            for show, run in groupby(filter(None, taken), key=lambda item: item[0]):
                blocks = [data for _, data in run]
                whole = all(data.endswith(b"\n") for data in blocks)
                yield from [(show, b"".join(blocks))] if whole else [(show, data) for data in blocks]
            self._open -= taken.count(None)

    def _read(self) -> None:
        try:
            while self._waiting:
                try:
                    show, open_lines = self._waiting.popleft()
                except IndexError:  # another one was faster
                    break
                try:
                    for data in _chunks(open_lines(), 1):
                        self._pending.put((show, data))
                except Exception as e:
                    self.errors.append(e)
        finally:
            self._pending.put(None)


def _chunks(lines: Any, batch: int) -> Iterator[bytes]:
    """The lines in blocks, those of a source that has none in blocks of so many lines."""
    if isinstance(lines, ComesInChunks):
        return lines.chunks()
    some = iter(lines)
    batches = iter(lambda: list(islice(some, batch)), [])
    return ("".join(texts).encode("utf-8", "surrogateescape") for texts in batches)
