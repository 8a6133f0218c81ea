"""Logs kept on this machine, because a cluster deletes a log with its pod: archives, and the ends of followed logs."""

from __future__ import annotations

import gzip
import os
import time
import zlib
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain, islice

from torchx.errors import NotFoundError
from torchx.schedulers.kit.logs import LogQuery
from torchx.schedulers.kit.names import FILE_NAME
from torchx.schedulers.kit.timed_lines import Piece, split_stamp, within
from torchx.schedulers.kubernetes.names import role_label
from torchx.settings import make_private, torchx_home
from torchx.util.notices import logger

_Lines = Iterator[tuple[int, bytes]]
"""Nanoseconds since the epoch (0 if unknown), and lines."""

_LINES = 200
_DAYS = 14


class KeptLog:
    """The lines of one replica, in a file in torchx's home folder that only its owner can read."""

    def __init__(self, backend: str, app_id: str, role: str, replica: int) -> None:
        role = role_label(role)
        self._folder = torchx_home(backend, "logs")
        self._path = os.path.join(self._folder, FILE_NAME.make(f"{app_id}-{role}-{replica}.log"))
        self._archive = os.path.join(_archive_of(backend, app_id), FILE_NAME.make(f"{role}-{replica}.log.gz"))
        self._was_kept = False

    def keep(self, lines: _Lines) -> _Lines:
        """Pass on the lines. At the end, or when the reader stops, write the last ones to a file."""
        last: deque[bytes] = deque(maxlen=_LINES)
        try:
            for time_ns, line in lines:
                last.append(line)
                yield time_ns, line
        finally:
            if last and not self._was_kept:
                self._write(b"".join(last))

    def archive(self, lines: _Lines) -> _Lines:
        """Pass on the lines and write them to the archive, which replaces an older one at the end, or raise OSError."""
        import tempfile

        first = list(islice(lines, 1))
        if self._was_kept:
            yield from chain(first, lines)
            return
        folder, name = os.path.split(self._archive)
        make_private(folder)
        fd, path = tempfile.mkstemp(".part", f"{name}.", folder)
        try:
            with open(fd, "wb") as raw, gzip.open(raw, "wb", compresslevel=5) as file:
                with suppress(OSError):  # the first archive is kept even if it is incomplete
                    os.link(path, self._archive)
                begun = False  # a long line has several parts
                for time_ns, line in chain(first, lines):
                    file.write(line if begun else _stamp(time_ns) + line)
                    begun = not line.endswith(b"\n")
                    yield time_ns, line
            os.replace(path, self._archive)
        finally:
            with suppress(FileNotFoundError):  # it remains if both names are of one file
                os.unlink(path)

    def lines(self, query: LogQuery) -> _Lines:
        """Return the archived lines within the time range of the query, else the last followed lines; logs a warning.

        NotFoundError if no lines were kept.
        """
        self._was_kept = True
        say = logger("torchx.schedulers").warning
        try:
            with gzip.open(self._archive, "rb") as file:
                at = time.strftime("%Y-%m-%d %H:%M", time.localtime(os.path.getmtime(self._archive)))
                say("the pods of this replica are gone: these lines were archived on this machine at %s", at)
                pieces = within((Piece(0, *split_stamp(line)) for line in file), query)
                yield from ((piece.time, piece.text) for piece in pieces)
            return
        except FileNotFoundError:
            pass
        except (OSError, EOFError, zlib.error) as e:
            say("the archive `%s` cannot be read completely: %s", self._archive, e)
            return
        yield from self._last()

    def _last(self) -> _Lines:
        try:
            with open(self._path, "rb") as file:
                lines = file.readlines()
        except OSError:
            raise gone() from None
        logger("torchx.schedulers").warning(
            "the pods of this replica are gone, and their logs with them: these are the last lines that were followed "
            "from here"
        )
        yield from ((0, line) for line in lines)

    def _write(self, text: bytes) -> None:
        try:
            make_private(self._folder)
            self._forget_old()
            fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
            with open(fd, "wb") as file:
                file.write(text)
        except OSError:
            return  # a full disk must not end the log

    def _forget_old(self) -> None:
        oldest = time.time() - _DAYS * 86400
        with os.scandir(self._folder) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):  # others delete them, too
                    if entry.name.endswith(".log") and entry.stat(follow_symlinks=False).st_mtime < oldest:
                        os.unlink(entry.path)


def _stamp(time_ns: int) -> bytes:
    """Return the timestamp that the API puts before each line."""
    second, fraction = divmod(time_ns, 10**9)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(second))}.{fraction:09}Z ".encode()


def gone() -> NotFoundError:
    """Return the error if the pods no longer exist and no lines were kept."""
    return NotFoundError(
        "the pods of this replica are gone, and their logs with them",
        hint="`torchx log --archive` keeps them on this machine; `torchx log --follow` the last lines",
    )


def forget(backend: str, app_id: str) -> None:
    """Delete the archived logs of a job."""
    import shutil

    shutil.rmtree(_archive_of(backend, app_id), ignore_errors=True)


def _archive_of(backend: str, app_id: str) -> str:
    return torchx_home(backend, "archive", FILE_NAME.make(app_id))
