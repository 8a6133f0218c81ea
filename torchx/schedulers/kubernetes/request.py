"""Parts of the request that do not depend on the kind of the job: names, metadata, pod templates, the Secret."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import count
from typing import Any

from torchx.errors import SpecError
from torchx.schedulers.ids import make_unique
from torchx.schedulers.kit.manifests import shown_yaml
from torchx.schedulers.kit.names import DNS_LABEL
from torchx.schedulers.kit.secrets import is_value
from torchx.schedulers.kubernetes import names, shipped_code
from torchx.schedulers.kubernetes.names import JOB, LABEL_ROLE_INDEX, Object
from torchx.schedulers.kubernetes.options import KubernetesOpts, read_overlay
from torchx.schedulers.kubernetes.overlays import apply_overlay, pod_overlay
from torchx.schedulers.kubernetes.pods import specs
from torchx.schedulers.kubernetes.pods.facts import main_container
from torchx.schedulers.kubernetes.pods.specs import JobRules, render_pod
from torchx.settings import ENV_JOB_ID, ENV_REPLICA_ID, ENV_ROLE_NAME
from torchx.specs import serialize
from torchx.specs.api import AppDef, Role, macros
from torchx.specs.ready import MARK
from torchx.specs.secret import Secret
from torchx.specs.wishes import Wishes
from torchx.util.records import dataclass, field
from torchx.util.secrets import CERTAIN, grade

BY_JOB = f"metadata.annotations['{names.INDEX_ANNOTATION}']"
"""Field with the index of a pod of an Indexed Job."""
SUSPEND_SINCE = (1, 22)
CLAIMS_SINCE = (1, 34)
_MAX_ANNOTATION = 200_000  # the limit is 256 KiB for all annotations of an object
_MAX_ROLE = 16
_RANDOM = 10
_MAX_INDEX = 5
MAX_APP_ID = 63 - len("-") - _MAX_ROLE - len("-0-") - _MAX_INDEX - len("-abcde")
"""JobSet limits a pod's name to 63 characters, including its random suffix: ``<app id>-<role>-0-<index>-abcde``."""


@dataclass
class KubernetesJob:
    """The request.

    Attributes:
        images_to_push: image id -> repository and tag.
        resource: one object, or a ``List`` of them that starts with the owner of the others.
        secret: the Secret to create with them, with references in place of values.
        by_cause: it has a retry policy by cause, so that ``kind=auto`` always selects Jobs.
    """

    images_to_push: dict[str, tuple[str, str]]
    resource: Object
    app_id: str = ""
    kind: str = JOB
    opts: KubernetesOpts = field(default_factory=KubernetesOpts)
    secret: Object | None = field(default=None, repr=False)
    by_cause: bool = False

    def __str__(self) -> str:
        """YAML for ``kubectl apply``, with secrets masked, and without the code."""
        note = ""
        if self.kind == JOB and self.opts.kind == shipped_code.AUTO and not self.by_cause:
            note = "# kind=auto: a JobSet or a Volcano job instead, where the cluster has them\n"
        if self.secret is not None:
            name = self.secret["metadata"]["name"]
            note += f"# and a Secret `{name}`, owned by the job: {', '.join(self.secret_variables())}\n"
        return note + shown_yaml(shipped_code.without_data(self.resource))

    def secret_variables(self) -> list[str]:
        """Names of the variables whose values are in the Secret."""
        return [*dict.fromkeys(key.partition(".")[2] for key in (self.secret or {}).get("stringData", {}))]


def rules_of(app: AppDef, app_id: str, opts: KubernetesOpts, **more: Any) -> JobRules:
    """Return the rules for the objects of an app; ``more`` are further fields."""
    overlay = read_overlay(opts.pod_overlay) if opts.pod_overlay else {}
    apply_overlay(overlay, pod_overlay(app), _resolve=False)
    metadata = definition_of(app)
    return JobRules(opts, overlay, submission=app_id, timeout_s=Wishes.of(app).timeout_s, metadata=metadata, **more)


