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

from torchx.errors import ConfigError, NotSupportedError, TorchXError
from torchx.schedulers.api import Capabilities, DescribeAppResponse
from torchx.schedulers.aws import batch_calls as calls
from torchx.schedulers.aws import batch_queues
from torchx.schedulers.aws import batch_status as status
from torchx.schedulers.aws.base import AwsScheduler
from torchx.schedulers.aws.batch_fargate import to_fargate
from torchx.schedulers.aws.batch_parts import (
    ResourceType,
    parse_ulimits,
    resource_from_resource_requirements,
    resource_requirements_from_resource,
)
from torchx.schedulers.aws.batch_request import (
    AUTO,
    FARGATE,
    NAME_RULE,
    AWSBatchOpts,
    BatchJob,
    Opts,
    render_job,
    with_name,
)
from torchx.schedulers.aws.batch_status import JOB_STATE
from torchx.schedulers.aws.clients import Clients
from torchx.schedulers.aws.marks import DEFAULT_ROLE_NAME, ENV_ROLE_INDEX, ENV_ROLE_NAME, TAG_APP_NAME, TAG_USER
from torchx.schedulers.aws.marks import TAG_VERSION as TAG_TORCHX_VER
from torchx.schedulers.ids import random_id
from torchx.settings import ENV_IMAGE
from torchx.specs.api import MISSING, AppDryRunInfo, AppState, runopts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from datetime import datetime
    from typing import Any

    from torchx.schedulers.aws.batch_queues import Queue
    from torchx.specs.api import AppDef, CfgVal

    _Object = dict[str, Any]

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

ENV_TORCHX_IMAGE = ENV_IMAGE
ENV_TORCHX_ROLE_IDX = ENV_ROLE_INDEX
ENV_TORCHX_ROLE_NAME = ENV_ROLE_NAME
TAG_TORCHX_APPNAME = TAG_APP_NAME
TAG_TORCHX_USER = TAG_USER

