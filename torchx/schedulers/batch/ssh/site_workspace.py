"""Workspaces of jobs on a cluster, copied on this machine or to the login node."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Iterable, Mapping
from typing import Any

from torchx.errors import ConfigError, NotSupportedError
from torchx.schedulers.batch.sites import Site
from torchx.specs.api import AppDryRunInfo, CfgVal, Role, Workspace
from torchx.specs.images import set_workspace_hash
from torchx.util.records import is_record
from torchx.workspace.dir_workspace import DirWorkspaceMixin

_TAKEN = "site_workspace.job_dirs"
_HOME = "~/.torchx/"  # of torchx on the login node, as a dry run shows it: to know it takes a connection


class SiteWorkspaceMixin(DirWorkspaceMixin):
    """Like :class:`DirWorkspaceMixin`; with run option ``ssh`` the folder is on the login node.

    There a job always runs in a copy of the workspace, because the login node does not have the folder of submission:
    in ``job_dir``, or in a new folder below ``code`` of torchx's own folder. A dry run names that folder and hashes the
    workspace; it does not connect, and nothing is sent before submission.
    """

    def caching_build_workspace_and_update_role(
        self, role: Role, cfg: Mapping[str, CfgVal], build_cache: dict[object, object]
    ) -> None:
        if not cfg.get("ssh"):
            super().caching_build_workspace_and_update_role(role, cfg, build_cache)
        elif role.workspace:
            from torchx.schedulers.batch.ssh.remote_workspace import workspace_hash

            key = tuple(role.workspace.projects.items())
            if key not in build_cache:
                folder = self._name_folder(role, cfg, build_cache)
                build_cache[key] = folder
                self._named_folders[folder] = (role.workspace, workspace_hash(role.workspace))
            role.image = str(build_cache[key])
            set_workspace_hash(role, self._named_folders[role.image][1])

    def discard_workspaces(self, roles: list[Role]) -> None:
        """Like :class:`DirWorkspaceMixin`; folders that are only named need no removal."""
        for role in roles:
            self._named_folders.pop(role.image, None)
        super().discard_workspaces(roles)

    def _upload(self, info: AppDryRunInfo[Any], site: Site, created: dict[str, Any]) -> None:
        """Upload the workspaces that the dry run has named; corrects hashes of those that have changed since."""
        from torchx.schedulers.batch.ssh.remote_workspace import place_workspace
        from torchx.schedulers.batch.ssh.runner import SSHCommandRunner

        roles = info._app.roles if info._app is not None else []
        for folder in dict.fromkeys(role.image for role in roles if role.image in self._named_folders):
            workspace, promised = self._named_folders[folder]
            if not isinstance(site.commands, SSHCommandRunner):
                raise NotSupportedError(f"a workspace can be sent to `{site.name}` by SSH only")
            place = folder
            if folder.startswith(_HOME):
                place = site.files.torchx_home(*folder.split("/")[2:])
                _rename([info.request, info._app], folder, place)
            placed = place_workspace(site.commands, workspace, place)
            created[place] = self._named_folders.pop(folder)
            if placed.hash != promised:
                self._correct(info, {role.name for role in roles if role.image == place}, placed.hash)

    def _take_back(self, site: Site, created: dict[str, Any]) -> None:
        for folder in created:
            site.files.remove(folder)
        self._named_folders.update(created)

    def _correct(self, info: AppDryRunInfo[Any], names: set[str], content: str) -> None:
        for name, env in self._environments(info):
            if name in names:
                set_workspace_hash(env, content)
        for name in names:
            info.submission.workspace_hashes[name] = content

    def _environments(self, info: AppDryRunInfo[Any]) -> Iterable[tuple[str, dict[str, str]]]:
        """All environments in a request, each with the name of its role."""
        return [(role.name, role.env) for role in info._app.roles] if info._app is not None else []

    def _name_folder(self, role: Role, cfg: Mapping[str, CfgVal], build_cache: dict[object, object]) -> str:
        """Return the folder on the login node for the role's workspace."""
        job_dir = str(cfg.get("job_dir") or "")
        if job_dir and not job_dir.startswith("/"):
            raise ConfigError(
                f"job_dir `{job_dir}` is relative, but with `ssh` it is a folder on `{cfg['ssh']}`",
                hint="give an absolute path, or leave it out",
            )
        if not job_dir:
            unique = f"{time.strftime('%Y%m%d-%H%M%S')}-{os.urandom(3).hex()}"
            own = str(cfg.get("ssh_dir") or "")
            job_dir = os.path.join(own if own.startswith("/") else _HOME, "code", unique)
        if build_cache.setdefault(_TAKEN, False):
            job_dir = f"{job_dir}.{role.name}"
        build_cache[_TAKEN] = True
        return job_dir

    @functools.cached_property
    def _named_folders(self) -> dict[str, tuple[Workspace, str]]:
        """Folders for workspaces that are not sent yet: the workspace, and its hash at the dry run."""
        return {}


def _rename(value: Any, old: str, new: str) -> Any:
    """Replace a text in all strings of a value. Dicts, lists and record are changed in place."""
    if value.__class__ is str:
        return value.replace(old, new)
    if value.__class__ is tuple:
        return tuple(_rename(item, old, new) for item in value)
    if isinstance(value, list):
        value[:] = [_rename(item, old, new) for item in value]
    elif isinstance(value, dict):
        value.update({key: _rename(item, old, new) for key, item in value.items()})
    elif is_record(value.__class__):
        _rename(vars(value), old, new)
    return value
