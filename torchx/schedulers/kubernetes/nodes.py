"""What is free on the nodes of a Kubernetes cluster: what they have, less what the pods on them ask for."""

from __future__ import annotations

from typing import Any

from torchx.errors import BackendError
from torchx.schedulers.kit.nodes import Node
from torchx.schedulers.kubernetes.client import KubeApi
from torchx.schedulers.kubernetes.doctor import amount

_Object = dict[str, Any]
_POOLS = (
    "cloud.google.com/gke-nodepool",
    "eks.amazonaws.com/nodegroup",
    "karpenter.sh/nodepool",
    "kubernetes.azure.com/agentpool",
    "node.kubernetes.io/instance-type",
)
_KINDS = ("nvidia.com/gpu.product", "cloud.google.com/gke-accelerator", "karpenter.k8s.aws/instance-gpu-name")
_ENDED = ("Succeeded", "Failed")
_KEEP_AWAY = ("NoSchedule", "NoExecute")


def nodes(api: KubeApi) -> list[Node]:
    """Return the nodes; what is free is unknown if the user may not list all pods."""
    try:
        pods: list[_Object] | None = api.items("/api/v1/pods")
    except BackendError:
        pods = None
    used: dict[str, dict[str, float]] = {}
    for pod in pods or ():
        spec, phase = pod.get("spec") or {}, (pod.get("status") or {}).get("phase")
        if spec.get("nodeName") and phase not in _ENDED:
            sums = used.setdefault(spec["nodeName"], {})
            for container in spec.get("containers") or ():
                for name, text in ((container.get("resources") or {}).get("requests") or {}).items():
                    sums[name] = sums.get(name, 0) + amount(text)
    return [_node(node, used, is_known=pods is not None) for node in api.items("/api/v1/nodes")]


def _node(node: _Object, used: dict[str, dict[str, float]], *, is_known: bool) -> Node:
    about, spec, status = (node.get(key) or {} for key in ("metadata", "spec", "status"))
    labels, room = about.get("labels") or {}, status.get("allocatable") or {}
    taken = used.get(str(about.get("name")), {})
    gpu = next((name for name in room if name.endswith("/gpu")), "nvidia.com/gpu")
    ready = {c.get("type"): c.get("status") for c in status.get("conditions") or ()}.get("Ready") == "True"
    # GPU nodes are usually tainted for jobs that ask for GPUs; other taints keep jobs away
    kept = any(t.get("effect") in _KEEP_AWAY and t.get("key") != gpu for t in spec.get("taints") or ())
    has = {name: amount(room.get(name, 0)) for name in ("cpu", "memory", gpu)}
    free = {name: max(value - taken.get(name, 0), 0) if is_known else -1 for name, value in has.items()}
    return Node(
        next((str(labels[name]) for name in _POOLS if name in labels), "nodes"),
        int(has["cpu"]),
        int(has["memory"]) >> 20,
        int(has[gpu]),
        next((str(labels[name]) for name in _KINDS if name in labels), ""),
        int(free["cpu"]),
        int(free["memory"]) >> 20 if is_known else -1,
        int(free[gpu]),
        ready and not kept and not spec.get("unschedulable"),
    )
