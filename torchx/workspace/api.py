"""The contract of a workspace mixin."""

# ruff: noqa: ARG002 -- hooks take what the interface gives them

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from torchx.errors import NotSupportedError
from torchx.specs.api import AppDef, CfgVal, Role, Workspace, runopts
from torchx.util.records import dataclass
from torchx.util.reexports import reexports
from torchx.workspace.files import open_workspace, walk_workspace
from torchx.workspace.ignore import IGNORE_FILES, TORCHX_IGNORE

reexports(__name__)

if TYPE_CHECKING:
    from collections.abc import Mapping

T = TypeVar("T")
PackageType = TypeVar("PackageType")
WorkspaceConfigType = TypeVar("WorkspaceConfigType")

__all__ = [
    "TORCHX_IGNORE",
    "PkgInfo",
    "WorkspaceBuilder",
    "WorkspaceMixin",
    "materialize",
    "open_workspace",
    "walk_workspace",
]


@dataclass
class PkgInfo(Generic[PackageType]):
    """What a build made: the image, changes to the role that are due later, and the builder's own record."""

    img: str
    lazy_overrides: dict[str, Any]
    metadata: PackageType


@dataclass
class WorkspaceBuilder(Generic[PackageType, WorkspaceConfigType], ABC):
    """Builds a workspace by its configuration."""

    cfg: WorkspaceConfigType

    @abstractmethod
    def build_workspace(self, sync: bool = True) -> PkgInfo[PackageType]:
        """Builds; with ``sync=False`` it may return before the package is ready."""


class WorkspaceMixin(Generic[T]):
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
                self._build_merged(role, role.workspace, cfg)
            build_cache[key] = role.image
        role.image = str(build_cache[key])

    def _build_merged(self, role: Role, workspace: Workspace, cfg: Mapping[str, CfgVal]) -> None:
        import tempfile

        with tempfile.TemporaryDirectory(prefix="torchx-workspace-") as merged:
            materialize(workspace, merged)
            for name in IGNORE_FILES:  # heeded, each for its own project: they must not be heeded for the others
                if os.path.lexists(os.path.join(merged, name)):
                    os.unlink(os.path.join(merged, name))
            self.build_workspace_and_update_role(role, merged, cfg)

    def discard_workspaces(self, roles: list[Role]) -> None:
        """Removes what :meth:`build_workspaces` has made of these roles and what nobody but their job has a use for.

        Called after a dry run from the command line, and when the scheduler has refused the job. Images and other
        caches stay.
        """

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


def materialize(workspace: Workspace, outdir: str) -> None:
    """Copies each project of a workspace, less what it ignores, to its place below ``outdir``; a later one wins.

    Raises:
        SpecError: a project does not exist or cannot be read, or its place is outside ``outdir``.
    """
    from torchx.workspace.copies import merge

    merge(workspace, outdir)
