"""The contents of a workspace: the files of all its projects, each at its place, and their hash.

Every builder starts from these:

>>> import os, tempfile
>>> folder = tempfile.mkdtemp()
>>> with open(os.path.join(folder, "train.py"), "w") as f:
...     _ = f.write("print('hello')")
>>> [(e.path, e.kind, e.size) for e in entries(folder)]
[('train.py', 'file', 14)]
>>> content_hash(entries(folder))[:12]
'sha256:3062b'
"""

from __future__ import annotations

import os
import stat
from typing import IO, TYPE_CHECKING, Any

from torchx.errors import SpecError, TorchXError
from torchx.util.records import dataclass
from torchx.workspace.files import LocalFiles, open_workspace, walk_tree
from torchx.workspace.private import check_entries, check_root

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from torchx.specs.workspaces import Workspace

FILE, DIRECTORY, LINK = "file", "directory", "link"
CHUNK = 1 << 20  # bytes: files are streamed, never held


@dataclass(frozen=True)
class Entry:
    """One file, directory or symbolic link of a workspace.

    ``path`` is below the workspace's root, ``/`` between its parts, never absolute, never with ``..``. Bytes that are
    not UTF-8 are surrogate escapes, as in ``os.fsdecode``.
    """

    path: str
    kind: str  # FILE, DIRECTORY or LINK
    mode: int  # permission bits, without set-user-id and the like
    size: int = 0  # of a file in bytes, at the time when the directory was read
    mtime: float = 0.0  # seconds since the epoch; 0 if the source does not provide it
    target: str = ""  # where a link points to, within the workspace
    identity: tuple[int, ...] = ()  # changes when a local file is written to; empty if the source does not provide it
    local: str = ""  # path of the file on this machine; empty if it is elsewhere
    opener: Callable[[], IO[bytes]] | None = None

    def chunks(self) -> Iterator[bytes]:
        """Yield ``size`` bytes, even if the file grows; raise SpecError if it is unreadable or became shorter."""
        left = self.size
        with self.open() as f:
            while left and (chunk := self._read(f, min(left, CHUNK))):
                left -= len(chunk)
                yield chunk
        if left:
            raise SpecError(
                f"workspace file `{self.path}` became shorter while it was read",
                hint="try again when nothing writes to it, or name it in `.torchxignore`",
            )

    def open(self) -> IO[bytes]:
        """Open the file, or raise SpecError. Prefer :meth:`chunks`, which handles a file that changes."""
        if self.opener is None:
            raise SpecError(f"workspace entry `{self.path}` is not a file")
        try:
            return self.opener()
        except Exception as e:  # remote file systems raise any exception
            raise unreadable(self, e) from e

    def _read(self, f: IO[bytes], size: int) -> bytes:
        try:
            return f.read(size)
        except Exception as e:  # as above
            raise unreadable(self, e) from e


def entries(workspace: Workspace | str) -> list[Entry]:
    """List the files, directories and links of a workspace, sorted by path, each directory before its contents.

    Each project is filtered by its own ignore file. If two projects have the same path, the later one wins.
    Only directories and ignore files are read.

    Raises:
        SpecError: a project does not exist or cannot be read, a place is not below the root, or it is a home directory
            or contains credentials (:mod:`torchx.workspace.private`).
        MissingDependencyError: a part of fsspec is missing.
    """
    projects = {workspace: ""} if isinstance(workspace, str) else workspace.projects
    found: dict[str, Entry] = {}
    for source, place in projects.items():
        prefix = _prefix(source, place)
        try:
            project = list(_of_project(source, prefix))
            check_entries(source, project)
            for entry in project:
                _put(found, entry)
        except TorchXError:
            raise
        except Exception as e:  # remote file systems raise any exception
            raise SpecError(f"workspace `{source}` cannot be read: {e}", hint="is the address right?") from e
    # A parent sorts before its contents; "a.b" comes after "a/c", as in a walk.
    return [found[path] for path in sorted(found, key=lambda p: p.split("/"))]