def secret_of(app: AppDef, app_id: str, *, namespace: str, session: str) -> Object | None:
    """Return the Secret of an app, with references in place of values not looked up yet; None if it needs none.

    https://kubernetes.io/docs/concepts/configuration/secret/
    """
    data = {}
    values = macros.Values(img_root="", app_id=app_id, replica_id="", rank0_env=specs.ENV_RANK0_HOST)
    for i, role in enumerate(app.roles):  # the same variable may have different values in two roles
        env = values.apply(role).env
        for name in _secret_names(role):
            if MARK in env[name]:
                raise SpecError(
                    f"variable `{name}` of role `{role.name}` is secret, and contains the address of a role",
                    hint="give the address in a variable of its own",
                )
        data.update({f"{i}.{name}": env[name] for name in _secret_names(role)})
    rules = JobRules(KubernetesOpts(namespace=namespace), session=session, submission=app_id)
    metadata = metadata_of_app(app, app_id, rules)
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": data} if data else None


def _secret_names(role: Role) -> list[str]:
    """Variables to put into the Secret: those that are certainly secret, have a value, and are the same everywhere."""
    return [
        name
        for name, value in role.env.items()
        if (isinstance(value, Secret) or grade(name, value) == CERTAIN)
        and is_value(value)
        and macros.replica_id not in value
        and not value.startswith(specs.PLACEHOLDERS)
    ]


def unique_id(app: AppDef) -> str:
    """Return a unique name for an app, short enough for the names of its pods."""
    return make_unique(DNS_LABEL.make(app.name, room=63 - MAX_APP_ID + 1 + _RANDOM), _RANDOM)


def role_names(app: AppDef) -> list[str]:
    """Return a unique name for each role that is valid in names of objects.

    >>> from torchx.specs.api import AppDef, Role
    >>> role_names(AppDef("a", [Role("Trainer/1", "i"), Role("trainer_1", "i")]))
    ['trainer-1', 'trainer-1-1']
    """
    names: list[str] = []
    for i, role in enumerate(app.roles):
        name = wanted = DNS_LABEL.make(role.name, room=63 - _MAX_ROLE)
        suffixes = (f"-{k}" for k in count(i))
        while name in names:
            suffix = next(suffixes)
            name = wanted[: _MAX_ROLE - len(suffix)] + suffix
        names.append(name)
    return names


def each_role(app: AppDef, app_id: str, rules: JobRules) -> Iterator[tuple[Role, str, dict[str, str]]]:
    """Each role, its name for use in names of objects, and the labels of its pods without the replica's number."""
    for i, (role, name) in enumerate(zip(app.roles, role_names(app), strict=True)):
        yield role, name, specs.role_labels(app, i, app_id, session=rules.session)


# -- parts --------------------------------------------------------------------------------------------


def headless_service(app: AppDef, app_id: str, rules: JobRules) -> Object:
    """Return the Service that gives every pod a DNS name: ``<host name>.<app id>``."""
    ports = sorted({port for role in app.roles for port in role.port_map.values()})
    spec: Object = {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,  # the other ranks resolve the name of rank 0 before it is ready
        "selector": {names.LABEL_UNIQUE_NAME: app_id},
    }
    if ports:
        spec["ports"] = [{"name": f"port-{port}", "port": port} for port in ports]
    return {"apiVersion": "v1", "kind": "Service", "metadata": metadata_of_app(app, app_id, rules), "spec": spec}


def definition_of(app: AppDef) -> dict[str, str]:
    """Return the app's definition as an annotation, with secrets masked; empty if it is too large."""
    shown = serialize.masked(app)
    for role, own in zip(shown.roles, app.roles):  # noqa: B905  # a copy has as many
        # The name of a Kubernetes Secret is not secret.
        role.env.update({name: value for name, value in own.env.items() if value.startswith(specs.PLACEHOLDER_SECRET)})
    text = json.dumps(serialize.appdef_to_dict(shown, fallback=repr))
    return {names.ANNOTATION_APP: text} if len(text) < _MAX_ANNOTATION else {}


