"""Names of the ``kubernetes`` scheduler that programs for earlier versions import."""

from __future__ import annotations

import json
from typing import Any

from torchx.schedulers.kubernetes import request
from torchx.schedulers.kubernetes.api.credentials import official
from torchx.schedulers.kubernetes.kinds import kinds
from torchx.schedulers.kubernetes.names import LABEL_REPLICA_ID, Object
from torchx.schedulers.kubernetes.options import RESERVED_MEMMB, RESERVED_MILLICPU, KubernetesOpts
from torchx.schedulers.kubernetes.pods import specs
from torchx.schedulers.kubernetes.reasons import VOLCANO_PHASES
from torchx.specs.api import AppDef, AppState, ReplicaState, Role

BLUE = "\033[34m"
ENDC = "\033[0m"

JOB_STATE: dict[str, AppState] = VOLCANO_PHASES
"""Phase of a Volcano job -> state."""

# https://volcano.sh/en/docs/podgroup/ (the states of a task)
TASK_STATE: dict[str, ReplicaState] = {
    "Pending": AppState.PENDING,
    "Allocated": AppState.PENDING,
    "Pipelined": AppState.PENDING,
    "Binding": AppState.PENDING,
    "Bound": AppState.PENDING,
    "Running": AppState.RUNNING,
    "Releasing": AppState.RUNNING,
    "Succeeded": AppState.SUCCEEDED,
    "Failed": AppState.FAILED,
    "Unknown": AppState.UNKNOWN,
}
"""State of a task of Volcano's scheduler -> state."""


def app_to_resource(  # noqa: PLR0917  # public signature
    app: AppDef,
    queue: str,
    service_account: str | None,
    priority_class: str | None = None,
    reserved_millicpu: int = RESERVED_MILLICPU,
    reserved_memmb: int = RESERVED_MEMMB,
    efa_device_count: int | None = None,
) -> Object:
    """Render an app as a Volcano job."""
    opts = KubernetesOpts(
        queue=queue,
        service_account=service_account,
        priority_class=priority_class,
        reserved_millicpu=reserved_millicpu,
        reserved_memmb=reserved_memmb,
        efa_device_count=efa_device_count,
    )
    return kinds.volcano_job(app, request.unique_id(app), specs.JobRules(opts))[0]


def role_to_pod(  # noqa: PLR0917  # public signature
    name: str,
    role: Role,
    service_account: str | None,
    reserved_millicpu: int = RESERVED_MILLICPU,
    reserved_memmb: int = RESERVED_MEMMB,
    efa_device_count: int | None = None,
) -> Any:
    """Render a replica as a ``kubernetes.client.V1Pod`` whose container has the name of the pod.

    Raises:
        MissingDependencyError: the Kubernetes client is not installed.
    """
    opts = KubernetesOpts(
        service_account=service_account,
        reserved_millicpu=reserved_millicpu,
        reserved_memmb=reserved_memmb,
        efa_device_count=efa_device_count,
    )
    pod = specs.render_pod(role, specs.JobRules(opts), labels={}, env={})
    pod["metadata"]["name"] = pod["spec"]["containers"][0]["name"] = name
    return to_model(pod, "V1Pod")


def pod_labels(app: AppDef, role_idx: int, role: Role, replica_id: int, app_id: str) -> dict[str, str]:  # noqa: ARG001
    """Return the labels of a replica's pod."""
    return {**specs.role_labels(app, role_idx, app_id), LABEL_REPLICA_ID: str(replica_id)}


def prefix_container_name(container_name: str, role_name: str, replica_id: int) -> str:
    """Return the prefix of a container's log lines, in a pod with several containers."""
    return f"{role_name}/{replica_id}/{container_name}"


def sanitize_for_serialization(obj: object) -> object:
    """Convert models of the official client to plain dicts and lists."""
    return official().ApiClient().sanitize_for_serialization(obj)


def to_model(item: Object, kind: str) -> Any:
    """Convert plain dicts to a model of any version of the official client."""
    client = official()
    model = getattr(client, kind)
    if hasattr(model, "from_dict"):
        return model.from_dict(item)

    class Answer:
        data = json.dumps(item)

    return client.ApiClient().deserialize(Answer, kind)
