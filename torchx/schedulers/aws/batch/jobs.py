"""Finds jobs of Batch by their app ids, and describes, enters, ends and forgets one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torchx.errors import TorchXError
from torchx.schedulers.aws.base import AwsScheduler
from torchx.schedulers.aws.batch import answers, logs, order, queues
from torchx.schedulers.aws.batch import client as calls
from torchx.schedulers.aws.batch.reasons import CANCELLED_BY_US
from torchx.schedulers.aws.client import Clients
from torchx.schedulers.aws.logs import Streams
from torchx.schedulers.aws.tags import TAG_USER
from torchx.schedulers.kit.facts import JobFacts
from torchx.schedulers.kit.views import by_view
from torchx.specs.api import CfgVal
from torchx.specs.handles import JobId

if TYPE_CHECKING:
    from torchx.schedulers.kit.foreign import ForeignJobs
    from torchx.schedulers.kit.inside import InsideProcess, Tty

_Object = dict[str, Any]
_Ids = list[str]  # within the class, `list` is a method
_Jobs = list[tuple[str, _Object]]


class BatchJobs(AwsScheduler):
    """The part of the backend that knows jobs. Arguments: see :class:`AwsScheduler`."""

    service, display_name = "batch", "Batch"

    def __init__(self, session_name: str, docker_client: Any | None, *, clients: Clients) -> None:
        super().__init__("aws_batch", session_name, docker_client, clients=clients)
        self._ids: dict[str, str] = {}  # app id -> job id

    def _facts(self, app_id: str, job: _Object, *, detailed: bool) -> JobFacts:
        if not detailed:
            return answers.facts_of(app_id, job, {}, region=self._region)
        waits = self._why_stuck(job) if job.get("status") == "RUNNABLE" and not job.get("statusReason") else ""
        nodes = calls.nodes(self._client, job)
        facts = answers.facts_of(app_id, job, nodes, region=self._region, waits=waits)
        return order.in_order(facts, lambda: logs.order_marks(self._clients, job, nodes))

    def _why_stuck(self, job: _Object) -> str:
        """Inspects the queue; returns no reason if that fails."""
        try:
            queue = queues.look_at(self._client, str(job["jobQueue"]))
        except TorchXError:
            return ""
        groups = answers.groups(job)
        vcpus = max((answers.role_of(g, 0).resource.cpu for g in groups), default=1)
        types = [g.instance_type for g in groups if g.instance_type]
        return queues.why_stuck(queue, vcpus, types) if queue else ""

    def _listed(self, cfg: Mapping[str, CfgVal]) -> Iterator[tuple[str, _Object]]:
        """Yield the jobs of the queue in ``cfg``, or of all queues. Batch keeps ended jobs for about a week."""
        names = [str(cfg["queue"]).rpartition("/")[2]] if cfg.get("queue") else queues.all_queues(self._client)
        for queue in names:
            for job in calls.ours(self._client, queue):
                app_id = f"{queue}:{job['jobName']}"
                self._ids[app_id] = str(job["jobId"])
                yield app_id, job

    def _of_user(self, jobs: Any, user: str) -> _Jobs:
        """Filter by tag, which ListJobs does not return."""
        jobs = list(jobs)
        described = calls.details(self._client, [str(job["jobId"]) for _, job in jobs])
        tags = {job_id: job.get("tags") or {} for job_id, job in described.items()}
        return [(a, job) for a, job in jobs if tags.get(str(job["jobId"]), {}).get(TAG_USER) == user]

    def _streams(self, job: _Object, replicas: Sequence[tuple[str, int]]) -> Streams:
        return logs.streams(self._client, job, replicas)

    @by_view
    def enter(self, app_id: str, role: str, k: int, argv: Sequence[str], tty: Tty | None = None) -> InsideProcess:
        """See :class:`torchx.schedulers.kit.abilities.RunsInside`: through ECS Exec,
        if the job was submitted with it.
        """
        return self._enter(self._look(app_id), (app_id, role, k), argv, tty)

    def _enter(
        self, job: _Object | None, replica: tuple[str, str, int], argv: Sequence[str], tty: Tty | None
    ) -> InsideProcess:
        from torchx.schedulers.aws.batch.inside import TaskProcess, task_of

        return TaskProcess(self._clients, task_of(self._clients, job, replica), argv, tty)

    def _end(self, app_id: str, job: _Object) -> None:  # noqa: ARG002  # the base's
        calls.terminate(self._client, str(job["jobId"]), f"{CANCELLED_BY_US}, for {self._who()}")

    def _forget(self, app_id: str, job: _Object) -> None:  # noqa: ARG002  # the base's
        """Deregisters its definition, which does not affect other jobs. Batch removes the job after about a week."""
        calls.deregister(self._client, str(job["jobDefinition"]))

    def foreign(self) -> ForeignJobs:
        """See :class:`torchx.schedulers.kit.abilities.KnowsForeign`."""
        from torchx.schedulers.aws.batch.foreign import ForeignBatchJobs

        return ForeignBatchJobs.of(self)

    def _find(self, app_ids: _Ids) -> dict[str, _Object]:
        """Look up each job id only once, as it does not change."""
        unknown: dict[str, list[str]] = {}
        parts = {app_id: JobId.of(app_id) for app_id in app_ids}
        for named in parts.values():
            queue, _, name = named.job.rpartition(":")
            if queue and named.job not in self._ids:
                unknown.setdefault(queue, []).append(name)
        for queue, names in unknown.items():
            self._learn_ids(queue, names)
        known = {a: named for a, named in parts.items() if named.job in self._ids}
        wanted = {a: self._ids[n.job] + ("" if n.task is None else f":{n.task}") for a, n in known.items()}
        found = calls.details(self._client, wanted.values()) if wanted else {}
        ours = {i: job for i, job in found.items() if calls.is_ours({**job, "jobId": i.partition(":")[0]})}
        return {a: ours[i] for a, i in wanted.items() if i in ours}

    def _learn_ids(self, queue: str, names: _Ids) -> None:
        if len(names) == 1:
            found = calls.find_id(self._client, queue, names[0])
            if found:
                self._ids[f"{queue}:{names[0]}"] = found
            return
        for job in calls.ours(self._client, queue):
            self._ids[f"{queue}:{job['jobName']}"] = str(job["jobId"])
