"""``aws_sagemaker``: replicas as the hosts of a SageMaker training job, whatever program they run.

The entrypoint and arguments of the role are given to the image through ``ContainerEntrypoint`` and
``ContainerArguments``: any component works, and SageMaker's own toolkit and SDK are not needed. An app id is the name
of the job.

A dry run prints the request, and asks AWS nothing. Region, profile and credentials are those that boto3 finds.

Limits: one role, no mounts, no retries of a program that failed; stdout and stderr are one log.
"""

from __future__ import annotations

import time

from torchx.errors import NotFoundError, TorchXError
from torchx.schedulers.api import Capabilities, DescribeAppResponse, ListAppResponse, Scheduler, Stream
from torchx.schedulers.ids import random_id
from torchx.schedulers.kit.aws import sagemaker_status as status
from torchx.schedulers.kit.aws.clients import Clients, call, pages
from torchx.schedulers.kit.aws.ecr import EcrLogins
from torchx.schedulers.kit.aws.errors import AwsError, is_missing
from torchx.schedulers.kit.aws.sagemaker_request import (
    DEFAULT_OUTPUT,
    MANAGED_BY,
    NAME_RULE,
    TAG_MANAGED_BY,
    TAG_USER,
    AWSSageMakerJob,
    AWSSageMakerOpts,
    render_job,
)
from torchx.schedulers.kit.aws.sagemaker_status import JOB_STATE
from torchx.specs.api import AppDryRunInfo, AppState, is_terminal, runopts
from torchx.workspace.docker_workspace import DockerWorkspaceMixin
from torchx.workspace.images import registry_auth

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from datetime import datetime
    from typing import Any

    from torchx.specs.api import AppDef, CfgVal

    _Object = dict[str, Any]
    _Jobs = list[ListAppResponse]
    _Base = Scheduler[Mapping[str, CfgVal]]
else:
    _Base = Scheduler

__all__ = [
    "JOB_STATE",
    "AWSSageMakerJob",
    "AWSSageMakerOpts",
    "AWSSageMakerScheduler",
    "Opts",
    "create_scheduler",
]

Opts = AWSSageMakerOpts
_PAGE = 100
_ONE_BY_ONE = 3
"""So many jobs are asked for singly; more, by a search for all of ours."""

CAPABILITIES = Capabilities(
    logs=True,
    log_streams=("combined",),
    log_since=True,
    log_follow=True,
    cancel=True,
    delete=True,
    list=True,
    workspaces=True,
    gpus=True,
    resources=True,
    durable=True,
    describe_many=True,
)


