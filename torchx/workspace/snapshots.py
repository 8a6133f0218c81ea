"""Snapshots of workspaces that many jobs share: one for each content, next to the jobs' folders.

A store is the folder ``.torchx-workspaces-<user id>`` next to the job folders, on their file system::

    <content hash>/files/      the workspace; files are read-only
    <content hash>/lease       the hash; each job folder made from it has a hard link to this file

A snapshot is renamed into place when it is complete, and never changes. The link count of its lease is the number of
its job folders, however these are removed. A snapshot without job folders is kept for a day after its last use, because
the next submission may have the same code; a later submission then removes it.
"""

from __future__ import annotations

import errno
import functools
import os
import stat
import time
from collections.abc import Callable

from torchx.errors import ConfigError
from torchx.workspace.content import FILE, Entry, content_hash
from torchx.workspace.copies import clone, copy_file, new_file, remove_tree, unwritable, write_marker, write_tree
from torchx.workspace.files import MARKER, STORE
from torchx.workspace.hashes import FileHashes

UNUSED_FOR_S = 86_400.0

# All files of a snapshot have this time (1980-01-01), which reveals any that was written to.
_TIME = 315_532_800
_WRITE = 0o222
_TRIES = 5


def can_clone(folder: str) -> bool:
    """Return whether files in this folder can share blocks (copy on write)."""
    flags = os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC
    try:
        source = os.open(folder, flags, 0o600)
    except OSError:
        return False
    try:
        os.write(source, b"\0" * 4096)
        target = os.open(folder, flags, 0o600)
        try:
            return clone(source, target)
        finally:
            os.close(target)
    except OSError:  # the disk is full: the copy will say so
        return False
    finally:
        os.close(source)


class SnapshotStore:
    """The snapshots in ``parent``, next to the job folders. Any number of processes may use it at once."""

    def __init__(self, parent: str) -> None:
        self.path = os.path.join(parent, f"{STORE}-{os.geteuid()}")

    def usable(self) -> bool:
        """Create the store if needed; return whether only this user may write to it: it contains code to run."""
        try:
            os.mkdir(self.path, 0o700)
        except FileExistsError:
            pass
        except OSError:
            return False
        found = os.lstat(self.path)
        return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o022

    def place(self, files: list[Entry], target: str, hashes: FileHashes, *, shared: bool) -> str:
        """Fill the empty folder ``target`` from a snapshot, which is created if missing; return the content hash.

        ``shared`` makes hard links to the read-only files of the snapshot; otherwise the files are writable clones.

        Raises:
            SpecError: a file cannot be read.
            ConfigError: one cannot be written.
        """
        content = content_hash(files, hashes.of)
        for last_try in (*[False] * (_TRIES - 1), True):
            try:
                content = self._ensure(files, content, hashes)
                snapshot = self._folder(content)
                marker = os.path.join(target, MARKER)
                os.link(os.path.join(snapshot, "lease"), f"{marker}.new")
                os.replace(f"{marker}.new", marker)
                write_tree(files, target, _linker(snapshot) if shared else _cloner(snapshot))
                break
            except FileNotFoundError:  # another process removed the snapshot
                if last_try:
                    raise
            except ConfigError as e:  # the same, during `write_tree`
                if last_try or not isinstance(e.__cause__, FileNotFoundError):
                    raise
                remove_tree(target, keep=True)
            except OSError as e:
                raise unwritable(self.path, e) from e
        return content

    def sweep(self, unused_for_s: float = UNUSED_FOR_S) -> None:
        """Remove snapshots without job folders, and abandoned drafts, that were unused for this many seconds."""
        try:
            names = os.listdir(self.path)
        except OSError:
            return
        for name in names:
            path = os.path.join(self.path, name)
            if not _is_being_made(name):
                unused = functools.partial(_is_unused, for_s=unused_for_s, draft=name.startswith("."))
                self._remove_if(unused, path)

    def _folder(self, content: str) -> str:
        return os.path.join(self.path, content.replace(":", "-"))

    def _ensure(self, files: list[Entry], content: str, hashes: FileHashes) -> str:
        snapshot = self._folder(content)
        if _is_whole(snapshot, files):
            os.utime(os.path.join(snapshot, "lease"))
            return content
        self._remove_if(lambda path: not _is_whole(path, files), snapshot)
        content = self._make(files, hashes)
        self.sweep()
        return content

    def _make(self, files: list[Entry], hashes: FileHashes) -> str:
        """Create a snapshot; return its content hash, which differs from the expected one if files have changed."""
        draft = os.path.join(self.path, f"{_drafts()}{os.getpid()}-{os.urandom(4).hex()}")
        digests: dict[str, str] = {}

        def store(entry: Entry, path: str) -> None:
            digests[entry.path] = copy_file(entry, path, hashes)
            os.chmod(path, entry.mode & ~_WRITE)
            os.utime(path, (_TIME, _TIME))

        os.makedirs(os.path.join(draft, "files"), mode=0o700)
        try:
            write_tree(files, os.path.join(draft, "files"), store)
            content = content_hash(files, lambda entry: digests[entry.path])
            write_marker(os.path.join(draft, "lease"), content)
            try:
                os.rename(draft, self._folder(content))
            except OSError:
                if not os.path.isdir(self._folder(content)):  # else another process was faster, with the same content
                    raise
        finally:
            remove_tree(draft)
        return content

    def _remove_if(self, condition: Callable[[str], bool], path: str) -> None:
        """Remove a snapshot from the store atomically, if the condition holds."""
        trash = os.path.join(self.path, f".trash-{os.getpid()}-{os.urandom(4).hex()}")
        if not condition(path):
            return
        try:
            os.rename(path, trash)
            if not condition(trash):  # another process has used or replaced it since the first check
                os.rename(trash, path)
                return
        except OSError:  # another process was faster
            pass
        remove_tree(trash)


