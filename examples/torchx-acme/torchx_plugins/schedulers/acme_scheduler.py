"""A torchx scheduler for the acme cloud: a job of its API for each app, a task for each replica."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torchx.errors import NotFoundError, NotSupportedError
from torchx.plugins import register
from torchx.schedulers.api import Capabilities, DescribeAppResponse, ListAppResponse, Scheduler, StructuredOpts
from torchx.schedulers.ids import make_unique
from torchx.schedulers.kit.facts import JobFacts, ReplicaFacts, RoleFacts
from torchx.schedulers.kit.failures.reader import Evidence
from torchx.schedulers.kit.logs import LogQuery
from torchx.schedulers.kit.names import DNS_LABEL
from torchx.schedulers.kit.replicas import replicas
from torchx.schedulers.kit.verdict import describe
from torchx.specs import AppDef, AppDryRunInfo, AppState, CfgVal, Role

STATES = {
    "running": AppState.RUNNING,
    "completed": AppState.SUCCEEDED,
    "error": AppState.FAILED,
    "stopped": AppState.CANCELLED,
}


@dataclass
class AcmeOpts(StructuredOpts):
    zone: str = "north"
    """zone of the cloud that the job runs in"""


@dataclass
class AcmeRequest:
    app_id: str
    tasks: list[dict[str, Any]]
    labels: dict[str, Any]

    def __str__(self) -> str:  # what `--dryrun` shows
        return json.dumps(vars(self), indent=2)


class AcmeScheduler(Scheduler[Mapping[str, CfgVal]]):
    options = AcmeOpts
    capabilities = Capabilities(logs=True, cancel=True, delete=True, list=True, multi_role=True, durable=True)

    def __init__(self, session_name: str, client: Any = None) -> None:
        super().__init__("acme", session_name)
        self._client = client  # a test passes a fake one

    @property
    def client(self) -> Any:
        if self._client is None:
            import acme  # not at the head of the module: `torchx --help` would pay for it

            self._client = acme.Client()
        return self._client

    # The request: pure. No call to the API, no change of `app`.
    def _submit_dryrun(self, app: AppDef, cfg: Mapping[str, CfgVal]) -> AppDryRunInfo[AcmeRequest]:
        for role in app.roles:
            if role.mounts or role.min_replicas is not None or role.max_retries:
                raise NotSupportedError(f"acme can neither mount, nor scale, nor retry role `{role.name}`")
        app_id = make_unique(DNS_LABEL.make(app.name, room=15))
        tasks = [
            {"name": f"{r.role.name}.{r.k}", "command": [r.role.entrypoint, *r.role.args], "env": r.role.env}
            for r in replicas(app, app_id)
        ]
        # The data that `describe` needs later is stored with the job, without the environment, which may have secrets.
        kept = ("name", "image", "entrypoint", "num_replicas")
        roles = [{field: getattr(role, field) for field in kept} for role in app.roles]
        labels = {"zone": AcmeOpts.from_cfg(cfg).zone, "roles": roles}
        return AppDryRunInfo(AcmeRequest(app_id, tasks, labels), str)

    def expected_id(self, dryrun_info: AppDryRunInfo[AcmeRequest]) -> str:
        return dryrun_info.request.app_id  # to find the job again after a lost answer

    def schedule(self, dryrun_info: AppDryRunInfo[AcmeRequest]) -> str:
        request = dryrun_info.request
        self.client.create_job(request.app_id, request.tasks, request.labels)
        return request.app_id

    def describe(self, app_id: str) -> DescribeAppResponse | None:
        job = self.client.get_job(app_id)
        if job is None:
            return None

        def look(failed: Sequence[ReplicaFacts]) -> list[Evidence]:  # called for replicas that failed
            return [Evidence(stderr=self.client.read_log(app_id, f"{f.role}.{f.replica}")) for f in failed]

        return describe(facts_of(job), look)

    def list(self, cfg: Mapping[str, CfgVal] | None = None) -> list[ListAppResponse]:
        found = [describe(facts_of(job)) for job in self.client.list_jobs()]
        return [ListAppResponse(app_id=one.app_id, state=one.state) for one in found]

    def _cancel_existing(self, app_id: str) -> None:
        self.client.stop_job(app_id)

    def _delete_existing(self, app_id: str) -> None:
        self.client.delete_job(app_id)

    def open_logs(self, app_id: str, replicas: Sequence[tuple[str, int]], query: LogQuery) -> Sequence[Iterable[str]]:
        if query.stream is not None or query.since is not None or query.until is not None:
            raise NotSupportedError("acme keeps one log of a task, without times")
        if not self.exists(app_id):
            raise NotFoundError(f"acme has no job `{app_id}`")
        logs = [self.client.read_log(app_id, f"{role}.{k}") for role, k in replicas]
        return [query.matching(log.splitlines(keepends=True)) for log in logs]


def facts_of(job: Mapping[str, Any]) -> JobFacts:
    """The facts of a job from the API. torchx derives the replica that failed first, and the message."""
    roles = [Role(**row) for row in job["labels"]["roles"]]
    found = []
    for role in roles:
        members = []
        for k in range(role.num_replicas):
            task = job["tasks"][f"{role.name}.{k}"]
            state = STATES.get(task["state"], AppState.UNKNOWN)
            more = {"native": task["state"], "exit_code": task["exit_code"]}
            members.append(ReplicaFacts(role=role.name, replica=k, state=state, **more))
        found.append(RoleFacts(name=role.name, replicas=members))
    return JobFacts(app_id=job["name"], roles=found, definition=roles)


@register.scheduler("acme")
def create_scheduler(session_name: str, **kwargs: Any) -> AcmeScheduler:
    return AcmeScheduler(session_name)
