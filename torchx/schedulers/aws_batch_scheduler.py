"""``aws_batch``: runs replicas as containers of AWS Batch jobs, on EC2, spot instances or Fargate.

A job of one replica becomes a single-node job. A job of several, or one with an instance type, becomes a multi-node
parallel job with a node range for each role. It has a job definition ``torchx-<app>-<hash>``, which equal jobs share,
and a SubmitJob request. An app id is ``<queue>:<job name>``.

A dry run prints both requests without calling AWS. boto3 resolves region, profile and credentials.

Limits: stdout and stderr are one log. Batch retries the job as a whole, and keeps its record for about a week. Images
of multi-node jobs need ``/bin/sh``. Batch cannot replace an image's ``ENTRYPOINT``, which precedes the command.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from torchx.errors import NotFoundError, TorchXError, Unsent
from torchx.schedulers.api import shortcut
from torchx.schedulers.aws.base import AwsScheduler
from torchx.schedulers.aws.batch import answers, export, logs, queues, sweeps
from torchx.schedulers.aws.batch import client as calls
from torchx.schedulers.aws.batch.attempts import SYSTEM
from torchx.schedulers.aws.batch.container import (
    ResourceType,
    parse_ulimits,
    resource_from_resource_requirements,
    resource_requirements_from_resource,
)
from torchx.schedulers.aws.batch.options import AWSBatchOpts
from torchx.schedulers.aws.batch.reasons import CANCELLED_BY_US, JOB_STATE
from torchx.schedulers.aws.batch.request import NAME_RULE, BatchJob, for_queue, render_job
from torchx.schedulers.aws.client import Clients
from torchx.schedulers.aws.tags import DEFAULT_ROLE_NAME, ENV_ROLE_INDEX, TAG_APP_NAME, TAG_USER
from torchx.schedulers.aws.tags import TAG_VERSION as TAG_TORCHX_VER
from torchx.schedulers.ids import random_id
from torchx.schedulers.kit.attempts import refuse_parts
from torchx.schedulers.kit.export import bases_of
from torchx.schedulers.kit.tasks import check_numbers
from torchx.settings import ENV_IMAGE, ENV_ROLE_NAME
from torchx.specs.api import MISSING, AppDef, AppDryRunInfo, CfgVal, parse_app_handle, runopts
from torchx.specs.handles import JobId
from torchx.specs.wishes import Wishes
from torchx.util.records import replace
from torchx.util.reexports import reexports

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from datetime import datetime

    from torchx.schedulers.api import DescribeAppResponse
    from torchx.schedulers.aws.logs import Streams
    from torchx.schedulers.kit.export import Export
    from torchx.schedulers.kit.facts import JobFacts
    from torchx.schedulers.kit.foreign import ForeignJobs
    from torchx.schedulers.kit.inside import InsideProcess, Tty
    from torchx.schedulers.kit.logs import LogQuery
    from torchx.specs.tasks import TaskList

    _Object = dict[str, Any]
    _Ids = list[str]  # within the class, `list` is a method
    _Jobs = Iterable[tuple[str, _Object]]
    _Answers = list[DescribeAppResponse]
    _Replicas = list[tuple[str, int]]

reexports(__name__)

__all__ = [
    "DEFAULT_ROLE_NAME",
    "ENV_TORCHX_IMAGE",
    "ENV_TORCHX_ROLE_IDX",
    "ENV_TORCHX_ROLE_NAME",
    "JOB_STATE",
    "MISSING",
    "TAG_TORCHX_APPNAME",
    "TAG_TORCHX_USER",
    "TAG_TORCHX_VER",
    "AWSBatchOpts",
    "AWSBatchScheduler",
    "BatchJob",
    "Opts",
    "ResourceType",
    "create_scheduler",
    "parse_ulimits",
    "resource_from_resource_requirements",
    "resource_requirements_from_resource",
    "to_datetime",
    "to_millis_since_epoch",
]

Opts = AWSBatchOpts
ENV_TORCHX_IMAGE = ENV_IMAGE
ENV_TORCHX_ROLE_IDX = ENV_ROLE_INDEX
ENV_TORCHX_ROLE_NAME = ENV_ROLE_NAME
TAG_TORCHX_APPNAME = TAG_APP_NAME
TAG_TORCHX_USER = TAG_USER


class AWSBatchScheduler(AwsScheduler):
    """Runs jobs on AWS Batch. An app id is ``<queue>:<name>``.

    Args:
        client, log_client: boto3 clients of Batch and CloudWatch Logs; by default they are created on first use, from
            boto3's configuration.
        clients: all clients.
    """

    service, display_name = "batch", "Batch"
    rules = "torchx.schedulers.aws.rules:BATCH"
    capabilities = replace(
        AwsScheduler.capabilities,
        timeout="timeout_s",
        after=("ok",),
        log_previous=True,
        exec=True,
        retries=("APPLICATION",),
        multi_role=True,
        mounts=("bind", "volume", "device"),
        secrets=("aws-sm",),
        priority=True,
    )
    wait_hint = 5.0

    def __init__(
        self,
        session_name: str,
        client: Any | None = None,
        log_client: Any | None = None,
        docker_client: Any | None = None,
        *,
        clients: Clients | None = None,
    ) -> None:
        clients = clients or Clients({"batch": client, "logs": log_client})
        super().__init__("aws_batch", session_name, docker_client, clients=clients)
        self._ids: dict[str, str] = {}  # app id -> job id
        self._arrays: dict[str, int] = {}  # app id -> number of tasks, of array jobs

    def _run_opts(self) -> runopts:
        return AWSBatchOpts.as_runopts()

    def _submit_dryrun(self, app: AppDef, cfg: Mapping[str, CfgVal]) -> AppDryRunInfo[BatchJob]:
        opts = AWSBatchOpts.from_cfg(cfg)
        opts.queue = opts.queue.rpartition("/")[2]  # of an ARN, whose slash an app id cannot have
        opts.timeout_s = Wishes.of(app).timeout_s or opts.timeout_s
        images = self.dryrun_push_images(app, cfg)
        name = f"{NAME_RULE.make(app.name, room=15)}-{random_id(14)}"
        retries = SYSTEM.policy(app, self.capabilities)
        if retries is not None:
            refuse_parts(app, "Batch")
        job = render_job(app, name, opts, session=self.session_name, user=self._who(), retries=retries)
        job.images_to_push = images
        job.after = [parse_app_handle(handle).app_id for _, handle in Wishes.of(app).after]
        return AppDryRunInfo(job, str)

    def export(self, dryrun_info: AppDryRunInfo[BatchJob]) -> Export:
        """See :class:`torchx.schedulers.kit.abilities.Exports`."""
        return export.export(dryrun_info.request, bases_of(dryrun_info))

    def schedule(self, dryrun_info: AppDryRunInfo[BatchJob]) -> str:
        """Pushes images, registers the job definition unless it exists, and submits the job.

        Raises:
            NotFoundError: the queue does not exist.
            BackendError: AWS refused, failed, or did not answer.
        """
        job, app = dryrun_info.request, dryrun_info._app
        opts = job.opts or AWSBatchOpts(queue=job.queue)
        with Unsent():
            earlier = self._earlier(job.after)
            queue = queues.look_at(self._client, job.queue)
            definition = job.job_def
            if queue is not None:
                queues.refuse_closed(queue)
                definition = for_queue(definition, queue, opts, app.name if app else job.name)
            self._push(job.images_to_push, dryrun_info, create=opts.ecr_create_repo)
        once = self._clients.client("batch", retries=False)
        job_id = calls.submit(self._client, once, definition, job.request(earlier), sleep=self._sleep)
        app_id = self.submission_token(dryrun_info)
        self._ids[app_id] = job_id
        return app_id

    def _earlier(self, app_ids: _Ids) -> _Ids:
        """Batch's ids of earlier jobs, on which a job depends. Raises NotFoundError if one does not exist."""
        found = self._find(app_ids) if app_ids else {}
        for app_id in app_ids:
            if app_id not in found:
                raise NotFoundError(
                    f"Batch has no job `{app_id}`, on which this job depends",
                    hint="Batch removes jobs a week after their end",
                )
        return [str(found[app_id]["jobId"]) for app_id in app_ids]

    def submission_token(self, dryrun_info: AppDryRunInfo[Any]) -> str:
        """Return the app id, which is unique."""
        return f"{dryrun_info.request.queue}:{dryrun_info.request.name}"

    def _answer(self, app_id: str, job: _Object, *, detailed: bool) -> DescribeAppResponse:
        if app_id in self._arrays:
            return sweeps.describe(self._client, app_id, job)
        return super()._answer(app_id, job, detailed=detailed)

    def _facts(self, app_id: str, job: _Object, *, detailed: bool) -> JobFacts:
        if not detailed:
            return answers.facts_of(app_id, job, {}, region=self._region)
        waits = self._why_stuck(job) if job.get("status") == "RUNNABLE" and not job.get("statusReason") else ""
        return answers.facts_of(app_id, job, calls.nodes(self._client, job), region=self._region, waits=waits)

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
                self._learn(app_id, job)
                yield app_id, job

    def _of_user(self, jobs: _Jobs, user: str) -> _Jobs:
        """Filter by tag, which ListJobs does not return."""
        jobs = list(jobs)
        described = calls.details(self._client, [str(job["jobId"]) for _, job in jobs])
        tags = {job_id: job.get("tags") or {} for job_id, job in described.items()}
        return [(a, job) for a, job in jobs if tags.get(str(job["jobId"]), {}).get(TAG_USER) == user]

    def _streams(self, job: _Object, replicas: Sequence[tuple[str, int]]) -> Streams:
        return logs.streams(self._client, job, replicas)

    def check_tasks(self, dryrun_info: AppDryRunInfo[BatchJob], tasks: TaskList) -> None:
        sweeps.check(dryrun_info.request, dryrun_info._app, tasks)

    def submit_tasks(self, dryrun_info: AppDryRunInfo[BatchJob], tasks: TaskList) -> str:
        info = copy.copy(dryrun_info)
        info.request = sweeps.with_values(info.request, tasks)
        app_id = self.schedule(info)
        self._arrays[app_id] = len(tasks.points)
        return app_id

    def describe_tasks(self, app_id: str, numbers: Sequence[int]) -> _Answers | None:
        """Describe each task by itself: for Batch, the child of an array is a job like any other."""
        job = self._look(app_id)
        if job is None:
            return None
        check_numbers(app_id, numbers, answers.array_size(job))
        found = [self.describe(f"{app_id}/{k}") for k in numbers]
        return [answer for answer in found if answer is not None]

    def cancel_task(self, app_id: str, number: int) -> None:
        self._cancel_existing(f"{app_id}/{number}")

    @shortcut
    def log_replicas(self, app_id: str) -> _Replicas | None:
        own = super().log_replicas(app_id)
        size = self._arrays.get(app_id, 0)
        return [(role, k) for role, _ in own for k in range(size)] if own and size else own

    def open_logs(self, app_id: str, replicas: Sequence[tuple[str, int]], query: LogQuery) -> Sequence[Iterable[str]]:
        if app_id not in self._ids:
            self._look(app_id)
        if app_id not in self._arrays:
            return super().open_logs(app_id, replicas, query)
        return [super(AWSBatchScheduler, self).open_logs(f"{app_id}/{k}", [(r, 0)], query)[0] for r, k in replicas]

    def enter(self, app_id: str, role: str, k: int, argv: Sequence[str], tty: Tty | None = None) -> InsideProcess:
        """See :class:`torchx.schedulers.kit.abilities.RunsInside`: through ECS Exec,
        if the job was submitted with it.
        """
        from torchx.schedulers.aws.batch.inside import TaskProcess, task_of

        job = self._look(app_id)
        if app_id in self._arrays:
            job = self._look(f"{app_id}/{k}")
        return TaskProcess(self._clients, task_of(self._clients, job, (app_id, role, k)), argv, tty)

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
        here = {a: ours[i] for a, i in wanted.items() if i in ours}
        self._arrays.update((a, size) for a, job in here.items() if (size := answers.array_size(job)))
        return here

    def _learn_ids(self, queue: str, names: _Ids) -> None:
        if len(names) == 1:
            found = calls.find_id(self._client, queue, names[0])
            if found:
                self._ids[f"{queue}:{names[0]}"] = found
            return
        for job in calls.ours(self._client, queue):
            self._learn(f"{queue}:{job['jobName']}", job)

    def _learn(self, app_id: str, job: _Object) -> None:
        self._ids[app_id] = str(job["jobId"])
        if size := answers.array_size(job):
            self._arrays[app_id] = size


def create_scheduler(
    session_name: str,
    client: Any | None = None,
    log_client: Any | None = None,
    docker_client: Any | None = None,
    **kwargs: object,
) -> AWSBatchScheduler:
    """Create the scheduler ``aws_batch``.

    Args:
        kwargs: ``aws_region``, ``aws_profile`` and ``aws_endpoint_url``, which override boto3's configuration. Others
            are ignored.
    """
    clients = Clients({"batch": client, "logs": log_client}, kwargs)
    return AWSBatchScheduler(session_name, client, log_client, docker_client, clients=clients)


def to_datetime(ms_since_epoch: int) -> datetime:
    """Convert milliseconds since the epoch to a local time with its zone.

    >>> to_millis_since_epoch(to_datetime(1500))
    1500
    """
    from datetime import datetime, timezone

    return datetime.fromtimestamp(ms_since_epoch / 1000, timezone.utc).astimezone()


def to_millis_since_epoch(ts: datetime) -> int:
    """Convert a time to milliseconds since the epoch. A time without zone is local."""
    return round(ts.timestamp() * 1000)
