"""The contract of a workspace mixin."""

# ruff: noqa: ARG002 -- hooks take what the interface gives them

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Generic, TypeVar

from torchx.errors import NotSupportedError
from torchx.specs.api import AppDef, CfgVal, Role, Workspace, runopts
from torchx.util.records import dataclass
from torchx.util.reexports import reexports
from torchx.workspace.files import walk_workspace
from torchx.workspace.ignore import IGNORE_FILES, TORCHX_IGNORE

reexports(__name__)

T = TypeVar("T")
PackageType = TypeVar("PackageType")
WorkspaceConfigType = TypeVar("WorkspaceConfigType")

__all__ = ["TORCHX_IGNORE", "PkgInfo", "WorkspaceBuilder", "WorkspaceMixin", "walk_workspace"]


@dataclass
class PkgInfo(Generic[PackageType]):
    """Result of a build: the image, deferred changes to the role, and metadata of the builder."""

    img: str
    lazy_overrides: dict[str, Any]
    metadata: PackageType


@dataclass
class WorkspaceBuilder(Generic[PackageType, WorkspaceConfigType], ABC):
    """Builds a workspace according to its configuration."""

    cfg: WorkspaceConfigType

    @abstractmethod
    def build_workspace(self, sync: bool = True) -> PkgInfo[PackageType]:
        """Build the package; with ``sync=False`` it may return before the package is ready."""


class WorkspaceMixin(Generic[T]):
    """Lets a scheduler send code with a job. ``T`` is the argument type of :meth:`push_images`.

    Mix it in before ``Scheduler``. Override :meth:`caching_build_workspace_and_update_role` and, for run options,
    :meth:`workspace_opts`.
    """

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)

    def workspace_opts(self) -> runopts:
        """Run options of the workspace; the scheduler adds its own."""
        return runopts()

    def build_workspaces(self, roles: list[Role], cfg: Mapping[str, CfgVal]) -> None:
        """Build each distinct workspace of the roles once, and updates the roles in place."""
        build_cache: dict[object, object] = {}
        built = []
        try:
            for role in roles:
                if role.workspace:
                    self.caching_build_workspace_and_update_role(role, cfg, build_cache)
                    built.append(role)
        except BaseException:  # also on Ctrl-C: the folder of an earlier role would block the next attempt
            self.discard_workspaces(built)
            raise

    def caching_build_workspace_and_update_role(
        self, role: Role, cfg: Mapping[str, CfgVal], build_cache: dict[object, object]
    ) -> None:
        """Build the workspace of one role, or take it from ``build_cache``, and updates ``role`` in place.

        The default merges several projects into one folder, and calls the older hook
        :meth:`build_workspace_and_update_role`.
        """
        if not role.workspace:
            return
        key = (role.image, *role.workspace.projects.items())
        if key not in build_cache:
            if role.workspace.is_unmapped_single_project():
                self.build_workspace_and_update_role(role, next(iter(role.workspace.projects)), cfg)
            else:
                self._build_merged(role, role.workspace, cfg)
            build_cache[key] = role.image
        role.image = str(build_cache[key])

    def _build_merged(self, role: Role, workspace: Workspace, cfg: Mapping[str, CfgVal]) -> None:
        import tempfile

        with tempfile.TemporaryDirectory(prefix="torchx-workspace-") as merged:
            workspace.merge_into(merged)
            for name in IGNORE_FILES:  # already applied, each to its own project; must not apply to the others
                if os.path.lexists(os.path.join(merged, name)):
                    os.unlink(os.path.join(merged, name))
            self.build_workspace_and_update_role(role, merged, cfg)

    def discard_workspaces(self, roles: list[Role]) -> None:
        """Remove the results of :meth:`build_workspaces` that only the job of these roles would use.

        Called after a dry run from the command line, and when the scheduler has rejected the job. Images and other
        caches stay.
        """

    def build_workspace_and_update_role(self, role: Role, workspace: str, cfg: Mapping[str, CfgVal]) -> None:
        """Build one workspace and set ``role.image``.

        Deprecated: override :meth:`caching_build_workspace_and_update_role`.
        """
        raise NotSupportedError(
            f"`{type(self).__name__}` cannot build workspaces",
            hint="override `caching_build_workspace_and_update_role`, or run without a workspace",
        )

    def dryrun_push_images(self, app: AppDef, cfg: Mapping[str, CfgVal]) -> T:
        """Return the images to push, with their names, and updates the roles; pushes nothing."""
        return {}  # type: ignore[return-value]  # a mixin that pushes nothing has nothing of any T

    def push_images(self, images_to_push: T) -> None:
        """Pushes what :meth:`dryrun_push_images` returned."""
        if images_to_push:
            raise NotSupportedError(f"`{type(self).__name__}` cannot push images: `{images_to_push}`")
