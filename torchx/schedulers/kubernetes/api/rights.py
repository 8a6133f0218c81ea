"""The rights that a user needs in a namespace, as a Role for an administrator to apply.

https://kubernetes.io/docs/reference/access-authn-authz/rbac/
"""

from __future__ import annotations

from typing import Any

from torchx.schedulers.kit.manifests import shown_yaml
from torchx.schedulers.kubernetes import names
from torchx.schedulers.kubernetes.client import PLURALS, group_of

_OWNER = "create get list watch patch delete"
_PARTS = {
    "Pod": "list",
    "Pod/log": "get",
    "Pod/exec": "create",
    "Pod/portforward": "create",
    "Event": "list",
    "Secret": "create",
}
_OF_KIND = {
    names.JOB: {"Job": _OWNER, "Service": "create get list patch delete"},
    names.JOBSET: {"JobSet": _OWNER},
    names.VOLCANO: {"VolcanoJob": _OWNER, "Command": "create get", "PodGroup": "get"},
    names.KUBEFLOW: {"TrainJob": _OWNER, "TrainingRuntime": "get"},
    names.PYTORCH: {"PyTorchJob": _OWNER},
    # its webhook asks whether the user may create what it wraps
    names.APPWRAPPER: {"AppWrapper": _OWNER, "Pod": "create list", "Service": "create"},
    names.OLD_APPWRAPPER: {"AppWrapperV1Beta1": "create get list watch delete"},
}
"""Kind of job -> kinds of objects -> verbs, in addition to :data:`_PARTS`: also the rights that a webhook asks for."""

_WEBSOCKET = {"Pod/exec": "create get"}
"""A websocket is opened by GET: without the right to ``get`` it is SPDY."""
_COSCHEDULED = {"CoschedulingPodGroup": "create"}

_QUEUED = {"Workload": "list patch", "LocalQueue": "list"}
"""For removing a job from a queue of Kueue, reporting why it waits there, and the queues in `torchx nodes`."""
_INLINE = {"ConfigMap": "create get"}
_SWEEP = {"ConfigMap": "create get patch", "Pod": "list delete"}
"""For the values of a sweep, which is a Job, and for cancelling single tasks."""


_COPY = {"Pod": "create list delete"}
"""For `torchx cp` of a job that has ended, from its claims: see :mod:`torchx.schedulers.kubernetes.claims`."""
_GANG = {"PodGroupV1Alpha2": "create get"}
"""For a gang of plain Jobs, where the cluster schedules gangs."""
_ORDER = {"Service": "create"}
"""For roles that wait for each other, beside what the operator creates."""


def needed(kind: str, *, queued: bool, inline: bool = False, coscheduled: bool = False) -> dict[str, str]:
    """Return the rights for jobs of a kind (of :data:`names.OWNERS`): kind or subresource -> verbs."""
    more = (_PARTS, _QUEUED if queued else {}, _INLINE if inline else {}, _COSCHEDULED if coscheduled else {})
    found: dict[str, str] = {}
    for rights in (_OF_KIND[kind], *more):
        for name, verbs in rights.items():
            found[name] = " ".join(dict.fromkeys(f"{found.get(name, '')} {verbs}".split()))
    return found


def role_manifest(kind: str, namespace: str, *, queued: bool, inline: bool = False, coscheduled: bool = False) -> str:
    """Return the least rights for all commands, as a Role in YAML; ``queued`` is by Kueue,
    ``inline`` code in a ConfigMap.
    """
    own = needed(kind, queued=queued, inline=inline, coscheduled=coscheduled)
    more = _SWEEP | _GANG if kind == names.JOB else _ORDER if kind in (names.JOBSET, names.VOLCANO) else {}
    rights = {**own, **_WEBSOCKET, **more, **_COPY}
    role = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "Role",
        "metadata": {"name": f"torchx-{kind}", "namespace": namespace},
        "rules": [_rule(name, verbs.split()) for name, verbs in rights.items()],
    }
    about = f"# the least rights for jobs of kind {names.OWNERS[kind]}; to give them to somebody:"
    bind = f"kubectl create rolebinding torchx-{kind} -n {namespace} --role torchx-{kind} --user NAME"
    return f"{about}\n#   {bind}\n{shown_yaml(role)}"


def _rule(name: str, verbs: list[str]) -> dict[str, Any]:
    kind, slash, sub = name.partition("/")
    return {"apiGroups": [group_of(kind)], "resources": [PLURALS[kind][1] + slash + sub], "verbs": verbs}
