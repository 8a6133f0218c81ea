"""An app as plain Jobs or a JobSet, and what they share with the other kinds: rules, metadata, templates of pods.

Both have one template for all replicas of a role, so that the request does not grow with them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from torchx.errors import SpecError
from torchx.schedulers.ids import make_unique
from torchx.schedulers.kit.manifests import shown_yaml
from torchx.schedulers.kit.names import DNS_LABEL
from torchx.schedulers.kit.native_retries import NativeRetries
from torchx.schedulers.kubernetes import attempts, pods
from torchx.schedulers.kubernetes.inline_code import AUTO, without_data
from torchx.schedulers.kubernetes.names import (
    ANNOTATION_APP,
    ANNOTATION_SUBMISSION,
    FAILURE_POLICY_SINCE,
    INDEX_ANNOTATION,
    JOB,
    LABEL_ATTEMPT,
    LABEL_QUEUE,
    LABEL_REPLICA_ID,
    LABEL_ROLE_INDEX,
    LABEL_UNIQUE_NAME,
    PER_INDEX_SINCE,
    VOLCANO,
    Object,
)
from torchx.schedulers.kubernetes.options import KubernetesOpts, read_overlay
from torchx.schedulers.kubernetes.pods import PodRules, render_pod
from torchx.schedulers.kubernetes.secrets import note as secret_note
from torchx.schedulers.kubernetes.secrets import render_secret, secret_variables
from torchx.settings import ENV_JOB_ID
from torchx.specs import serialize
from torchx.specs.api import AppDef, RetryPolicy, Role, macros
from torchx.specs.timeouts import timeout_s
from torchx.util.records import dataclass, field

NEWEST = (1, 37)
"""The newest version of Kubernetes that this is made for."""
BY_JOB = f"metadata.annotations['{INDEX_ANNOTATION}']"
"""Where a pod of an Indexed Job, and of what is made of them, has its number."""
INDEXED_SINCE = (1, 22)
"""Since then a Job numbers its pods; before, each replica is a Job of its own."""
SUSPEND_SINCE = (1, 22)
CLAIMS_SINCE = (1, 34)
_MAX_ANNOTATION = 200_000  # those of one object have 256 KiB together
_MAX_ROLE = 16
_RANDOM = 10
_MAX_INDEX = 5
MAX_APP_ID = 63 - len("-") - _MAX_ROLE - len("-0-") - _MAX_INDEX - len("-abcde")
"""A pod's name has 63 characters, by JobSet's rule its random end included: ``<app id>-<role>-0-<index>-abcde``."""


@dataclass(frozen=True)
class JobRules:
    """What the run options say of a job.

    Attributes:
        queue: of Volcano.
        runtime: of Kubeflow Trainer.
        local_queue: of Kueue.
        ttl_s: seconds after its end at which the cluster removes the job; None: never.
        deadline_s: seconds after its start at which the cluster ends the job; None: never.
        timeout_s: seconds after its start on a node at which a pod is ended; 0: never.
        metadata: annotations of the first object that owns pods.
        version: of the cluster, major and minor; an older one has fewer fields.
        retries: what a policy by cause asks for; None: there is none.
    """

    pods: PodRules
    namespace: str = "default"
    session: str = ""
    submission: str = ""
    queue: str | None = None
    runtime: str | None = None
    local_queue: str | None = None
    priority_class: str | None = None
    ttl_s: int | None = None
    deadline_s: int | None = None
    timeout_s: int = 0
    metadata: Mapping[str, str] = field(default_factory=dict)
    version: tuple[int, int] = NEWEST
    retries: NativeRetries | None = None


@dataclass
class KubernetesJob:
    """What is submitted.

    Attributes:
        images_to_push: image id -> repository and tag.
        resource: one object, or a ``List`` of them, the one that owns the others first.
        secret: the Secret that is made with them, its values not looked up yet.
        by_cause: it has a policy on retries, and stays of its kind.
    """

    images_to_push: dict[str, tuple[str, str]]
    resource: Object
    app_id: str = ""
    kind: str = JOB
    opts: KubernetesOpts = field(default_factory=KubernetesOpts)
    secret: Object | None = field(default=None, repr=False)
    by_cause: bool = False

    def __str__(self) -> str:
        """YAML that ``kubectl apply`` takes, secrets masked, and without the code itself."""
        note = "# kind=auto: a JobSet or a Volcano job instead, where the cluster has them\n"
        note = note if self.kind == JOB and self.opts.kind == AUTO and not self.by_cause else ""
        return note + secret_note(self.secret) + shown_yaml(without_data(self.resource))


def rules_of(
    opts: KubernetesOpts,
    kind: str,
    app: AppDef,
    app_id: str,
    *,
    session: str,
    version: tuple[int, int] = NEWEST,
    retries: NativeRetries | None = None,
) -> JobRules:
    """What the run options say of a job of this kind."""
    return JobRules(
        pods=PodRules(
            service_account=opts.service_account,
            image_secrets=[opts.image_secret] if opts.image_secret else [],
            priority_class=None if kind == VOLCANO else opts.priority_class,
            reserved_millicpu=opts.reserved_millicpu,
            reserved_memmb=opts.reserved_memmb,
            efa_device_count=opts.efa_device_count,
            secret_files=opts.secret_files or {},
            placement=opts.placement(),
            overlay=read_overlay(opts.pod_overlay) if opts.pod_overlay else {},
        ),
        namespace=opts.namespace,
        session=session,
        submission=app_id,
        queue=opts.queue,
        runtime=opts.runtime,
        local_queue=opts.local_queue,
        priority_class=opts.priority_class,
        ttl_s=opts.ttl_s,
        deadline_s=opts.deadline_s,
        timeout_s=timeout_s(app),
        metadata=definition_of(app),
        version=version,
        retries=retries,
    )


def as_resource(objects: list[Object]) -> Object:
    """One object for ``kubectl apply``."""
    if len(objects) == 1:
        return objects[0]
    return {"apiVersion": "v1", "kind": "List", "items": objects}


def secret_of(app: AppDef, app_id: str, *, namespace: str, session: str) -> Object | None:
    """The Secret of an app; None when it needs none."""
    rules = JobRules(PodRules(), namespace=namespace, submission=app_id)
    return render_secret(app, metadata_of(app_id, rules, pods.object_labels(app, app_id, session=session)))


def unique_id(app: AppDef) -> str:
    """A name for an app that nobody else has, and that leaves room for those of its pods."""
    return make_unique(DNS_LABEL.make(app.name, room=63 - MAX_APP_ID + 1 + _RANDOM), _RANDOM)


def role_names(app: AppDef) -> list[str]:
    """A name for each role that may be part of the name of an object; no two are the same.

    >>> from torchx.specs.api import AppDef, Role
    >>> role_names(AppDef("a", [Role("Trainer/1", "i"), Role("trainer_1", "i")]))
    ['trainer-1', 'trainer-1-1']
    """
    names: list[str] = []
    for i, role in enumerate(app.roles):
        name = DNS_LABEL.make(role.name, room=63 - _MAX_ROLE)
        names.append(name if name not in names else f"{name[: _MAX_ROLE - len(str(i)) - 1]}-{i}")
    return names


# -- plain Jobs ---------------------------------------------------------------------------------------


def render_jobs(app: AppDef, app_id: str, rules: JobRules) -> list[Object]:
    """A headless Service and the Jobs. See https://kubernetes.io/docs/concepts/workloads/controllers/job/"""
    objects = [headless_service(app, app_id, rules)]
    for i, (role, name) in enumerate(zip(app.roles, role_names(app))):  # noqa: B905  # one name per role
        job_name = f"{app_id}-{name}"
        labels = {**pods.role_labels(app, i, app_id, session=rules.session), **_attempt(rules)}
        if rules.version >= INDEXED_SINCE:
            template = shared_template(role, rules, app_id, labels, rank0=f"{job_name}-0.{app_id}", subdomain=app_id)
            objects.append(_job(job_name, role, rules, labels, template))
        else:
            objects += _separate_jobs(role, rules, app_id, job_name, labels)
    # A TTL takes each Job by itself: those of the other roles know all of the app.
    firsts = {item["metadata"]["labels"][LABEL_ROLE_INDEX]: item for item in reversed(objects[1:])}
    for item in firsts.values() if rules.ttl_s is not None else objects[1:2]:
        item["metadata"]["annotations"].update(rules.metadata)
    return objects


