"""Current resource usage of pods, from the cluster's metrics API, or else from the kubelets.

https://kubernetes.io/docs/reference/external-api/metrics.v1beta1/, and ``/stats/summary`` of a kubelet, which requires
the right to ``nodes/proxy``.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from urllib.parse import quote

from torchx.errors import NotFoundError, NotSupportedError, ParseError
from torchx.schedulers.kit.metrics import ReplicaMetrics, Sample
from torchx.schedulers.kubernetes.api.errors import ApiError, BusyError
from torchx.schedulers.kubernetes.client import KubeApi
from torchx.schedulers.kubernetes.doctor import amount
from torchx.schedulers.kubernetes.names import Object
from torchx.schedulers.kubernetes.pods.facts import main_container, unix_time

_UNAVAILABLE = (403, 404, 503)  # no right, or no server behind the API


def read(
    api: KubeApi, namespace: str, newest: Mapping[tuple[str, int], Object], query: Mapping[str, object]
) -> list[ReplicaMetrics]:
    """Return the usage of each replica, from its ``newest`` pod; ``query`` selects the pods of the job.

    NotSupportedError if the cluster has no metrics API, and we may not query its kubelets.
    """
    try:
        path = f"/apis/metrics.k8s.io/v1beta1/namespaces/{quote(namespace, safe='')}/pods"
        used = {str(item["metadata"]["name"]): _of_api(item) for item in api.items(path, query)}
    except BusyError:
        raise
    except (NotFoundError, ApiError) as e:
        if isinstance(e, ApiError) and e.status not in _UNAVAILABLE:
            raise
        used = _of_kubelets(api, namespace, list(newest.values()))
    found = []
    for (role, k), pod in newest.items():
        container = main_container(pod["spec"]["containers"])
        limits = (container.get("resources") or {}).get("limits") or {}
        memory = _amount(limits.get("memory"))
        one = ReplicaMetrics(role, k, _amount(limits.get("cpu")), None if memory is None else int(memory))
        sample = used.get(str(pod["metadata"]["name"]))
        one.samples = [sample] if sample is not None else []
        found.append(one)
    return found


def _of_api(item: Object) -> Sample:
    usage = [container.get("usage") or {} for container in item.get("containers") or ()]
    cpu = sum(_amount(one.get("cpu")) or 0.0 for one in usage)
    memory = sum(_amount(one.get("memory")) or 0.0 for one in usage)
    return Sample(unix_time(item.get("timestamp")) or time.time(), round(cpu, 3), int(memory))


def _of_kubelets(api: KubeApi, namespace: str, pods: Sequence[Object]) -> dict[str, Sample]:
    nodes = {str(pod["spec"].get("nodeName") or "") for pod in pods} - {""}
    used: dict[str, Sample] = {}
    for node in sorted(nodes):
        try:
            summary = api.get(f"/api/v1/nodes/{quote(node, safe='')}/proxy/stats/summary")
        except NotFoundError:  # the node is gone
            continue
        except ApiError as e:
            if e.status not in _UNAVAILABLE:
                raise
            raise NotSupportedError(
                "the cluster has no metrics API, and you may not query its kubelets",
                hint="install metrics-server, or get the right to `nodes/proxy`",
            ) from e
        for pod in summary.get("pods") or ():
            of = pod.get("podRef") or {}
            memory = pod.get("memory") or {}
            if of.get("namespace") == namespace and "workingSetBytes" in memory:
                nano = (pod.get("cpu") or {}).get("usageNanoCores")
                at = unix_time(memory.get("time")) or time.time()
                cpu = None if nano is None else round(int(nano) / 1e9, 3)
                used[str(of.get("name"))] = Sample(at, cpu, int(memory["workingSetBytes"]))
    return used


def _amount(text: object) -> float | None:
    """Return a quantity; None if it is missing or invalid."""
    try:
        return None if text is None else amount(text)
    except (ValueError, ParseError):
        return None
