"""Checks of a cluster and of a job on it: connection, rights, the objects that pods refer to, quotas, nodes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

from torchx.errors import BackendError, NotFoundError, ParseError
from torchx.schedulers.kit.findings import GOOD, LIMIT_S, Check, Finding, bad, doubt, once, silent
from torchx.schedulers.kit.findings.images import image_checks
from torchx.schedulers.kubernetes.api.errors import FORBIDDEN, ApiError, MissingError, unless_forbidden
from torchx.schedulers.kubernetes.client import KubeApi, group_of
from torchx.schedulers.kubernetes.names import JOB, LABEL_ROLE_INDEX, OWNERS, Object, labels_of
from torchx.specs.api import AppDryRunInfo, Role

_UNITS = {"": 1.0, "n": 1e-9, "u": 1e-6, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
_UNITS |= {f"{letter}i": 1024.0**power for power, letter in enumerate("KMGTPE", start=1)}
_MAX_IMAGES = 50  # the default maximum in the status of a node
_TRANSIENT = re.compile(
    r"exceeded quota|time(d )?out|connection refused|failed calling webhook|invalid JSON", re.IGNORECASE
)
_QUOTA = re.compile(r"exceeded quota: .*?requested: (\S+), used: \S+, limited: (\S+)")
_AUTOSCALERS = {"karpenter.sh", "autoscaling.x-k8s.io", "cluster.x-k8s.io"}
_UNSEEN = "not checked: you may not read it"
_GRANT = "an administrator can grant it: `torchx runopts kubernetes --rbac`"
_SHOW_NODES = "`kubectl get nodes -o custom-columns=N:.metadata.name,A:.status.allocatable` shows what they have"

_NAMED = {
    "namespaces": ("namespace", "/api/v1", "create namespace {name}`, or `-cfg namespace=NAME"),
    "localqueues": ("queue", "/apis/kueue.x-k8s.io/v1beta2/namespaces/{space}", ""),
    "queues": ("queue", "/apis/scheduling.volcano.sh/v1beta1", ""),
    "serviceaccounts": ("service account", "/api/v1/namespaces/{space}", "create serviceaccount {name} -n {space}"),
    "priorityclasses": ("priority class", "/apis/scheduling.k8s.io/v1", ""),
    "persistentvolumeclaims": ("claim", "/api/v1/namespaces/{space}", ""),
    "secrets": ("secret", "/api/v1/namespaces/{space}", ""),
}
"""Kinds that jobs refer to, by their plural: the word for one, its path, and the kubectl command that creates one."""


class HastyApi(KubeApi):
    """A client for checks, without retries, which gives up a little before the time limit of the checks."""

    _attempts = 1

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._timeout_s = LIMIT_S.get() * 0.9


def of_cluster(
    api: KubeApi, namespace: str, kind: str, needed: Callable[[], dict[str, str]], queues: Mapping[str, str]
) -> list[Check]:
    """Return the checks of a cluster for jobs of a kind, a key of :data:`OWNERS` or ``auto``.

    ``needed`` returns the rights that they need there: kind -> verbs. ``queues`` has names of queues by their plural.
    """
    return [
        Check("cluster", lambda: _cluster(api), certain=(BackendError,), vital=True),
        *_named(api, namespace, [("namespaces", namespace)]),
        Check("kind", lambda: _kind(api, kind)),
        Check("rights", lambda: _rights(api, namespace, needed())),
        *_named(api, namespace, queues.items()),
    ]


def of_job(api: KubeApi, namespace: str, job: AppDryRunInfo[Any], objects: Callable[[], list[Object]]) -> list[Check]:
    """Return the checks of one job; ``objects`` returns its objects on this cluster."""
    nodes = once(lambda: unless_forbidden(lambda: api.items("/api/v1/nodes"), []))
    templates, roles = [*_pod_templates(job.request.resource)], job._app.roles if job._app is not None else []
    specs = [template["spec"] for template in templates]
    return [
        Check("admission", lambda: _admission(api, objects), certain=(BackendError,)),
        *_named(api, namespace, (named for spec in specs for named in _references(spec))),
        Check("quota", lambda: _quotas(api, namespace, templates, roles)),
        Check("nodes", lambda: _fits(api, nodes(), specs)),
        *image_checks(job, lambda: _architectures(nodes()), lambda image: _has_image(nodes(), image)),
    ]


def amount(text: object) -> float:
    """Parse a quantity of the API.

    >>> amount("1500m"), amount("2Gi"), amount(3)
    (1.5, 2147483648.0, 3.0)
    """
    found = re.fullmatch(r"([0-9.]+(?:[eE][+-]?\d+)?)([a-zA-Z]*)", str(text))
    if found is None or found[2] not in _UNITS:
        raise ParseError(f"`{text}` is not a quantity", text=str(text))
    return float(found[1]) * _UNITS[found[2]]


# -- the cluster ---------------------------------------------------------------------------------------


def _cluster(api: KubeApi) -> str | Finding:
    try:
        major, minor = api.version()
    except ApiError as e:
        if e.status == 401:
            raise
        return (doubt if e.status == FORBIDDEN else silent)(str(e), e.hint)
    return f"Kubernetes {major}.{minor} at `{api.client.configuration.host}`"


def _named(api: KubeApi, namespace: str, names: Iterable[tuple[str, str]]) -> Iterator[Check]:
    """Yield a check for each pair of a plural and a name; pairs with an empty name are skipped."""
    for plural, name in dict.fromkeys(names):
        if name:
            word, base, make = (text.format(space=namespace, name=name) for text in _NAMED[plural])
            fix = f"`kubectl {make}`" if make else f"`kubectl get {plural} -n {namespace}` shows what there is"
            yield Check(f"{word} `{name}`", partial(_exists, api, f"{base}/{plural}/{name}", fix))


def _exists(api: KubeApi, path: str, fix: str) -> str | Finding:
    """Whether an object exists and can be used."""
    try:
        status = api.get(path).get("status") or {}
    except NotFoundError as e:
        no_kind = "could not find the requested" in str(e)  # the cluster lacks this API version
        if no_kind and "/v1beta2/" in path:
            return _exists(api, path.replace("/v1beta2/", "/v1beta1/"), fix)
        return doubt(str(e), fix) if no_kind else bad("does not exist", fix)
    except ApiError as e:
        if e.status != FORBIDDEN:
            raise
        return doubt(f"{_UNSEEN}, but jobs do not need this right")
    if status.get("phase") in ("Lost", "Terminating"):
        return bad(f"is {status['phase']}", fix)
    for condition in status.get("conditions") or ():
        if (condition.get("type"), condition.get("status")) == ("Active", "False"):
            return doubt(f"takes no jobs now: {condition.get('message')}", fix)
    return "exists"


def _kind(api: KubeApi, kind: str) -> str | Finding:
    groups = {group.partition("/")[0] for group in api.groups()}
    if kind in OWNERS and kind != JOB and groups:
        group = group_of(OWNERS[kind])
        if group in groups:
            return f"`{kind}`: the cluster has `{group}`"
        return bad(f"`{kind}`: the cluster has no `{group}`", "`-cfg kind=job` needs no operator")
    known = {"JobSet": "jobset.x-k8s.io", "Volcano": "batch.volcano.sh", "Kueue": "kueue.x-k8s.io"}
    there = ", ".join(name for name, group in known.items() if group in groups)
    said = f"`{kind}`; besides Jobs, the cluster has {there or 'none'}"
    return said if groups else doubt(said)


def _rights(api: KubeApi, namespace: str, needed: dict[str, str]) -> str | list[Finding]:
    """https://kubernetes.io/docs/reference/access-authn-authz/authorization/#checking-api-access"""
    vital, found = (next(iter(needed)), "Service", "ConfigMap", "Pod"), []  # the first one is the owner
    for kind, verbs in needed.items():
        missing = [verb for verb in verbs.split() if not api.may(verb, kind, namespace)]
        said = f"you may not {', '.join(missing)} {kind} in `{namespace}`"
        if missing:
            found.append(bad(said, _GRANT) if kind in vital else doubt(f"{said}; jobs run without", _GRANT))
    return found or f"all {sum(len(verbs.split()) for verbs in needed.values())} that are used in `{namespace}`"


