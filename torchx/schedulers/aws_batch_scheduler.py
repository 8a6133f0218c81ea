"""``aws_batch``: runs replicas as containers of AWS Batch jobs, on EC2, spot instances or Fargate.

A job of one replica becomes a single-node job. A job of several, or one with an instance type, becomes a multi-node
parallel job with a node range for each role. It has a job definition ``torchx-<app>-<hash>``, which equal jobs share,
and a SubmitJob request. An app id is ``<queue>:<job name>``.

A dry run prints both requests without calling AWS. boto3 resolves region, profile and credentials.

Limits: stdout and stderr are one log. Batch retries the job as a whole, and keeps its record for about a week. Images
of multi-node jobs need ``/bin/sh``. Batch cannot replace an image's ``ENTRYPOINT``, which precedes the command.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torchx.schedulers.aws.batch.array_jobs import SpecialJobs
from torchx.schedulers.aws.batch.container import (
    ResourceType,
    parse_ulimits,
    resource_from_resource_requirements,
    resource_requirements_from_resource,
)
from torchx.schedulers.aws.batch.options import AWSBatchOpts
from torchx.schedulers.aws.batch.reasons import JOB_STATE
from torchx.schedulers.aws.batch.request import BatchJob
from torchx.schedulers.aws.client import Clients
from torchx.schedulers.aws.tags import DEFAULT_ROLE_NAME, ENV_ROLE_INDEX, TAG_APP_NAME, TAG_USER
from torchx.schedulers.aws.tags import TAG_VERSION as TAG_TORCHX_VER
from torchx.settings import ENV_IMAGE, ENV_ROLE_NAME
from torchx.specs.api import MISSING
from torchx.util.records import replace
from torchx.util.reexports import reexports

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from torchx.schedulers.kit.nodes import Pool
    from torchx.specs.api import CfgVal, Resource


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


class AWSBatchScheduler(SpecialJobs):
    """Runs jobs on AWS Batch. An app id is ``<queue>:<name>``.

    Args:
        client, log_client: boto3 clients of Batch and CloudWatch Logs; by default they are created on first use, from
            boto3's configuration.
        clients: all clients.
    """

    rules = "torchx.schedulers.aws.rules:BATCH"
    capabilities = replace(
        SpecialJobs.capabilities,
        timeout="timeout_s",
        after=("ok",),
        log_previous=True,
        exec=True,
        retries=("APPLICATION",),
        multi_role=True,
        order=("tcp", "http", "log", "file"),
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
        super().__init__(session_name, docker_client, clients=clients)

    def nodes(self, cfg: Mapping[str, CfgVal], need: Resource | None, count: int) -> Sequence[Pool]:  # noqa: ARG002
        """See :class:`torchx.schedulers.kit.abilities.ListsNodes`."""
        from torchx.schedulers.aws.batch import nodes, queues

        return nodes.pools(queues.inspect(self._client, str(cfg.get("queue") or "")), need)


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
