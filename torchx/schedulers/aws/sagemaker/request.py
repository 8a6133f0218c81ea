"""Renders a job as a CreateTrainingJob request.

https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_CreateTrainingJob.html
"""

from __future__ import annotations

import re
import shlex
from typing import Any

from torchx.errors import ConfigError, NotSupportedError, SpecError
from torchx.schedulers.aws.instances import wanted
from torchx.schedulers.aws.sagemaker import command, source
from torchx.schedulers.aws.sagemaker.options import DEFAULT_MAX_RUN_S, AWSSageMakerOpts, check
from torchx.schedulers.aws.tags import ENV_RANK0_HOST, REPLICA, tags
from torchx.schedulers.kit.manifests import shown_yaml
from torchx.schedulers.kit.names import NameRule
from torchx.settings import ENV_IMAGE, ENV_ROLE_NAME
from torchx.specs.api import AppDef, Role, macros
from torchx.util.notices import logger
from torchx.util.records import dataclass
from torchx.util.secrets import mask_args

_Object = dict[str, Any]

NAME_RULE = NameRule(63, "A-Za-z0-9-")
TAG_MANAGED_BY = "torchx.pytorch.org/managed-by"
MANAGED_BY = "torchx"
"""The value of this tag on all torchx jobs, by which they are found."""
DEFAULT_OUTPUT = "s3://sagemaker-REGION-ACCOUNT/"
"""Placeholder for SageMaker's default bucket of the account, which is resolved at submission."""
DEFAULT_VOLUME_GB = 30
_CHECKPOINTS = "/opt/ml/checkpoints"


@dataclass
class AWSSageMakerJob:
    """A job to submit.

    Attributes:
        job_def: the arguments of CreateTrainingJob, without the name.
        images_to_push: image id -> repository and tag.
        source: the folder of code to upload.
    """

    job_name: str
    job_def: _Object
    images_to_push: dict[str, tuple[str, str]]
    source: source.Source | None = None

    def request(self) -> _Object:
        """Return the arguments of CreateTrainingJob."""
        return {"TrainingJobName": self.job_name, **self.job_def}

    def __str__(self) -> str:
        """Return the request as YAML, with secrets masked.

        A command that was split into pieces is shown as its original words: secrets in pieces could not be recognized.
        """
        request = self.request()
        if self.source is not None:
            where = source.place(request, self.job_name)
            words = mask_args([word.replace(REPLICA, macros.replica_id) for word in self.source.words])
            note = f"# `{self.source.folder}` is uploaded to {where}, and runs: {shlex.join(words)}\n"
            return note + shown_yaml({"CreateTrainingJob": request}, in_lines=True)
        algorithm = dict(request["AlgorithmSpecification"])
        given = (algorithm.get("ContainerEntrypoint", []), algorithm.get("ContainerArguments", []))
        words, late = command.read(*given)
        note = ""
        if [*given[0], *given[1]] != words:
            note = f"# the command and {len(late)} variables are passed as a shell line in {len(given[1])} pieces\n"
        if words:
            algorithm.update(ContainerEntrypoint=words[:1], ContainerArguments=words[1:])
        request.update(AlgorithmSpecification=algorithm, Environment={**request["Environment"], **late})
        return note + shown_yaml({"CreateTrainingJob": request}, in_lines=True)

    __repr__ = __str__  # the environment may hold secrets, which must always be masked