# -- one job -------------------------------------------------------------------------------------------


def _pod_templates(item: Any) -> Iterator[Object]:
    """Yield the pod templates within an object."""
    if isinstance(item, dict) and item.get("kind") == "TrainJob":  # the resources are not in its template
        (template,) = _pod_templates(item["spec"]["runtimePatches"])
        container = {**template["spec"]["containers"][0], "resources": item["spec"]["trainer"]["resourcesPerNode"]}
        yield {**template, "spec": {**template["spec"], "containers": [container]}}
        return
    if isinstance(item, dict) and isinstance(item.get("spec"), dict) and "containers" in item["spec"]:
        yield item
    for value in item.values() if isinstance(item, dict) else item if isinstance(item, list) else ():
        yield from _pod_templates(value)


def _admission(api: KubeApi, objects: Callable[[], list[Object]]) -> str | Finding:
    try:
        made = [item for item in objects() if item["kind"] != "ConfigMap"]  # without the code
        for item in made:
            api.create(item, dry_run=True)
    except BackendError as e:
        if isinstance(e, ParseError) or (_TRANSIENT.search(str(e)) and not _never_fits(str(e))):
            return doubt(str(e), e.hint)
        raise
    return f"the API server accepts its {len(made)} object{'s' * (len(made) != 1)}"