def _attempt(rules: JobRules) -> dict[str, str]:
    """The label of a job whose next attempt is made by whoever looks at it."""
    if rules.retries is None:
        return {}
    return {LABEL_ATTEMPT: "1"} if rules.retries is attempts.OURS else {}


def headless_service(app: AppDef, app_id: str, rules: JobRules) -> Object:
    """What gives every pod of an app a name: ``<its host name>.<app id>``."""
    ports = sorted({port for role in app.roles for port in role.port_map.values()})
    spec: Object = {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,  # rank 0 must have a name before it is ready: the others wait for it
        "selector": {LABEL_UNIQUE_NAME: app_id},
    }
    if ports:
        spec["ports"] = [{"name": f"port-{port}", "port": port} for port in ports]
    labels = pods.object_labels(app, app_id, session=rules.session)
    return {"apiVersion": "v1", "kind": "Service", "metadata": metadata_of(app_id, rules, labels), "spec": spec}


def _job(name: str, role: Role, rules: JobRules, labels: Mapping[str, str], template: Object) -> Object:
    metadata = metadata_of(name, rules, labels)
    if rules.local_queue:
        metadata["labels"][LABEL_QUEUE] = rules.local_queue
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": metadata,
        "spec": _job_spec(role, rules, template, replicas=role.num_replicas, suspended=bool(rules.local_queue)),
    }


