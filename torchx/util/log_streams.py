"""Copies log lines of many replicas to one file; each line is complete and prefixed with its replica.

A source is any iterable of strings that end with a line feed. Optional abilities make it faster: :class:`ComesInChunks`
is copied block by block, :class:`CanBePolled` needs no thread, :class:`FindsLastLines` seeks to its last lines. A block
that is a :class:`Part` is a piece of a line too long for memory; the next block of its source continues the line.
"""

from __future__ import annotations

import re
import time
from abc import abstractmethod
from collections import deque
from itertools import groupby, islice
from typing import TYPE_CHECKING, Any, TextIO

from torchx.errors import NotFoundError, TorchXError
from torchx.supervisor.lines import LONG_LINE, Part
from torchx.util.abilities import Ability
from torchx.util.notices import logger
from torchx.util.redaction import Redactor, knows_any
from torchx.util.term import is_tty, only_colors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    Source = tuple["LineFormat", Callable[[], Iterable[str]]]

_MAX_PENDING = 256  # blocks in the queue; if the reader of our output is slow, the threads wait
_BATCH = 4096
_NAMED = 4  # replicas in a warning
MAX_THREADS = 256
"""Maximum number of sources that are followed in threads at the same time."""

_DRAWN_OVER = rb"(?m)^[^\n]*\r(?=[^\r\n])"  # without `^`, a line would take the square of its length
_ERASE = b"\x1b[K"  # to the end of the line
_NO_WRAP, _WRAP = b"\x1b[?7l", b"\x1b[?7h"  # a wrapped line cannot be drawn over

# Poll interval of a source
_MIN_POLL_S = 0.005
_MAX_POLL_S = 0.1
_MAX_POLL_PER_SOURCE_S = 0.0004  # limits the cost of thousands of quiet sources


class ComesInChunks(Ability):
    """A source that can be read in blocks."""

    @abstractmethod
    def chunks(self) -> Iterator[bytes]:
        """Yield blocks of complete lines."""


class CanBePolled(Ability):
    """A source that can be read without blocking."""

    @abstractmethod
    def poll(self) -> bytes | None:
        """Return the next block of complete lines, an empty block if there is nothing new, or None at the end."""


class FindsLastLines(Ability):
    """A source that can seek to its last lines."""

    @abstractmethod
    def last(self, count: int) -> Iterable[str]:
        """Yield the last ``count`` lines, and all that follow."""


class LineFormat:
    """Formats lines with a prefix, which may be empty.

    >>> LineFormat("trainer/0 ").chunk(b"a\\nb")
    b'trainer/0 a\\ntrainer/0 b\\n'
    """

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.name = re.sub(r"\x1b\[[0-9;]*m", "", prefix).strip()
        self._bytes = prefix.encode("utf-8", "surrogateescape")

    def chunk(self, data: bytes, *, begun: bool = False) -> bytes:
        """Format a block of complete lines; only the very last line of a source may lack its line feed.

        If ``begun``, the first line continues the preceding :class:`Part` of the same source.
        """
        prefix = self._bytes
        if not prefix:
            return data
        if b"\r" in data:  # a progress bar returns to the start of its line
            data = type(data)(data.replace(b"\r\n", b"\n").replace(b"\r", b"\r" + prefix))
        head = b"" if begun else prefix
        text = data.replace(b"\n", b"\n" + prefix)
        if data.endswith(b"\n"):
            return b"".join((head, memoryview(text)[: -len(prefix)]))  # avoids a copy
        return b"".join((head, text, b"" if isinstance(data, Part) else b"\n"))


