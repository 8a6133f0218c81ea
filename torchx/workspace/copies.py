"""Copies the files of a workspace to a folder: by the kernel if possible, and never through memory as a whole."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from torchx.errors import ConfigError
from torchx.workspace.content import DIRECTORY, LINK, Entry, content_hash, entries
from torchx.workspace.files import identity_of
from torchx.workspace.hashes import FileHashes

if TYPE_CHECKING:
    from torchx.specs.workspaces import Workspace

# The new file shares the blocks of the old one until either is written to (btrfs, XFS, ZFS, NFS 4.2, ...).
# https://man7.org/linux/man-pages/man2/ioctl_ficlone.2.html
_FICLONE = 0x40049409


def copy_tree(files: Iterable[Entry], target: str, hashes: FileHashes | None = None) -> str:
    """Copy a workspace into an empty folder, with modes and times; return the content hash of what was copied.

    The copies are independent of the source. The kernel copies files with a known hash in ``hashes``; the others are
    read once, to copy and to hash them.

    Raises:
        SpecError: a file cannot be read.
        ConfigError: one cannot be written.
    """
    digests: dict[str, str] = {}
    files = list(files)

    def fill(entry: Entry, path: str) -> None:
        digests[entry.path] = copy_file(entry, path, hashes)

    write_tree(files, target, fill)
    return content_hash(files, lambda entry: digests[entry.path])


def write_tree(files: Iterable[Entry], target: str, fill: Callable[[Entry, str], object]) -> None:
    """Create the directories and links of a workspace in ``target``, and call ``fill`` to create each file."""
    directories = []
    for entry in files:
        path = os.path.join(target, entry.path)
        try:
            if entry.kind == DIRECTORY:
                os.mkdir(path, 0o700)
                directories.append((path, entry.mode))
            elif entry.kind == LINK:
                os.symlink(entry.target, path)
            else:
                fill(entry, path)
        except OSError as e:
            raise unwritable(path, e) from e
    for path, mode in reversed(directories):
        os.chmod(path, mode)


def copy_file(entry: Entry, path: str, hashes: FileHashes | None = None) -> str:
    """Copy a workspace file to a new file; return the SHA-256 of its content in hex digits.

    Raises SpecError if it cannot be read, and OSError if ``path`` exists or cannot be written.
    """
    with new_file(path, entry.mode, entry.mtime) as fd:
        digest = hashes.known(entry) if hashes is not None else ""
        if not (digest and _copy_by_kernel(entry, fd)):
            digest = _copy_by_reading(entry, fd, hashes)
    return digest


@contextmanager
def new_file(path: str, mode: int, mtime: float = 0.0) -> Iterator[int]:
    """Create a file to be written in the block, then sets its mode and, unless 0, its time. Never follows a link."""
    fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    try:
        yield fd
        os.fchmod(fd, mode)
        if mtime:
            os.utime(fd, (mtime, mtime))
    finally:
        os.close(fd)


def write_marker(path: str, content: str) -> None:
    """Write the hash of a workspace into a read-only file, which replaces an earlier one; raise OSError."""
    with new_file(f"{path}.new", 0o444) as fd:
        os.write(fd, f"{content}\n".encode())
    os.replace(f"{path}.new", path)


def clone(source: int, target: int) -> bool:
    """Make the open file ``target`` share the blocks of ``source``; return False if the file system cannot."""
    import fcntl

    try:
        fcntl.ioctl(target, _FICLONE, source)
    except OSError:
        return False
    return True


def remove_tree(path: str, *, keep: bool = False) -> None:
    """Remove what it can of a folder of any depth that torchx has created; with ``keep``, not the folder itself."""
    folders = [path]
    for folder in folders:  # grows
        try:
            with os.scandir(folder) as found:
                for entry in found:
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)
                    else:
                        os.unlink(entry.path)
        except OSError:
            continue
    for folder in reversed(folders[keep:]):
        with suppress(OSError):
            os.rmdir(folder)


def merge(workspace: Workspace, outdir: str) -> None:
    """Copy a workspace into a folder, where it replaces files in its way; errors as in `Workspace.merge_into`."""
    files = entries(workspace)  # before anything is written: a target below a source must not become part of it
    try:
        os.makedirs(outdir, exist_ok=True)
        for entry in files:
            _make_way(entry, os.path.join(outdir, entry.path))
    except OSError as e:
        raise unwritable(outdir, e) from e
    kept = [e for e in files if not (e.kind == DIRECTORY and os.path.isdir(os.path.join(outdir, e.path)))]
    write_tree(kept, outdir, copy_file)


def _make_way(entry: Entry, path: str) -> None:
    if not os.path.lexists(path):
        return
    if os.path.isdir(path) and not os.path.islink(path):
        if entry.kind != DIRECTORY:
            remove_tree(path)
    else:
        os.unlink(path)


def _copy_by_kernel(entry: Entry, fd: int) -> bool:
    """Copy a local file if it has not changed since it was listed; else returns False and write nothing."""
    if not entry.local:
        return False
    with entry.open() as source:
        fro = source.fileno()
        if _changed(fro, entry):
            return False
        left = entry.size
        try:
            if clone(fro, fd):
                left = 0
            while left and (done := os.copy_file_range(fro, fd, min(left, 1 << 30))):
                left -= done
        except OSError as e:
            if e.errno in (errno.ENOSPC, errno.EDQUOT):
                raise
            left = -1
        # The file changed in the meantime: the copy does not match the hash.
        if left or _changed(fro, entry):
            os.ftruncate(fd, 0)
            os.lseek(fd, 0, os.SEEK_SET)
            return False
    return True


def _copy_by_reading(entry: Entry, fd: int, hashes: FileHashes | None) -> str:
    import hashlib

    digest = hashlib.sha256()
    began = time.time()
    for chunk in entry.chunks():
        digest.update(chunk)
        rest = memoryview(chunk)
        while rest:
            rest = rest[os.write(fd, rest) :]
    if hashes is not None:
        hashes.learn(entry, digest.hexdigest(), read_at=began)
    return digest.hexdigest()


def _changed(fd: int, entry: Entry) -> bool:
    return entry.identity != identity_of(os.fstat(fd))


def unwritable(path: str, error: OSError) -> ConfigError:
    """Return the error for a copy that cannot be written."""
    return ConfigError(
        f"the workspace cannot be copied to `{path}`: {error.strerror or error}",
        hint="is there space, and may you write there?",
    )
