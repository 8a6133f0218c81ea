"""The run options of ``aws_sagemaker``, and their validation."""

from __future__ import annotations

from torchx.errors import ConfigError, NotSupportedError
from torchx.schedulers.api import StructuredOpts
from torchx.schedulers.kit.caps import Capabilities
from torchx.schedulers.kit.native_retries import NativeSystem
from torchx.specs.api import AppDef
from torchx.util.records import dataclass

DEFAULT_MAX_RUN_S = 24 * 3600


@dataclass
class AWSSageMakerOpts(StructuredOpts):
    """Run options of ``aws_sagemaker``."""

    role: str
    """IAM role of the job: its ARN or its name"""

    instance_type: str
    """instance type, such as `ml.g5.xlarge`"""

    instance_count: int = 1
    """number of instances for a role of one replica; otherwise each replica has one"""

    keep_alive_period_in_seconds: int | None = None
    """seconds to keep the instances for the next job (a warm pool)"""

    volume_size: int | None = None
    """size of the volume of each instance, in GB; 30 by default"""

    volume_kms_key: str | None = None
    """KMS key that encrypts the volume"""

    max_run: int | None = None
    """seconds after which the job is stopped; a day by default"""

    input_mode: str | None = None
    """input mode of data: File, Pipe or FastFile"""

    output_path: str | None = None
    """S3 location of the model; by default the bucket `sagemaker-<region>-<account>`"""

    output_kms_key: str | None = None
    """KMS key that encrypts the output"""

    base_job_name: str | None = None
    """prefix of the job's name, instead of the app's name"""

    tags: dict[str, str] | None = None
    """further tags of the job"""

    subnets: list[str] | None = None
    """subnets of a VPC to run in"""

    security_group_ids: list[str] | None = None
    """security groups in that VPC"""

    metric_definitions: dict[str, str] | None = None
    """metrics: name, and the regular expression that extracts its value from the log"""

    encrypt_inter_container_traffic: bool | None = None
    """encrypt the traffic between the hosts"""

    use_spot_instances: bool | None = None
    """run on spot instances"""

    max_wait: int | None = None
    """time limit in seconds for waiting for spot instances and running on them; at least `max_run`, the default"""

    checkpoint_s3_uri: str | None = None
    """S3 location of checkpoints, from which a job resumes after losing its spot instances"""

    checkpoint_local_path: str | None = None
    """local path of checkpoints; `/opt/ml/checkpoints` by default"""

    enable_network_isolation: bool | None = None
    """run without network; the hosts cannot reach one another either"""

    environment: dict[str, str] | None = None
    """further environment variables; those of the role take precedence"""

    max_retry_attempts: int | None = None
    """retries after failures of SageMaker itself, 1 to 30"""

    source_dir: str | None = None
    """folder of code, or a `.tar.gz` of it in S3, that SageMaker's training toolkit in the image runs the command in"""

    hyperparameters: dict[str, str] | None = None
    """hyperparameters, written to `/opt/ml/input/config/hyperparameters.json`; with `source_dir` they are also appended
    to the program's arguments"""

    training_repository_access_mode: str | None = None
    """Platform, or Vpc for an image in a private registry"""

    training_repository_credentials_provider_arn: str | None = None
    """Lambda function with the credentials of that registry"""

    disable_output_compression: bool | None = None
    """do not compress the model"""

    enable_infra_check: bool | None = None
    """check the instances before the job starts"""


def check(opts: AWSSageMakerOpts) -> None:
    """Raise ConfigError or NotSupportedError for values that SageMaker would refuse."""
    if opts.source_dir and opts.enable_network_isolation:
        raise NotSupportedError(
            "`source_dir` is fetched over the network, which `enable_network_isolation` forbids",
            hint="build the code into the image, as a workspace does",
        )
    if bool(opts.subnets) != bool(opts.security_group_ids):
        raise ConfigError("a VPC requires both `subnets` and `security_group_ids`")
    if opts.checkpoint_local_path and not opts.checkpoint_s3_uri:
        raise ConfigError("`checkpoint_local_path` needs `checkpoint_s3_uri`, where checkpoints are stored")
    if opts.max_wait and not opts.use_spot_instances:
        raise ConfigError("`max_wait` is for spot instances", hint="add `use_spot_instances=True`")
    if opts.max_wait and opts.max_wait < (opts.max_run or DEFAULT_MAX_RUN_S):
        raise ConfigError(f"max_wait {opts.max_wait} is less than max_run {opts.max_run or DEFAULT_MAX_RUN_S}")


SYSTEM = NativeSystem(name="aws_sagemaker", groups=[("node",)], most=30, free=False)


def retries(app: AppDef, opts: AWSSageMakerOpts, caps: Capabilities) -> int | None:
    """``MaximumRetryAttempts``, by the retry policy or by the options, ConfigError for both; None: no retries."""
    policy = SYSTEM.policy(app, caps)
    if policy is None:
        return opts.max_retry_attempts
    if opts.max_retry_attempts:
        raise ConfigError("`--retry` and `max_retry_attempts` exclude one another", hint="omit one of them")
    return policy.times or None