def metadata_of(
    name: str, rules: JobRules, labels: Mapping[str, str], annotations: Mapping[str, str] | None = None
) -> Object:
    """Return the metadata of an object."""
    marks = {names.ANNOTATION_SUBMISSION: rules.submission} if rules.submission else {}
    return {
        "name": name,
        "namespace": rules.opts.namespace,
        "labels": dict(labels),
        "annotations": {**marks, **(annotations or {})},
    }


def metadata_of_app(app: AppDef, app_id: str, rules: JobRules, annotations: Mapping[str, str] | None = None) -> Object:
    """Return the metadata of an object that has the app's name."""
    return metadata_of(app_id, rules, specs.object_labels(app, app_id, session=rules.session), annotations)


def set_lifetime(metadata: Object, spec: Object, rules: JobRules) -> None:
    """Suspend a job that has a Kueue queue, so that Kueue starts it; delete it some time after its end."""
    if rules.opts.local_queue:
        metadata["labels"][names.LABEL_QUEUE] = rules.opts.local_queue
        spec["suspend"] = True
    if rules.opts.ttl_s is not None:
        spec["ttlSecondsAfterFinished"] = rules.opts.ttl_s


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
    """Return the pod template of one replica, or of all replicas if ``replica_id`` is :data:`pods.REPLICA`.

    ``rank0`` is the host name of replica 0. In a template of all replicas, ``number`` is the field of the pod with the
    replica's number.
    """
    values = macros.Values(img_root="", app_id=app_id, replica_id=replica_id, rank0_env=specs.ENV_RANK0_HOST)
    order = rules.order
    if order:
        values.addresses = order.macros(role, replica_id)
    env: dict[str, Any] = {
        **(order.environment() if order else {}),
        specs.ENV_RANK0_HOST: rank0,
        specs.ENV_ERROR_FILE: "/dev/termination-log",  # Kubernetes copies it into the pod's status
        ENV_REPLICA_ID: replica_id,
        ENV_ROLE_NAME: role.name,
    }
    if replica_id == specs.REPLICA:
        env[ENV_REPLICA_ID] = {"fieldRef": {"fieldPath": number}}
    index = labels[LABEL_ROLE_INDEX]
    secret = {name: {"secretKeyRef": {"name": app_id, "key": f"{index}.{name}"}} for name in _secret_names(role)}
    role = values.apply(role)
    job = role.env.get(ENV_JOB_ID, "")
    if job.endswith(f"/{app_id}"):  # the handle includes the namespace
        role.env[ENV_JOB_ID] = f"{job.removesuffix(app_id)}{rules.opts.namespace}:{app_id}"
    template = render_pod(role, rules, labels=labels, env=env, secret=secret)
    if rules.timeout_s:
        template["spec"]["activeDeadlineSeconds"] = rules.timeout_s
    if order:
        order.add_to(template["spec"], main_container(template["spec"]["containers"]), role)
    code = rules.codes.get(int(index))
    if code is not None:
        shipped_code.mount(template["spec"], code, shipped_code.names_of(app_id, rules.codes)[code.hash])
    return template


def shared_template(
    role: Role, rules: JobRules, app_id: str, labels: Mapping[str, str], *, rank0: str, number: str = BY_JOB
) -> Object:
    """Return the pod template of all replicas of a role, which read their number from their environment."""
    template = template_of(role, rules, app_id, labels, replica_id=specs.REPLICA, rank0=rank0, number=number)
    if specs.REPLICA in json.dumps(template, ensure_ascii=False):
        raise SpecError(
            f"role `{role.name}` uses the replica's number outside of its arguments and environment, "
            "and one template serves all of its replicas",
            hint="read it there from the variable TORCHX_REPLICA_ID, or run with `-cfg kind=volcano`",
        )
    return template