def content_hash(files: Iterable[Entry], digest_of: Callable[[Entry], str] | None = None) -> str:
    """Return ``sha256:<hex>`` of paths, permissions, link targets and contents, but not of owners and times.

    ``files`` are sorted as by :func:`entries`. ``digest_of`` returns the SHA-256 of a content in hex; by default the
    file is read, which may raise SpecError.
    """
    import hashlib

    total = hashlib.sha256()
    for entry in files:
        of = entry.target if entry.kind == LINK else ""
        if entry.kind == FILE:
            of = (digest_of or sha256_of)(entry)
        # Each part has its length as a prefix, so that no name can be taken for two parts.
        for part in (entry.kind, f"{entry.mode:o}", entry.path, of):
            data = os.fsencode(part)
            total.update(b"%d:%s," % (len(data), data))
    return f"sha256:{total.hexdigest()}"


def sha256_of(entry: Entry) -> str:
    """Return the SHA-256 of a file's content in hex digits. The content is streamed."""
    import hashlib

    digest = hashlib.sha256()
    for chunk in entry.chunks():
        digest.update(chunk)
    return digest.hexdigest()


def unreadable(entry: Entry, error: Exception) -> SpecError:
    """Return the error for a file that cannot be read."""
    return SpecError(
        f"workspace file `{entry.path}` cannot be read: {getattr(error, 'strerror', None) or error}",
        hint="make it readable, or name it in `.torchxignore`",
    )


def _prefix(source: str, place: str) -> str:
    """Return the place of a project as a prefix of its paths."""
    clean = os.path.normpath(place) if place else "."
    if os.path.isabs(clean) or clean.split("/", 1)[0] == "..":
        raise SpecError(
            f"workspace project `{source}` would go to `{place}`, which is outside the workspace",
            hint="give a relative path without `..`",
        )
    return "" if clean == "." else f"{clean}/"


def _of_project(source: str, prefix: str) -> Iterator[Entry]:
    fs, root = open_workspace(source)
    if prefix:
        yield Entry(prefix.rstrip("/"), DIRECTORY, 0o755)
    if not fs.isdir(root):
        if not fs.isfile(root):
            raise SpecError(f"workspace `{source}` is not a directory", hint="check `--workspace`: does it exist?")
        yield _single_file(fs, root, prefix)
        return
    if isinstance(fs, LocalFiles):
        check_root(root)
    for below, _, folders, files in walk_tree(fs, root):
        head = f"{prefix}{below}/" if below else prefix
        for name, info in folders.items():
            yield Entry(head + name, DIRECTORY, _mode(info, 0o755) | 0o700)
        for name, info in files.items():
            yield _entry(fs, head + name, info)


def _single_file(fs: Any, path: str, prefix: str) -> Entry:
    name = path.rpartition("/")[2]
    if isinstance(fs, LocalFiles):
        path = os.path.realpath(path)
        info = next(i for i in fs.ls(os.path.dirname(path)) if i["name"] == path)
        return _entry(fs, prefix + name, info)
    return _entry(fs, prefix + name, fs.info(path))


def _entry(fs: Any, path: str, info: Mapping[str, Any]) -> Entry:
    if info.get("islink"):
        return Entry(path, LINK, 0o777, target=str(info["destination"]))
    name = str(info["name"])
    return Entry(
        path,
        FILE,
        _mode(info, 0o644),
        size=int(info["size"] or 0),
        mtime=_mtime(info),
        identity=tuple(info.get("identity", ())),
        local=name if isinstance(fs, LocalFiles) else "",
        opener=lambda: fs.open(name, "rb"),
    )


def _mode(info: Mapping[str, Any], default: int) -> int:
    mode = info.get("mode")
    return stat.S_IMODE(mode) & 0o777 if isinstance(mode, int) else default


def _mtime(info: Mapping[str, Any]) -> float:
    """Return the modification time, whatever the file system calls it."""
    for key in ("mtime", "LastModified", "last_modified", "updated", "created"):
        value = info.get(key)
        if isinstance(value, (int, float)):
            return float(value)
        if value is not None and hasattr(value, "timestamp"):
            return float(value.timestamp())
    return 0.0


def _put(found: dict[str, Entry], entry: Entry) -> None:
    """Add an entry, and remove conflicting entries of earlier projects."""
    parts = entry.path.split("/")
    for n in range(1, len(parts)):
        parent = "/".join(parts[:n])
        if parent not in found or found[parent].kind != DIRECTORY:
            found[parent] = Entry(parent, DIRECTORY, 0o755)
    before = found.get(entry.path)
    if before is not None and before.kind == DIRECTORY != entry.kind:
        below = f"{entry.path}/"
        for path in [path for path in found if path.startswith(below)]:
            del found[path]
    found[entry.path] = entry