class JsonFormat(LineFormat):
    """Formats each line as a JSON object: ``{"role": ..., "replica": ..., "line": ...}``, without the line feed.

    A piece of a long line also has ``"partial": true``; the next object of the replica continues the line. If
    ``timed``, lines begin with a time or ``-``, which becomes ``"time"`` (null for ``-``).

    >>> JsonFormat("trainer", 0).chunk(b"a\\n")
    b'{"role": "trainer", "replica": 0, "line": "a"}\\n'
    """

    def __init__(self, role: str, replica: int, *, timed: bool = False) -> None:
        import json

        super().__init__("")
        self.name = f"{role}/{replica}"
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
    """Writes blocks to a text file, or directly to its binary buffer if it has one.

    It writes only the last state of a progress bar: to a pipe or file once its line ends; a terminal also shows the
    current state, and draws the next one over it. Bytes that are not UTF-8 reach a binary buffer unchanged. If a source
    has left its line open, a line feed precedes the output of another source. With ``raw``, a terminal gets all escape
    sequences of a job.
    """

    def __init__(self, file: TextIO, *, raw: bool = False) -> None:
        file.flush()
        self._file = file
        self._for_people = is_tty(file) and not raw
        self._raw = raw
        self._held: dict[LineFormat, bytes] = {}  # progress bars whose last state is not known yet
        self._binary = getattr(file, "buffer", None)
        self._open: LineFormat | None = None  # format of the source whose line has no end yet
        self._bar: LineFormat | None = None  # the same, if that line is a progress bar
        self._state = b""  # its visible state
        self._redactors: dict[LineFormat, Redactor] = {}

    def block(self, line_format: LineFormat, data: bytes) -> None:
        """Format and write a block of a source."""
        begun = self._open is line_format
        if knows_any():
            data = self._masked(line_format, data)
        bars = line_format.prefix and not self._raw and (b"\r" in data or line_format in self._held)
        if bars:
            data = self._last_states(line_format, data)
            if not data:
                return
        if self._open is not None and not begun:
            self.data(b"\n")
        text = line_format.chunk(data, begun=begun)
        if self._for_people and (bars or self._bar is line_format):
            self._draw(line_format, only_colors(text))
        else:
            self.data(text)
        self._open = None if text.endswith(b"\n") else line_format

    def _last_states(self, line_format: LineFormat, data: bytes) -> bytes:
        """Remove what has been drawn over; in a pipe, the last state of an open line is held back until its end."""
        lines = re.sub(rb"(?<!\r)\r+\n", b"\n", self._held.pop(line_format, b"") + data)
        if self._for_people:
            return type(data)(re.sub(_DRAWN_OVER, b"\r", lines))
        if isinstance(data, Part):
            state = lines[lines.rfind(b"\r") :]
            if len(state) > LONG_LINE:  # not a progress bar
                return Part(state[1:])
            self._held[line_format] = state
            return b""
        return re.sub(_DRAWN_OVER, b"", lines).replace(b"\r", b"")

    def _draw(self, line_format: LineFormat, text: bytes) -> None:
        """Write lines over an open progress bar, and erase the rest of its previous state."""
        if self._bar is line_format and not text.startswith(b"\r"):  # redraw, because the terminal cut an open line
            text = self._state + text
        self._bar = None if text.endswith(b"\n") or len(text) > LONG_LINE else line_format
        self._state = text[max(text.rfind(b"\r"), 0) :]
        lines = text.replace(b"\n", _ERASE + b"\n")
        self._write(lines if self._bar is None else b"".join((_NO_WRAP, lines, _ERASE, _WRAP)))

    def _masked(self, line_format: LineFormat, data: bytes) -> bytes:
        more = isinstance(data, Part)
        masked = self._redactors.setdefault(line_format, Redactor()).block(data, more=more)
        return Part(masked) if more else masked

    def data(self, data: bytes) -> None:
        """Write bytes; to a terminal, without escape sequences other than colours."""
        if self._for_people:
            data = only_colors(data)
        self._write(data)

    def _write(self, data: bytes) -> None:
        if self._binary is not None:
            self._binary.write(data)
        else:
            self._file.write(data.decode("utf-8", "replace"))

    def flush(self) -> None:
        """Flush the file."""
        self._file.flush() if self._binary is None else self._binary.flush()

    def finish(self) -> None:
        """Write all that was held back, end an open line with a prefix, and flush."""
        for redactor in self._redactors.values():
            self.data(redactor.block(b"", more=False))
        for line_format in [*self._held]:
            self.block(line_format, b"\n")
        if self._open is not None and self._open.prefix:
            self.data(b"\n")
            self._open = None
        self.flush()


def copy_in_turn(sources: Iterable[Source], sink: Sink, *, some: bool = False) -> None:
    """Copy finite sources one after the other, and then report errors, see :func:`_report`."""
    errors: list[tuple[LineFormat, Exception]] = []
    count = 0
    for line_format, open_lines in sources:
        count += 1
        try:
            for data in _chunks(open_lines(), _BATCH):
                sink.block(line_format, data)
        except TorchXError as e:
            errors.append((line_format, e))
        sink.flush()
    sink.finish()
    _report(errors, count, silent=some)


def _report(errors: list[tuple[LineFormat, Exception]], count: int, *, silent: bool = False) -> None:
    """Raise an error of one of ``count`` sources, once all others were copied. If only some logs do not exist, log a
    warning instead, unless ``silent``: a replica without a log must not hide those of the others.
    """
    failed = [error for _, error in errors if len(errors) == count or not isinstance(error, NotFoundError)]
    if failed:
        raise failed[0]
    reasons: dict[str, list[str]] = {}
    for line_format, error in errors:
        reasons.setdefault(str(error), []).append(line_format.name or "one replica")
    for reason, names in reasons.items():
        more = f" and {len(names) - _NAMED} others" if len(names) > _NAMED else ""
        if not silent:
            logger("torchx.logs").warning("no log of %s%s: %s", ", ".join(names[:_NAMED]), more, reason)


