"""Renders a replica as a Kubernetes pod.

Pods are plain dicts in the format of the API (https://kubernetes.io/docs/reference/kubernetes-api/), so that a dry run
needs neither a cluster nor a client. Values of a role's environment may refer to the cluster, see docs/kubernetes.md.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from torchx.errors import SpecError
from torchx.schedulers.devices import EFA_DEVICE
from torchx.schedulers.kit.names import DNS_LABEL, plain_metadata
from torchx.schedulers.kit.native_retries import NativeRetries
from torchx.schedulers.kubernetes import names, placement
from torchx.schedulers.kubernetes.names import MAIN_CONTAINER, Object, label_value
from torchx.schedulers.kubernetes.options import KubernetesOpts
from torchx.schedulers.kubernetes.overlays import JOIN, apply_overlay, pod_overlay, validate_overlay
from torchx.schedulers.kubernetes.pods.order import JobOrder
from torchx.schedulers.kubernetes.shipped_code import BucketCode, Code
from torchx.settings import ENV_REPLICA_ID
from torchx.specs.api import AppDef, BindMount, DeviceMount, Resource, Role, VolumeMount
from torchx.util.records import dataclass, field
from torchx.version import __version__

NEWEST = (1, 37)
"""The newest supported version of Kubernetes."""
ENV_RANK0_HOST = "TORCHX_RANK0_HOST"
ENV_ERROR_FILE = "TORCHELASTIC_ERROR_FILE"
REPLICA = "\ue000"
"""Stands for the replica's number in a template that all replicas of a role share; a private-use character."""

PLACEHOLDER_FIELD_PATH = "[FIELD_PATH]"
PLACEHOLDER_SECRET = "[SECRET]"  # noqa: S105  # a marker, and no secret
PLACEHOLDER_CONFIG_MAP = "[CONFIG_MAP]"
PLACEHOLDERS = (PLACEHOLDER_FIELD_PATH, PLACEHOLDER_SECRET, PLACEHOLDER_CONFIG_MAP)

# The fields that identify items of lists in a strategic merge:
# https://kubernetes.io/docs/tasks/manage-kubernetes-objects/update-api-object-kubectl-patch/ (patchMergeKey)
MERGE_KEYS = {
    "containers": "name",
    "initContainers": "name",
    "ephemeralContainers": "name",
    "volumes": "name",
    "env": "name",
    "volumeMounts": "mountPath",
    "volumeDevices": "devicePath",
    "ports": "containerPort",
    "imagePullSecrets": "name",
    "hostAliases": "ip",
    "topologySpreadConstraints": "topologyKey",
    "resourceClaims": "name",
    "schedulingGates": "name",
}
# An overlay must not change these, because they connect a pod to its job.
_FIXED_FIELDS = ["apiVersion", "kind", "metadata.name", "metadata.namespace", "metadata.generateName", "status"]


@dataclass(frozen=True)
class JobRules:
    """What all objects of an app have in common.

    Attributes:
        overlay: overlay of every pod; applied after the placement and before the overlay of the role.
        scheduler_name: scheduler of the pods; None for the cluster's default.
        timeout_s: seconds after its start on a node at which a pod is ended; 0 for never.
        metadata: annotations of the first object that owns pods.
        version: major and minor version of the cluster.
        retries: retries under a policy by cause; None if there is no policy.
        codes: index of a role -> its code, if it is not in the image.
        order: of its roles, if they have one.
    """

    opts: KubernetesOpts = field(default_factory=KubernetesOpts)
    overlay: Object = field(default_factory=dict)
    scheduler_name: str | None = None
    session: str = ""
    submission: str = ""
    timeout_s: int = 0
    metadata: Mapping[str, str] = field(default_factory=dict)
    version: tuple[int, int] = NEWEST
    retries: NativeRetries | None = None
    codes: Mapping[int, Code | BucketCode] = field(default_factory=dict)
    order: JobOrder | None = None


def object_labels(app: AppDef, app_id: str, *, session: str = "") -> dict[str, str]:
    """Labels of all objects of an app. ``LABEL_UNIQUE_NAME`` is the app id, which selects them."""
    labels = {
        **{key: value for key, value in plain_metadata(app).items() if names.is_label(key, value)},
        names.LABEL_VERSION: label_value(__version__),
        names.LABEL_APP_NAME: label_value(app.name),
        names.LABEL_ORGANIZATION: names.ORGANIZATION,
        names.LABEL_UNIQUE_NAME: app_id,
    }
    return {**labels, names.LABEL_SESSION: label_value(session)} if session else labels


def role_labels(app: AppDef, role_index: int, app_id: str, *, session: str = "") -> dict[str, str]:
    """Labels of the pods of one role, without the replica's number."""
    role = app.roles[role_index]
    return {
        **object_labels(app, app_id, session=session),
        names.LABEL_KUBE_APP_NAME: label_value(app.name),
        names.LABEL_ROLE_INDEX: str(role_index),
        names.LABEL_ROLE_NAME: names.role_label(role.name),
    }


