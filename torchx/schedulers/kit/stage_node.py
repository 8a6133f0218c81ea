"""Copies a file or folder to a cache on the node of a replica, once for all jobs; runs there, by Python 3.7 or newer.

Argument: a path, or a URL that fsspec reads. Prints the path of the copy. A copy is complete if its folder exists; one
process makes it, and others wait. Copies that no job uses are removed when the cache would exceed its bound.

A scheduler may send sources to all nodes before: ``--send SOURCE...`` prints, for each that this node lacks, a file and
its path on the nodes, in lines; ``--sent SOURCE...`` removes the files that were made for it.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import stat
import sys
from contextlib import suppress
from typing import Any

CACHE = os.path.abspath(os.environ.get("TORCHX_STAGE_DIR") or f"/tmp/torchx-stage-{os.getuid()}")  # noqa: S108  # here
_CONTAINED = ("/.dockerenv", "/run/.containerenv")  # files of Docker and Podman
LEAST = 1 << 20  # bytes of a source that is sent
MAX_GB = os.environ.get("TORCHX_STAGE_GB") or "500"
PART = ".part"  # suffix of a copy that is not complete


class StageError(Exception):
    """Why the source is not there."""


def local_files(source: str) -> dict[str, tuple[int, str]]:
    """Return size and version of each file, by its path below the source; empty path: the source is a file itself."""
    if not os.path.exists(source):
        contained = any(map(os.path.exists, _CONTAINED)) or "KUBERNETES_SERVICE_HOST" in os.environ
        where = "in this container: mount it, or give a URL" if contained else "on this node"
        raise StageError(f"there is no such file or folder {where}")
    found = {}
    folders = os.walk(source, followlinks=True, onerror=_raise) if os.path.isdir(source) else [("", [], [source])]
    for folder, _, names in folders:
        for name in names:
            path = os.path.join(folder, name)
            facts = os.stat(path)
            found["" if not folder else os.path.relpath(path, source)] = (facts.st_size, str(facts.st_mtime_ns))
    return found


def _raise(error: OSError) -> None:
    raise error


def remote_files(fs: Any, path: str) -> dict[str, tuple[int, str]]:
    """Return the same for a source that fsspec reads."""
    if not fs.exists(path):
        raise StageError("there is no such object")
    kept = ("ETag", "etag", "md5Hash", "blob_id", "mtime", "LastModified", "last_modified", "updated", "created")
    found = {}
    for name, info in fs.find(path, detail=True).items():
        version = next((str(info[key]) for key in kept if info.get(key)), "")
        relative = name[len(path.rstrip("/")) :].lstrip("/")
        found[relative] = (int(info.get("size") or 0), version)
    return found


def opened(path: str) -> Any:
    """Open a file of the cache to write, which others may not read."""
    return open(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "a", encoding="ascii")


def locked(entry: str) -> Any:
    """Open the lock of an entry."""
    return opened(f"{entry}.lock")


def make_room(needed: int, mine: str) -> None:
    """Remove parts, and the least recently used copies that no job holds, until ``needed`` bytes fit."""
    most = float(MAX_GB) * 1e9
    if needed > most:
        raise StageError(f"it has {needed / 1e9:.1f} GB, and the cache {most / 1e9:g} GB: raise TORCHX_STAGE_GB")
    entries = []
    for name in os.listdir(CACHE):
        record = os.path.join(CACHE, name, "size")
        if name.endswith(PART):
            forget(name[: -len(PART)])
        elif name != mine and os.path.isfile(record):
            with open(record, encoding="ascii") as file:
                entries.append((os.stat(record).st_mtime, name, int(file.read() or 0)))
    total = sum(size for _, _, size in entries)
    for _, name, size in sorted(entries):
        if total + needed <= most and shutil.disk_usage(CACHE).free > needed:
            return
        total -= size * forget(name)
    free = shutil.disk_usage(CACHE).free
    if free <= needed or total + needed > most:
        raise StageError(f"it needs {needed / 1e9:.1f} GB, and {CACHE} has no room: running jobs use the rest")


def forget(key: str) -> bool:
    """Remove a copy, or its part; False if a job uses it."""
    entry = os.path.join(CACHE, key)
    with locked(entry) as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        remove(entry + PART)
        if os.path.isdir(entry):
            os.rename(entry, entry + PART)  # so that what is left of it is never taken for the whole
            remove(entry + PART)
    return True


def remove(part: str) -> None:
    """Remove a folder, also one that its source has as read-only."""
    for folder, _, _ in os.walk(part):
        os.chmod(folder, 0o700)
    shutil.rmtree(part, ignore_errors=True)


def is_whole(path: str, files: dict[str, tuple[int, str]]) -> bool:
    """Whether the files of a copy are still there: a job may have changed it, and nodes clean their folders."""
    try:
        return all(
            os.stat(os.path.join(path, name) if name else path).st_size == size for name, (size, _) in files.items()
        )
    except OSError:
        return False


def key_of(path: str, files: dict[str, tuple[int, str]]) -> str:
    """Return the name of a source's copy, which changes with its files."""
    return hashlib.sha256(repr([path, sorted(files.items())]).encode()).hexdigest()[:24]


