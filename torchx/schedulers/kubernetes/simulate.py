"""Simulates faults of pods with the Kubernetes API.

Hangs, full memory and lost nodes are not supported: the main process of a container cannot be stopped from within, and
users have no rights to nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from torchx.errors import BackendError
from torchx.schedulers.kit.simulations import Simulation, cannot
from torchx.schedulers.kubernetes.client import KubeApi, path_of
from torchx.schedulers.kubernetes.names import Object
from torchx.schedulers.kubernetes.pods.facts import read_pods
from torchx.specs.api import AppState

_POLICY_V1 = (1, 22)
_WHY_NOT = {
    "oom": "the memory of a container cannot be filled from outside",
    "node": "the nodes are not yours; ask an administrator for `kubectl drain`",
    "hang": "the main process of a container cannot be stopped from outside",
}


def simulation(
    api: KubeApi, items: Sequence[Object], fault: str, replica: tuple[str, int], *, roles: Sequence[str], backend: str
) -> Simulation:
    """Return the simulation of a fault of a job with these pods and ``roles``;
    see :class:`.kit.abilities.Simulates`.
    """
    if fault in _WHY_NOT:
        raise cannot(backend, fault, _WHY_NOT[fault], instead="preempt" if fault == "node" else "kill")
    running = [pod for pod in read_pods(items) if pod.facts.state is AppState.RUNNING]
    namespace = items[0]["metadata"]["namespace"] if items else ""
    if fault == "timeout":
        paths = [path_of("Pod", namespace, pod.name) for pod in running]
        which = f"pod {running[0].name}" if len(running) == 1 else f"{len(running)} pods"
        says = f"`activeDeadlineSeconds` of {which} becomes 1 s"
        return Simulation(says, partial(_expire, api, paths))
    names = dict(enumerate(roles))
    pod = next((p for p in running if (names.get(p.role_index), p.facts.replica) == replica), None)
    if pod is None:
        raise BackendError(f"replica {replica[0]}/{replica[1]} is not running now: none of its pods is ready")
    path = path_of("Pod", namespace, pod.name)
    if fault == "kill":
        return Simulation(f"pod {pod.name} is removed at once, by SIGKILL", partial(api.delete, path, grace_s=0))
    return Simulation(f"pod {pod.name} is evicted", partial(_evict, api, path, namespace, pod.name))


def _expire(api: KubeApi, paths: Sequence[str]) -> None:
    for path in paths:
        api.patch(path, {"spec": {"activeDeadlineSeconds": 1}})


def _evict(api: KubeApi, path: str, namespace: str, name: str) -> None:
    """https://kubernetes.io/docs/concepts/scheduling-eviction/api-eviction/"""
    version = "policy/v1" if api.version() >= _POLICY_V1 else "policy/v1beta1"
    metadata = {"name": name, "namespace": namespace}
    api.post(f"{path}/eviction", {"apiVersion": version, "kind": "Eviction", "metadata": metadata})
