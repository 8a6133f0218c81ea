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

import time

from torchx.errors import ConfigError, NotFoundError, NotSupportedError
from torchx.schedulers.api import (
    Capabilities,
    DescribeAppResponse,
    ListAppResponse,
    Scheduler,
    Stream,
)
from torchx.schedulers.ids import random_id
from torchx.schedulers.kit.aws import batch_calls as calls
from torchx.schedulers.kit.aws import batch_queues, batch_status
from torchx.schedulers.kit.aws.batch_fargate import to_fargate
from torchx.schedulers.kit.aws.batch_parts import (
    ResourceType,
    parse_ulimits,
    resource_from_resource_requirements,
    resource_requirements_from_resource,
)
from torchx.schedulers.kit.aws.batch_request import (
    AUTO,
    ENV_TORCHX_ROLE_IDX,
    ENV_TORCHX_ROLE_NAME,
    FARGATE,
    NAME_RULE,
    TAG_TORCHX_APPNAME,
    TAG_TORCHX_USER,
    TAG_TORCHX_VER,
    AWSBatchOpts,
    BatchJob,
    Opts,
    render_job,
    with_name,
)
from torchx.schedulers.kit.aws.batch_status import DEFAULT_ROLE_NAME, JOB_STATE
from torchx.schedulers.kit.aws.clients import Clients
from torchx.schedulers.kit.aws.ecr import EcrLogins
from torchx.settings import ENV_IMAGE
from torchx.specs.api import MISSING, AppDryRunInfo, AppState, is_terminal, runopts
from torchx.workspace.docker_workspace import DockerWorkspaceMixin
from torchx.workspace.images import registry_auth

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from datetime import datetime
    from typing import Any

    from torchx.schedulers.kit.aws.batch_queues import Queue
    from torchx.specs.api import AppDef, CfgVal

    _Object = dict[str, Any]
    _Jobs = list[ListAppResponse]
    _Base = Scheduler[Mapping[str, CfgVal]]
else:
    _Base = Scheduler

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


# -- the scheduler --------------------------------------------------------------------------------------


