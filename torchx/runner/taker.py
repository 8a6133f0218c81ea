"""Writes files that come out of a replica below one folder, and nowhere else, whatever the replica sends."""

from __future__ import annotations

import os
import stat
import tarfile
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from torchx.errors import BackendError

AGAIN = "the same command resumes the copy"
CHUNK = 1 << 16  # larger buffers are returned to the system each time, which costs more than they save
_PART = ".torchx-part"  # suffix of a file that is not complete yet


class Taker:
    """Writes members of a tar stream below the folder ``root``; ``rename`` has new names of members, by their names."""

    def __init__(self, root: str, rename: dict[str, str], progress: Callable[[int], object] = lambda _: None) -> None:
        self._root = root
        self._rename = rename
        self._progress = progress
        self._taken: dict[str, str] = {}
        self.files = self.bytes = 0
        self.left_out: list[str] = []

    def has(self, name: str, facts: tuple[int, int, int]) -> bool:
        """Whether a name needs no copy: it is a file of the same size and time, another kind of file, or left out."""
        try:
            found = os.lstat(os.path.join(self._root, self._rename.get(name, name)))
        except OSError:
            return name in map(os.path.normpath, self.left_out)
        same = stat.S_ISREG(found.st_mode) and (found.st_size, int(found.st_mtime)) == facts[1:]
        return same or not stat.S_ISREG(facts[0])

    def begun(self, name: str, facts: tuple[int, int, int]) -> int:
        """How many bytes of an interrupted file are here; 0 if its modification time in the replica has changed."""
        with suppress(OSError):
            found = os.lstat(os.path.join(self._root, self._rename.get(name, name)) + _PART)
            if stat.S_ISREG(found.st_mode) and found.st_size <= facts[1] and found.st_mtime == facts[2]:
                return found.st_size
        return 0

    def take(self, member: tarfile.TarInfo, opened: Callable[[], Any], begun: int = 0) -> None:
        """Writes one member of the stream; ``opened`` opens its data, from byte ``begun`` on."""
        name = os.path.normpath(member.name)
        path = None if ".." in member.name.split("/") else self._place(self._rename.get(name, name))
        other = self._taken.get(os.path.normpath(member.linkname)) if member.islnk() else None
        regular = member.isreg() or other is not None
        if path is None or not (regular or member.isdir() or (member.issym() and stays(name, member.linkname))):
            self.left_out.append(member.name)
        elif member.isdir():
            os.makedirs(path, exist_ok=True)
        elif os.path.isdir(path) and not os.path.islink(path):
            self.left_out.append(member.name)
        elif member.issym():
            if os.path.lexists(path):
                os.unlink(path)
            os.symlink(member.linkname, path)
        else:
            self._write(member, path, partial(open, other, "rb") if other else opened, begun)
            self._taken[name] = path

    def _place(self, name: str) -> str | None:
        """The path to write to; None for a name that leads out of the folder, or through a link."""
        if name.startswith("/"):
            return None
        path = self._root
        *folders, last = name.split("/")
        for folder in folders:
            path = os.path.join(path, folder)
            if os.path.islink(path) or (os.path.lexists(path) and not os.path.isdir(path)):
                return None
        os.makedirs(path, exist_ok=True)
        path = os.path.join(path, last)
        return None if os.path.islink(path) and os.path.isdir(path) else path

    def _write(self, member: tarfile.TarInfo, path: str, opened: Callable[[], Any], begun: int) -> None:
        """Writes a part file first, then renames it. The part has the modification time of the file, to resume it."""
        part, times = f"{path}{_PART}", (int(member.mtime), int(member.mtime))
        if not begun and os.path.lexists(part):
            os.unlink(part)
        flags = os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | (0 if begun else os.O_CREAT | os.O_EXCL)
        fd = os.open(part, flags, member.mode & 0o777 | 0o200)
        with open(fd, "ab") as out, opened() as file:
            while data := file.read(CHUNK):
                self.bytes += out.write(data)
                out.flush()
                os.utime(fd, times)
                self._progress(len(data))
        if begun and os.stat(part).st_size != member.size:
            raise BackendError(f"the copy was interrupted: the rest of `{member.name}` is incomplete", hint=AGAIN)
        os.chmod(part, member.mode & 0o777)
        os.replace(part, path)
        self.files += 1


def stays(name: str, target: str) -> bool:
    """Whether a link points to a place below the folder that is copied.

    >>> stays("a/b", "../c"), stays("a/b", "../../c"), stays("a", ".."), stays("a", "/etc/passwd")
    (True, False, False, False)
    """
    there = os.path.normpath(os.path.join(os.path.dirname(name), target))
    return not target.startswith("/") and there.split("/")[0] != ".."
