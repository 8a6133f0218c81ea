"""A scheduler that stands in for a remote backend: it really renders and remembers jobs, and runs none."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torchx.schedulers.api import Capabilities, DescribeAppResponse, ListAppResponse, Scheduler
from torchx.schedulers.ids import make_unique
from torchx.specs import AppDef, AppDryRunInfo, AppState, CfgVal, ReplicaStatus, RoleStatus, macros, runopts

JOBS: dict[str, AppDef] = {}
DELETED: set[str] = set()


class StandIn(Scheduler[Mapping[str, CfgVal]]):
    """Every job that is submitted has SUCCEEDED, and has written one line per replica."""

    capabilities = Capabilities(logs=True, cancel=True, delete=True, list=True, multi_role=True)

    def __init__(self, session_name: str, **kwargs: Any) -> None:
        super().__init__("kubernetes", session_name)

    def _run_opts(self) -> runopts:
        opts = runopts()
        opts.add("namespace", type_=str, default="default", help="Namespace")
        opts.add("image_repo", type_=str, help="Repository of images")
        opts.add("queue", type_=str, help="Queue")
        return opts

    def _submit_dryrun(self, app: AppDef, cfg: Mapping[str, CfgVal]) -> AppDryRunInfo[AppDef]:
        values = macros.Values(
            img_root="", app_id=make_unique(app.name), replica_id="0", rank0_env="RANK0", base_img_root=""
        )
        rendered = AppDef(values.app_id, [values.apply(role) for role in app.roles], dict(app.metadata))
        return AppDryRunInfo(rendered, repr)

    def schedule(self, dryrun_info: AppDryRunInfo[AppDef]) -> str:
        JOBS[dryrun_info.request.name] = dryrun_info.request
        return dryrun_info.request.name

    def describe(self, app_id: str) -> DescribeAppResponse | None:
        app = JOBS.get(app_id)
        if app is None:
            return None
        return DescribeAppResponse(
            app_id=app_id,
            state=AppState.SUCCEEDED,
            num_restarts=0,
            msg="stood in",
            roles=app.roles,
            roles_statuses=[
                RoleStatus(r.name, [ReplicaStatus(i, AppState.SUCCEEDED, r.name, "") for i in range(r.num_replicas)])
                for r in app.roles
            ],
        )

    def list(self, cfg: Mapping[str, CfgVal] | None = None) -> list[ListAppResponse]:
        return [ListAppResponse(app_id, AppState.SUCCEEDED) for app_id in JOBS]

    def log_iter(self, app_id: str, role_name: str, k: int = 0, *args: Any, **kwargs: Any) -> Iterable[str]:
        assert role_name in {r.name for r in JOBS[app_id].roles}
        return [f"{role_name}/{k}: hello\n"]

    def _cancel_existing(self, app_id: str) -> None: ...

    def _delete_existing(self, app_id: str) -> None:
        DELETED.add(app_id)  # only noted: the documents go on to read the job's log


def create_scheduler(session_name: str, **kwargs: Any) -> StandIn:
    return StandIn(session_name)