class AWSBatchScheduler(DockerWorkspaceMixin, _Base):
    """Runs jobs on AWS Batch. An app id is ``<queue>:<name>``.

    Args:
        client: a boto3 client of Batch; by default it is made when it is first needed, as boto3 is configured.
        log_client: a boto3 client of CloudWatch Logs, likewise.
        clients: all clients.
    """

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
        super().__init__("aws_batch", session_name, docker_client=docker_client)
        self._clients = clients or Clients({"batch": client, "logs": log_client})
        self._logins = EcrLogins(self._clients)
        registry_auth.PROVIDERS["ecr"] = self._logins.credentials
        self._ids: dict[str, str] = {}
        self._sleep: Callable[[float], None] = time.sleep

    @property
    def _client(self) -> Any:
        return self._clients.client("batch")

    def _run_opts(self) -> runopts:
        return AWSBatchOpts.as_runopts()

    # -- submission ------------------------------------------------------------------------------

    def _submit_dryrun(self, app: AppDef, cfg: Mapping[str, CfgVal]) -> AppDryRunInfo[BatchJob]:
        import getpass

        opts = AWSBatchOpts.from_cfg(cfg)
        images = self.dryrun_push_images(app, cfg)
        name = f"{NAME_RULE.make(app.name, room=15)}-{random_id(14)}"
        job = render_job(app, name, opts, session=self.session_name, user=getpass.getuser())
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
            definition = self._fit(definition, queue, opts, app.name if app else job.name)
        self._push(job, opts, dryrun_info)
        once = self._clients.client("batch", retries=False)
        job_id = calls.submit(self._client, once, definition, job.request(), sleep=self._sleep)
        app_id = f"{job.queue}:{job.name}"
        self._ids[app_id] = job_id
        return app_id

    @staticmethod
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

    def _push(self, job: BatchJob, opts: AWSBatchOpts, info: AppDryRunInfo[BatchJob]) -> None:
        if not job.images_to_push:
            return
        from torchx.specs.images import report_image_digest

        by_engine = any(image.startswith("sha256:") for image in job.images_to_push)
        engine = self._docker_client if by_engine else None
        self._logins.prepare(job.images_to_push.values(), engine, create=opts.ecr_create_repo)
        self.push_images(job.images_to_push)
        for role in info._app.roles if info._app is not None else []:
            report_image_digest(info, role.name, self.pushed_digest(role.image))

    # -- what became of it -----------------------------------------------------------------------

    def describe(self, app_id: str) -> DescribeAppResponse | None:
        from torchx.schedulers.kit.aws import logs

        job = self._find([app_id]).get(app_id)
        if job is None:
            return None
        nodes = calls.nodes(self._client, job)
        state = batch_status.state_of(job)
        waits = self._why_stuck(job) if job.get("status") == "RUNNABLE" and not job.get("statusReason") else ""
        tail = ""
        failed = batch_status.first_failed(job, nodes) if state is AppState.FAILED else None
        if failed:
            group = next(g for g in batch_status.groups(job) if g.first <= failed[0] <= g.last)
            streams = batch_status.log_streams(failed[1])
            tail = logs.tail(self._clients.client("logs"), group.log_group, streams[-1]) if streams else ""
        return batch_status.describe(app_id, job, nodes, region=self._region, waits=waits, log_tail=tail)

    def describe_many(self, app_ids: Iterable[str]) -> dict[str, DescribeAppResponse | None]:
        """A hundred jobs a call; the nodes of a job are told as the job is, and causes as far as Batch names them."""
        wanted = list(app_ids)
        found = self._find(wanted)
        region = self._region if found else ""
        return {
            app_id: batch_status.describe(app_id, found[app_id], {}, region=region) if app_id in found else None
            for app_id in wanted
        }

    def exists(self, app_id: str) -> bool:
        return app_id in self._find([app_id])

    def list(self, cfg: Mapping[str, CfgVal] | None = None) -> _Jobs:
        """Jobs that torchx has submitted, of the queue in ``cfg`` or else of all; of ``user`` and ``state`` if given.

        Batch remembers jobs that have ended for about a week.
        """
        given = dict(cfg or {})
        queues = [str(given["queue"])] if given.get("queue") else batch_queues.all_queues(self._client)
        states = {str(s).upper() for s in _as_list(given.get("state"))}
        lines = [(queue, job) for queue in queues for job in calls.ours(self._client, queue)]
        lines = [(q, job) for q, job in lines if not states or batch_status.state_of(job).name in states]
        if given.get("user"):
            # What ListJobs says of a job is nobody's name.
            known = calls.details(self._client, [str(job["jobId"]) for _, job in lines])
            tags = {job_id: job.get("tags") or {} for job_id, job in known.items()}
            lines = [(q, j) for q, j in lines if tags.get(str(j["jobId"]), {}).get(TAG_TORCHX_USER) == given["user"]]
        found = []
        for queue, job in lines:
            app_id = f"{queue}:{job['jobName']}"
            self._ids[app_id] = str(job["jobId"])
            found.append(ListAppResponse(app_id, batch_status.state_of(job), name=job["jobName"]))
        return found

    def log_iter(  # noqa: PLR0917  # the contract's signature
        self,
        app_id: str,
        role_name: str,
        k: int = 0,
        regex: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        should_tail: bool = False,
        streams: Stream | None = None,
    ) -> Iterable[str]:
        """What the replica wrote, all its attempts."""
        from torchx.schedulers.kit.aws import logs
        from torchx.schedulers.kit.logs import LogQuery

        query = LogQuery.of(regex=regex, since=since, until=until, should_tail=should_tail, streams=streams)
        logs.refuse_streams(query)
        job = self._find([app_id]).get(app_id)
        if job is None:
            raise NotFoundError(f"Batch has no job `{app_id}`", hint="`torchx list` shows the jobs")
        group = next((g for g in batch_status.groups(job) if g.name == role_name), None)
        if group is None or not 0 <= k <= group.last - group.first:
            raise NotFoundError(f"job `{app_id}` has no replica `{role_name}/{k}`")
        node_id = f"{job['jobId']}#{group.first + k}" if job.get("nodeProperties") else str(job["jobId"])

        def node() -> _Object:
            found = calls.details(self._client, [node_id])
            if node_id not in found:
                found = calls.details(self._client, [str(job["jobId"])])
            return next(iter(found.values()), {})

        lines = logs.follow(
            self._clients.client("logs"),
            group.log_group,
            lambda: batch_status.log_streams(node()),
            query,
            over=lambda: is_terminal(batch_status.state_of(self._find([app_id]).get(app_id, {"status": "FAILED"}))),
            sleep=self._sleep,
        )
        return query.matching(lines)

    # -- the end ---------------------------------------------------------------------------------

    def _cancel_existing(self, app_id: str) -> None:
        import getpass

        job = self._find([app_id]).get(app_id)
        if job is not None and not is_terminal(batch_status.state_of(job)):
            reason = f"{batch_status.CANCELLED_BY_US}, for {getpass.getuser()}"
            calls.terminate(self._client, str(job["jobId"]), reason)

    def _delete_existing(self, app_id: str) -> None:
        """Ends the job, and takes its definition away, which no other job notices; Batch forgets the job by itself."""
        job = self._find([app_id]).get(app_id)
        self._cancel_existing(app_id)
        if job is not None:
            calls.deregister(self._client, str(job["jobDefinition"]))

    def close(self) -> None:
        """Lets go of the connections. Jobs go on."""
        self._clients.close()

    # -- asking ----------------------------------------------------------------------------------

    @property
    def _region(self) -> str:
        return str(getattr(getattr(self._client, "meta", None), "region_name", "") or "")

    def _find(self, app_ids: _Ids) -> dict[str, _Object]:
        """Descriptions of those jobs that there are and that are ours. Ids are asked for once: they do not change."""
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

    def _why_stuck(self, job: _Object) -> str:
        """Asks the queue; what cannot be asked is no failure of the question for the job's state."""
        from torchx.errors import TorchXError

        try:
            queue = batch_queues.look_at(self._client, str(job["jobQueue"]))
        except TorchXError:
            return ""
        groups = batch_status.groups(job)
        vcpus = max((batch_status.role_of(g, 0).resource.cpu for g in groups), default=1)
        return (
            batch_queues.why_stuck(queue, vcpus, [g.instance_type for g in groups if g.instance_type]) if queue else ""
        )


if TYPE_CHECKING:
    _Ids = list[str]  # within the class above, `list` is a method


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


def _as_list(value: object) -> _Ids:
    if value is None or value == "":
        return []
    return [str(item) for item in value] if isinstance(value, (list, tuple, set)) else [str(value)]
