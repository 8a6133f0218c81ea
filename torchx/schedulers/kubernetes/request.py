"""What the objects of an app have in common, whatever their kind: a name, metadata, templates of pods."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from torchx.errors import SpecError
from torchx.schedulers.ids import make_unique
from torchx.schedulers.kit.manifests import shown_yaml
from torchx.schedulers.kit.names import DNS_LABEL
from torchx.schedulers.kubernetes import inline_code, names, pods
from torchx.schedulers.kubernetes.names import JOB, LABEL_ROLE_INDEX, Object
from torchx.schedulers.kubernetes.options import KubernetesOpts, read_overlay
from torchx.schedulers.kubernetes.pods import JobRules, render_pod
from torchx.schedulers.kubernetes.secrets import note as secret_note
from torchx.schedulers.kubernetes.secrets import render_secret, secret_variables
from torchx.settings import ENV_JOB_ID
from torchx.specs import serialize
from torchx.specs.api import AppDef, Role, macros
from torchx.specs.timeouts import timeout_s
from torchx.util.records import dataclass, field

BY_JOB = f"metadata.annotations['{names.INDEX_ANNOTATION}']"
"""Where a pod of an Indexed Job, and of what is made of them, has its number."""
SUSPEND_SINCE = (1, 22)
CLAIMS_SINCE = (1, 34)
_MAX_ANNOTATION = 200_000  # those of one object have 256 KiB together
_MAX_ROLE = 16
_RANDOM = 10
_MAX_INDEX = 5
MAX_APP_ID = 63 - len("-") - _MAX_ROLE - len("-0-") - _MAX_INDEX - len("-abcde")
"""A pod's name has 63 characters, by JobSet's rule its random end included: ``<app id>-<role>-0-<index>-abcde``."""


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
        note = note if self.kind == JOB and self.opts.kind == inline_code.AUTO and not self.by_cause else ""
        return note + secret_note(self.secret) + shown_yaml(inline_code.without_data(self.resource))


def rules_of(app: AppDef, app_id: str, opts: KubernetesOpts, **more: Any) -> JobRules:
    """What all objects of an app have in common.

    Args:
        more: other fields of the rules.
    """
    overlay = read_overlay(opts.pod_overlay) if opts.pod_overlay else {}
    metadata = definition_of(app)
    return JobRules(opts, overlay, submission=app_id, timeout_s=timeout_s(app), metadata=metadata, **more)


def as_resource(objects: list[Object]) -> Object:
    """One object for ``kubectl apply``."""
    if len(objects) == 1:
        return objects[0]
    return {"apiVersion": "v1", "kind": "List", "items": objects}


def secret_of(app: AppDef, app_id: str, *, namespace: str, session: str) -> Object | None:
    """The Secret of an app; None when it needs none."""
    rules = JobRules(KubernetesOpts(namespace=namespace), session=session, submission=app_id)
    return render_secret(app, metadata_of_app(app, app_id, rules))


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


def each_role(app: AppDef, app_id: str, rules: JobRules) -> Iterator[tuple[Role, str, dict[str, str]]]:
    """Each role, its name in those of objects, and the labels of its pods, less the replica's number."""
    for i, (role, name) in enumerate(zip(app.roles, role_names(app), strict=True)):
        yield role, name, pods.role_labels(app, i, app_id, session=rules.session)


# -- parts --------------------------------------------------------------------------------------------


def headless_service(app: AppDef, app_id: str, rules: JobRules) -> Object:
    """What gives every pod of an app a name: ``<its host name>.<app id>``."""
    ports = sorted({port for role in app.roles for port in role.port_map.values()})
    spec: Object = {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,  # rank 0 must have a name before it is ready: the others wait for it
        "selector": {names.LABEL_UNIQUE_NAME: app_id},
    }
    if ports:
        spec["ports"] = [{"name": f"port-{port}", "port": port} for port in ports]
    return {"apiVersion": "v1", "kind": "Service", "metadata": metadata_of_app(app, app_id, rules), "spec": spec}


def definition_of(app: AppDef) -> dict[str, str]:
    """The app's definition as an annotation, secrets masked; none when it is too large for one."""
    shown = serialize.masked(app)
    for role, own in zip(shown.roles, app.roles):  # noqa: B905  # a copy has as many
        # Where a secret is kept is none.
        role.env.update({name: value for name, value in own.env.items() if value.startswith(pods.PLACEHOLDER_SECRET)})
    text = json.dumps(serialize.appdef_to_dict(shown, fallback=repr))
    return {names.ANNOTATION_APP: text} if len(text) < _MAX_ANNOTATION else {}


def metadata_of(
    name: str, rules: JobRules, labels: Mapping[str, str], annotations: Mapping[str, str] | None = None
) -> Object:
    """The metadata of an object that we make."""
    marks = {names.ANNOTATION_SUBMISSION: rules.submission} if rules.submission else {}
    return {
        "name": name,
        "namespace": rules.opts.namespace,
        "labels": dict(labels),
        "annotations": {**marks, **(annotations or {})},
    }


def metadata_of_app(app: AppDef, app_id: str, rules: JobRules, annotations: Mapping[str, str] | None = None) -> Object:
    """The metadata of an object that belongs to all of an app, and has its name."""
    return metadata_of(app_id, rules, pods.object_labels(app, app_id, session=rules.session), annotations)


def hold(metadata: Object, spec: Object, rules: JobRules) -> None:
    """Leaves the start of a job to its queue of Kueue, if it has one."""
    if rules.opts.local_queue:
        metadata["labels"][names.LABEL_QUEUE] = rules.opts.local_queue
        spec["suspend"] = True


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
        role.env[ENV_JOB_ID] = f"{job.removesuffix(app_id)}{rules.opts.namespace}:{app_id}"
    template = render_pod(role, rules, labels=labels, env=env, secret=secret)
    if rules.timeout_s:
        template["spec"]["activeDeadlineSeconds"] = rules.timeout_s
    code = rules.codes.get(int(labels[LABEL_ROLE_INDEX]))
    if code is not None:
        inline_code.mount(template["spec"], code, inline_code.names_of(app_id, rules.codes)[code.hash])
    return template


def shared_template(
    role: Role,
    rules: JobRules,
    app_id: str,
    labels: Mapping[str, str],
    *,
    rank0: str,
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
    return template
