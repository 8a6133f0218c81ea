"""Names of the ``kubernetes_mcad`` scheduler that programs for earlier versions import."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torchx.compat.kubernetes import to_model
from torchx.schedulers.kit.names import DNS_LABEL
from torchx.schedulers.kubernetes import request
from torchx.schedulers.kubernetes.kinds import appwrapper, kinds
from torchx.schedulers.kubernetes.names import LABEL_REPLICA_ID, LABEL_ROLE_NAME, Object
from torchx.schedulers.kubernetes.options import KubernetesOpts
from torchx.schedulers.kubernetes.owners import appwrapper_state
from torchx.schedulers.kubernetes.pods import specs
from torchx.schedulers.kubernetes.reasons import APPWRAPPER_STATES
from torchx.specs.api import AppDef, AppState, ReplicaState, RetryPolicy, Role

JOB_STATE: dict[str, AppState] = {name: APPWRAPPER_STATES[name] for name in ("Pending", "Running", "Failed", "Deleted")}
TASK_STATE: dict[str, ReplicaState] = {
    "Pending dispatch": AppState.PENDING,
    "pending": AppState.PENDING,
    "running": AppState.RUNNING,
    "Succeeded": AppState.SUCCEEDED,
    "failed": AppState.FAILED,
    "Unknown": AppState.UNKNOWN,
}
RETRY_POLICIES: dict[str, list[dict[str, str]]] = {
    name: kinds.RETRY_POLICIES[name] for name in (RetryPolicy.REPLICA, RetryPolicy.APPLICATION)
}
_DEFAULT_PORT = "29500"
get_unique_truncated_appid = request.unique_id
object_labels = specs.object_labels


def app_to_resource(  # noqa: PLR0917  # public signature
    app: AppDef,
    namespace: str,
    service_account: str | None,
    image_secret: str | None,
    coscheduler_name: str | None,
    priority_class_name: str | None,
    network: str | None,
    priority: int | None = None,
) -> Object:
    """Render an app as an AppWrapper."""
    rules = _rules(namespace, service_account, image_secret, coscheduler_name, priority_class_name)
    return appwrapper.render(app, request.unique_id(app), rules, priority=priority, network=network)


def cleanup_str(data: str) -> str:
    """Convert ``data`` to a DNS label."""
    return DNS_LABEL.make(data)


def create_pod_group(app: AppDef, role: Role, role_idx: int, namespace: str, app_id: str) -> Object:
    """Return the PodGroup of one role, as a generic item of a v1beta1 AppWrapper."""
    name = f"{app_id}-{request.role_names(app)[role_idx]}"
    group = appwrapper.pod_group(role, name, namespace, specs.role_labels(app, role_idx, app_id))
    return {"replicas": 1, "generictemplate": group}


def enable_retry(job_spec: Object, appwrapper_retries: int, total_pods: int) -> None:
    """Set the retries in the spec of a v1beta1 AppWrapper."""
    job_spec["schedulingSpec"] = appwrapper.scheduling_spec(appwrapper_retries, total_pods)


def get_appwrapper_status(app: Object) -> AppState:
    """Return the state of an AppWrapper of either version."""
    return appwrapper_state(app)[1]


def get_port_for_service(app: AppDef) -> str:
    """Return the first port that a role exposes, or else the default port of torchrun."""
    return next((str(port) for role in app.roles for port in role.port_map.values()), _DEFAULT_PORT)


def get_role_information(generic_items: Iterable[Object]) -> dict[str, Any]:
    """Role name -> role, from the pods of a v1beta1 AppWrapper."""
    found: dict[str, Role] = {}
    for item in generic_items:
        template = item.get("generictemplate") or {}
        if template.get("kind") != "Pod":
            continue
        name = (template["metadata"].get("labels") or {}).get(LABEL_ROLE_NAME, "")
        container = template["spec"]["containers"][0]
        if name in found:
            found[name].num_replicas += 1
            continue
        entrypoint, *args = container.get("command") or [""]
        env = {v["name"]: v["value"] for v in container.get("env") or () if "value" in v}
        found[name] = Role(name, container["image"], entrypoint=entrypoint, args=args, env=env)
    return found


def get_tasks_status_description(status: Object) -> dict[str, int]:
    """Return the number of pods of a v1beta1 AppWrapper by state.

    >>> get_tasks_status_description({"running": 2, "Succeeded": 1, "state": "Running"})
    {'running': 2, 'Succeeded': 1}
    """
    return {name: int(status[name]) for name in TASK_STATE if str(status.get(name, "")).isdigit()}


def mcad_svc(app: AppDef, svc_name: str, namespace: str, service_port: str) -> Any:
    """Return the headless Service as a ``kubernetes.client.V1Service``."""
    service = request.headless_service(app, svc_name, specs.JobRules(KubernetesOpts(namespace=namespace)))
    service["spec"]["ports"] = [{"name": "port", "port": int(service_port)}]
    return to_model(service, "V1Service")


def pod_labels(  # noqa: PLR0917  # public signature
    app: AppDef,
    role_idx: int,
    role: Role,  # noqa: ARG001  # public signature
    replica_id: int,
    coscheduler_name: str | None,
    app_id: str,
) -> dict[str, str]:
    """Return the labels of a replica's pod."""
    labels = {**specs.role_labels(app, role_idx, app_id), LABEL_REPLICA_ID: str(replica_id)}
    if coscheduler_name:
        labels[appwrapper.POD_GROUP_LABEL] = f"{app_id}-{request.role_names(app)[role_idx]}"
    return labels


def role_to_pod(  # noqa: PLR0917  # public signature
    name: str,
    unique_app_id: str,
    namespace: str,
    role: Role,
    service_account: str | None,
    image_secret: str | None,
    coscheduler_name: str | None,
    priority_class_name: str | None,
    network: str | None,
) -> Any:
    """Render a replica as a ``kubernetes.client.V1Pod``."""
    rules = _rules(namespace, service_account, image_secret, coscheduler_name, priority_class_name)
    pod = specs.render_pod(role, rules, labels={}, env={})
    pod["metadata"].update(name=name, namespace=namespace)
    pod["spec"].update(hostname=name, subdomain=unique_app_id)
    pod["spec"]["containers"][0]["name"] = name
    if network:
        pod["metadata"]["annotations"][appwrapper.NETWORKS] = network
    return to_model(pod, "V1Pod")


def _rules(
    namespace: str,
    service_account: str | None,
    image_secret: str | None,
    scheduler_name: str | None,
    priority_class: str | None,
) -> specs.JobRules:
    opts = KubernetesOpts(
        namespace=namespace, service_account=service_account, image_secret=image_secret, priority_class=priority_class
    )
    return specs.JobRules(opts, scheduler_name=scheduler_name)