def of_small_job(api: KubeApi, objects: Callable[[], list[Object]]) -> Check:
    """Return the check whether the API server, with its policies and webhooks, would accept these objects."""

    def ask() -> str | Finding | list[Finding]:
        try:
            return _admission(api, objects)
        except MissingError:  # other checks say so
            return []

    return Check("small job", ask, certain=(BackendError,))


def _never_fits(refusal: str) -> bool:
    """Whether a refusal by a quota is for more than the quota allows at all, whatever else runs.

    >>> _never_fits("exceeded quota: q, requested: pods=1, used: pods=0, limited: pods=0")
    True
    >>> _never_fits("exceeded quota: q, requested: pods=1, used: pods=2, limited: pods=2")
    False
    """
    found = _QUOTA.search(refusal)
    if found is None:
        return False
    wanted, limits = (dict(pair.partition("=")[::2] for pair in text.split(",")) for text in found.groups())
    try:
        return any(amount(wanted[name]) > amount(limits[name]) for name in wanted.keys() & limits.keys())
    except ParseError:
        return False


def _references(spec: Object) -> Iterator[tuple[str, str]]:
    """Yield the objects without which a pod cannot start: plural and name."""
    yield "serviceaccounts", spec.get("serviceAccountName") or ""
    yield "priorityclasses", spec.get("priorityClassName") or ""
    for volume in spec.get("volumes") or ():
        yield "persistentvolumeclaims", (volume.get("persistentVolumeClaim") or {}).get("claimName") or ""
        secret = volume.get("secret") or {}
        yield "secrets", "" if secret.get("optional") else secret.get("secretName") or ""


def _requests(spec: Object) -> dict[str, float]:
    """Return the resource requests of a pod, summed over its containers."""
    found: dict[str, float] = {}
    for container in spec["containers"]:
        for name, text in ((container.get("resources") or {}).get("requests") or {}).items():
            found[name] = found.get(name, 0) + amount(text)
    return found


