"""The run options of ``aws_batch``, and their validation."""

from __future__ import annotations

from torchx.errors import ConfigError
from torchx.schedulers.api import StructuredOpts
from torchx.util.records import dataclass

AUTO, EC2, FARGATE = "auto", "ec2", "fargate"
COMPUTE = (AUTO, EC2, FARGATE)
DEFAULT_USER = "root"
"""Stands for the submitting user."""


@dataclass
class AWSBatchOpts(StructuredOpts):
    """Run options of ``aws_batch``."""

    queue: str
    """queue to submit to"""

    user: str = DEFAULT_USER
    """user that the job is tagged with; `root`, the default, means the submitting user"""

    image_repo: str | None = None
    """repository to push the image with the workspace to, such as `<account>.dkr.ecr.<region>.amazonaws.com/jobs`"""

    privileged: bool = False
    """run the containers in privileged mode, with all devices of their hosts"""

    share_id: str | None = None
    """share identifier; only for a queue with a scheduling policy"""

    priority: int = 0
    """priority within the share, 0 to 9999, the highest first"""

    job_role_arn: str | None = None
    """IAM role of the program, which determines what it may do on AWS"""

    execution_role_arn: str | None = None
    """IAM role that pulls images and reads secrets; required by Fargate"""

    ulimits: list[str] | None = None
    """limits of the containers, as `NAME:SOFT:HARD`: `memlock:-1:-1;nofile:65536:65536`"""

    timeout_s: int | None = None
    """time limit of an attempt in seconds, 60 or more"""

    host_retries: int = 2
    """retries after the loss of a host (a spot reclaim), for jobs without `max_retries`; 0 to 9"""

    compute: str = AUTO
    """compute type of the queue: ec2, fargate, or auto, which looks it up at submission"""

    assign_public_ip: bool = False
    """on Fargate: assign a public IP address, which pulling images from a public subnet needs"""

    secrets: dict[str, str] | None = None
    """environment variables from Secrets Manager or the Parameter Store: `NAME:ARN`"""

    log_group: str | None = None
    """log group of CloudWatch instead of `/aws/batch/job`"""

    tags: dict[str, str] | None = None
    """further tags of the job and its tasks"""

    ecr_create_repo: bool = False
    """create the repository of `image_repo` in ECR if it does not exist"""

    execute_command: bool = False
    """enable `torchx exec`, through ECS Exec; needs `job_role_arn`, of a role that may use `ssmmessages`"""


def check(opts: AWSBatchOpts) -> None:
    """Raise ConfigError for values that Batch would refuse."""
    if opts.compute not in COMPUTE:
        raise ConfigError(f"compute `{opts.compute}` is not one of {', '.join(COMPUTE)}")
    if opts.priority and not opts.share_id:
        raise ConfigError(f"priority {opts.priority} only applies within a share", hint="set `share_id` as well")
    if not 0 <= opts.priority <= 9999:
        raise ConfigError(f"priority {opts.priority} is not between 0 and 9999")
    if opts.timeout_s is not None and opts.timeout_s < 60:
        raise ConfigError(f"timeout_s {opts.timeout_s} is too short: Batch requires 60 seconds or more")
    if opts.execute_command and not opts.job_role_arn:
        raise ConfigError(
            "execute_command needs `job_role_arn`: ECS Exec opens its channels with the role of the job",
            hint="`-cfg job_role_arn=ARN`, of a role that may use `ssmmessages:*`",
        )
