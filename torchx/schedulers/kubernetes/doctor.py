"""What keeps jobs from running on a cluster: who answers, what one may do there, what pods need, where they fit."""

from __future__ import annotations

import re
from _thread import allocate_lock
from functools import partial

from torchx.errors import BackendError, NotFoundError, ParseError, TransientError
from torchx.schedulers.findings import BAD, GOOD, UNKNOWN, Check, Finding
from torchx.schedulers.findings.images import image_checks
from torchx.schedulers.kubernetes.client import PLURALS, KubeApi
from torchx.schedulers.kubernetes.names import JOB, OWNERS
from torchx.schedulers.kubernetes.refusals import FORBIDDEN, ApiError, unless_forbidden

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Any

    from torchx.specs.api import AppDryRunInfo

    _Object = dict[str, Any]

_UNITS = {"": 1.0, "n": 1e-9, "u": 1e-6, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
_UNITS |= {f"{letter}i": 1024.0**power for power, letter in enumerate("KMGTPE", start=1)}
_MOST_IMAGES = 50  # that a node lists, unless its kubelet is configured otherwise
_PASSES = re.compile(
    r"exceeded quota|time(d )?out|connection refused|failed calling webhook|invalid JSON", re.IGNORECASE
)
_GROWS = {"karpenter.sh", "autoscaling.x-k8s.io", "cluster.x-k8s.io"}


class HastyApi(KubeApi):
    """One cluster, for checks: nothing is tried again, and an answer has to come at once."""

    _attempts = 1
    _most_s = 2.0


def of_cluster(
    api: KubeApi, namespace: str, kind: str, needed: Callable[[], dict[str, str]], queues: Mapping[str, str]
) -> list[Check]:
    """The questions about a cluster.

    Args:
        kind: of the jobs, a key of :data:`OWNERS`, or ``auto``.
        needed: asks what jobs become there, and returns kinds of objects and the verbs on them.
        queues: names of queues by their plural.
    """
    within = {
        "localqueues": f"kueue.x-k8s.io/v1beta1/namespaces/{namespace}",
        "queues": "scheduling.volcano.sh/v1beta1",
    }
    places = {name: f"/apis/{within[plural]}/{plural}/{name}" for plural, name in queues.items() if name}
    shown = f"`kubectl create namespace {namespace}`, or `-cfg namespace=NAME`"
    return [
        Check("cluster", lambda: _cluster(api)),
        Check("namespace", lambda: _there(api, f"namespace `{namespace}`", f"/api/v1/namespaces/{namespace}", shown)),
        Check("kind", lambda: _kind(api, kind)),
        Check("rights", lambda: _rights(api, namespace, needed())),
        *(
            Check(
                name,
                partial(_there, api, f"queue `{name}`", place, f"`kubectl get {place.split('/')[-2]} -n {namespace}`"),
            )
            for name, place in places.items()
        ),
    ]


def of_job(api: KubeApi, namespace: str, job: AppDryRunInfo[Any], objects: Callable[[], list[_Object]]) -> list[Check]:
    """The questions about one job.

    Args:
        objects: asks the cluster what the job becomes there.
    """
    specs, nodes = [*_pod_specs(job.request.resource)], _Nodes(api)
    return [
        Check("admission", lambda: _admission(api, objects)),
        *(Check(what, partial(_there, api, what, path, fix)) for what, path, fix in _references(specs, namespace)),
        Check("quota", lambda: _quotas(api, namespace, specs, job)),
        Check("nodes", lambda: _fits(api, nodes, specs)),
        *image_checks(job, nodes.architectures, nodes.have),
    ]


class _Nodes:
    """The nodes, as far as we may see them; asked once."""

    def __init__(self, api: KubeApi) -> None:
        self._api, self._lock = api, allocate_lock()
        self._found: list[_Object] | None = None

    def all(self) -> list[_Object]:
        with self._lock:
            if self._found is None:
                nothing: list[_Object] = []
                self._found = unless_forbidden(lambda: [*self._api.items("/api/v1/nodes")], nothing)
        return self._found

    def architectures(self) -> set[str]:
        found = {str(((node.get("status") or {}).get("nodeInfo") or {}).get("architecture", "")) for node in self.all()}
        return set() if "" in found else found

    def have(self, image: str) -> bool | None:
        """Whether one of them has an image; None where not all are seen, or they do not list all that they have."""
        there = [(node.get("status") or {}).get("images") or [] for node in self.all()]
        short = image.removeprefix("docker.io/").removeprefix("library/")
        if any(str(name).endswith(short) for images in there for one in images for name in one.get("names") or ()):
            return True
        return False if there and all(len(images) < _MOST_IMAGES for images in there) else None


def amount(text: object) -> float:
    """A quantity as the API writes it.

    >>> amount("1500m"), amount("2Gi"), amount(3)
    (1.5, 2147483648.0, 3.0)
    """
    found = re.fullmatch(r"([0-9.]+(?:[eE][+-]?\d+)?)([a-zA-Z]*)", str(text))
    if found is None or found[2] not in _UNITS:
        raise ParseError(f"`{text}` is not a quantity", text=str(text))
    return float(found[1]) * _UNITS[found[2]]


def _cluster(api: KubeApi) -> Finding:
    try:
        major, minor = api.version()
    except TransientError:
        raise
    except BackendError as e:  # no kubeconfig, another certificate, or it refuses us
        return Finding(BAD if not isinstance(e, ApiError) or e.status == 401 else UNKNOWN, "cluster", str(e), e.hint)
    return Finding(GOOD, "cluster", f"Kubernetes {major}.{minor} at `{api.client.configuration.host}`")


def _there(api: KubeApi, what: str, path: str, fix: str) -> Finding:
    """Whether there is an object that jobs refer to, and can be used."""
    try:
        status = api.get(path).get("status") or {}
    except NotFoundError as e:
        unclear = "could not find the requested" in str(e)  # that version of its kind
        return Finding(UNKNOWN if unclear else BAD, what, str(e) if unclear else "does not exist", fix)
    except ApiError as e:
        if e.status != FORBIDDEN:
            raise
        return Finding(UNKNOWN, what, "may not be looked at, which jobs do not need")
    if status.get("phase") in ("Lost", "Terminating"):
        return Finding(BAD, what, f"is {status['phase']}", fix)
    said = [
        c.get("message")
        for c in status.get("conditions") or ()
        if (c.get("type"), c.get("status")) == ("Active", "False")
    ]
    return Finding(UNKNOWN, what, f"takes no jobs now: {said[0]}", fix) if said else Finding(GOOD, what, "is there")


def _kind(api: KubeApi, kind: str) -> Finding:
    groups = {group.partition("/")[0] for group in api.groups()}
    if kind not in OWNERS or kind == JOB or not groups:
        known = {"JobSet": "jobset.x-k8s.io", "Volcano": "batch.volcano.sh", "Kueue": "kueue.x-k8s.io"}
        there = [name for name, group in known.items() if group in groups]
        return Finding(
            GOOD if groups else UNKNOWN, "kind", f"`{kind}`; beside Jobs, the cluster has {', '.join(there) or 'none'}"
        )
    group = PLURALS[OWNERS[kind]][0].split("/")[1]
    if group in groups:
        return Finding(GOOD, "kind", f"`{kind}`: the cluster has `{group}`")
    return Finding(BAD, "kind", f"`{kind}`: the cluster has no `{group}`", "`-cfg kind=job` needs no operator")


def _rights(api: KubeApi, namespace: str, needed: dict[str, str]) -> Iterator[Finding]:
    """https://kubernetes.io/docs/reference/access-authn-authz/authorization/#checking-api-access"""
    missing = {
        kind: [verb for verb in verbs.split() if not api.may(verb, kind, namespace)] for kind, verbs in needed.items()
    }
    vital = (next(iter(needed)), "Service", "ConfigMap", "Pod")  # the first owns the job
    fix = "to be granted by an administrator: `torchx runopts kubernetes --rbac`"
    for kind, verbs in missing.items():
        if verbs:
            said = f"you may not {', '.join(verbs)} {kind} in `{namespace}`"
            yield Finding(
                BAD if kind in vital else UNKNOWN, "rights", said if kind in vital else f"{said}; jobs run without", fix
            )
    if not any(missing.values()):
        yield Finding(
            GOOD, "rights", f"all {sum(len(v.split()) for v in needed.values())} that are used in `{namespace}`"
        )


def _pod_specs(item: Any) -> Iterator[_Object]:
    """The specs of pods within an object."""
    if isinstance(item, dict) and isinstance(item.get("containers"), list):
        yield item
    for value in item.values() if isinstance(item, dict) else item if isinstance(item, list) else ():
        yield from _pod_specs(value)


def _admission(api: KubeApi, objects: Callable[[], list[_Object]]) -> Finding:
    try:
        made = [item for item in objects() if item["kind"] != "ConfigMap"]  # the code
        for item in made:
            api.create(item, dry_run=True)
    except TransientError:
        raise
    except BackendError as e:
        unclear = isinstance(e, ParseError) or _PASSES.search(str(e))
        return Finding(UNKNOWN if unclear else BAD, "admission", str(e), e.hint)
    return Finding(GOOD, "admission", f"the API server would take its {len(made)} objects")


def _references(specs: list[_Object], namespace: str) -> dict[tuple[str, str, str], None]:
    """What pods cannot start without: what it is, its path, how to have it."""
    found: dict[tuple[str, str, str], None] = {}

    def need(kind: str, plural: str, name: object, base: str = f"/api/v1/namespaces/{namespace}") -> None:
        if name:
            fix = f"`kubectl get {plural} -n {namespace}` shows what there is"
            if plural == "serviceaccounts":
                fix = f"`kubectl create serviceaccount {name} -n {namespace}`"
            found[f"{kind} `{name}`", f"{base}/{plural}/{name}", fix] = None

    for spec in specs:
        need("service account", "serviceaccounts", spec.get("serviceAccountName"))
        need("priority class", "priorityclasses", spec.get("priorityClassName"), "/apis/scheduling.k8s.io/v1")
        for volume in spec.get("volumes") or ():
            need("claim", "persistentvolumeclaims", (volume.get("persistentVolumeClaim") or {}).get("claimName"))
            secret = volume.get("secret") or {}
            need("secret", "secrets", "" if secret.get("optional") else secret.get("secretName"))
    return found


def _requests(spec: _Object) -> dict[str, float]:
    """What a pod asks for, all its containers together."""
    found: dict[str, float] = {}
    for container in spec["containers"]:
        for name, text in ((container.get("resources") or {}).get("requests") or {}).items():
            found[name] = found.get(name, 0) + amount(text)
    return found


def _quotas(api: KubeApi, namespace: str, specs: list[_Object], job: AppDryRunInfo[Any]) -> Iterator[Finding]:
    """Against what the job needs at the least; a quota for some pods only is left to admission."""
    wanted: dict[str, float] = {}
    for spec, role in zip(specs, job._app.roles if job._app is not None else [], strict=False):
        for name, each in {"pods": 1.0, **_requests(spec)}.items():
            for key in ("pods",) if name == "pods" else (name, f"requests.{name}"):
                wanted[key] = wanted.get(key, 0) + each * (role.min_replicas or role.num_replicas)
    quotas = unless_forbidden(lambda: [*api.items(f"/api/v1/namespaces/{namespace}/resourcequotas")], None)
    found = []
    for quota in quotas or ():
        spec, name = quota.get("spec") or {}, quota["metadata"]["name"]
        status = {} if spec.get("scopes") or spec.get("scopeSelector") else quota.get("status") or {}
        for key, text in (status.get("hard") or {}).items():
            hard, used, want = amount(text), amount((status.get("used") or {}).get(key, 0)), wanted.get(key, 0)
            if want > hard - used:
                said = f"{want:g} of `{key}` are needed, `{name}` allows {hard:g}, of which {used:g} are in use"
                fix = f"fewer or smaller replicas; `kubectl describe quota {name} -n {namespace}`"
                found.append(Finding(BAD if want > hard else UNKNOWN, "quota", said, fix))
    all_well = (
        Finding(GOOD, "quota", "the job is within it")
        if quotas is not None
        else Finding(UNKNOWN, "quota", "may not be looked at")
    )
    yield from found or [all_well]


def _fits(api: KubeApi, nodes: _Nodes, specs: list[_Object]) -> Iterator[Finding]:
    there = nodes.all()
    if not there:
        yield Finding(UNKNOWN, "nodes", "may not be looked at")
        return
    for wanted, labels in {repr(n): n for n in [(_requests(s), s.get("nodeSelector") or {}) for s in specs]}.values():
        count = sum(_has_room(node, wanted, labels) for node in there)
        asked = ", ".join([*(f"{name} {value:g}" for name, value in wanted.items()), *map("=".join, labels.items())])
        said = f"{count or 'none'} of {len(there)} are large enough for a replica ({asked})"
        fix = "`kubectl get nodes -o custom-columns=N:.metadata.name,A:.status.allocatable` shows what they have"
        yield Finding(GOOD if count else UNKNOWN if _may_grow(api, there) else BAD, "nodes", said, "" if count else fix)


def _has_room(node: _Object, wanted: Mapping[str, float], labels: Mapping[str, str]) -> bool:
    room = (node.get("status") or {}).get("allocatable") or {}
    fits = all(amount(room.get(name, 0)) >= value for name, value in wanted.items())
    return fits and labels.items() <= (node["metadata"].get("labels") or {}).items()


def _may_grow(api: KubeApi, there: list[_Object]) -> bool:
    """Whether somebody may add nodes: those of a cloud, or an autoscaler that is seen."""
    clouds = {str((node.get("spec") or {}).get("providerID") or "").partition("://")[0] for node in there}
    groups = {group.partition("/")[0] for group in api.groups()}
    if clouds - {"", "kind", "k3s"} or not groups or _GROWS & groups:
        return True
    try:
        return bool(api.get("/api/v1/namespaces/kube-system/configmaps/cluster-autoscaler-status"))
    except (NotFoundError, BackendError) as e:
        return not isinstance(e, NotFoundError)
