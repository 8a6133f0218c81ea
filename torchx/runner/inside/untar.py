"""Writes files that come out of a replica below one folder, and nowhere else, whatever the replica sends."""

from __future__ import annotations

import io
import os
import stat
import sys
import tarfile
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from torchx.errors import BackendError
from torchx.util.links import stays

AGAIN = "the same command resumes the copy"
CHUNK = 1 << 16  # larger buffers are returned to the system each time, which costs more than they save
_KERNEL_CHUNK = 1 << 24
_LATEST = 1 << 62  # seconds; `os.utime` accepts no more
_MAX_SHOWN = 200
_PART = ".torchx-part"  # suffix of a file that is not complete yet


class SafeUntar:
    """Writes members of a tar stream below the folder ``root``; ``rename`` has new names of members, by their names."""

    def __init__(self, root: str, rename: dict[str, str], progress: Callable[[int], object] = lambda _: None) -> None:
        self._root = root
        self._rename = rename
        self._progress = progress
        self._taken: dict[str, str] = {}
        self._folders: set[str] = set()  # names of folders that exist, and that no member replaces
        self._settled: set[str] = set()  # names of links and folders, and of what was left out
        self.files = self.bytes = 0
        self.left_out: list[str] = []

    def has(self, name: str, facts: tuple[int, int, int]) -> bool:
        """Whether a name needs no copy: it is a folder, a file of the same size and time, a link taken or left out."""
        if name in self._settled:
            return True
        try:
            found = os.lstat(os.path.join(self._root, self._rename.get(name, name)))
        except OSError:
            return False
        if stat.S_ISDIR(facts[0]):
            return stat.S_ISDIR(found.st_mode)
        return stat.S_ISREG(found.st_mode) and (found.st_size, int(found.st_mtime)) == facts[1:]

    def begun(self, name: str, facts: tuple[int, int, int]) -> int:
        """How many bytes of an interrupted file are here; 0 if its modification time in the replica has changed."""
        with suppress(OSError):
            found = os.lstat(os.path.join(self._root, self._rename.get(name, name)) + _PART)
            if stat.S_ISREG(found.st_mode) and found.st_size <= facts[1] and found.st_mtime == facts[2]:
                return found.st_size
        return 0

    def take(self, member: tarfile.TarInfo, opened: Callable[[], Any], begun: int = 0) -> None:
        """Write one member of the stream; ``opened`` opens its data, from byte ``begun`` on."""
        name = os.path.normpath(member.name)
        if not abs(member.mtime) < _LATEST:
            raise BackendError(f"`{shortened(name)}` has a modification time that is none: `{member.mtime}`")
        path = None if ".." in member.name.split("/") else self._place(self._rename.get(name, name))
        other = self._taken.get(os.path.normpath(member.linkname)) if member.islnk() else None
        if path is None or (os.path.lexists(path) and os.path.isdir(path) != member.isdir()):
            self.left_out.append(member.name)  # a name that leads out, or something else is in its way
        elif member.isdir():
            if not os.path.isdir(path):
                os.mkdir(path)
        elif member.issym() and stays(name, member.linkname) and self._leads_inside(path, member.linkname):
            if os.path.lexists(path):
                os.unlink(path)
            os.symlink(member.linkname, path)
        elif member.isreg() or other is not None:
            self._write(member, path, partial(open, other, "rb") if other else opened, begun)
            self._taken[name] = path
            return
        else:
            self.left_out.append(member.name)
        self._settled.add(name)

    def _place(self, name: str) -> str | None:
        """Return the path to write to; None for a name that leads out of the folder, or through a link."""
        if name.startswith("/"):
            return None
        todo, folder = [], os.path.dirname(name)
        while folder and folder not in self._folders:
            todo.append(folder)
            folder = os.path.dirname(folder)
        if todo:
            with suppress(FileNotFoundError, NotADirectoryError):
                os.lstat(os.path.join(self._root, name))  # if it is too long, before a part of it is created
        for folder in reversed(todo):
            path = os.path.join(self._root, folder)
            if os.path.islink(path) or (os.path.lexists(path) and not os.path.isdir(path)):
                return None
            if not os.path.isdir(path):
                os.mkdir(path)
            self._folders.add(folder)
        path = os.path.join(self._root, name)
        return None if os.path.islink(path) and os.path.isdir(path) else path

    def _leads_inside(self, path: str, target: str) -> bool:
        """Whether a link of the replica stays in the folder, although links of the user's own may be in it."""
        root = os.path.realpath(self._root)
        return os.path.commonpath([root, os.path.realpath(os.path.join(os.path.dirname(path), target))]) == root

    def _write(self, member: tarfile.TarInfo, path: str, opened: Callable[[], Any], begun: int) -> None:
        """Write a part file first, then renames it. The part has the modification time of the file, to resume it."""
        part, times = f"{path}{_PART}", (int(member.mtime), int(member.mtime))
        if not begun and os.path.lexists(part):
            os.unlink(part)
        flags = os.O_WRONLY | os.O_NOFOLLOW | (0 if begun else os.O_CREAT | os.O_EXCL)
        fd = os.open(part, flags, member.mode & 0o777 | 0o200)
        with open(fd, "ab") as out, opened() as file:
            try:
                while size := _copy_some(file, out):
                    self.bytes += size
                    os.utime(fd, times)
                    self._progress(size)
            finally:  # after Ctrl-C as well
                os.utime(fd, times)
        if begun and os.stat(part).st_size != member.size:
            raise BackendError(f"the copy was interrupted: the rest of `{member.name}` is incomplete", hint=AGAIN)
        os.chmod(part, member.mode & 0o777)
        os.replace(part, path)
        self.files += 1


def _copy_some(file: Any, out: Any) -> int:
    """Copy the next bytes and return their number; files of this machine are copied within the kernel."""
    if sys.platform == "linux" and isinstance(file, io.FileIO):
        with suppress(OSError):  # not all file systems can; what is wrong otherwise, the other way says
            return os.sendfile(out.fileno(), file.fileno(), None, _KERNEL_CHUNK)
    size: int = out.write(file.read(CHUNK))
    out.flush()
    return size


def shortened(text: str) -> str:
    """Return the text; of a long one, such as a path of a deep folder, its beginning and its end."""
    return text if len(text) <= _MAX_SHOWN else f"{text[: _MAX_SHOWN // 2]}...{text[-_MAX_SHOWN // 2 :]}"
