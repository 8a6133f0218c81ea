"""Walks one source directory of a workspace, without ignored files and without links that lead out of it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from torchx.errors import MissingDependencyError, SpecError
from torchx.util.links import stays
from torchx.util.notices import logger
from torchx.workspace.ignore import IGNORE_FILES, TORCHX_IGNORE, IgnoreRules
from torchx.workspace.private import is_torchx_home, secret_files, why_left_out

_Infos = dict[str, dict[str, Any]]

MARKER = ".torchx-workspace"
"""File in each job folder with the hash of its workspace. Job folders are not part of a workspace that contains them,
or each job would include all earlier ones."""

STORE = ".torchx-workspaces"
"""Prefix of the names of snapshot stores."""


def identity_of(status: os.stat_result) -> tuple[int, ...]:
    """Return a value that changes whenever the file is written to."""
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def walk_workspace(
    fs: Any, path: str, ignore_name: str = TORCHX_IGNORE
) -> Iterable[tuple[str, Iterable[str], Mapping[str, Mapping[str, object]]]]:
    """Walk a workspace in a fixed order, without ignored files.

    Args:
        fs: an fsspec file system, or :class:`LocalFiles`.
        path: the workspace's root on it.
        ignore_name: file at the root with patterns as in a ``.dockerignore``. If ``.torchxignore`` does not exist,
            ``.dockerignore`` is used.

    Yields:
        Directory, names of its subdirectories, and its files as name -> info. A symbolic link is a file whose
        info has ``islink`` and ``destination``. Links that lead out of the workspace, and anything that is neither
        file, directory nor link, are omitted with a warning.

    Raises:
        SpecError: the workspace does not exist or cannot be read, its ignore file is malformed, or a name in it leads
            out of it.
    """
    return ((folder, folders, files) for _, folder, folders, files in walk_tree(fs, path, ignore_name))


def walk_tree(fs: Any, path: str, ignore_name: str = TORCHX_IGNORE) -> Iterator[tuple[str, str, _Infos, _Infos]]:
    """Like :func:`walk_workspace`, but yields each directory's path below the root, and infos of subdirectories."""
    root = path.rstrip("/") or path[:1]
    if not fs.isdir(root):
        raise SpecError(f"workspace `{path}` is not a directory", hint="check `--workspace`")
    return _walk(fs, root, ignore_rules(fs, root, ignore_name))


def ignore_file(fs: Any, root: str, ignore_name: str = TORCHX_IGNORE) -> str:
    """Return the name of the ignore file in effect at ``root``; empty if there is none."""
    names = IGNORE_FILES if ignore_name == TORCHX_IGNORE else (ignore_name,)
    return next((name for name in names if fs.isfile(_join(root, name))), "")


def open_workspace(source: str) -> tuple[Any, str]:
    """Return the file system and the root of a workspace given as a path or a URL.

    Raises SpecError for an unknown kind or a rejected address, and MissingDependencyError if a package is missing.

    >>> open_workspace("file:///tmp")[1]
    '/tmp'
    """
    scheme, separator, path = source.partition("://")
    if not separator or scheme in ("file", "local"):
        return LocalFiles(), os.path.abspath(os.path.expanduser(path if separator else source))
    try:
        import fsspec

        fs, root = fsspec.core.url_to_fs(source)
    except ImportError as e:
        raise MissingDependencyError(f"workspace `{source}`: {e}", hint=f"install fsspec's part for `{scheme}`") from e
    except (ValueError, OSError) as e:
        raise SpecError(f"workspace `{source}` cannot be opened: {e}") from e
    return fs, str(root)


class LocalFiles:
    """The methods of an fsspec file system that a walk needs, for local files, without importing fsspec (75 ms)."""

    def isdir(self, path: str) -> bool:
        """Return whether it is a directory, or a link to one."""
        return os.path.isdir(path)

    def isfile(self, path: str) -> bool:
        """Return whether it is a regular file, or a link to one."""
        return os.path.isfile(path)

    def cat_file(self, path: str) -> bytes:
        """Return the content of a small file."""
        with open(path, "rb") as f:
            return f.read()

    def open(self, path: str, mode: str = "rb") -> Any:
        """Open a regular file."""
        # If a link or a FIFO has replaced it since the walk, do not follow it, and do not block.
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        return os.fdopen(os.open(path, flags), mode)

    def ls(self, path: str, detail: bool = True) -> list[dict[str, object]]:  # noqa: ARG002  # fsspec's signature
        """List a directory: name, type, size in bytes, mode, mtime in seconds; for links their destination."""
        found = []
        with os.scandir(path) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):  # removed since, such as a temporary file of another program
                    found.append(_info(entry))
        return found


