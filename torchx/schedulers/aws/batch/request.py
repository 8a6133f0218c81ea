"""Renders a job as requests to Batch: RegisterJobDefinition and SubmitJob.

https://docs.aws.amazon.com/batch/latest/APIReference/API_RegisterJobDefinition.html
https://docs.aws.amazon.com/batch/latest/APIReference/API_SubmitJob.html
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

from torchx.errors import ConfigError, NotSupportedError, SpecError
from torchx.schedulers.aws.batch import attempts, node_command, order
from torchx.schedulers.aws.batch import container as parts
from torchx.schedulers.aws.batch.client import PREFIX
from torchx.schedulers.aws.batch.fargate import to_fargate
from torchx.schedulers.aws.batch.options import AUTO, DEFAULT_USER, FARGATE, AWSBatchOpts, check
from torchx.schedulers.aws.batch.order import Orders
from torchx.schedulers.aws.batch.pieces import Chain
from torchx.schedulers.aws.batch.queues import Queue
from torchx.schedulers.aws.instances import wanted
from torchx.schedulers.aws.tags import ENV_RANK0_HOST, ENV_ROLE_INDEX, REPLICA, tags
from torchx.schedulers.kit.manifests import shown_yaml
from torchx.schedulers.kit.names import NameRule
from torchx.schedulers.kit.native_retries import NativeRetries
from torchx.settings import ENV_IMAGE, ENV_REPLICA_ID, ENV_ROLE_NAME
from torchx.specs.api import AppDef, Role, macros
from torchx.specs.secret import Secret
from torchx.util.notices import logger
from torchx.util.records import dataclass, field

_Object = dict[str, Any]

# https://docs.aws.amazon.com/batch/latest/APIReference/API_SubmitJob.html
NAME_RULE = NameRule(128, "A-Za-z0-9_-")
# https://docs.aws.amazon.com/batch/latest/userguide/service_limits.html
MAX_NODE_RANGES = 5
MAX_OVERRIDES = 7000
"""Limit of the overrides in characters; that of ECS is 8192."""


@dataclass
class BatchJob:
    """A job to submit.

    Attributes:
        name: unique name of the job.
        job_def: the arguments of RegisterJobDefinition.
        images_to_push: image id -> repository and tag.
        overrides: further arguments of SubmitJob.
        after: app ids of the jobs that have to succeed first.
    """

    name: str
    queue: str
    share_id: str | None
    job_def: _Object
    images_to_push: dict[str, tuple[str, str]]
    overrides: _Object = field(default_factory=dict)
    opts: AWSBatchOpts | None = None
    after: list[str] = field(default_factory=list)

    def request(self, earlier: Sequence[str] | None = None) -> _Object:
        """Return the arguments of SubmitJob. ``earlier``: Batch's ids of the jobs in ``after``; None:
        show their app ids.
        """
        ids = self.after if earlier is None else earlier
        return {
            "jobName": self.name,
            "jobQueue": self.queue,
            "jobDefinition": self.job_def["jobDefinitionName"],
            **({"dependsOn": [{"jobId": job_id} for job_id in ids]} if ids else {}),
            **self.overrides,
        }

    def __str__(self) -> str:
        """Both requests as YAML, with secrets masked."""
        return shown_yaml({"RegisterJobDefinition": self.job_def, "SubmitJob": self.request()}, in_lines=True)

    __repr__ = __str__  # the environment may hold secrets, which must always be masked


def render_job(
    app: AppDef,
    name: str,
    opts: AWSBatchOpts,
    *,
    session: str,
    user: str,
    retries: NativeRetries | None = None,
    chain: Chain | None = None,
) -> BatchJob:
    """Render a job, without changing ``app``; a TorchXError if Batch does not support it.

    ``retries`` is the retry policy by cause, ``chain`` the one of ``--total``; None of both: use ``max_retries``.
    """
    _check(app, opts)
    app_id = f"{opts.queue}:{name}"
    types = [wanted(role, "aws_batch") for role in app.roles]
    instance_type = parts.one_instance_type(found[0] for found in types if found)
    orders = order.orders_for(app, chain)
    several = bool(orders) or sum(role.num_replicas for role in app.roles) > 1
    ranges: list[_Object] = []
    per_job: list[_Object] = []
    first = 0
    for index, role in enumerate(app.roles):
        at = first if several else None
        container, late = _render_container(role, index, app_id, opts, first=at, chain=chain, orders=orders)
        if instance_type:
            container["instanceType"] = instance_type
        targets = f"{first}:{first + role.num_replicas - 1}"
        ranges.append({"targetNodes": targets, "container": container})
        per_job += [{"targetNodes": targets, "containerOverrides": {"environment": late}}] if late else []
        first += role.num_replicas
    own_tags = tags(app, user if opts.user == DEFAULT_USER else opts.user, session, opts.tags)
    most = max(role.max_retries for role in app.roles)
    strategy = attempts.render(retries) if retries else parts.render_retries(most, opts.host_retries)
    definition: _Object = {
        "retryStrategy": chain.strategy() if chain else strategy,
        **({"timeout": {"attemptDurationSeconds": opts.timeout_s}} if opts.timeout_s else {}),
        "propagateTags": True,
        "tags": own_tags,
    }
    overrides: _Object = {"propagateTags": True, "tags": own_tags}
    if opts.share_id:
        overrides.update(shareIdentifier=opts.share_id, schedulingPriorityOverride=opts.priority)
    if several or instance_type:
        nodes = {"numNodes": first, "mainNode": 0, "nodeRangeProperties": ranges}
        definition.update(type="multinode", nodeProperties=nodes)
        if per_job:
            overrides["nodeOverrides"] = {"nodePropertyOverrides": per_job}
    else:
        definition.update(type="container", containerProperties=ranges[0]["container"])
        if per_job:
            overrides["containerOverrides"] = per_job[0]["containerOverrides"]
    if opts.compute == FARGATE:
        definition = to_fargate(definition, assign_public_ip=opts.assign_public_ip)
    return BatchJob(name, opts.queue, opts.share_id, with_name(definition, app.name), {}, overrides, opts)


def for_queue(definition: _Object, queue: Queue, opts: AWSBatchOpts, app_name: str) -> _Object:
    """Convert the definition for a queue. Raises ConfigError or NotSupportedError if the queue cannot run the job."""
    if queue.is_fargate and opts.compute == AUTO:
        return with_name(to_fargate(definition, assign_public_ip=opts.assign_public_ip), app_name)
    if queue.kinds and queue.is_fargate != (opts.compute == FARGATE):
        kinds = ", ".join(sorted(queue.kinds))
        raise ConfigError(f"compute is `{opts.compute}`, but queue `{queue.name}` has {kinds}")
    if queue.kinds == {"SPOT"} and definition["type"] == "multinode":
        raise NotSupportedError(
            f"queue `{queue.name}` has spot instances only, on which Batch does not run multi-node jobs (this job has "
            "several replicas, an order, or an instance type)",
            hint="use a queue of on-demand instances; or one replica, and cpu, gpu and memMB instead of the type",
        )
    return definition


def with_name(definition: _Object, app_name: str) -> _Object:
    """Add a name with a hash of the definition, so that only equal ones share it."""
    bare = {key: value for key, value in definition.items() if key != "jobDefinitionName"}
    digest = hashlib.sha256(json.dumps(bare, sort_keys=True).encode()).hexdigest()[:20]
    readable = NAME_RULE.make(app_name, room=len(PREFIX) + len(digest) + 1)
    return {"jobDefinitionName": f"{PREFIX}{readable}-{digest}", **bare}


def _render_container(
    role: Role, index: int, app_id: str, opts: AWSBatchOpts, *, first: int | None, chain: Chain | None, orders: Orders
) -> tuple[_Object, list[_Object]]:
    """Return the container of a role's nodes, and the variables that contain the app id, which are passed as overrides.

    ``first`` is the index of the role's first node; None: the job has a single node.
    """
    several, replica = first is not None, macros.replica_id if orders else REPLICA
    values = macros.Values(
        img_root="",
        app_id=app_id,
        replica_id=replica if several and role.num_replicas > 1 else "0",
        rank0_env=ENV_RANK0_HOST,
    )
    applied = values.apply(role)
    arns = {name: value.removeprefix("aws-sm:") for name, value in role.env.items() if isinstance(value, Secret)}
    applied.env = {name: value for name, value in applied.env.items() if name not in arns}
    words = [applied.entrypoint, *applied.args]
    words = chain.wrap(words) if chain else words
    env = {ENV_ROLE_INDEX: str(index), ENV_ROLE_NAME: role.name, ENV_IMAGE: role.image}
    if orders:
        words, env = order.wrap(words, orders, index), {**env, **applied.env}
    elif first is not None:
        words, shared = node_command.wrap(words, applied.env, first)
        env.update(shared)
    else:
        env = {**env, ENV_REPLICA_ID: "0", ENV_RANK0_HOST: "localhost", **applied.env}
    late = {name: value for name, value in env.items() if app_id in value}
    if sum(len(name) + len(value) for name, value in late.items()) > MAX_OVERRIDES:
        late = {}
    volumes, points, devices = parts.render_mounts(applied)
    if replica in str((volumes, points, devices)):
        raise SpecError(f"role `{role.name}`: a mount uses `replica_id`, but Batch mounts the same for all replicas")
    needed = parts.DEFAULT_RESOURCE if role.resource.is_unset else role.resource
    container: _Object = {
        "image": role.image,
        "command": words,
        "environment": parts.variables({name: value for name, value in env.items() if name not in late}),
        "resourceRequirements": parts.resource_requirements_from_resource(needed),
        # All of the role's memory: PyTorch workers share tensors through it.
        "linuxParameters": {"sharedMemorySize": int(needed.memMB), **({"devices": devices} if devices else {})},
    }
    if volumes:
        container.update(volumes=volumes, mountPoints=points)
    container.update(_container_options(opts, arns))
    return container, parts.variables(late)


def _container_options(opts: AWSBatchOpts, arns: dict[str, str]) -> _Object:
    if arns and not opts.execution_role_arn:
        raise ConfigError(
            f"secret `{next(iter(arns))}` is read by the execution role, but `execution_role_arn` is not set",
            hint="`-cfg execution_role_arn=ARN`, of a role that may read it",
        )
    secrets = [{"name": name, "valueFrom": arn} for name, arn in sorted({**(opts.secrets or {}), **arns}.items())]
    log_group = {"logDriver": "awslogs", "options": {"awslogs-group": opts.log_group}} if opts.log_group else None
    options = {
        "jobRoleArn": opts.job_role_arn,
        "executionRoleArn": opts.execution_role_arn,
        "privileged": opts.privileged,
        "enableExecuteCommand": opts.execute_command,
        "ulimits": parts.parse_ulimits(opts.ulimits or []),
        "secrets": secrets,
        "logConfiguration": log_group,
    }
    return {name: value for name, value in options.items() if value}


def _check(app: AppDef, opts: AWSBatchOpts) -> None:
    """Rejects what Batch does not support, and logs warnings about what it does differently."""
    check(opts)
    if not app.roles:
        raise SpecError(f"app `{app.name}` has no roles")
    if len(app.roles) > MAX_NODE_RANGES:
        raise NotSupportedError(f"{len(app.roles)} roles: a Batch job has at most {MAX_NODE_RANGES} node ranges")
    elastic = [role.name for role in app.roles if role.min_replicas not in (None, role.num_replicas)]
    if elastic:
        logger("torchx").warning(
            "role `%s` is elastic, but Batch is not: all of its replicas have to start", elastic[0]
        )
    several = sum(role.num_replicas for role in app.roles) > 1
    alone = [r.name for r in app.roles if several and r.max_retries and r.retry_policy.name != "APPLICATION"]
    if alone:
        logger("torchx").warning("role `%s`: Batch retries the whole job, whatever the retry policy", alone[0])
