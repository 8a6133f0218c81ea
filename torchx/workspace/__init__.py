"""Workspaces: send the source code on this machine to where a job runs."""

from __future__ import annotations

from torchx.workspace.api import PkgInfo, WorkspaceBuilder, WorkspaceMixin, walk_workspace

__all__ = ["PkgInfo", "WorkspaceBuilder", "WorkspaceMixin", "walk_workspace"]
