"""A runner that keeps a log book."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torchx.runner import Runner
from torchx.specs import AppDef, AppDryRunInfo, CfgVal

CALLS: list[str] = []


class BookRunner(Runner):
    """Overrides the three verbs that start jobs, with the signatures as they are documented."""

    def dryrun(
        self,
        app: AppDef,
        scheduler: str,
        cfg: Mapping[str, CfgVal] | None = None,
        workspace: str | None = None,
        parent_run_id: str | None = None,
    ) -> AppDryRunInfo[Any]:
        CALLS.append("dryrun")
        info = super().dryrun(app=app, scheduler=scheduler, cfg=cfg, workspace=workspace, parent_run_id=parent_run_id)
        assert info._scheduler == scheduler
        assert info._app is not None
        return info

    def run(
        self,
        app: AppDef,
        scheduler: str,
        cfg: Mapping[str, CfgVal] | None = None,
        workspace: str | None = None,
        parent_run_id: str | None = None,
    ) -> str:
        CALLS.append("run")
        info = self.dryrun(app, scheduler, cfg, workspace, parent_run_id)
        return self.schedule(info)

    def schedule(self, dryrun_info: AppDryRunInfo[Any]) -> str:
        CALLS.append("schedule")
        handle = super().schedule(dryrun_info)
        assert dryrun_info._scheduler is not None
        return handle
