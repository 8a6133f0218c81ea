"""``aws_sagemaker``: runs the replicas of a role as the hosts of a SageMaker training job.

The entrypoint and arguments of the role become ``ContainerEntrypoint`` and ``ContainerArguments``, so any component
works, without SageMaker's toolkit and SDK. With ``source_dir``, the toolkit in the image fetches the code from S3 and
runs the command (script mode). An app id is the job's name.

A dry run prints the request without calling AWS. boto3 resolves region, profile and credentials.

Limits: one role, no mounts, no retries of a failed program; stdout and stderr are one log.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torchx.errors import TorchXError, Unsent
from torchx.schedulers.aws.base import AwsScheduler
from torchx.schedulers.aws.client import Clients
from torchx.schedulers.aws.errors import LostAnswerError
from torchx.schedulers.aws.logs import Streams
from torchx.schedulers.aws.sagemaker import answers, logs, source
from torchx.schedulers.aws.sagemaker import client as calls
from torchx.schedulers.aws.sagemaker.options import AWSSageMakerOpts, retries
from torchx.schedulers.aws.sagemaker.reasons import JOB_STATE
from torchx.schedulers.aws.sagemaker.request import NAME_RULE, AWSSageMakerJob, render_job
from torchx.schedulers.ids import random_id
from torchx.schedulers.kit.facts import JobFacts
from torchx.specs.api import AppDef, AppDryRunInfo, CfgVal, is_terminal
from torchx.specs.wishes import Wishes
from torchx.util.notices import logger
from torchx.util.records import replace
from torchx.util.reexports import reexports

reexports(__name__)

_Object = dict[str, Any]
_Ids = list[str]  # within the class, `list` is a method

__all__ = ["JOB_STATE", "AWSSageMakerJob", "AWSSageMakerOpts", "AWSSageMakerScheduler", "Opts", "create_scheduler"]

Opts = AWSSageMakerOpts
_ONE_BY_ONE = 3
"""Up to this number, jobs are described one by one; more, by a search for all torchx jobs."""


class AWSSageMakerScheduler(AwsScheduler):
    """Runs jobs as training jobs of SageMaker. An app id is the job's name.

    Args:
        client: a boto3 client of SageMaker; by default it is created on first use, from boto3's configuration.
        clients: all clients.
    """

    service, display_name = "sagemaker", "SageMaker"
    options = AWSSageMakerOpts
    rules = "torchx.schedulers.aws.rules:SAGEMAKER"
    capabilities = replace(AwsScheduler.capabilities, timeout="max_run", delete=True, resources=False)
    wait_hint = 10.0

    def __init__(
        self,
        session_name: str,
        client: Any | None = None,
        docker_client: Any | None = None,
        *,
        clients: Clients | None = None,
    ) -> None:
        super().__init__(
            "aws_sagemaker", session_name, docker_client, clients=clients or Clients({"sagemaker": client})
        )

    def _validate(self, app: AppDef, scheduler: str, cfg: Mapping[str, CfgVal] | None = None) -> None:
        """Accept roles without resources: the instance type determines them."""

    def _submit_dryrun(self, app: AppDef, cfg: Mapping[str, CfgVal]) -> AppDryRunInfo[AWSSageMakerJob]:
        opts = AWSSageMakerOpts.from_cfg(cfg)
        opts.max_run = Wishes.of(app).timeout_s or opts.max_run
        images = self.dryrun_push_images(app, cfg)
        name = f"{NAME_RULE.make(opts.base_job_name or app.name, room=15)}-{random_id(14)}"
        opts.max_retry_attempts = retries(app, opts, self.capabilities)
        job = render_job(app, name, opts, session=self.session_name, user=self._who())
        job.images_to_push = images
        return AppDryRunInfo(job, str)

    def schedule(self, dryrun_info: AppDryRunInfo[AWSSageMakerJob]) -> str:
        """Pushes images and code, and creates the job. Idempotent: its name is unique.

        Raises:
            BackendError: AWS refused, failed, or did not answer.
        """
        job = dryrun_info.request
        with Unsent():
            request, owner = calls.complete(self._clients, job.request(), self._region)
            self._push(job.images_to_push, dryrun_info)
            if job.source is not None:
                source.upload(self._clients.client("s3"), job.source, request, owner=owner, region=self._region)
        try:
            calls.create(self._client, request)
        except LostAnswerError:  # the job may run
            raise
        except TorchXError:
            source.remove(self._clients, request)
            raise
        return job.job_name

    def submission_token(self, dryrun_info: AppDryRunInfo[Any]) -> str:
        """Return the app id, which is unique."""
        return str(dryrun_info.request.job_name)

    def _facts(self, app_id: str, job: _Object, *, detailed: bool) -> JobFacts:  # noqa: ARG002  # the base's
        return answers.facts_of(job, region=self._region)

    def _listed(self, cfg: Mapping[str, CfgVal]) -> Iterator[tuple[str, _Object]]:
        for job in calls.search(self._client, str(cfg.get("user") or "")):
            yield job["TrainingJobName"], job

    def _streams(self, job: _Object, replicas: Sequence[tuple[str, int]]) -> Streams:
        return logs.streams(self._clients.client("logs"), job, replicas)

    def _find(self, app_ids: _Ids) -> dict[str, _Object]:
        """Describe jobs one by one if they are few, or too new for the search."""
        found: dict[str, _Object] = {}
        if len(app_ids) > _ONE_BY_ONE:
            found = {str(job["TrainingJobName"]): job for job in calls.search(self._client)}
        jobs = {a: found.get(a) or calls.describe(self._client, a) for a in app_ids}
        return {a: job for a, job in jobs.items() if job}

    def _end(self, app_id: str, job: _Object) -> None:
        if job["TrainingJobStatus"] != "Stopping":
            calls.stop(self._client, app_id)

    def _forget(self, app_id: str, job: _Object) -> None:
        """Remove a job that has ended, and its code; logs a warning if the job is still being stopped."""
        if not is_terminal(self._state(app_id, job)):
            logger("torchx").warning("`%s` is being stopped: delete it again when it has ended", app_id)
            return
        calls.delete(self._client, app_id)
        source.remove(self._clients, job)


def create_scheduler(session_name: str, **kwargs: object) -> AWSSageMakerScheduler:
    """Create the scheduler ``aws_sagemaker``.

    Args:
        kwargs: ``client``, ``docker_client``; ``aws_region``, ``aws_profile`` and ``aws_endpoint_url``, which override
            boto3's configuration. Others are ignored.
    """
    clients = Clients({"sagemaker": kwargs.get("client")}, kwargs)
    return AWSSageMakerScheduler(session_name, docker_client=kwargs.get("docker_client"), clients=clients)