def _job_spec(role: Role, rules: JobRules, template: Object, *, replicas: int, suspended: bool) -> Object:
    # A policy on failed pods, and limits for each index, are refused for pods whose containers are started again.
    never = template["spec"].get("restartPolicy") == "Never"
    spec: Object = {
        "parallelism": replicas,
        "completions": replicas,
        "completionMode": "Indexed",
        **_limits(role, rules, template, replicas=replicas),
        "template": template,
    }
    if rules.retries is None and never and rules.version >= FAILURE_POLICY_SINCE:
        # A pod that the cluster took away is replaced, and is no failure of the job's.
        disrupted = {"type": "DisruptionTarget", "status": "True"}
        spec["podFailurePolicy"] = {"rules": [{"action": "Ignore", "onPodConditions": [disrupted]}]}
    if suspended:
        spec["suspend"] = True
    if rules.ttl_s is not None:
        spec["ttlSecondsAfterFinished"] = rules.ttl_s
    if rules.deadline_s is not None:
        spec["activeDeadlineSeconds"] = rules.deadline_s
    return spec


def _limits(role: Role, rules: JobRules, template: Object, *, replicas: int) -> Object:
    if rules.retries is not None:
        if rules.retries is attempts.OURS:
            return attempts.render_ours(role, template)
        return attempts.render(role, rules.retries, template)
    never = template["spec"].get("restartPolicy") == "Never"
    return _retries(role, replicas, per_index=never and rules.version >= PER_INDEX_SINCE)


def _retries(role: Role, replicas: int, *, per_index: bool) -> Object:
    """How often failed pods are replaced.

    A Job replaces single pods: a policy for the whole role or app comes to the same for torchelastic, whose other
    agents restart their workers when a new member joins.
    """
    spare = 0 if role.min_replicas is None else max(replicas - role.min_replicas, 0)
    each = bool(spare) or role.retry_policy is RetryPolicy.REPLICA
    if not each or not (spare or role.max_retries):
        return {"backoffLimit": role.max_retries}
    if not per_index:
        return {"backoffLimit": role.max_retries * replicas + spare}
    # without `maxFailedIndexes`, the others would run to their ends after one has used up its retries
    return {"backoffLimitPerIndex": role.max_retries, "maxFailedIndexes": spare}


def _separate_jobs(role: Role, rules: JobRules, app_id: str, job_name: str, labels: Mapping[str, str]) -> list[Object]:
    """A Job for each replica, for clusters older than 1.22, which do not number the pods of a Job."""
    jobs = []
    rank0 = f"{job_name}-0.{app_id}"
    for k in range(role.num_replicas):
        own = {**labels, LABEL_REPLICA_ID: str(k)}
        template = template_of(role, rules, app_id, own, replica_id=str(k), rank0=rank0)
        template["spec"].update(hostname=f"{job_name}-{k}", subdomain=app_id)
        job = _job(f"{job_name}-{k}", role, rules, own, template)
        job["spec"].update(parallelism=1, completions=1)
        del job["spec"]["completionMode"]
        jobs.append(job)
    return jobs


# -- JobSet -------------------------------------------------------------------------------------------


