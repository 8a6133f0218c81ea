"""The contract of a workspace mixin, and the one walk over a workspace's files."""

# ruff: noqa: ARG002 -- hooks take what the interface gives them

from __future__ import annotations

import os
import types
from abc import ABC, abstractmethod

from torchx.errors import NotSupportedError, SpecError
from torchx.specs.api import runopts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from dataclasses import dataclass
    from typing import Any, Generic, TypeVar

    from torchx.specs.api import AppDef, CfgVal, Role, Workspace

    T = TypeVar("T")
    PackageType = TypeVar("PackageType")
    WorkspaceConfigType = TypeVar("WorkspaceConfigType")

    class _OfPushes(Generic[T]):
        pass

    class _OfPackage(Generic[PackageType]):
        pass

    class _OfBuilder(Generic[PackageType, WorkspaceConfigType]):
        pass
else:
    from torchx.util.records import dataclass

    T = PackageType = WorkspaceConfigType = object

    class _OfPushes:
        """`WorkspaceMixin[X]` as a base class, without paying for an import of `typing`."""

        __class_getitem__ = classmethod(types.GenericAlias)

    _OfPackage = _OfBuilder = _OfPushes


TORCHX_IGNORE = ".torchxignore"


@dataclass
class PkgInfo(_OfPackage[PackageType]):
    """What a build made: the image, changes to the role that are due later, and the builder's own record."""

    img: str
    lazy_overrides: dict[str, Any]
    metadata: PackageType


@dataclass
class WorkspaceBuilder(_OfBuilder[PackageType, WorkspaceConfigType], ABC):
    """Builds a workspace by its configuration."""

    cfg: WorkspaceConfigType

    @abstractmethod
    def build_workspace(self, sync: bool = True) -> PkgInfo[PackageType]:
        """Builds; with ``sync=False`` it may return before the package is ready."""


class WorkspaceMixin(_OfPushes[T]):
    """Gives a scheduler the ability to bring code along. ``T`` is what :meth:`push_images` takes.

    Mix it in before ``Scheduler``; override :meth:`caching_build_workspace_and_update_role` and, when there is
    something to configure, :meth:`workspace_opts`.
    """

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)

    def workspace_opts(self) -> runopts:
        """Run options of the workspace; the scheduler adds its own."""
        return runopts()

    def build_workspaces(self, roles: list[Role], cfg: Mapping[str, CfgVal]) -> None:
        """Builds the workspace of each role that has one, each different one once, and updates the roles in place."""
        build_cache: dict[object, object] = {}
        for role in roles:
            if role.workspace:
                self.caching_build_workspace_and_update_role(role, cfg, build_cache)

    def caching_build_workspace_and_update_role(
        self, role: Role, cfg: Mapping[str, CfgVal], build_cache: dict[object, object]
    ) -> None:
        """Builds the workspace of one role, or takes it from ``build_cache``, and updates ``role`` in place.

        Here: several projects are merged into one folder, and the older hook
        :meth:`build_workspace_and_update_role` builds from it.
        """
        if not role.workspace:
            return
        key = (role.image, *role.workspace.projects.items())
        if key not in build_cache:
            if role.workspace.is_unmapped_single_project():
                self.build_workspace_and_update_role(role, next(iter(role.workspace.projects)), cfg)
            else:
                import tempfile

                with tempfile.TemporaryDirectory(prefix="torchx-workspace-") as merged:
                    materialize(role.workspace, merged)
                    self.build_workspace_and_update_role(role, merged, cfg)
            build_cache[key] = role.image
        role.image = str(build_cache[key])

    def build_workspace_and_update_role(self, role: Role, workspace: str, cfg: Mapping[str, CfgVal]) -> None:
        """Builds one workspace and sets ``role.image``.

        Deprecated: override :meth:`caching_build_workspace_and_update_role`.
        """
        raise NotSupportedError(
            f"`{type(self).__name__}` does not say how to build a workspace",
            hint="override `caching_build_workspace_and_update_role`, or run without a workspace",
        )

    def dryrun_push_images(self, app: AppDef, cfg: Mapping[str, CfgVal]) -> T:
        """Which images would be pushed, and under which name: updates the roles, pushes nothing."""
        return {}  # type: ignore[return-value]  # a mixin that pushes nothing has nothing of any T

    def push_images(self, images_to_push: T) -> None:
        """Pushes what :meth:`dryrun_push_images` returned."""
        if images_to_push:
            raise NotSupportedError(f"`{type(self).__name__}` does not say how to push `{images_to_push}`")


def walk_workspace(
    fs: Any, path: str, ignore_name: str = TORCHX_IGNORE
) -> Iterable[tuple[str, Iterable[str], Mapping[str, Mapping[str, object]]]]:
    """Walks a workspace in a fixed order, less what its ignore file names.

    Args:
        fs: an fsspec file system, or :class:`LocalFiles`.
        path: the workspace's root on it.
        ignore_name: file at the root with patterns as in a ``.dockerignore``.

    Yields:
        Directory, names of its subdirectories, and its files as name -> info. A symbolic link is a file whose
        info has ``islink`` and ``destination``; one that leads out of the workspace is left out, with a warning.

    Raises:
        SpecError: the workspace does not exist, its ignore file is malformed, or a name in it leads out of it.
    """
    from torchx.workspace.ignore import IgnoreRules

    root = path.rstrip("/") or "/"
    if not fs.isdir(root):
        raise SpecError(f"workspace `{path}` is not a directory", hint="check `--workspace`")
    ignore_file = f"{root.rstrip('/')}/{ignore_name}"
    text = fs.cat_file(ignore_file).decode("utf-8", "replace") if fs.isfile(ignore_file) else ""
    yield from _walk(fs, root, "", IgnoreRules.parse(text, origin=ignore_file))


