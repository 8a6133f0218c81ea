"""Copies of the logs of runs that have ended, for when their scheduler has forgotten them: ``[logs] keep = end``.

Each replica has a compressed file in a folder or at a URL of fsspec, ``SCHEDULER/SESSION/APP_ID/ROLE-K.log.gz``. A line
begins with the time at which it was written, or ``-``. Values of secrets are masked.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

from torchx.errors import BackendError, ConfigError, NotFoundError, NotSupportedError
from torchx.runner.ground.registry import read_run
from torchx.runner.launch.log_place import SECTION, place
from torchx.schedulers.api import Scheduler, open_logs
from torchx.schedulers.kit.logs import LogQuery, Stream
from torchx.settings import make_private
from torchx.specs.api import UnknownAppException
from torchx.util.redaction import redact

if TYPE_CHECKING:
    _Replicas = Sequence[tuple[str, int]]

_LONGEST = 1 << 16  # a longer line comes in pieces
_NAME = re.compile(r"(.+)-(\d+)\.log\.gz")
_STATE = re.compile(r"\r\d{4}-\d\d-\d\dT[\d:.]+Z ")  # the time of a further state of a progress bar


def keep(backend: Scheduler[Any], app_id: str, handle: str) -> int:
    """Copy the logs of all replicas that are not in the archive yet, and return how many; memory is bounded.

    Raises:
        NotFoundError: the scheduler has no logs of a replica any more; those of the others are in the archive.
    """
    read_run(handle)  # its secrets are masked
    files = _Files(handle)
    if (found := backend.log_replicas(app_id)) is None:
        raise UnknownAppException(handle)
    replicas = sorted({*found}.difference(files.replicas()))
    timed = backend.capabilities.log_timestamps
    gone = None
    for replica in replicas:  # one by one: each may hold a connection
        try:
            [lines] = open_logs(backend, app_id, [replica], LogQuery(timestamps=timed))
            files.write(replica, (redact(line if timed else f"- {line}") for line in lines))
        except NotFoundError as e:
            gone = e
    if gone is not None:
        raise gone
    return len(replicas)


def replicas(handle: str) -> list[tuple[str, int]]:
    """Return the replicas of a run whose logs are in the archive."""
    return _Files(handle).replicas()


def lines(handle: str, replica: tuple[str, int], query: LogQuery) -> Iterator[str]:
    """Return the lines in the archive of one replica that a query selects.

    Raises:
        NotSupportedError: the archive has both streams together, and only the last attempt that the scheduler showed.
    """
    if query.previous or query.stream not in (None, Stream.COMBINED):
        raise NotSupportedError(
            "the archive has both streams together, of the last attempt", hint="omit `--streams` and `--previous`"
        )
    from collections import deque

    found = _chosen(_Files(handle).read(replica), query)
    return found if query.last is None else iter(deque(found, maxlen=query.last))


def _chosen(stamped: Iterable[str], query: LogQuery) -> Iterator[str]:
    from datetime import datetime, timezone

    edges = [
        None if at is None else datetime.fromtimestamp(at, timezone.utc).isoformat()
        for at in (query.since, query.until)
    ]
    since, until = edges
    stamp, begun = "-", False
    for row in stamped:
        line = row  # only the first piece of a long line begins with its time
        if not begun:
            stamp, _, line = row.partition(" ")
        begun = not row.endswith("\n")
        known = stamp != "-"
        if (known and since and stamp < since[:19]) or (known and until and stamp >= until[:19]):
            continue
        plain = _STATE.sub("\r", line)
        if query.regex is None:
            yield row if query.timestamps else plain
        elif query.regex.search(plain):
            whole = line if query.timestamps else plain
            whole = whole if whole.endswith("\n") else whole + "\n"
            yield f"{stamp} {whole}" if query.timestamps else whole


class _Files:
    """The files of one run, in a folder or behind a URL."""

    def __init__(self, handle: str) -> None:
        scheduler, _, rest = handle.partition("://")
        top = place()[0]
        self._folder = "/".join([top.rstrip("/"), *(quote(part, safe="") for part in (scheduler, *rest.split("/")))])
        self._remote = "://" in top

    def replicas(self) -> list[tuple[str, int]]:
        names = [name.rpartition("/")[2] for name in self._names()]
        found = [match for name in names if (match := _NAME.fullmatch(name))]
        return sorted((unquote(match[1]), int(match[2])) for match in found)

    def write(self, replica: tuple[str, int], rows: Iterable[str]) -> None:
        """Write a file under another name first, so that nobody reads a part of it; removes those of killed writers."""
        import gzip

        path = self._path(replica)
        draft = f"{path}.{os.getpid()}.new"
        if self._remote:
            self._fs().makedirs(self._folder, exist_ok=True)  # object stores have none, SFTP has
        else:
            make_private(self._folder)
        for name in self._names():
            if os.path.basename(name).startswith(f"{os.path.basename(path)}."):
                self._remove(f"{self._folder}/{os.path.basename(name)}")
        try:
            with self._open(draft, "wb") as raw, gzip.open(raw, "wb") as packed:
                for row in rows:
                    packed.write(row.encode("utf-8", "surrogateescape"))
            if self._remote:
                self._fs().mv(draft, path)
            else:
                os.replace(draft, path)
        except BaseException:
            self._remove(draft)
            raise

    def read(self, replica: tuple[str, int]) -> Iterator[str]:
        import gzip
        import zlib

        path = self._path(replica)
        try:
            with self._open(path, "rb") as raw, gzip.open(raw, "rb") as packed:
                text = io.TextIOWrapper(packed, "utf-8", "surrogateescape", newline="\n")
                yield from iter(lambda: text.readline(_LONGEST), "")
        except (OSError, EOFError, zlib.error) as e:
            raise BackendError(f"the archive of logs `{path}` cannot be read: {e}") from e

    def _remove(self, draft: str) -> None:
        with suppress(Exception):  # there may be none
            self._fs().rm(draft) if self._remote else os.unlink(draft)

    def _path(self, replica: tuple[str, int]) -> str:
        return f"{self._folder}/{quote(replica[0], safe='')}-{replica[1]}.log.gz"

    def _names(self) -> list[str]:
        try:
            return (
                [str(name) for name in self._fs().ls(self._folder, detail=False)]
                if self._remote
                else os.listdir(self._folder)
            )
        except FileNotFoundError:
            return []
        except OSError as e:
            raise BackendError(f"the archive of logs `{self._folder}` cannot be read: {e.strerror or e}") from e

    def _open(self, path: str, mode: str) -> Any:
        if self._remote:
            return self._fs().open(path, mode)
        return open(path, mode, opener=lambda name, flags: os.open(name, flags, 0o600))

    def _fs(self) -> Any:
        import fsspec

        try:
            return fsspec.core.url_to_fs(self._folder)[0]
        except (ImportError, ValueError) as e:
            raise ConfigError(
                f"`to = {self._folder}` in `[{SECTION}]`: {e}", hint="install the package of fsspec"
            ) from e
