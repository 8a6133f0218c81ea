"""Workspaces of jobs on a cluster: copied here, or to the login node that the jobs go through."""

from __future__ import annotations

import os
import time

from torchx.errors import ConfigError, NotSupportedError
from torchx.workspace.dir_workspace import DirWorkspaceMixin

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from torchx.specs.api import CfgVal, Role

_TAKEN = "site_workspace.job_dirs"


class SiteWorkspaceMixin(DirWorkspaceMixin):
    """As :class:`DirWorkspaceMixin`; with run option ``ssh`` the folder is one of the login node.

    There a job always gets a copy of the workspace, for it cannot run in the folder that it is submitted from: in
    ``job_dir``, or else in a new folder below ``code`` in torchx's own folder there.
    """

    def caching_build_workspace_and_update_role(
        self, role: Role, cfg: Mapping[str, CfgVal], build_cache: dict[object, object]
    ) -> None:
        if not cfg.get("ssh"):
            super().caching_build_workspace_and_update_role(role, cfg, build_cache)
        elif role.workspace:
            key = tuple(role.workspace.projects.items())
            if key not in build_cache:
                build_cache[key] = self._place(role, cfg, build_cache)
            role.image = str(build_cache[key])

    def _place(self, role: Role, cfg: Mapping[str, CfgVal], build_cache: dict[object, object]) -> str:
        """Brings the role's workspace to the login node; returns the folder."""
        from torchx.schedulers.kit.ssh.remote_workspace import place_workspace
        from torchx.schedulers.kit.ssh.runner import SSHCommandRunner
        from torchx.schedulers.kit.ssh.site import site_of

        job_dir = str(cfg.get("job_dir") or "")
        if job_dir and not job_dir.startswith("/"):
            raise ConfigError(
                f"job_dir `{job_dir}` is relative, and with `ssh` it is a folder of `{cfg['ssh']}`",
                hint="give an absolute path, or leave it out",
            )
        find_site = getattr(self, "_site_of", site_of)  # a scheduler keeps its connections
        site = find_site(cfg)
        if role.workspace is None or not isinstance(site.commands, SSHCommandRunner):
            raise NotSupportedError(f"a workspace cannot be brought to `{cfg['ssh']}` but by SSH")
        if not job_dir:
            unique = f"{time.strftime('%Y%m%d-%H%M%S')}-{os.urandom(3).hex()}"
            job_dir = site.files.torchx_home("code", unique)
        if build_cache.setdefault(_TAKEN, False):
            job_dir = f"{job_dir}.{role.name}"
        build_cache[_TAKEN] = True
        assert role.workspace is not None  # the caller looked
        return place_workspace(site.commands, role.workspace, job_dir).folder
