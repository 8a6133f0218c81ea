"""``aws_batch``: replicas as containers of AWS Batch jobs; on EC2, spot instances or Fargate.

A job of one replica becomes a single-node job. A job of several, or one whose role names an instance type, becomes a
multi-node parallel job with a range of nodes for each role. Its parts: a job definition ``torchx-<app>-<hash>``, which
jobs that are alike share, and what SubmitJob adds to it. An app id is ``<queue>:<job name>``.

A dry run prints both requests, and asks AWS nothing. Region, profile and credentials are those that boto3 finds.

Limits: stdout and stderr are one log. Batch retries the job as a whole, and keeps its record for about a week, whatever
one does. Nodes need ``/bin/sh`` in their image when there are several. The ``ENTRYPOINT`` of an image stays in front of
the role's command: Batch cannot replace it.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from torchx.errors import NotFoundError, TorchXError
from torchx.schedulers.api import Capabilities
from torchx.schedulers.aws.base import AwsScheduler
from torchx.schedulers.aws.batch import answers, logs, queues
from torchx.schedulers.aws.batch import client as calls
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
from torchx.schedulers.aws.tags import DEFAULT_ROLE_NAME, ENV_ROLE_INDEX, ENV_ROLE_NAME, TAG_APP_NAME, TAG_USER
from torchx.schedulers.aws.tags import TAG_VERSION as TAG_TORCHX_VER
from torchx.schedulers.ids import random_id
from torchx.settings import ENV_IMAGE
from torchx.specs.after import earlier_jobs
from torchx.specs.api import MISSING, AppDef, AppDryRunInfo, CfgVal, parse_app_handle, runopts
from torchx.specs.timeouts import timeout_s
from torchx.util.reexports import reexports

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from datetime import datetime

    from torchx.schedulers.api import DescribeAppResponse
    from torchx.schedulers.aws.logs import Streams
    from torchx.schedulers.foreign import ForeignJobs
    from torchx.schedulers.inside import InsideProcess, Tty
    from torchx.schedulers.kit.export import Export
    from torchx.schedulers.kit.facts import JobFacts
    from torchx.schedulers.kit.logs import LogQuery
    from torchx.specs.tasks import TaskList

    _Object = dict[str, Any]
    _Ids = list[str]  # within the class, `list` is a method
    _Ours = list[tuple[str, _Object]]
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

CAPABILITIES = Capabilities(
    logs=True,
    timeout="timeout_s",
    after=("ok",),
    log_streams=("combined",),
    log_since=True,
    log_follow=True,
    log_timestamps=True,
    log_previous=True,
    exec=True,
    cancel=True,
    list=True,
    retries=("APPLICATION",),
    retry_actions=("retry",),
    multi_role=True,
    mounts=("bind", "volume", "device"),
    secrets=("aws-sm",),
    workspaces=True,
    priority=True,
    gpus=True,
    resources=True,
    durable=True,
    describe_many=True,
)


class AWSBatchScheduler(AwsScheduler):
    """Runs jobs on AWS Batch. An app id is ``<queue>:<name>``.

    Args:
        client: a boto3 client of Batch; by default one is made when it is first needed, as boto3 is configured.
        log_client: a boto3 client of CloudWatch Logs; by default it is made in the same way.
        clients: all clients.
    """

    service, shown = "batch", "Batch"
    capabilities = CAPABILITIES
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
        self._ids: dict[str, str] = {}
        self._arrays: dict[str, int] = {}  # of those, how many tasks the arrays have

    def _run_opts(self) -> runopts:
        return AWSBatchOpts.as_runopts()

    # -- submission ------------------------------------------------------------------------------

    def _submit_dryrun(self, app: AppDef, cfg: Mapping[str, CfgVal]) -> AppDryRunInfo[BatchJob]:
        opts = AWSBatchOpts.from_cfg(cfg)
        opts.timeout_s = timeout_s(app) or opts.timeout_s
        images = self.dryrun_push_images(app, cfg)
        name = f"{NAME_RULE.make(app.name, room=15)}-{random_id(14)}"
        retries = None
        if app.metadata:
            from torchx.schedulers.aws.batch.attempts import SYSTEM
            from torchx.schedulers.kit.attempts import refuse_parts

            retries = SYSTEM.policy(app, self.capabilities)
            if retries is not None:
                refuse_parts(app, "Batch")
        job = render_job(app, name, opts, session=self.session_name, user=self._who(), retries=retries)
        job.images_to_push = images
        job.after = [parse_app_handle(handle).app_id for _, handle in earlier_jobs(app)]
        return AppDryRunInfo(job, str)

    def export(self, dryrun_info: AppDryRunInfo[BatchJob]) -> Export:
        """See :class:`torchx.schedulers.kit.abilities.Exports`."""
        from torchx.schedulers.aws.batch.export import export
        from torchx.schedulers.kit.export import bases_of

        return export(dryrun_info.request, bases_of(dryrun_info))

    def schedule(self, dryrun_info: AppDryRunInfo[BatchJob]) -> str:
        """Pushes images, registers the job definition unless it is there, and submits the job.

        Raises:
            NotFoundError: there is no such queue.
            BackendError: AWS refused, failed, or did not answer.
        """
        job, app = dryrun_info.request, dryrun_info._app
        opts = job.opts or AWSBatchOpts(queue=job.queue)
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
        """The ids in Batch of jobs that come before.

        Raises:
            NotFoundError: Batch does not have one.
        """
        found = self._find(app_ids) if app_ids else {}
        for app_id in app_ids:
            if app_id not in found:
                raise NotFoundError(
                    f"Batch has no job `{app_id}`, which comes before", hint="it forgets jobs a week after their end"
                )
        return [str(found[app_id]["jobId"]) for app_id in app_ids]

    def submission_token(self, dryrun_info: AppDryRunInfo[Any]) -> str:
        """The id: no other job has the name."""
        return f"{dryrun_info.request.queue}:{dryrun_info.request.name}"

    # -- what became of it -----------------------------------------------------------------------

    def _answer(self, app_id: str, job: _Object, *, closely: bool) -> DescribeAppResponse:
        if app_id not in self._arrays:
            return super()._answer(app_id, job, closely=closely)
        from torchx.schedulers.aws.batch.sweeps import describe

        return describe(self._client, app_id, job)

    def _facts(self, app_id: str, job: _Object, *, closely: bool) -> JobFacts:
        if not closely:
            return answers.facts_of(app_id, job, {}, region=self._region)
        waits = self._why_stuck(job) if job.get("status") == "RUNNABLE" and not job.get("statusReason") else ""
        return answers.facts_of(app_id, job, calls.nodes(self._client, job), region=self._region, waits=waits)

    def _why_stuck(self, job: _Object) -> str:
        """Asks the queue. The job's state is known without it: no error if that cannot be asked."""
        try:
            queue = queues.look_at(self._client, str(job["jobQueue"]))
        except TorchXError:
            return ""
        groups = answers.groups(job)
        vcpus = max((answers.role_of(g, 0).resource.cpu for g in groups), default=1)
        types = [g.instance_type for g in groups if g.instance_type]
        return queues.why_stuck(queue, vcpus, types) if queue else ""

    def _listed(self, cfg: Mapping[str, CfgVal]) -> Iterator[tuple[str, _Object]]:
        """Of the queue in ``cfg``, or else of all. Batch remembers jobs that have ended for about a week."""
        names = [str(cfg["queue"])] if cfg.get("queue") else queues.all_queues(self._client)
        for queue in names:
            for job in calls.ours(self._client, queue):
                app_id = f"{queue}:{job['jobName']}"
                self._learn(app_id, job)
                yield app_id, job

    def _of_user(self, lines: _Ours, user: str) -> _Ours:
        """By their tags, which ListJobs does not show."""
        known = calls.details(self._client, [str(job["jobId"]) for _, job in lines])
        tags = {job_id: job.get("tags") or {} for job_id, job in known.items()}
        return [(a, job) for a, job in lines if tags.get(str(job["jobId"]), {}).get(TAG_USER) == user]

    def _streams(self, job: _Object, replicas: Sequence[tuple[str, int]]) -> Streams:
        return logs.streams(self._client, job, replicas)

    # -- sweeps ----------------------------------------------------------------------------------

    def check_tasks(self, dryrun_info: AppDryRunInfo[BatchJob], tasks: TaskList) -> None:
        from torchx.schedulers.aws.batch.sweeps import check

        check(dryrun_info.request, dryrun_info._app, tasks)

    def submit_tasks(self, dryrun_info: AppDryRunInfo[BatchJob], tasks: TaskList) -> str:
        from torchx.schedulers.aws.batch.sweeps import with_values

        info = copy.copy(dryrun_info)
        info.request = with_values(info.request, tasks)
        app_id = self.schedule(info)
        self._arrays[app_id] = len(tasks.points)
        return app_id

    def describe_tasks(self, app_id: str, numbers: Sequence[int]) -> _Answers | None:
        """A child of an array is to Batch a job like any other."""
        from torchx.schedulers.kit.tasks import check_numbers

        job = self._look(app_id)
        if job is None:
            return None
        check_numbers(app_id, numbers, answers.array_size(job))
        found = [self.describe(f"{app_id}/{k}") for k in numbers]
        return [answer for answer in found if answer is not None]

    def cancel_task(self, app_id: str, number: int) -> None:
        self._cancel_existing(f"{app_id}/{number}")

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
        """See :class:`torchx.schedulers.kit.abilities.Enters`: by ECS Exec, where the job was submitted with it."""
        from torchx.schedulers.aws.batch.inside import TaskProcess, task_of

        job = self._look(app_id)
        if app_id in self._arrays:
            job = self._look(f"{app_id}/{k}")
        return TaskProcess(self._clients, task_of(self._clients, job, (app_id, role, k)), argv, tty)

    # -- the end ---------------------------------------------------------------------------------

    def _end(self, app_id: str, job: _Object) -> None:  # noqa: ARG002  # the base's
        calls.terminate(self._client, str(job["jobId"]), f"{CANCELLED_BY_US}, for {self._who()}")

    def _forget(self, app_id: str, job: _Object) -> None:  # noqa: ARG002  # the base's
        """Deregisters its definition, which no other job notices; Batch forgets the job by itself."""
        calls.deregister(self._client, str(job["jobDefinition"]))

    def foreign(self) -> ForeignJobs:
        """See :class:`torchx.schedulers.kit.abilities.KnowsForeign`."""
        from torchx.schedulers.aws.batch.foreign import ForeignBatchJobs

        return ForeignBatchJobs.of(self)

    # -- asking ----------------------------------------------------------------------------------

    def _find(self, app_ids: _Ids) -> dict[str, _Object]:
        """Ids are looked up once: they do not change."""
        unknown: dict[str, list[str]] = {}
        places = {app_id: _place(app_id) for app_id in app_ids}
        for whole, _ in places.values():
            queue, _, name = whole.rpartition(":")
            if queue and whole not in self._ids:
                unknown.setdefault(queue, []).append(name)
        for queue, names in unknown.items():
            self._learn_ids(queue, names)
        wanted = {a: f"{self._ids[whole]}{task}" for a, (whole, task) in places.items() if whole in self._ids}
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


