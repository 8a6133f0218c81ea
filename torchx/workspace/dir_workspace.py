"""Workspaces as folders: for schedulers whose nodes share a file system."""

# ruff: noqa: ARG002 -- hooks take what the interface gives them

from __future__ import annotations

import os

from torchx.errors import ConfigError
from torchx.specs.api import runopts
from torchx.workspace.api import WorkspaceMixin, copy_workspace, materialize

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from torchx.specs.api import CfgVal, Role

_JOB_DIRS = "dir_workspace.job_dirs"


class DirWorkspaceMixin(WorkspaceMixin[None]):
    """Copies the workspace to the new folder ``job_dir``, which becomes the role's image.

    Without ``job_dir`` jobs run in the folder they are submitted from. When roles have different workspaces,
    the first goes to ``job_dir`` and each further one to ``<job_dir>.<role>``.
    """

    def workspace_opts(self) -> runopts:
        opts = super().workspace_opts()
        opts.add(
            "job_dir",
            type_=str,
            help="new folder, on a file system that all nodes share, to copy the workspace to and run in",
        )
        return opts

    def caching_build_workspace_and_update_role(
        self, role: Role, cfg: Mapping[str, CfgVal], build_cache: dict[object, object]
    ) -> None:
        if role.workspace and cfg.get("job_dir"):
            taken = build_cache.setdefault(_JOB_DIRS, [])
            key = tuple(role.workspace.projects.items())
            if key not in build_cache:
                target = f"{cfg['job_dir']}.{role.name}" if taken else str(cfg["job_dir"])
                _claim(target)
                materialize(role.workspace, target)
                build_cache[key] = target
                taken.append(target)  # type: ignore[attr-defined]  # the list that was put there above
            role.image = str(build_cache[key])

    def build_workspace_and_update_role(self, role: Role, workspace: str, cfg: Mapping[str, CfgVal]) -> None:
        job_dir = cfg.get("job_dir")
        if job_dir:
            _claim(str(job_dir))
            copy_workspace(workspace, str(job_dir))
            role.image = str(job_dir)


class TmpDirWorkspaceMixin(WorkspaceMixin[None]):
    """Copies the workspace to a temporary folder, which becomes the role's image and is left to the system."""

    def build_workspace_and_update_role(self, role: Role, workspace: str, cfg: Mapping[str, CfgVal]) -> None:
        import tempfile

        target = tempfile.mkdtemp(prefix="torchx-workspace-")
        copy_workspace(workspace, target)
        role.image = target


def _claim(job_dir: str) -> None:
    """Makes the folder; one that holds something already is somebody's and is not written into."""
    try:
        os.makedirs(job_dir, exist_ok=True)
        if os.listdir(job_dir):
            raise ConfigError(f"job_dir `{job_dir}` is not empty", hint="name a folder that does not exist yet")
    except OSError as e:
        raise ConfigError(f"job_dir `{job_dir}` cannot be made: {e.strerror}") from e
