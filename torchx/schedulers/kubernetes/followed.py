"""The last lines of logs that were followed from this machine: the cluster forgets a log with its pod."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

from torchx.util.notices import logger

_LINES = 200
_DAYS = 14


class FollowedLines:
    """The last lines of one replica, in a file below torchx's home folder that only its owner can read.

    Args:
        backend: name of the scheduler.
        replica: number of the replica within its role.
    """

    def __init__(self, backend: str, app_id: str, role: str, replica: int) -> None:
        from torchx.schedulers.kit.names import FILE_NAME
        from torchx.settings import torchx_home

        self._folder = torchx_home(backend, "logs")
        self._path = os.path.join(self._folder, FILE_NAME.make(f"{app_id}-{role}-{replica}.log"))

    def keep(self, lines: Iterator[str]) -> Iterator[str]:
        """The lines as they come; when they end, or nobody wants more, the last of them are written down."""
        from collections import deque

        last: deque[str] = deque(maxlen=_LINES)
        try:
            for line in lines:
                last.append(line)
                yield line
        finally:
            if last:
                self._write("".join(last))

    def last(self) -> Iterator[str]:
        """What was written down, with a word of warning.

        Raises:
            NotFoundError: nothing was.
        """
        try:
            with open(self._path, encoding="utf-8", newline="") as file:
                lines = file.readlines()
        except OSError:
            from torchx.schedulers.kubernetes.logs import gone

            raise gone() from None
        logger("torchx.schedulers").warning(
            "the pods of this replica are gone, and their logs with them: these are the last lines that were followed "
            "from here"
        )
        yield from lines

    def _write(self, text: str) -> None:
        try:
            from torchx.settings import make_private

            make_private(self._folder)
            self._forget_old()
            fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
            with open(fd, "w", encoding="utf-8", newline="") as file:
                file.write(text)
        except OSError:
            return  # a full disk is no reason to end a log

    def _forget_old(self) -> None:
        oldest = time.time() - _DAYS * 86400
        with os.scandir(self._folder) as entries:
            for entry in entries:
                if entry.name.endswith(".log") and entry.stat(follow_symlinks=False).st_mtime < oldest:
                    os.unlink(entry.path)
