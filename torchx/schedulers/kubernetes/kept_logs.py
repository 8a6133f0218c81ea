"""Logs that are kept on this machine, as a cluster forgets a log with its pod: archives, ends of what was followed."""

from __future__ import annotations

import gzip
import os
import time
from collections import deque
from collections.abc import Iterator
from itertools import chain, islice

from torchx.errors import NotFoundError
from torchx.schedulers.kit.follow import Piece, split_stamp, within
from torchx.schedulers.kit.logs import LogQuery
from torchx.schedulers.kit.names import FILE_NAME
from torchx.settings import make_private, torchx_home
from torchx.util.notices import logger

_Lines = Iterator[tuple[int, bytes]]
"""Times, nanoseconds since the epoch, and lines; 0 of the last ones that were followed."""

_LINES = 200
_DAYS = 14


class KeptLog:
    """The lines of one replica, in a file below torchx's home folder that only its owner can read.

    Args:
        backend: name of the scheduler.
        replica: number of the replica within its role.
    """

    def __init__(self, backend: str, app_id: str, role: str, replica: int) -> None:
        self._folder = torchx_home(backend, "logs")
        self._path = os.path.join(self._folder, FILE_NAME.make(f"{app_id}-{role}-{replica}.log"))
        self._archive = os.path.join(_archive_of(backend, app_id), FILE_NAME.make(f"{role}-{replica}.log.gz"))
        self._was_kept = False

    def keep(self, lines: _Lines) -> _Lines:
        """The lines as they come; when they end, or nobody wants more, the last of them are written down."""
        last: deque[bytes] = deque(maxlen=_LINES)
        try:
            for time_ns, line in lines:
                last.append(line)
                yield time_ns, line
        finally:
            if last and not self._was_kept:
                self._write(b"".join(last))

    def archive(self, lines: _Lines) -> _Lines:
        """The lines as they come, all of which are written down; should they not end, an older archive stays.

        Raises:
            OSError: they cannot be written down.
        """
        first = list(islice(lines, 1))
        if self._was_kept:
            yield from chain(first, lines)
            return
        make_private(os.path.dirname(self._archive))
        path = f"{self._archive}.{os.getpid()}.part" if os.path.exists(self._archive) else self._archive
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        with open(fd, "wb") as raw, gzip.open(raw, "wb", compresslevel=5) as file:
            begun = False  # a long line comes in pieces
            for time_ns, line in chain(first, lines):
                file.write(line if begun else _stamp(time_ns) + line)
                begun = not line.endswith(b"\n")
                yield time_ns, line
        if path != self._archive:
            os.replace(path, self._archive)

    def lines(self, query: LogQuery) -> _Lines:
        """What was written down, with a word of warning: of an archive the times that the query asks for.

        Raises:
            NotFoundError: nothing was.
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
        except (OSError, EOFError) as e:
            say("the archive `%s` cannot be read to its end: %s", self._archive, e)
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
            return  # a full disk is no reason to end a log

    def _forget_old(self) -> None:
        oldest = time.time() - _DAYS * 86400
        with os.scandir(self._folder) as entries:
            for entry in entries:
                if entry.name.endswith(".log") and entry.stat(follow_symlinks=False).st_mtime < oldest:
                    os.unlink(entry.path)


def _stamp(time_ns: int) -> bytes:
    """As the API has it before each line."""
    second, fraction = divmod(time_ns, 10**9)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(second))}.{fraction:09}Z ".encode()


def gone() -> NotFoundError:
    """The pods are no longer there, and nothing of their logs was kept."""
    return NotFoundError(
        "the pods of this replica are gone, and their logs with them",
        hint="`torchx log --archive` keeps them on this machine; `torchx log --follow` the last lines",
    )


def forget(backend: str, app_id: str) -> None:
    """Removes the archived logs of a job."""
    folder = _archive_of(backend, app_id)
    if os.path.isdir(folder):
        import shutil

        shutil.rmtree(folder, ignore_errors=True)


def _archive_of(backend: str, app_id: str) -> str:
    return torchx_home(backend, "archive", FILE_NAME.make(app_id))