def render_pod(
    role: Role,
    rules: JobRules,
    *,
    labels: Mapping[str, str],
    env: Mapping[str, Any],
    secret: Mapping[str, Object] | None = None,
) -> Object:
    """Return the template of a replica's pod: its ``metadata`` and ``spec``. Macros of the role have been replaced.

    ``env`` has the variables that torchx sets, each a value or a ``valueFrom``; those of the role may refer to them.
    ``secret`` has the secret variables of the role, each with its ``valueFrom``. SpecError if a pod does not support a
    mount, a variable or an overlay of the role.
    """
    opts = rules.opts
    volumes, mounts = _volumes(role, opts.secret_files or {})
    main: Object = {
        "name": MAIN_CONTAINER,
        "image": role.image,
        "command": [literal(word) for word in (role.entrypoint, *role.args)],
        "env": _environment(env, role, secret or {}),
        "resources": render_resources(role.resource, opts),
        "volumeMounts": mounts,
        # puts the end of a failed container's log into the pod's status
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }
    if role.port_map:
        main["ports"] = _ports(role.port_map)
    spec: Object = {"restartPolicy": "Never", "containers": [main], "volumes": volumes}
    if opts.service_account:
        spec["serviceAccountName"] = opts.service_account
    if opts.image_secret:
        spec["imagePullSecrets"] = [{"name": opts.image_secret}]
    if opts.priority_class:
        spec["priorityClassName"] = opts.priority_class
    if rules.scheduler_name:
        spec["schedulerName"] = rules.scheduler_name
    # Capabilities that are label keys, such as `node.kubernetes.io/instance-type`, select nodes.
    selector = {name: str(value) for name, value in role.resource.capabilities.items() if "/" in name}
    if selector:
        spec["nodeSelector"] = selector
    pod = {"metadata": {"labels": dict(labels), "annotations": {names.ANNOTATION_ISTIO_SIDECAR: "false"}}, "spec": spec}
    lay_over(pod, placement.of_gpus(role.resource), name="GPU type")
    lay_over(pod, placement.overlay(opts, labels), name="placement")
    lay_over(pod, rules.overlay, name="pod overlay")
    lay_over(pod, pod_overlay(role), name=f"pod overlay of role `{role.name}`")
    return pod


def literal(text: str) -> str:
    """Escape ``text`` as a word of a container's command, in which Kubernetes replaces ``$(NAME)`` and ``$$``.

    https://kubernetes.io/docs/tasks/inject-data-application/define-command-argument-container/

    >>> literal("echo $(HOME) $HOME $$")
    'echo $$(HOME) $HOME $$$$'

    :data:`REPLICA` becomes a reference to :data:`ENV_REPLICA_ID`.
    """
    escaped = re.sub(rf"\$+(?=[({REPLICA}])|\${{2,}}", lambda found: found[0] * 2, text)
    return escaped.replace(REPLICA, f"$({ENV_REPLICA_ID})")


def _ports(port_map: Mapping[str, int]) -> list[Object]:
    """Ports of a container, with unique names of at most 15 characters, lower case, without two dashes in a row.

    >>> _ports({"Tensorboard_HTTP_main": 1, "a--b": 2})
    [{'name': 'tensorboard-htt', 'containerPort': 1}, {'name': 'a-b', 'containerPort': 2}]
    """
    ports: dict[str, int] = {}
    for wanted, port in sorted(port_map.items()):
        name = re.sub("-+", "-", DNS_LABEL.make(wanted))[:15].rstrip("-")
        if name in ports:
            name = f"{name[: 14 - len(str(port))].rstrip('-')}-{port}"
        ports[name] = port
    return [{"name": name, "containerPort": port} for name, port in ports.items()]


def render_resources(resource: Resource, opts: KubernetesOpts) -> Object:
    """Limits and requests. The CPU and memory reserved for system pods is subtracted from the requests only.

    >>> from torchx.specs.api import Resource
    >>> render_resources(Resource(cpu=2, gpu=1, memMB=4096), KubernetesOpts())["requests"]
    {'cpu': '1900m', 'memory': '3072M', 'nvidia.com/gpu': '1'}
    """
    limits: dict[str, str] = {}
    requests: dict[str, str] = {}
    if resource.cpu > 0:
        millicpu = int(resource.cpu * 1000)
        limits["cpu"] = f"{millicpu}m"
        requests["cpu"] = f"{max(millicpu - opts.reserved_millicpu, 0)}m"
    if resource.memMB > 0:
        limits["memory"] = f"{int(resource.memMB)}M"
        requests["memory"] = f"{max(int(resource.memMB) - opts.reserved_memmb, 0)}M"
    # Devices are not shared: request and limit must be equal.
    devices = {placement.gpu_resource(resource): resource.gpu, **resource.devices}
    if opts.efa_device_count is not None:
        devices[EFA_DEVICE] = opts.efa_device_count
    for name, count in devices.items():
        if name and count > 0:
            limits[name] = requests[name] = str(count)
    if resource.is_unset and resource.memMB > 0:  # a default: request it for scheduling, but do not enforce it
        limits = {name: count for name, count in limits.items() if name in devices}
        requests["memory"] = f"{int(resource.memMB)}M"
    return {"limits": limits, "requests": requests}


