"""Workspaces as folders: for schedulers whose nodes share a file system."""

# ruff: noqa: ARG002 -- hooks take what the interface gives them

from __future__ import annotations

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
    """Makes folders of workspaces, and remembers which."""

    _made: set[str] | None = None

    def _place(self, cfg: Mapping[str, CfgVal]) -> str | None:
        """The folder to make; empty: a temporary one; None: no folder, the job runs where it is submitted."""
        return ""

    def caching_build_workspace_and_update_role(
        self, role: Role, cfg: Mapping[str, CfgVal], build_cache: dict[object, object]
    ) -> None:
        """Fills a folder, or takes the one that a role with the same workspace has, and makes it the image.

        Raises:
            SpecError: the workspace cannot be read.
            ConfigError: the folder holds something already, or cannot be written.
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
        """As above, for one source directory. Deprecated."""
        place = self._place(cfg)
        if place is not None:
            role.image, content = self._fill(Workspace({workspace: ""}), place, share=bool(cfg.get("share_code")))
            set_workspace_hash(role, content)

    def discard_workspaces(self, roles: list[Role]) -> None:
        """Removes the folders that this object has made for roles which are not submitted after all."""
        from torchx.workspace.copies import remove_tree

        made = self._made_folders()
        for image in {role.image for role in roles} & made:
            made.remove(image)
            remove_tree(image)

    def _fill(self, workspace: Workspace, folder: str, *, share: bool) -> tuple[str, str]:
        """Makes a folder of a workspace, a temporary one when it has no name; returns its path and the content hash."""
        from torchx.workspace.content import entries
        from torchx.workspace.copies import remove_tree

        files = entries(workspace)  # before the folder is made: it may be in the workspace
        is_new = named = bool(folder)
        if named:
            # Absolute, for the job does not start where this process is.
            folder = os.path.abspath(os.path.expanduser(folder))
            is_new = _claim(folder)
        else:
            import tempfile

            folder = tempfile.mkdtemp(prefix="torchx-workspace-")
        try:
            # Beside a temporary folder are those of everybody else: no place for a store.
            content = _copy(files, folder, str(workspace), stored=named, share=named and share)
        except BaseException:  # Ctrl-C, too: half a folder would be in the way next time
            remove_tree(folder, keep=named and not is_new)
            raise
        self._made_folders().add(folder)
        return folder, content

    def _made_folders(self) -> set[str]:
        if self._made is None:
            self._made = set()
        return self._made


class DirWorkspaceMixin(_FolderMixin):
    """Copies the workspace to the new folder ``job_dir``, which becomes the role's image.

    The job's code stays as it was at submission, also when the job waits for days or is queued again. Without
    ``job_dir`` jobs run in the folder they are submitted from. When roles have different workspaces, the first goes to
    ``job_dir`` and each further one to ``<job_dir>.<role>``.

    What a copy costs, when the same workspace is submitted once more:

    * On a file system whose files can share blocks (btrfs, XFS, NFS 4.2 on such, ...) next to nothing: the folder is
      made of clones of a snapshot, one for each content, in ``.torchx-workspaces`` beside ``job_dir``. Jobs
      may write to their files; nobody else sees it.
    * On others the bytes, but no reading of them: hashes of files that have not changed are kept, and the kernel (or
      the server) copies.
    * With ``share_code`` nothing there, either: the folder's files are hard links to a snapshot. A file that several
      jobs have in common must not be written to by one of them, so these are read-only, and a program that opens one
      for writing fails (to replace or remove it is fine). That surprises programs that append to a file of their
      workspace, so it is not the default. Permissions do not stop root: for root there is a copy all the same.
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

    The job may outlive this process, so the folder is left to whoever cleans the system's temporary directory;
    :meth:`discard_workspaces` removes it when nothing is submitted.
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
    """Makes the folder; one that holds something already is somebody's. Returns whether it is new."""
    try:
        try:
            os.makedirs(os.path.dirname(job_dir), exist_ok=True)
            os.mkdir(job_dir)
            return True
        except FileExistsError:
            if os.listdir(job_dir):
                raise ConfigError(
                    f"job_dir `{job_dir}` is not empty", hint="name a folder that does not exist yet"
                ) from None
            return False
    except OSError as e:
        raise ConfigError(f"job_dir `{job_dir}` cannot be made: {e.strerror}") from e