class AWSSageMakerScheduler(DockerWorkspaceMixin, _Base):
    """Runs jobs as training jobs of SageMaker. An app id is the job's name.

    Args:
        client: a boto3 client of SageMaker; by default it is made when it is first needed, as boto3 is configured.
        clients: all clients.
    """

    capabilities = CAPABILITIES
    wait_hint = 10.0

    def __init__(
        self,
        session_name: str,
        client: Any | None = None,
        docker_client: Any | None = None,
        *,
        clients: Clients | None = None,
    ) -> None:
        super().__init__("aws_sagemaker", session_name, docker_client=docker_client)
        self._clients = clients or Clients({"sagemaker": client})
        self._logins = EcrLogins(self._clients)
        registry_auth.PROVIDERS["ecr"] = self._logins.credentials
        self._sleep: Callable[[float], None] = time.sleep

    @property
    def _client(self) -> Any:
        return self._clients.client("sagemaker")

    def _run_opts(self) -> runopts:
        return AWSSageMakerOpts.as_runopts()

    def _validate(self, app: AppDef, scheduler: str, cfg: Mapping[str, CfgVal]) -> None:
        """A role need not say what it needs: the instance type does."""

    # -- submission ------------------------------------------------------------------------------

    def _submit_dryrun(self, app: AppDef, cfg: Mapping[str, CfgVal]) -> AppDryRunInfo[AWSSageMakerJob]:
        import getpass

        opts = AWSSageMakerOpts.from_cfg(cfg)
        images = self.dryrun_push_images(app, cfg)
        name = f"{NAME_RULE.make(opts.base_job_name or app.name, room=15)}-{random_id(14)}"
        request = render_job(app, name, opts, session=self.session_name, user=getpass.getuser())
        return AppDryRunInfo(AWSSageMakerJob(name, request, images), str)

    def schedule(self, dryrun_info: AppDryRunInfo[AWSSageMakerJob]) -> str:
        """Pushes images and creates the training job. Its name is unique: asked for twice, it is created once.

        Raises:
            BackendError: AWS refused, failed, or did not answer.
        """
        job = dryrun_info.request
        request = self._complete(job.request())
        self._push(job, dryrun_info)
        try:
            call(self._client, "create_training_job", f"job `{job.job_name}` could not be submitted", **request)
        except AwsError as e:
            # The first of two requests was carried out, and its answer was lost: nobody else has this name.
            if e.code != "ResourceInUse" or self._ask(job.job_name) is None:
                raise
        return job.job_name

    def _complete(self, request: _Object) -> _Object:
        """What only AWS knows: the ARN of a role by its name, and the account's usual bucket."""
        if not request["RoleArn"].startswith("arn:"):
            name = request["RoleArn"].rpartition("/")[2]
            found = call(self._clients.client("iam"), "get_role", f"role `{name}` is not found", RoleName=name)
            request["RoleArn"] = found["Role"]["Arn"]
        if request["OutputDataConfig"]["S3OutputPath"] == DEFAULT_OUTPUT:
            doing = "the account's bucket is not known (or give `output_path`)"
            account = call(self._clients.client("sts"), "get_caller_identity", doing)["Account"]
            bucket = f"s3://sagemaker-{self._region}-{account}/"
            request["OutputDataConfig"] = {**request["OutputDataConfig"], "S3OutputPath": bucket}
        return request

    def _push(self, job: AWSSageMakerJob, info: AppDryRunInfo[AWSSageMakerJob]) -> None:
        if not job.images_to_push:
            return
        from torchx.specs.images import report_image_digest

        by_engine = any(image.startswith("sha256:") for image in job.images_to_push)
        self._logins.prepare(job.images_to_push.values(), self._docker_client if by_engine else None, create=False)
        self.push_images(job.images_to_push)
        for role in info._app.roles if info._app is not None else []:
            report_image_digest(info, role.name, self.pushed_digest(role.image))

    # -- what became of it -----------------------------------------------------------------------

    def describe(self, app_id: str) -> DescribeAppResponse | None:
        job = self._ask(app_id)
        if job is None:
            return None
        tail = ""
        if status.state_of(job) is AppState.FAILED:
            from torchx.schedulers.kit.aws import logs

            try:
                streams = self._streams(app_id, 0)
            except TorchXError:  # it is asked for to explain something else
                streams = []
            tail = logs.tail(self._clients.client("logs"), status.LOG_GROUP, streams[-1]) if streams else ""
        return status.describe(job, region=self._region, log_tail=tail)

    def describe_many(self, app_ids: Iterable[str]) -> dict[str, DescribeAppResponse | None]:
        """A hundred jobs a call. Jobs that the search does not know yet are asked for singly."""
        wanted = list(app_ids)
        found: dict[str, _Object | None] = {}
        if len(wanted) > _ONE_BY_ONE:
            found = {str(job["TrainingJobName"]): job for job in self._search()}
        region = self._region
        jobs = {app_id: found[app_id] if app_id in found else self._ask(app_id) for app_id in wanted}
        return {app_id: status.describe(job, region=region) if job else None for app_id, job in jobs.items()}

    def exists(self, app_id: str) -> bool:
        return self._ask(app_id) is not None

    def list(self, cfg: Mapping[str, CfgVal] | None = None) -> _Jobs:
        """Jobs that torchx has submitted, newest first; of ``user`` and ``state`` if these are in ``cfg``."""
        given = dict(cfg or {})
        found = []
        for job in self._search(str(given.get("user") or "")):
            state = status.state_of(job)
            if not given.get("state") or state.name == str(given["state"]).upper():
                found.append(ListAppResponse(job["TrainingJobName"], state, name=job["TrainingJobName"]))
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
        """What the host ``algo-<k + 1>`` wrote, all its starts."""
        from torchx.schedulers.kit.aws import logs
        from torchx.schedulers.kit.logs import LogQuery

        query = LogQuery.of(regex=regex, since=since, until=until, should_tail=should_tail, streams=streams)
        logs.refuse_streams(query)
        job = self._ask(app_id)
        if job is None:
            raise NotFoundError(f"SageMaker has no job `{app_id}`", hint="`torchx list` shows the jobs")
        role = status.role_of(job)
        if role.name != role_name or not 0 <= k < role.num_replicas:
            raise NotFoundError(f"job `{app_id}` has no replica `{role_name}/{k}`")

        def over() -> bool:
            now = self._ask(app_id)
            return now is None or is_terminal(status.state_of(now))

        client = self._clients.client("logs")
        find = lambda: self._streams(app_id, k)  # noqa: E731  # one line says it
        return query.matching(logs.follow(client, status.LOG_GROUP, find, query, over=over, sleep=self._sleep))

    # -- the end ---------------------------------------------------------------------------------

    def _cancel_existing(self, app_id: str) -> None:
        job = self._ask(app_id)
        if job is None or is_terminal(status.state_of(job)) or job["TrainingJobStatus"] == "Stopping":
            return
        try:
            call(self._client, "stop_training_job", f"job `{app_id}` could not be cancelled", TrainingJobName=app_id)
        except AwsError:
            # It has ended meanwhile.
            now = self._ask(app_id)
            if now is not None and not is_terminal(status.state_of(now)):
                raise

    def _delete_existing(self, app_id: str) -> None:
        """Removes a job that has ended. One that runs is stopped, and has to be deleted again once it has ended."""
        self._cancel_existing(app_id)
        job = self._ask(app_id)
        if job is None:
            return
        if not is_terminal(status.state_of(job)):
            import logging

            logging.getLogger("torchx").warning("`%s` is being stopped: delete it again when it has ended", app_id)
            return
        call(self._client, "delete_training_job", f"job `{app_id}` could not be deleted", TrainingJobName=app_id)

    def close(self) -> None:
        """Lets go of the connections. Jobs go on."""
        self._clients.close()

    # -- asking ----------------------------------------------------------------------------------

    @property
    def _region(self) -> str:
        return str(getattr(getattr(self._client, "meta", None), "region_name", "") or "")

    def _ask(self, name: str) -> _Object | None:
        if not NAME_RULE.obeys(name):
            return None
        doing = f"the state of job `{name}` is not known"
        try:
            return call(self._client, "describe_training_job", doing, TrainingJobName=name)
        except AwsError as e:
            if is_missing(e):
                return None
            raise

    def _search(self, user: str = "") -> Iterable[_Object]:
        """Full descriptions of our jobs, newest first: ListTrainingJobs knows no tags."""
        filters = [{"Name": f"Tags.{TAG_MANAGED_BY}", "Operator": "Equals", "Value": MANAGED_BY}]
        if user:
            filters.append({"Name": f"Tags.{TAG_USER}", "Operator": "Equals", "Value": user})
        found = pages(
            self._client,
            "search",
            "jobs cannot be listed",
            "Results",
            Resource="TrainingJob",
            SearchExpression={"Filters": filters},
            SortBy="CreationTime",
            SortOrder="Descending",
            MaxResults=_PAGE,
        )
        return (result["TrainingJob"] for result in found if result.get("TrainingJob"))

    def _streams(self, name: str, k: int) -> Any:
        """Names of a host's log streams, oldest first."""
        prefix = f"{name}/algo-{k + 1}-"
        params = {"logGroupName": status.LOG_GROUP, "logStreamNamePrefix": prefix}
        try:
            found = [
                *pages(
                    self._clients.client("logs"),
                    "describe_log_streams",
                    "the log cannot be read",
                    "logStreams",
                    **params,
                )
            ]
        except AwsError as e:
            if is_missing(e):
                return []  # nobody has written yet
            raise
        return [stream["logStreamName"] for stream in sorted(found, key=lambda s: s.get("creationTime", 0))]


def create_scheduler(session_name: str, **kwargs: object) -> AWSSageMakerScheduler:
    """What the table of schedulers calls.

    Args:
        kwargs: ``client``, ``docker_client``; ``aws_region``, ``aws_profile``, ``aws_endpoint_url``: instead of what
            boto3 finds; others are ignored.
    """
    clients = Clients.of(kwargs, {"sagemaker": kwargs.get("client")})
    return AWSSageMakerScheduler(session_name, docker_client=kwargs.get("docker_client"), clients=clients)