def lay_over(pod: Object, overlay: Object, *, name: str) -> None:
    """Apply an overlay to a pod as a strategic merge patch, which merges items of lists that have the same name.

    SpecError if the overlay is malformed, or changes a field that connects the pod to its job.

    >>> pod = {"spec": {"containers": [{"name": "main", "image": "a"}]}}
    >>> lay_over(pod, {"spec": {"containers": [{"name": "main", "tty": True}], "hostIPC": True}}, name="overlay")
    >>> pod
    {'spec': {'containers': [{'name': 'main', 'image': 'a', 'tty': True}], 'hostIPC': True}}
    """
    if overlay:
        validate_overlay(overlay, blocklist=_FIXED_FIELDS, overlay_name=name, suggestion="torchx sets it itself")
        apply_overlay(pod, _with_merge_keys(overlay))
        whole = isinstance(pod.get("metadata", {}), dict) and isinstance(pod.get("spec"), dict)
        if not whole or not isinstance(pod["spec"].get("containers"), list):
            raise SpecError(
                f"{name} leaves a pod without `metadata`, `spec` or `spec.containers`",
                hint="write fields below them, or omit them",
            )


def _with_merge_keys(value: Any) -> Any:
    if isinstance(value, list):
        return [_with_merge_keys(item) for item in value]
    if not isinstance(value, dict):
        return value
    merged = {}
    for key, inner in value.items():
        on = MERGE_KEYS.get(key) if isinstance(inner, list) else None
        merged[JOIN(key, on=on) if on else key] = _with_merge_keys(inner)
    return merged


def _environment(launcher: Mapping[str, Any], role: Role, secret: Mapping[str, Object]) -> list[Object]:
    own = {
        name: {"name": name, "valueFrom": secret[name]} if name in secret else _variable(name, value, role.name)
        for name, value in role.env.items()
    }
    ours = {
        name: {"name": name, "value": value} if isinstance(value, str) else {"name": name, "valueFrom": value}
        for name, value in launcher.items()
        if name not in own
    }
    return [*ours.values(), *own.values()]


def _variable(name: str, value: str, role_name: str) -> Object:
    if value.__class__ is not str and getattr(value, "kind", "") == "k8s":
        value = f"{PLACEHOLDER_SECRET}{value.removeprefix('k8s:')}"
    if value.startswith(PLACEHOLDER_FIELD_PATH):
        path = value.removeprefix(PLACEHOLDER_FIELD_PATH).strip()
        return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}
    for placeholder, kind in ((PLACEHOLDER_SECRET, "secretKeyRef"), (PLACEHOLDER_CONFIG_MAP, "configMapKeyRef")):
        if value.startswith(placeholder):
            owner, slash, key = value.removeprefix(placeholder).strip().partition("/")
            if not (owner and slash and key):
                raise SpecError(
                    f"variable `{name}` of role `{role_name}` is `{value}`, which does not name a key",
                    hint=f"write `{placeholder}name/key`",
                )
            return {"name": name, "valueFrom": {kind: {"name": owner, "key": key}}}
    return {"name": name, "value": literal(value)}


def _volumes(role: Role, secret_files: Mapping[str, str]) -> tuple[list[Object], list[Object]]:
    """Volumes of the pod, and their mounts in the container; ``/dev/shm`` is as large as the role's memory."""
    shared_memory: Object = {"medium": "Memory"}
    if role.resource.memMB > 0 and not role.resource.is_unset:
        shared_memory["sizeLimit"] = f"{int(role.resource.memMB)}M"
    volumes: list[Object] = [{"name": "dshm", "emptyDir": shared_memory}]
    mounts: list[Object] = [{"name": "dshm", "mountPath": "/dev/shm"}]  # noqa: S108  # the usual place
    for i, mount in enumerate(role.mounts):
        name = f"mount-{i}"
        read_only = False
        if isinstance(mount, BindMount):
            source: Object = {"hostPath": {"path": mount.src_path}}
            read_only = mount.read_only
        elif isinstance(mount, VolumeMount):
            source = {"persistentVolumeClaim": {"claimName": mount.src}}
            read_only = mount.read_only
        elif isinstance(mount, DeviceMount):
            # The file alone does not give access to the device; a device plugin or an overlay does.
            source = {"hostPath": {"path": mount.src_path, "type": "CharDevice"}}
            read_only = "w" not in mount.permissions
        else:
            raise SpecError(f"role `{role.name}`: a {type(mount).__name__} cannot be mounted into a pod")
        volumes.append({"name": name, **source})
        mounts.append({"name": name, "mountPath": mount.dst_path, "readOnly": read_only})
    for i, (path, secret) in enumerate(sorted(secret_files.items())):
        volumes.append({"name": f"secret-{i}", "secret": {"secretName": secret, "defaultMode": 0o444}})
        mounts.append({"name": f"secret-{i}", "mountPath": path, "readOnly": True})
    return volumes, mounts