CAPABILITIES = Capabilities(
    logs=True,
    log_streams=("combined",),
    log_since=True,
    log_follow=True,
    cancel=True,
    list=True,
    retries=("APPLICATION",),
    multi_role=True,
    mounts=("bind", "volume", "device"),
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
        client: a boto3 client of Batch; by default it is made when it is first needed, as boto3 is configured.
        log_client: a boto3 client of CloudWatch Logs, likewise.
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

    def _run_opts(self) -> runopts:
        return AWSBatchOpts.as_runopts()

    # -- submission ------------------------------------------------------------------------------

    def _submit_dryrun(self, app: AppDef, cfg: Mapping[str, CfgVal]) -> AppDryRunInfo[BatchJob]:
        opts = AWSBatchOpts.from_cfg(cfg)
        images = self.dryrun_push_images(app, cfg)
        name = f"{NAME_RULE.make(app.name, room=15)}-{random_id(14)}"
        job = render_job(app, name, opts, session=self.session_name, user=self._who())
        job.images_to_push = images
        return AppDryRunInfo(job, str)

    def schedule(self, dryrun_info: AppDryRunInfo[BatchJob]) -> str:
        """Pushes images, registers the job definition unless it is there, and submits the job.

        Raises:
            NotFoundError: there is no such queue.
            BackendError: AWS refused, failed, or did not answer.
        """
        job, app = dryrun_info.request, dryrun_info._app
        opts = job.opts or AWSBatchOpts(queue=job.queue)
        queue = batch_queues.look_at(self._client, job.queue)
        definition = job.job_def
        if queue is not None:
            batch_queues.refuse_closed(queue)
            definition = _fit(definition, queue, opts, app.name if app else job.name)
        self._push(job.images_to_push, dryrun_info, create=opts.ecr_create_repo)
        once = self._clients.client("batch", retries=False)
        job_id = calls.submit(self._client, once, definition, job.request(), sleep=self._sleep)
        app_id = self.submission_token(dryrun_info)
        self._ids[app_id] = job_id
        return app_id

    def submission_token(self, dryrun_info: AppDryRunInfo[Any]) -> str:
        """The id: no other job has the name."""
        return f"{dryrun_info.request.queue}:{dryrun_info.request.name}"

    # -- what became of it -----------------------------------------------------------------------

    def _state(self, job: _Object) -> AppState:
        return status.state_of(job)

    def _answer(self, app_id: str, job: _Object, *, closely: bool) -> DescribeAppResponse:
        """Unless ``closely``, the nodes of a job are told as the job is."""
        if not closely:
            return status.describe(app_id, job, {}, region=self._region)
        nodes = calls.nodes(self._client, job)
        waits = self._why_stuck(job) if job.get("status") == "RUNNABLE" and not job.get("statusReason") else ""
        failed = status.first_failed(job, nodes) if self._state(job) is AppState.FAILED else None
        tail = ""
        if failed:
            group = next(g for g in status.groups(job) if g.first <= failed[0] <= g.last)
            tail = self._tail(group.log_group, status.log_streams(failed[1]))
        return status.describe(app_id, job, nodes, region=self._region, waits=waits, log_tail=tail)

    def _why_stuck(self, job: _Object) -> str:
        """Asks the queue; what cannot be asked is no failure of the question for the job's state."""
        try:
            queue = batch_queues.look_at(self._client, str(job["jobQueue"]))
        except TorchXError:
            return ""
        groups = status.groups(job)
        vcpus = max((status.role_of(g, 0).resource.cpu for g in groups), default=1)
        types = [g.instance_type for g in groups if g.instance_type]
        return batch_queues.why_stuck(queue, vcpus, types) if queue else ""

    def _listed(self, cfg: Mapping[str, CfgVal]) -> Iterator[tuple[str, _Object]]:
        """Of the queue in ``cfg``, or else of all. Batch remembers jobs that have ended for about a week."""
        queues = [str(cfg["queue"])] if cfg.get("queue") else batch_queues.all_queues(self._client)
        for queue in queues:
            for job in calls.ours(self._client, queue):
                app_id = f"{queue}:{job['jobName']}"
                self._ids[app_id] = str(job["jobId"])
                yield app_id, job

    def _of_user(self, lines: _Ours, user: str) -> _Ours:
        """What ListJobs says of a job is nobody's name."""
        known = calls.details(self._client, [str(job["jobId"]) for _, job in lines])
        tags = {job_id: job.get("tags") or {} for job_id, job in known.items()}
        return [(a, job) for a, job in lines if tags.get(str(job["jobId"]), {}).get(TAG_USER) == user]

    def _log_of(self, app_id: str, job: _Object, role: str, k: int) -> tuple[str, Callable[[], _Ids]] | None:  # noqa: ARG002  # the base's
        group = next((g for g in status.groups(job) if g.name == role), None)
        if group is None or not 0 <= k <= group.last - group.first:
            return None
        own = str(job["jobId"])
        node = f"{own}#{group.first + k}" if job.get("nodeProperties") else own

        def streams() -> _Ids:
            found = calls.details(self._client, [node]) or calls.details(self._client, [own])
            return status.log_streams(next(iter(found.values()), {}))

        return group.log_group, streams

    # -- the end ---------------------------------------------------------------------------------

    def _end(self, app_id: str, job: _Object) -> None:  # noqa: ARG002  # the base's
        calls.terminate(self._client, str(job["jobId"]), f"{status.CANCELLED_BY_US}, for {self._who()}")

    def _forget(self, app_id: str, job: _Object) -> None:  # noqa: ARG002  # the base's
        """Takes its definition away, which no other job notices; Batch forgets the job by itself."""
        calls.deregister(self._client, str(job["jobDefinition"]))

    # -- asking ----------------------------------------------------------------------------------

    def _find(self, app_ids: _Ids) -> dict[str, _Object]:
        """Ids are asked for once: they do not change."""
        unknown: dict[str, list[str]] = {}
        for app_id in app_ids:
            queue, _, name = app_id.rpartition(":")
            if queue and app_id not in self._ids:
                unknown.setdefault(queue, []).append(name)
        for queue, names in unknown.items():
            self._learn_ids(queue, names)
        wanted = {app_id: self._ids[app_id] for app_id in app_ids if app_id in self._ids}
        found = calls.details(self._client, wanted.values()) if wanted else {}
        return {a: found[i] for a, i in wanted.items() if i in found and calls.is_ours(found[i])}

    def _learn_ids(self, queue: str, names: _Ids) -> None:
        if len(names) == 1:
            found = calls.find_id(self._client, queue, names[0])
            if found:
                self._ids[f"{queue}:{names[0]}"] = found
            return
        for job in calls.ours(self._client, queue):
            self._ids[f"{queue}:{job['jobName']}"] = str(job["jobId"])


if TYPE_CHECKING:
    _Ids = list[str]  # within the class above, `list` is a method
    _Ours = list[tuple[str, _Object]]


def _fit(definition: _Object, queue: Queue, opts: AWSBatchOpts, app_name: str) -> _Object:
    """The definition as the queue takes it."""
    if queue.is_fargate and opts.compute == AUTO:
        return with_name(to_fargate(definition, assign_public_ip=opts.assign_public_ip), app_name)
    if queue.kinds and queue.is_fargate != (opts.compute == FARGATE):
        kinds = ", ".join(sorted(queue.kinds))
        raise ConfigError(f"compute is `{opts.compute}`, and queue `{queue.name}` has {kinds}")
    if queue.is_spot_only and definition["type"] == "multinode":
        raise NotSupportedError(
            f"queue `{queue.name}` has spot instances only, on which Batch runs no multi-node jobs (this job has "
            "several replicas, or names an instance type)",
            hint="use a queue of on-demand instances; or one replica, and cpu, gpu and memMB in place of the type",
        )
    return definition


def create_scheduler(
    session_name: str,
    client: Any | None = None,
    log_client: Any | None = None,
    docker_client: Any | None = None,
    **kwargs: object,
) -> AWSBatchScheduler:
    """What the table of schedulers calls.

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
    """The inverse; a time without zone is local."""
    return round(ts.timestamp() * 1000)