def _info(entry: os.DirEntry[str]) -> dict[str, object]:
    stat = entry.stat(follow_symlinks=False)
    plain = "file" if entry.is_file(follow_symlinks=False) else "other"
    return {
        "name": entry.path,
        "type": "directory" if entry.is_dir(follow_symlinks=False) else plain,
        "size": stat.st_size,
        "mode": stat.st_mode,
        "mtime": stat.st_mtime,
        "identity": identity_of(stat),
        "islink": entry.is_symlink(),
        **({"destination": os.readlink(entry.path)} if entry.is_symlink() else {}),
    }


def ignore_rules(fs: Any, root: str, ignore_name: str = TORCHX_IGNORE) -> IgnoreRules:
    """Return the rules in effect at ``root``; empty rules if it has no ignore file."""
    name = ignore_file(fs, root, ignore_name)
    if not name:
        return IgnoreRules([])
    path = _join(root, name)
    try:
        text = fs.cat_file(path).decode("utf-8", "surrogateescape")
    except OSError as e:
        raise _unreadable(path, e) from e
    return IgnoreRules.parse(text, origin=path)


def _walk(fs: Any, root: str, rules: IgnoreRules) -> Iterator[tuple[str, str, _Infos, _Infos]]:
    # A stack, because a tree may be deeper than Python's recursion limit.
    todo: list[tuple[str, str, tuple[bool, ...] | None]] = [("", root, None)]
    secret = secret_files()
    while todo:
        below, folder, above = todo.pop()
        folders: _Infos = {}
        files: _Infos = {}
        further = []
        for name, path, info in _listing(fs, root, folder):
            if name == MARKER or name.startswith(STORE):
                continue
            relative = f"{below}/{name}" if below else name
            ignored, seen = rules.step(above, relative)
            if info["type"] == "directory" and not info.get("islink"):
                if isinstance(fs, LocalFiles) and (os.path.lexists(f"{path}/{MARKER}") or is_torchx_home(path)):
                    continue
                if not ignored:
                    folders[name] = info
                if not ignored or rules.may_include_below(relative):
                    further.append((relative, path, seen))
            elif not ignored and (why := why_left_out(name, info, secret)):
                _warn("`%s` is left out: %s", path, why)
            elif not ignored and (included := _included(root, path, info)) is not None:
                files[name] = included
        yield below, folder, folders, files
        todo += reversed(further)


def _listing(fs: Any, root: str, folder: str) -> list[tuple[str, str, dict[str, Any]]]:
    """List a directory in a fixed order: name, path on the file system, info."""
    try:
        found = fs.ls(folder, detail=True)
    except OSError as e:
        if isinstance(e, FileNotFoundError) and folder != root:  # removed since its parent was listed
            return []
        raise _unreadable(folder, e) from e
    # Object stores also list the marker of the folder itself, and some keep the trailing slash.
    entries = {str(info["name"]).rstrip("/"): info for info in found}
    listing = []
    for path, info in sorted(entries.items()):
        name = path.rpartition("/")[2]
        if path.strip("/") == folder.strip("/"):
            continue
        if name in ("", ".", "..") or "\0" in name:
            raise SpecError(f"workspace `{root}` has an entry `{path}`, which leads out of it")
        listing.append((name, path, info))
    return listing


def _included(root: str, path: str, info: dict[str, Any]) -> dict[str, Any] | None:
    """Return the info of a file or link to include; None, with a warning, if it cannot be included."""
    if info.get("islink") or info["type"] == "link":
        return _inner_link(root, path, info)
    if info["type"] == "file":
        return info
    _warn("`%s` is left out: it is neither a file, a directory nor a link", path)
    return None


def _inner_link(root: str, path: str, info: dict[str, Any]) -> dict[str, Any] | None:
    """Return the info of a link, with a destination relative to it; None if it leads out of the workspace."""
    destination = info.get("destination", "")
    destination = os.fsdecode(destination) if isinstance(destination, bytes) else str(destination)
    home = os.path.realpath(root)
    here = os.path.realpath(os.path.dirname(path))
    real = os.path.realpath(os.path.join(here, destination))
    if not destination or not (real == home or real.startswith(home.rstrip("/") + "/")):
        _warn("`%s` is left out: it links to `%s`, outside the workspace", path, destination)
        return None
    if not stays(os.path.join(os.path.relpath(here, home), "x"), destination):
        destination = os.path.relpath(real, here)  # it depends on the workspace's name, or on other links
    return {**info, "islink": True, "destination": destination}


def _join(folder: str, name: str) -> str:
    return f"{folder.rstrip('/')}/{name}".rstrip("/") or "/"


def _unreadable(path: str, error: OSError) -> SpecError:
    return SpecError(
        f"workspace: `{path}` cannot be read: {error.strerror or error}",
        hint=f"make it readable, or name it in `{TORCHX_IGNORE}`",
    )


def _warn(text: str, *values: str) -> None:
    logger("torchx.workspace").warning(text, *values)
