"""Records appended to files on a disk, a line each: to write is to open, append to and close a file of one's own.

To create and rename a file for each record takes several times as long, and its reader has to open as many.
"""

from __future__ import annotations

import os
from collections.abc import Callable

ENDING = ".jsonl"
_FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC


class Appender:
    """Writes to one file in each folder.

    The file is closed after each record, so that machines which share a disk over NFS see it.

    Args:
        new_name: a name that no other writer has.
    """

    def __init__(self, new_name: Callable[[], str]) -> None:
        self._new_name = new_name
        self._paths: dict[str, str] = {}
        self._pid = os.getpid()

    def add(self, folder: str, record: bytes) -> None:
        """Appends a record without line ends; the folder is made when it is not there.

        Raises:
            OSError: it could not be written; what was written of it is not a record.
        """
        if self._pid != os.getpid():  # a forked process has files of its own
            self._paths, self._pid = {}, os.getpid()
        path = self._paths.get(folder)
        if path is None:
            path = self._paths[folder] = f"{folder}/{self._new_name()}{ENDING}"
        try:
            fd = os.open(path, _FLAGS, 0o666)
        except FileNotFoundError:
            os.makedirs(folder, exist_ok=True)
            fd = os.open(path, _FLAGS, 0o666)
        try:
            # The line end before it sets it apart from what a full disk has left of an earlier one.
            left = memoryview(b"\n" + record + b"\n")
            while left:
                left = left[os.write(fd, left) :]
        finally:
            os.close(fd)


def split(content: bytes) -> list[bytes]:
    r"""The records in a file, oldest first, less one that is being written just now.

    >>> split(b'\n{"a": 1}\n\n{"b": 2}\n\n{"c"')
    [b'{"a": 1}', b'{"b": 2}']
    """
    return [line for line in content.split(b"\n")[:-1] if line]
