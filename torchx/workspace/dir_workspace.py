"""Workspaces as folders: for schedulers whose nodes share a file system."""

# ruff: noqa: ARG002 -- hooks take what the interface gives them

from __future__ import annotations

import functools
import os
from typing import TYPE_CHECKING

from torchx.errors import ConfigError
from torchx.specs.api import CfgVal, Role, Workspace, runopts
from torchx.specs.images import set_workspace_hash
from torchx.util.notices import logger
from torchx.util.reexports import reexports
from torchx.workspace.api import WorkspaceMixin

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torchx.workspace.content import Entry

reexports(__name__)

_FOLDERS = "dir_workspace.folders"


class _FolderMixin(WorkspaceMixin[None]):
    """Copies workspaces to folders, and remembers these folders."""

    @functools.cached_property
    def _made(self) -> set[str]:
        return set()

    def _place(self, cfg: Mapping[str, CfgVal]) -> str | None:
        """Return the folder to create; empty for a temporary one, None to run the job where it is submitted."""
        return ""

    def caching_build_workspace_and_update_role(
        self, role: Role, cfg: Mapping[str, CfgVal], build_cache: dict[object, object]
    ) -> None:
        """Copy the workspace to a folder, or reuses that of a role with the same workspace, as the role's image.

        Raises:
            SpecError: the workspace cannot be read.
            ConfigError: the folder is not empty, or cannot be written.
        """
        place = self._place(cfg)
        if not role.workspace or place is None:
            return
        made = build_cache.setdefault(_FOLDERS, {})
        assert isinstance(made, dict)
        key = role.workspace.to_text()
        if key not in made:
            folder = f"{place}.{role.name}" if place and made else place
            made[key] = self._fill(role.workspace, folder, share=bool(cfg.get("share_code")))
        role.image, content = made[key]
        set_workspace_hash(role, content)

    def build_workspace_and_update_role(self, role: Role, workspace: str, cfg: Mapping[str, CfgVal]) -> None:
        """Copy one source directory to the folder. Deprecated."""
        place = self._place(cfg)
        if place is not None:
            role.image, content = self._fill(Workspace({workspace: ""}), place, share=bool(cfg.get("share_code")))
            set_workspace_hash(role, content)

    def discard_workspaces(self, roles: list[Role]) -> None:
        """Remove the folders that this object has created for these roles."""
        from torchx.workspace.copies import remove_tree

        for image in {role.image for role in roles} & self._made:
            self._made.remove(image)
            remove_tree(image)

    def _fill(self, workspace: Workspace, folder: str, *, share: bool) -> tuple[str, str]:
        """Copy a workspace to a folder (empty: a temporary one); return its absolute path and the content hash."""
        from torchx.workspace.content import entries
        from torchx.workspace.copies import remove_tree

        files = entries(workspace)  # before the folder is created, which may be inside the workspace
        is_new = named = bool(folder)
        if named:
            # Absolute, because the job starts in another directory.
            folder = os.path.abspath(os.path.expanduser(folder))
            is_new = _claim(folder)
        else:
            import tempfile

            folder = tempfile.mkdtemp(prefix="torchx-workspace-")
        try:
            # No store next to a temporary folder: other users write there.
            content = _copy(files, folder, str(workspace), stored=named, share=named and share)
        except BaseException:  # also on Ctrl-C: an incomplete folder would block the next attempt
            remove_tree(folder, keep=named and not is_new)
            raise
        self._made.add(folder)
        return folder, content


class DirWorkspaceMixin(_FolderMixin):
    """Copies the workspace to the new folder ``job_dir``, which becomes the role's image.

    The job's code stays as it was at submission. Without ``job_dir`` jobs run in the folder they are submitted from.
    If roles have different workspaces, the first goes to ``job_dir`` and each further one to ``<job_dir>.<role>``.

    Files are clones of a snapshot (:mod:`torchx.workspace.snapshots`) if the file system supports it, else copies.
    With ``share_code`` they are read-only hard links to the snapshot. This is not the default, because programs that
    open such a file for writing fail. Root gets a copy, because permissions do not restrict root.
    """

    def workspace_opts(self) -> runopts:
        """``job_dir`` and ``share_code``."""
        opts = super().workspace_opts()
        opts.add(
            "job_dir",
            type_=str,
            help="new folder, on a file system that all nodes share, to copy the workspace to and run in",
        )
        opts.add(
            "share_code",
            type_=bool,
            default=False,
            help="jobs of the same workspace share its files, read-only, in place of a copy for each in `job_dir`",
        )
        return opts

    def _place(self, cfg: Mapping[str, CfgVal]) -> str | None:
        return str(cfg["job_dir"]) if cfg.get("job_dir") else None


class TmpDirWorkspaceMixin(_FolderMixin):
    """Copies the workspace to a temporary folder, which becomes the role's image.

    The folder stays, because the job may outlive this process; :meth:`discard_workspaces` removes it.
    """


def _copy(files: list[Entry], folder: str, workspace: str, *, stored: bool, share: bool) -> str:
    from torchx.workspace.copies import copy_tree, unwritable, write_marker
    from torchx.workspace.files import MARKER
    from torchx.workspace.hashes import FileHashes
    from torchx.workspace.snapshots import SnapshotStore, can_clone

    with FileHashes(workspace) as hashes:
        cloned = stored and can_clone(folder)
        if share and not cloned and os.geteuid() == 0:
            logger("torchx.workspace").warning(
                "`share_code` is not used: root may write to read-only files, so `%s` is a copy", folder
            )
            share = False
        store = SnapshotStore(os.path.dirname(folder))
        if (cloned or share) and store.usable():
            return store.place(files, folder, hashes, shared=not cloned)
        content = copy_tree(files, folder, hashes)
    try:
        write_marker(os.path.join(folder, MARKER), content)
    except OSError as e:
        raise unwritable(folder, e) from e
    return content


def _claim(job_dir: str) -> bool:
    """Create the folder, or accepts an existing empty one; return whether it is new.

    An empty marker keeps out another process that has found the folder empty at the same time.
    """
    from torchx.workspace.copies import new_file
    from torchx.workspace.files import MARKER

    used = ConfigError(f"job_dir `{job_dir}` is not empty", hint="name a folder that does not exist yet")
    is_new = True
    try:
        try:
            os.makedirs(os.path.dirname(job_dir), exist_ok=True)
            os.mkdir(job_dir)
        except FileExistsError:
            is_new = False
            if os.listdir(job_dir):
                raise used from None
        try:
            with new_file(os.path.join(job_dir, MARKER), 0o444):
                return is_new
        except FileExistsError:
            raise used from None
    except OSError as e:
        raise ConfigError(f"job_dir `{job_dir}` cannot be made: {e.strerror}") from e