def _is_unused(path: str, *, for_s: float, draft: bool) -> bool:
    try:
        lease = os.stat(path if draft else os.path.join(path, "lease"))
    except OSError:
        return False
    return (draft or lease.st_nlink == 1) and lease.st_mtime < time.time() - for_s


def _drafts() -> str:
    """Return the prefix of drafts of this machine; the process id of the creator follows."""
    return f".draft-{os.uname().nodename}-"


def _is_being_made(name: str) -> bool:
    """Return whether it is a draft of a live process on this machine; drafts of other machines expire by age."""
    pid = name.removeprefix(_drafts()).partition("-")[0]
    if not name.startswith(_drafts()) or not pid.isdecimal():
        return False
    try:
        os.kill(int(pid), 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass  # somebody else's
    return True


def _is_whole(snapshot: str, files: list[Entry]) -> bool:
    """Return whether the snapshot exists and is unmodified (root could have written to it)."""
    try:
        for entry in files:
            if entry.kind == FILE:
                found = os.lstat(os.path.join(snapshot, "files", entry.path))
                expected = (entry.size, _TIME, entry.mode & ~_WRITE)
                if (found.st_size, found.st_mtime, stat.S_IMODE(found.st_mode)) != expected:
                    return False
        os.stat(os.path.join(snapshot, "lease"))
    except OSError:
        return False
    return True


def _linker(snapshot: str) -> Callable[[Entry, str], None]:
    def fill(entry: Entry, path: str) -> None:
        stored = os.path.join(snapshot, "files", entry.path)
        try:
            os.link(stored, path)
        except OSError as e:
            if e.errno != errno.EMLINK:  # the file system's limit on hard links
                raise
            _copy(stored, path, mode=entry.mode & ~_WRITE, mtime=_TIME)

    return fill


def _cloner(snapshot: str) -> Callable[[Entry, str], None]:
    def fill(entry: Entry, path: str) -> None:
        _copy(os.path.join(snapshot, "files", entry.path), path, mode=entry.mode, mtime=entry.mtime)

    return fill


def _copy(stored: str, path: str, *, mode: int, mtime: float) -> None:
    with open(stored, "rb") as source, new_file(path, mode, mtime) as target:
        if not clone(source.fileno(), target):
            while os.sendfile(target, source.fileno(), None, 1 << 30):
                pass