def render_job(app: AppDef, name: str, opts: AWSSageMakerOpts, *, session: str, user: str) -> AWSSageMakerJob:
    """Render a job, without changing ``app``; a TorchXError if SageMaker does not support it."""
    role = _only_role(app)
    _check(role, opts)
    hosts = max(role.num_replicas, opts.instance_count)
    words, given = _command(role, name, opts, hosts)
    code, hyperparameters, run = None, opts.hyperparameters, {}
    if opts.source_dir:
        hyperparameters, env, code = source.render(opts.source_dir, words, given, opts.hyperparameters or {})
    else:
        entrypoint, arguments, env = command.render(words, given, hosts=hosts)
        run = {"ContainerEntrypoint": entrypoint, **_present(ContainerArguments=arguments)}
    if len(env) > 100:
        raise SpecError(f"{len(env)} environment variables: SageMaker allows at most 100")
    provider = opts.training_repository_credentials_provider_arn
    image = _present(
        TrainingRepositoryAccessMode=opts.training_repository_access_mode or ("Vpc" if provider else None),
        TrainingRepositoryAuthConfig={"TrainingRepositoryCredentialsProviderArn": provider} if provider else None,
    )
    metrics = [{"Name": n, "Regex": r} for n, r in (opts.metric_definitions or {}).items()]
    run_s = opts.max_run or DEFAULT_MAX_RUN_S
    own_tags = tags(app, user, session, {**(opts.tags or {}), TAG_MANAGED_BY: MANAGED_BY})
    request: _Object = {
        "AlgorithmSpecification": {
            "TrainingImage": role.image,
            "TrainingInputMode": opts.input_mode or "File",
            **run,
            **_present(MetricDefinitions=metrics, TrainingImageConfig=image),
        },
        "RoleArn": opts.role,
        "OutputDataConfig": {
            "S3OutputPath": opts.output_path or DEFAULT_OUTPUT,
            **_present(
                KmsKeyId=opts.output_kms_key, CompressionType="NONE" if opts.disable_output_compression else None
            ),
        },
        "ResourceConfig": {
            "InstanceType": opts.instance_type,
            "InstanceCount": hosts,
            "VolumeSizeInGB": opts.volume_size or DEFAULT_VOLUME_GB,
            **_present(VolumeKmsKeyId=opts.volume_kms_key, KeepAlivePeriodInSeconds=opts.keep_alive_period_in_seconds),
        },
        "StoppingCondition": {
            "MaxRuntimeInSeconds": run_s,
            **({"MaxWaitTimeInSeconds": opts.max_wait or run_s} if opts.use_spot_instances else {}),
        },
        "Environment": dict(sorted(env.items())),
        "Tags": [{"Key": key, "Value": value} for key, value in own_tags.items()],
    }
    request.update(_optional(opts), **_present(HyperParameters=hyperparameters))
    return AWSSageMakerJob(name, request, {}, code)


def _optional(opts: AWSSageMakerOpts) -> _Object:
    vpc = {"SecurityGroupIds": opts.security_group_ids, "Subnets": opts.subnets}
    checkpoints = {"S3Uri": opts.checkpoint_s3_uri, "LocalPath": opts.checkpoint_local_path or _CHECKPOINTS}
    return _present(
        VpcConfig=vpc if opts.subnets else None,
        EnableNetworkIsolation=opts.enable_network_isolation,
        EnableInterContainerTrafficEncryption=opts.encrypt_inter_container_traffic,
        EnableManagedSpotTraining=opts.use_spot_instances,
        CheckpointConfig=checkpoints if opts.checkpoint_s3_uri else None,
        RetryStrategy={"MaximumRetryAttempts": opts.max_retry_attempts} if opts.max_retry_attempts else None,
        InfraCheckConfig={"EnableInfraCheck": True} if opts.enable_infra_check else None,
    )


def _command(role: Role, name: str, opts: AWSSageMakerOpts, hosts: int) -> tuple[list[str], dict[str, str]]:
    """Words and variables of the hosts, with :data:`REPLICA` for their numbers."""
    number = REPLICA if hosts > 1 else "0"
    applied = macros.Values(img_root="", app_id=name, replica_id=number, rank0_env=ENV_RANK0_HOST).apply(role)
    given = {ENV_IMAGE: role.image, ENV_ROLE_NAME: role.name, **(opts.environment or {}), **applied.env}
    for variable in given:
        if not re.fullmatch(r"[a-zA-Z_][a-zA-Z0-9_]*", variable):
            raise SpecError(f"variable `{variable}`: SageMaker allows letters, digits and `_` in names")
    return [applied.entrypoint, *applied.args], given


def _only_role(app: AppDef) -> Role:
    if len(app.roles) != 1:
        names = ", ".join(f"`{role.name}`" for role in app.roles)
        raise NotSupportedError(
            f"a training job of SageMaker has one role; app `{app.name}` has {len(app.roles)}: {names}",
            hint="submit one job for each role, or use another scheduler",
        )
    return app.roles[0]


def _check(role: Role, opts: AWSSageMakerOpts) -> None:
    check(opts)
    if role.mounts:
        raise NotSupportedError(f"role `{role.name}` has mounts, which training jobs of SageMaker do not support")
    if role.num_replicas > 1 and opts.instance_count not in (1, role.num_replicas):
        raise ConfigError(
            f"instance_count is {opts.instance_count}, but role `{role.name}` has {role.num_replicas} replicas"
        )
    types = wanted(role, "aws_sagemaker")
    if types and opts.instance_type.removeprefix("ml.") not in types:
        raise ConfigError(f"instance_type is `{opts.instance_type}`, but role `{role.name}` requests `ml.{types[0]}`")
    ignored = [w for w, there in (("max_retries", role.max_retries), ("min_replicas", role.min_replicas)) if there]
    if ignored:
        logger("torchx").warning(
            "role `%s` has %s, but SageMaker does not restart a program that failed", role.name, " and ".join(ignored)
        )


def _present(**items: Any) -> _Object:
    return {name: value for name, value in items.items() if value not in (None, [], {}, "")}
