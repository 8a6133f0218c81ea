"""Writes ``combined.log`` and the time index of one replica.

The replica writes ``stdout.log`` and ``stderr.log`` itself. The follower polls them, copies whole lines to
``combined.log``, and records the sizes of the three files in ``times.idx``. A line longer than 1 MiB is copied while it
grows, with a line end inserted if the other stream writes in the meantime.
"""

from __future__ import annotations

import os
import struct
from contextlib import suppress

from torchx.supervisor.layout import COMBINED_LOG, STARTS_INDEX, STDERR_LOG, STDOUT_LOG, TIMES_INDEX
from torchx.supervisor.lines import LONG_LINE, whole_characters

RECORD = struct.Struct("<dQQQ")
"""A record of ``times.idx``: Unix time, and the sizes of stdout, stderr, combined at that time, in bytes.

The data between the sizes of two records was written shortly before the time of the second one. A record of
``starts.idx`` has the sizes at which the replica was restarted."""

_STREAMS = (STDOUT_LOG, STDERR_LOG)
_BLOCK = 1 << 18
_MAX_PER_LOOK = 1 << 23  # bytes copied before the supervisor turns to its other duties
_SOONEST_S = 0.02


class Follower:
    """Follows the logs of one replica, at least every ``latest_s`` seconds of a monotonic clock.

    Attributes:
        due: time of the next poll by that clock.
        failed: why the last write failed; empty if it did not.
    """

    def __init__(self, folder: str, now: float, latest_s: float = 1.0) -> None:
        self._folder = folder
        self._copied = [0, 0]  # bytes of stdout and stderr
        self._scanned = [0, 0]  # offset up to which there is no line end after the copied bytes
        self._inside = [False, False]  # the copied bytes end inside a line too long to wait for its end
        self._combined = 0
        self._open_line = False  # combined.log does not end with a line end
        self._open_bar = False  # its last line is a progress bar, which the other stream may overwrite
        self._last_source = 0  # the stream that wrote it
        self._unrecorded = False
        self._begun = now
        self._latest_s = latest_s
        self._last_record = 0.0
        self._pause = _SOONEST_S
        self.due = now + _SOONEST_S
        self.failed = ""

    @classmethod
    def resumed(cls, folder: str, now: float, latest_s: float = 1.0) -> Follower:
        """Return a follower that continues after the last record of a killed one.

        Data after that record is copied again.
        """
        follower = cls(folder, now, latest_s)
        index = os.path.join(folder, TIMES_INDEX)
        try:
            with open(index, "rb") as f:
                records = f.read()
        except OSError:
            records = b""
        whole = len(records) // RECORD.size * RECORD.size
        if whole:
            os.truncate(index, whole)
            _, out, err, follower._combined = RECORD.unpack_from(records, whole - RECORD.size)
            follower._copied = [out, err]
            follower._open_line = not _ends_line(os.path.join(folder, COMBINED_LOG), follower._combined)
            follower._last_source = 1 if _ends_line(os.path.join(folder, STDOUT_LOG), out) else 0
        if os.path.exists(os.path.join(folder, COMBINED_LOG)):
            os.truncate(os.path.join(folder, COMBINED_LOG), follower._combined)
        return follower

    def look(self, now: float, *, last: bool = False, wall: float | None = None) -> bool:
        """Copy new data. Returns whether there was any. ``wall``: Unix time for the index; None: ``now``.

        ``last``: the replica has ended, so copy everything, including a last line without line end.
        """
        moved = False
        try:
            # First the stream with an unfinished line, which may be complete now.
            for which in (1, 0) if self._open_line and self._last_source else (0, 1):
                moved = self._advance(which, os.path.join(self._folder, _STREAMS[which]), last) or moved
            self._unrecorded = self._unrecorded or moved
            if self._unrecorded:
                self._record(now, now if wall is None else wall, always=last or not moved)
            self.failed = ""
        except OSError as e:  # for example a full disk; retried later from the replica's own files
            self.failed = e.strerror or str(e)
            moved = False
        self._pause = _SOONEST_S if moved else min(self._pause * 1.5, self._latest_s)
        self.due = now + self._pause
        return moved

    def starts_again(self, now: float, *, wall: float) -> None:
        """Record where the output of the next attempt begins."""
        self.look(now, last=True, wall=wall)
        try:
            self._append(STARTS_INDEX, wall)
        except OSError as e:
            self.failed = e.strerror or str(e)

    def _advance(self, which: int, path: str, last: bool) -> bool:
        try:
            size = os.stat(path).st_size
        except FileNotFoundError:
            return False
        if size < self._copied[which]:  # the replica truncated its own log
            self._copied[which] = self._scanned[which] = 0
            self._inside[which] = False
        done = self._copied[which]
        if size == done:
            return False
        source = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            end = size if last else self._line_end(source, which, size)
            if end > done:
                self._copy(source, which, end)
        finally:
            os.close(source)
        return self._copied[which] > done

    def _line_end(self, source: int, which: int, size: int) -> int:
        """Offset up to which data can be copied now: after the last line end, or what is copied already.

        Progress bars, which contain carriage returns, and long lines are copied before they are complete.
        """
        done = self._copied[which]
        low = max(done, self._scanned[which])  # do not search a growing line twice
        position = high = min(size, low + _MAX_PER_LOOK)
        tail = b""
        while position > low:
            start = max(low, position - _BLOCK)
            block = os.pread(source, position - start, start)
            found = block.rfind(b"\n")
            if found >= 0:
                return start + found + 1
            tail = tail or block
            position = start
        self._scanned[which] = high
        if tail and (self._inside[which] or high - done >= LONG_LINE or tail.find(b"\r", 0, -1) >= 0):
            return max(done, high - len(tail) + whole_characters(tail))
        return done

    def _copy(self, source: int, which: int, end: int) -> None:
        target = os.open(
            os.path.join(self._folder, COMBINED_LOG), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644
        )
        position, size = self._copied[which], self._combined
        open_line, bar = self._open_line, self._open_bar
        try:
            if which != self._last_source:
                if open_line:
                    size += os.write(target, b"\r" if bar else b"\n")
                bar = False
            while position < end:
                block = os.pread(source, min(_BLOCK, end - position), position)
                if not block:
                    break
                view = memoryview(block)
                while view:
                    view = view[os.write(target, view) :]
                position += len(block)
                size += len(block)
                open_line = not block.endswith((b"\n", b"\r"))
                line = block.rfind(b"\n") + 1
                bar = block.find(b"\r", line) >= 0 or (bar and not line)
        except OSError:
            with suppress(OSError):  # the first error is the one to report
                os.ftruncate(target, self._combined)  # no half lines
            raise
        finally:
            os.close(target)
        self._copied[which], self._combined = position, size
        self._open_line = self._inside[which] = open_line
        self._open_bar = bar
        self._last_source = which

    def _record(self, now: float, wall: float, *, always: bool) -> None:
        # The resolution decreases with the age of the job, so that the index stays small.
        spacing = min(1.0, max(0.05, (now - self._begun) / 1000))
        if not always and now - self._last_record < spacing:
            return
        self._append(TIMES_INDEX, wall)
        self._last_record = now
        self._unrecorded = False

    def _append(self, index: str, wall: float) -> None:
        path = os.path.join(self._folder, index)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        try:
            os.write(fd, RECORD.pack(wall, *self._copied, self._combined))
        finally:
            os.close(fd)


def _ends_line(path: str, size: int) -> bool:
    """Whether the first ``size`` bytes of a file are empty or end with a line end."""
    try:
        with open(path, "rb") as f:
            f.seek(max(0, size - 1))
            return not size or f.read(1) in (b"\n", b"\r", b"")
    except OSError:
        return True