def _quotas(api: KubeApi, namespace: str, templates: list[Object], roles: list[Role]) -> str | Finding | list[Finding]:
    """Compare quotas with the minimum that the job needs; the admission check covers quotas with scopes."""
    wanted: dict[str, float] = {}
    of_role = {int(labels_of(template)[LABEL_ROLE_INDEX]): template["spec"] for template in templates}
    for i, role in enumerate(roles):
        for name, each in {"pods": 1.0, **_requests(of_role.get(i, {"containers": []}))}.items():
            for key in (name, f"requests.{name}"):
                wanted[key] = wanted.get(key, 0) + each * (role.min_replicas or role.num_replicas)
    quotas = unless_forbidden(lambda: api.items(f"/api/v1/namespaces/{namespace}/resourcequotas"), None)
    found = []
    for quota in quotas or ():
        spec, status, name = quota.get("spec") or {}, quota.get("status") or {}, quota["metadata"]["name"]
        for key, text in (status.get("hard") or {}).items():
            hard, used, want = amount(text), amount((status.get("used") or {}).get(key, 0)), wanted.get(key, 0)
            if want > hard - used and not spec.get("scopes") and not spec.get("scopeSelector"):
                said = f"{want:g} of `{key}` are needed, `{name}` allows {hard:g}, of which {used:g} are in use"
                fix = f"fewer or smaller replicas; `kubectl describe quota {name} -n {namespace}`"
                found.append(bad(said, fix) if want > hard else doubt(said, fix))
    return doubt(_UNSEEN) if quotas is None else found or "the job is within it"


def _fits(api: KubeApi, nodes: list[Object], specs: list[Object]) -> Iterator[Finding]:
    if not nodes:
        yield doubt(_UNSEEN)
        return
    for wanted, labels in {repr(n): n for n in [(_requests(s), s.get("nodeSelector") or {}) for s in specs]}.values():
        count = sum(_has_room(node, wanted, labels) for node in nodes)
        asked = ", ".join([*(f"{name} {value:g}" for name, value in wanted.items()), *map("=".join, labels.items())])
        said = f"{count or 'none'} of {len(nodes)} are large enough for a replica ({asked})"
        if count:
            yield Finding(GOOD, "", said)
        else:
            yield doubt(said, _SHOW_NODES) if _may_grow(api, nodes) else bad(said, _SHOW_NODES)


def _has_room(node: Object, wanted: Mapping[str, float], labels: Mapping[str, str]) -> bool:
    room = (node.get("status") or {}).get("allocatable") or {}
    fits = all(amount(room.get(name, 0)) >= value for name, value in wanted.items())
    return fits and labels.items() <= labels_of(node).items()


def _may_grow(api: KubeApi, nodes: list[Object]) -> bool:
    """Whether nodes may be added: the cluster runs in a cloud, or has an autoscaler."""
    clouds = {str((node.get("spec") or {}).get("providerID") or "").partition("://")[0] for node in nodes}
    groups = {group.partition("/")[0] for group in api.groups()}
    if clouds - {"", "kind", "k3s"} or not groups or _AUTOSCALERS & groups:
        return True
    try:
        api.get("/api/v1/namespaces/kube-system/configmaps/cluster-autoscaler-status")
    except NotFoundError:
        return False
    except BackendError:  # unknown
        pass
    return True


def _architectures(nodes: list[Object]) -> set[str]:
    found = {str(((node.get("status") or {}).get("nodeInfo") or {}).get("architecture", "")) for node in nodes}
    return set() if "" in found else found


def _has_image(nodes: list[Object], image: str) -> bool | None:
    """Whether a node has an image; None if unknown, because nodes may list only some of their images."""
    there = [(node.get("status") or {}).get("images") or [] for node in nodes]
    short = image.removeprefix("docker.io/").removeprefix("library/")
    if any(str(name).endswith(short) for images in there for one in images for name in one.get("names") or ()):
        return True
    return False if there and all(len(images) < _MAX_IMAGES for images in there) else None