def materialize(workspace: Workspace, outdir: str) -> None:
    """Copies each project of a workspace to its place below ``outdir``; a later one wins.

    Raises:
        SpecError: a project that does not exist, or a place outside ``outdir``.
    """
    for source, place in workspace.projects.items():
        target = os.path.normpath(os.path.join(outdir, place))
        if target != os.path.normpath(outdir) and not target.startswith(os.path.normpath(outdir) + os.sep):
            raise SpecError(f"workspace project `{source}` would go to `{place}`, outside the workspace")
        copy_workspace(source, target)


def copy_workspace(source: str, target: str) -> None:
    """Copies the files of a workspace (path or fsspec URL), less the ignored ones; file modes are kept.

    Raises:
        SpecError: as :func:`walk_workspace`.
    """
    import shutil

    fs, root = open_workspace(source)
    local = isinstance(fs, LocalFiles)
    if local and os.path.isfile(root):
        os.makedirs(target, exist_ok=True)
        shutil.copy2(root, target)
        return
    # The list first: a target below the source must not become part of itself.
    for folder, subfolders, files in list(walk_workspace(fs, root)):
        place = os.path.join(target, folder[len(root) :].strip("/"))
        for name in subfolders:
            os.makedirs(os.path.join(place, name), exist_ok=True)
        os.makedirs(place, exist_ok=True)
        for name, info in files.items():
            copy = os.path.join(place, name)
            if info.get("islink"):
                if os.path.lexists(copy):
                    os.remove(copy)
                os.symlink(str(info["destination"]), copy)
            elif local:
                shutil.copy2(f"{folder}/{name}", copy)
            else:
                fs.get_file(str(info["name"]), copy)


def open_workspace(source: str) -> tuple[Any, str]:
    """The file system and the root of a workspace given as a path or a URL.

    >>> open_workspace("file:///tmp")[1]
    '/tmp'
    """
    scheme, separator, path = source.partition("://")
    if not separator or scheme == "file":
        return LocalFiles(), os.path.abspath(os.path.expanduser(path if separator else source))
    from torchx.errors import MissingDependencyError

    try:
        import fsspec

        fs, root = fsspec.core.url_to_fs(source)
    except ImportError as e:
        raise MissingDependencyError(f"workspace `{source}`: {e}", hint=f"install fsspec's part for `{scheme}`") from e
    except ValueError as e:
        raise SpecError(f"workspace `{source}` cannot be opened: {e}") from e
    return fs, str(root)


class LocalFiles:
    """The calls of an fsspec file system that a walk needs, on local files and without its 75 ms of import."""

    def isdir(self, path: str) -> bool:
        return os.path.isdir(path)

    def isfile(self, path: str) -> bool:
        return os.path.isfile(path)

    def cat_file(self, path: str) -> bytes:
        with open(path, "rb") as f:
            return f.read()

    def ls(self, path: str, detail: bool = True) -> list[dict[str, object]]:
        """Entries of a directory with name, type, size, mode, mtime; for links their destination."""
        found = []
        with os.scandir(path) as entries:
            for entry in entries:
                stat = entry.stat(follow_symlinks=False)
                plain = "file" if entry.is_file(follow_symlinks=False) else "other"
                info: dict[str, object] = {
                    "name": entry.path,
                    "type": "directory" if entry.is_dir(follow_symlinks=False) else plain,
                    "size": stat.st_size,
                    "mode": stat.st_mode,
                    "mtime": stat.st_mtime,
                    "islink": entry.is_symlink(),
                }
                if entry.is_symlink():
                    info["destination"] = os.readlink(entry.path)
                found.append(info)
        return found


def _walk(fs: Any, root: str, below: str, rules: Any) -> Iterator[tuple[str, list[str], dict[str, Any]]]:
    folder = f"{root.rstrip('/')}/{below}".rstrip("/") or "/"
    subfolders: list[str] = []
    descend: list[str] = []
    files: dict[str, Any] = {}
    # Object stores list a folder's own marker too, and some keep the trailing slash.
    entries = {str(i["name"]).rstrip("/"): i for i in fs.ls(folder, detail=True)}
    for path, info in sorted(entries.items()):
        name = path.rpartition("/")[2]
        if path.strip("/") == folder.strip("/"):
            continue
        if name in ("", ".", ".."):
            raise SpecError(f"workspace `{root}` has an entry `{path}`, which leads out of it")
        relative = f"{below}/{name}" if below else name
        ignored = rules.ignores(relative)
        if info["type"] == "directory":
            if not ignored:
                subfolders.append(name)
            if not ignored or not rules.prunes(relative):
                descend.append(relative)
        elif not ignored and info.get("islink"):
            link = _inner_link(root, path, info)
            if link is not None:
                files[name] = link
        elif not ignored and info["type"] == "file":
            files[name] = info
    yield folder, subfolders, files
    for relative in descend:
        yield from _walk(fs, root, relative, rules)


def _inner_link(root: str, path: str, info: dict[str, Any]) -> dict[str, Any] | None:
    """A link with its destination made relative; None when it leads out of the workspace."""
    destination = info["destination"]
    destination = os.fsdecode(destination) if isinstance(destination, bytes) else str(destination)
    home = os.path.realpath(root)
    here = os.path.realpath(os.path.dirname(path))
    real = os.path.realpath(os.path.join(here, destination))
    if real != home and not real.startswith(home + os.sep):
        import logging

        logging.getLogger("torchx.workspace").warning(
            "`%s` is left out: it links to `%s`, outside the workspace", path, destination
        )
        return None
    if os.path.isabs(destination):
        destination = os.path.relpath(real, here)
    return {**info, "destination": destination}