def copy_together(sources: list[Source], sink: Sink, say: Callable[[str], None] | None = None) -> None:
    """Copy sources of one kind while they grow, until all have ended; then report errors, see :func:`_report`.

    Sources that cannot be polled get a thread each, at most :data:`MAX_THREADS` at the same time; ``say`` gets a
    sentence if some have to wait for one.
    """
    (first_format, open_first), *others = sources
    first = _opened(open_first)
    if isinstance(first, CanBePolled):
        rest = [(line_format, _opened(open_lines)) for line_format, open_lines in others]
        _copy_polled([(first_format, first), *rest], sink)
        return
    if say is not None and len(sources) > MAX_THREADS:
        say(f"{MAX_THREADS} of {len(sources)} replicas are followed at a time; each that ends makes room for another")
    funnel = _Funnel([(first_format, lambda: _unless_failed(first)), *others])
    for line_format, data in funnel:
        sink.block(line_format, data)
        sink.flush()
    sink.finish()
    _report(funnel.errors, len(sources))


def _copy_polled(sources: list[tuple[LineFormat, Any]], sink: Sink) -> None:
    """Poll sources with a backoff for quiet ones."""
    from heapq import heappop, heappush

    errors: list[tuple[LineFormat, Exception]] = []
    max_pause = max(_MAX_POLL_S, _MAX_POLL_PER_SOURCE_S * len(sources))
    turns = [(0.0, number, _MIN_POLL_S) for number in range(len(sources))]  # time of the next poll, source, pause
    while turns:
        due, number, pause = heappop(turns)
        if (early := due - time.monotonic()) > 0:
            sink.flush()
            time.sleep(max(early, _MIN_POLL_S))
        line_format, lines = sources[number]
        try:
            data = _unless_failed(lines).poll()
        except Exception as e:
            errors.append((line_format, e))
            continue
        if data is None:
            continue
        now = time.monotonic()
        if data:
            sink.block(line_format, data)
            heappush(turns, (now, number, _MIN_POLL_S))
        else:
            heappush(turns, (now + pause, number, min(pause * 1.5, max_pause)))
    sink.finish()
    _report(errors, len(sources))


def _opened(open_lines: Callable[[], Iterable[str]]) -> Any:
    """Open a source; return the exception if that fails, for :func:`_unless_failed` to raise later."""
    try:
        return open_lines()
    except Exception as e:
        return e


def _unless_failed(lines: Any) -> Any:
    if isinstance(lines, Exception):
        raise lines
    return lines


class _Funnel:
    """Reads sources in threads; iterating yields their blocks with their formats."""

    def __init__(self, sources: list[Source]) -> None:
        import threading
        from queue import Queue

        self.errors: list[tuple[LineFormat, Exception]] = []
        self._pending: Queue[tuple[LineFormat, bytes] | None] = Queue(_MAX_PENDING)
        self._waiting = deque(sources)
        self._open = min(len(sources), MAX_THREADS)
        previous = threading.stack_size(256 * 1024)
        try:
            # Daemons: after a broken pipe or Ctrl-C, blocked threads must not keep the process alive.
            for _ in range(self._open):
                threading.Thread(target=self._read, daemon=True, name="torchx-log").start()
        finally:
            threading.stack_size(previous)

    def __iter__(self) -> Iterator[tuple[LineFormat, bytes]]:
        while self._open:
            taken = [self._pending.get(), *(self._pending.get() for _ in range(self._pending.qsize()))]
            for line_format, run in groupby(filter(None, taken), key=lambda item: item[0]):
                blocks = [data for _, data in run]
                if all(data.endswith(b"\n") for data in blocks):
                    blocks = [b"".join(blocks)]
                yield from ((line_format, data) for data in blocks)
            self._open -= taken.count(None)

    def _read(self) -> None:
        try:
            while self._waiting:
                try:
                    line_format, open_lines = self._waiting.popleft()
                except IndexError:  # another thread was faster
                    break
                try:
                    for data in _chunks(open_lines(), 1):
                        self._pending.put((line_format, data))
                except Exception as e:
                    self.errors.append((line_format, e))
        finally:
            self._pending.put(None)


def _chunks(lines: Any, batch: int) -> Iterator[bytes]:
    """Return the blocks of a source; if it has only lines, blocks of ``batch`` lines."""
    if isinstance(lines, ComesInChunks):
        return lines.chunks()
    some = iter(lines)
    batches = iter(lambda: list(islice(some, batch)), [])
    return ("".join(texts).encode("utf-8", "surrogateescape") for texts in batches)