def sent_path(key: str) -> str:
    """Return where a source that was sent to the node is: beside the cache, which may not be there yet."""
    return f"{CACHE}-{key}"


def send(sources: list[str]) -> None:
    """Print what to send of these sources, and to which path; folders are packed."""
    import tarfile

    for source in sources:
        path = os.path.abspath(source)
        with suppress(OSError, StageError):  # the replicas will say so
            files = {} if "://" in source else local_files(path)
            size, key = sum(size for size, _ in files.values()), key_of(path, files)
            if size < LEAST or os.path.isdir(os.path.join(CACHE, key)) or "\n" in path:
                continue
            packed = path
            if "" not in files:
                packed = f"{sent_path(key)}.tar"
                if shutil.disk_usage(os.path.dirname(packed)).free < 3 * size:
                    continue
                with tarfile.open(packed, "x", dereference=True) as tar:
                    tar.add(path, arcname=".")
            sys.stdout.write(f"{packed}\n{sent_path(key)}\n")
            sys.stdout.flush()


def forget_sent(sources: list[str]) -> None:
    """Remove the archives that :func:`send` made."""
    for source in sources:
        path = os.path.abspath(source)
        with suppress(OSError, StageError):
            os.unlink(f"{sent_path(key_of(path, local_files(path)))}.tar")


def take_sent(sent: str, target: str, files: dict[str, tuple[int, str]]) -> bool:
    """Move a source that was sent to ``target``; False if it did not arrive whole, or somebody else put it there."""
    if not os.path.lexists(sent):
        return False
    import tarfile

    try:
        facts = os.lstat(sent)
        if not stat.S_ISREG(facts.st_mode) or facts.st_uid != os.getuid():
            return False
        if "" in files:
            shutil.move(sent, target)
        else:
            with tarfile.open(sent) as tar:
                tar.extractall(target)  # noqa: S202  # our own file
        arrived = {name: size for name, (size, _) in local_files(target).items()}
    except (OSError, tarfile.TarError, StageError):
        arrived = {}
    if arrived == {name: size for name, (size, _) in files.items()}:
        return True
    shutil.rmtree(target, ignore_errors=True)
    with suppress(OSError):
        os.unlink(target)
    return False


def stage(source: str) -> str:
    """Return the path of the copy, which is made if it is missing."""
    fs: Any = None
    source = source[len("file://") :] if source.startswith("file:///") else source
    path = os.path.abspath(source)
    if "://" in source:
        try:
            import fsspec
        except ImportError:
            raise StageError("this node's Python has no fsspec: a set-up line may provide it") from None
        fs, path = fsspec.core.url_to_fs(source)
    files = local_files(path) if fs is None else remote_files(fs, path)
    key = key_of(source if fs else path, files)
    os.makedirs(CACHE, mode=0o700, exist_ok=True)
    if os.stat(CACHE).st_uid != os.getuid():
        raise StageError(f"{CACHE} belongs to another user")
    entry = os.path.join(CACHE, key)
    name = os.path.basename(path.rstrip("/")) or "data"
    if os.path.isdir(entry) and fs is None and not is_whole(os.path.join(entry, name), files) and not forget(key):
        raise StageError(f"its copy in {entry} lacks files, and running jobs use it")
    with locked(entry) as lock:
        if not os.path.isdir(entry):
            fcntl.flock(lock, fcntl.LOCK_EX)  # one maker
        if not os.path.isdir(entry):
            make(fs, path, entry, files)
    with suppress(OSError):
        os.unlink(sent_path(key))
    os.utime(os.path.join(entry, "size"))
    return os.path.join(entry, name)


def make(fs: Any, path: str, entry: str, files: dict[str, tuple[int, str]]) -> None:
    """Make a copy, whose lock the caller holds."""
    part, key = entry + PART, os.path.basename(entry)
    target = os.path.join(part, os.path.basename(path.rstrip("/")) or "data")
    size = sum(size for size, _ in files.values())
    remove(part)
    make_room(size, key)
    os.mkdir(part)
    try:
        if fs is not None or not take_sent(sent_path(key), target, files):
            copy(fs, path, target, is_folder="" not in files)
        with opened(os.path.join(part, "size")) as file:
            file.write(str(size))
        os.rename(part, entry)
    except BaseException:
        remove(part)
        raise


def copy(fs: Any, path: str, target: str, *, is_folder: bool) -> None:
    """Copy the source."""
    if fs is not None:
        end = "/" if is_folder else ""
        fs.get(path.rstrip("/") + end, target + end, recursive=is_folder)
    elif is_folder:
        shutil.copytree(path, target)
    else:
        shutil.copy2(path, target)


def main(argv: list[str]) -> int:
    """Print the path of the copy; return the exit code."""
    if argv[0] in ("--send", "--sent"):
        (send if argv[0] == "--send" else forget_sent)(argv[1:])
        return 0
    try:
        sys.stdout.write(stage(argv[0]) + "\n")
    except Exception as e:  # whatever a file system of fsspec raises
        why = e.args[0][0][2] if isinstance(e, shutil.Error) and e.args[0].__class__ is list else e
        sys.stderr.write(f"torchx: `{argv[0]}` cannot be staged: {why or type(e).__name__}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