def render_jobset(app: AppDef, app_id: str, rules: JobRules) -> Object:
    """A JobSet. See https://jobset.sigs.k8s.io/docs/reference/jobset.v1alpha2/"""
    replicated = []
    for i, (role, name) in enumerate(zip(app.roles, role_names(app))):  # noqa: B905  # one name per role
        labels = pods.role_labels(app, i, app_id, session=rules.session)
        # <jobset>-<replicated job>-<job>-<pod>.<subdomain>
        rank0 = f"{app_id}-{name}-0-0.{app_id}"
        template = shared_template(role, rules, app_id, labels, rank0=rank0)
        spec = _job_spec(role, rules, template, replicas=role.num_replicas, suspended=False)
        if _whole_app(role):
            spec["backoffLimit"] = 0
        replicated.append({"name": name, "replicas": 1, "template": {"metadata": {"labels": labels}, "spec": spec}})
    metadata = metadata_of(app_id, rules, pods.object_labels(app, app_id, session=rules.session), rules.metadata)
    spec = {
        "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True, "subdomain": app_id},
        "failurePolicy": {"maxRestarts": max((r.max_retries for r in app.roles if _whole_app(r)), default=0)},
        "replicatedJobs": replicated,
    }
    if rules.deadline_s is not None:  # the only rule: what ends by it ran too long, and is not started again
        rule = {"name": "deadline", "action": "FailJobSet", "onJobFailureReasons": ["DeadlineExceeded"]}
        spec["failurePolicy"]["rules"] = [rule]
    if rules.local_queue:
        metadata["labels"][LABEL_QUEUE] = rules.local_queue
        spec["suspend"] = True
    if rules.ttl_s is not None:
        spec["ttlSecondsAfterFinished"] = rules.ttl_s
    return {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": metadata, "spec": spec}


def _whole_app(role: Role) -> bool:
    return role.retry_policy is not RetryPolicy.REPLICA and role.min_replicas is None


# -- parts --------------------------------------------------------------------------------------------


def definition_of(app: AppDef) -> dict[str, str]:
    """The app's definition as an annotation, secrets masked; none when it is too large for one."""
    shown = serialize.masked(app)
    for role, own in zip(shown.roles, app.roles):  # noqa: B905  # a copy has as many
        # Where a secret is kept is none.
        role.env.update({name: value for name, value in own.env.items() if value.startswith(pods.PLACEHOLDER_SECRET)})
    text = json.dumps(serialize.appdef_to_dict(shown, fallback=repr))
    return {ANNOTATION_APP: text} if len(text) < _MAX_ANNOTATION else {}


def metadata_of(
    name: str, rules: JobRules, labels: Mapping[str, str], annotations: Mapping[str, str] | None = None
) -> Object:
    """The metadata of an object that we make."""
    marks = {ANNOTATION_SUBMISSION: rules.submission} if rules.submission else {}
    return {
        "name": name,
        "namespace": rules.namespace,
        "labels": dict(labels),
        "annotations": {**marks, **(annotations or {})},
    }


def template_of(
    role: Role,
    rules: JobRules,
    app_id: str,
    labels: Mapping[str, str],
    *,
    replica_id: str,
    rank0: str,
    number: str = BY_JOB,
) -> Object:
    """The pod of one replica, or with :data:`pods.REPLICA` as its number, of all.

    Args:
        labels: of the pod.
        rank0: name of the host of replica 0.
        number: field of the pod that has the number, where all share it.
    """
    values = macros.Values(img_root="", app_id=app_id, replica_id=replica_id, rank0_env=pods.ENV_RANK0_HOST)
    env: dict[str, Any] = {
        pods.ENV_RANK0_HOST: rank0,
        pods.ENV_ERROR_FILE: "/dev/termination-log",  # what a pod's status shows of its end
        pods.ENV_REPLICA_ID: replica_id,
    }
    if replica_id == pods.REPLICA:
        env[pods.ENV_REPLICA_ID] = {"fieldRef": {"fieldPath": number}}
    secret = secret_variables(role, labels[LABEL_ROLE_INDEX], app_id)
    role = values.apply(role)
    job = role.env.get(ENV_JOB_ID, "")
    if job.endswith(f"/{app_id}"):  # as its handle has it
        role.env[ENV_JOB_ID] = f"{job.removesuffix(app_id)}{rules.namespace}:{app_id}"
    template = render_pod(role, rules.pods, labels=labels, env=env, secret=secret)
    if rules.timeout_s:
        template["spec"]["activeDeadlineSeconds"] = rules.timeout_s
    return template


def shared_template(
    role: Role,
    rules: JobRules,
    app_id: str,
    labels: Mapping[str, str],
    *,
    rank0: str,
    subdomain: str = "",
    number: str = BY_JOB,
) -> Object:
    """The template of all replicas of a role, which find their number in their environment."""
    template = template_of(role, rules, app_id, labels, replica_id=pods.REPLICA, rank0=rank0, number=number)
    if pods.REPLICA in json.dumps(template, ensure_ascii=False):
        raise SpecError(
            f"role `{role.name}` uses the replica's number outside of its arguments and environment, "
            "and one template serves all of its replicas",
            hint="read it there from the variable TORCHX_REPLICA_ID, or run with `-cfg kind=volcano`",
        )
    if subdomain:
        template["spec"]["subdomain"] = subdomain
    return template