def _place(app_id: str) -> tuple[str, str]:
    """The app id of a sweep, and what the id of a child has behind that of its array; of other jobs that is empty.

    >>> _place("queue:train-x1/17"), _place("queue:train-x1")
    (('queue:train-x1', ':17'), ('queue:train-x1', ''))
    """
    name, _, task = app_id[app_id.rfind(":") :].partition("/")
    return (app_id[: -len(task) - 1], f":{task}") if task and name else (app_id, "")


def create_scheduler(
    session_name: str,
    client: Any | None = None,
    log_client: Any | None = None,
    docker_client: Any | None = None,
    **kwargs: object,
) -> AWSBatchScheduler:
    """Make the scheduler ``aws_batch``; the table of schedulers calls this.

    Args:
        kwargs: ``aws_region``, ``aws_profile``, ``aws_endpoint_url``: instead of what boto3 finds; others are ignored.
    """
    clients = Clients.of(kwargs, {"batch": client, "logs": log_client})
    return AWSBatchScheduler(session_name, client, log_client, docker_client, clients=clients)


def to_datetime(ms_since_epoch: int) -> datetime:
    """A time of AWS, in milliseconds since the epoch, as local time with its zone.

    >>> to_millis_since_epoch(to_datetime(1500))
    1500
    """
    from datetime import datetime, timezone

    return datetime.fromtimestamp(ms_since_epoch / 1000, timezone.utc).astimezone()


def to_millis_since_epoch(ts: datetime) -> int:
    """A time as AWS has it: milliseconds since the epoch. A time without zone is local."""
    return round(ts.timestamp() * 1000)
