"""The run options for the placement of pods: their validation, and their rendering as an overlay of a pod."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from torchx.errors import ConfigError
from torchx.schedulers.kubernetes.names import LABEL_ROLE_INDEX, LABEL_UNIQUE_NAME, MAIN_CONTAINER, Object
from torchx.specs.api import Resource
from torchx.specs.gpu_types import native

if TYPE_CHECKING:
    from torchx.schedulers.kubernetes.options import KubernetesOpts

GPU_RESOURCE = "nvidia.com/gpu"
_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
# https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/#syntax-and-character-set
_KEY = re.compile(r"([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")


def check(opts: KubernetesOpts) -> None:
    """Raise ConfigError for an option that no API server accepts, with its format."""
    selector = opts.node_selector or {}
    for option, keys in (
        ("node_selector", selector),
        ("spread", opts.spread or ()),
        ("pack", [opts.pack] if opts.pack else ()),
        ("topology", [opts.topology] if opts.topology else ()),
    ):
        for key in keys:
            if not _KEY.fullmatch(key.removesuffix("!")):
                raise ConfigError(f"{option} `{key}` is not the key of a label", hint="such as `example.com/rack`")
    for key, value in selector.items():
        if not _VALUE.fullmatch(value):
            raise ConfigError(f"node_selector `{key}={value}` does not have a valid label value")
    for pair in (opts.claims or {}).items():
        if not all(map(_NAME.fullmatch, pair)):
            raise ConfigError(f"claims `{'='.join(pair)}` is not NAME=TEMPLATE", hint="such as `gpu=two-gpus`")
    for text in opts.tolerations or ():
        _toleration(text)


def overlay(opts: KubernetesOpts, labels: Mapping[str, str]) -> Object:
    """Return the overlay for pods with these labels.

    A key that ends with ``!`` is a requirement, others are preferences.
    """
    mine = {key: labels[key] for key in (LABEL_UNIQUE_NAME, LABEL_ROLE_INDEX) if key in labels}
    spec: Object = {}
    if opts.node_selector:
        spec["nodeSelector"] = dict(opts.node_selector)
    if opts.tolerations:
        spec["tolerations"] = [_toleration(text) for text in opts.tolerations]
    if opts.spread:
        spec["topologySpreadConstraints"] = [_spread(key, mine) for key in opts.spread]
    if opts.pack:
        spec["affinity"] = {"podAffinity": _pack(opts.pack, {LABEL_UNIQUE_NAME: labels[LABEL_UNIQUE_NAME]})}
    if opts.claims:
        spec.update(_claims(opts.claims))
    found: Object = {"spec": spec} if spec else {}
    if opts.topology:
        how = "required" if opts.topology.endswith("!") else "preferred"
        name = f"kueue.x-k8s.io/podset-{how}-topology"
        found["metadata"] = {"annotations": {name: opts.topology.removesuffix("!")}}
    return found


def gpu_resource(resource: Resource) -> str:
    """Return the extended resource that counts the GPUs; empty if a claim asks for them."""
    words = native(resource, "kubernetes").split()
    if any(word.startswith("claim:") for word in words):
        return ""
    return next((word for word in words if "=" not in word), GPU_RESOURCE)


def of_gpus(resource: Resource) -> Object:
    """Return the overlay for pods whose resource names a type of GPU.

    >>> of_gpus(Resource(1, 2, 64, {"gpu_type": "l4"}))
    {'spec': {'nodeSelector': {'nvidia.com/gpu.product': 'NVIDIA-L4'}}}
    """
    spec: Object = {}
    rules = []
    for word in native(resource, "kubernetes").split():
        key, equals, value = word.partition("=")
        if word.startswith("claim:"):
            spec.update(_claims({"gpu": word.removeprefix("claim:").replace("{n}", str(resource.gpu))}))
        elif equals and "|" in value:
            rules.append({"key": key, "operator": "In", "values": value.split("|")})
        elif equals:
            spec.setdefault("nodeSelector", {})[key] = value
    if rules:
        terms = {"nodeSelectorTerms": [{"matchExpressions": rules}]}
        spec["affinity"] = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
    return {"spec": spec} if spec else {}


def _claims(claims: Mapping[str, str]) -> Object:
    names = {"claims": [{"name": name} for name in claims]}
    return {
        "resourceClaims": [{"name": n, "resourceClaimTemplateName": t} for n, t in claims.items()],
        "containers": [{"name": MAIN_CONTAINER, "resources": names}],
    }


def _toleration(text: str) -> Object:
    """Parse a toleration in the format of ``kubectl taint``, ``KEY[=VALUE][:EFFECT]``; ``*`` tolerates all taints.

    >>> _toleration("nvidia.com/gpu:NoSchedule")
    {'key': 'nvidia.com/gpu', 'operator': 'Exists', 'effect': 'NoSchedule'}
    """
    taint, colon, effect = text.partition(":")
    key, equals, value = taint.partition("=")
    good = (key == "*" and not equals) or (_KEY.fullmatch(key) and _VALUE.fullmatch(value))
    if not good or (colon and effect not in _EFFECTS):
        raise ConfigError(f"tolerations `{text}` is not KEY[=VALUE][:EFFECT]", hint=f"effects: {', '.join(_EFFECTS)}")
    found: Object = {} if key == "*" else {"key": key}
    found.update({"operator": "Equal", "value": value} if equals else {"operator": "Exists"})
    return {**found, "effect": effect} if effect else found


def _spread(key: str, of: Mapping[str, str]) -> Object:
    """https://kubernetes.io/docs/concepts/scheduling-eviction/topology-spread-constraints/"""
    return {
        "maxSkew": 1,
        "topologyKey": key.removesuffix("!"),
        "whenUnsatisfiable": "DoNotSchedule" if key.endswith("!") else "ScheduleAnyway",
        "labelSelector": {"matchLabels": dict(of)},
    }


def _pack(key: str, of: Mapping[str, str]) -> Object:
    term = {"topologyKey": key.removesuffix("!"), "labelSelector": {"matchLabels": dict(of)}}
    if key.endswith("!"):
        return {"requiredDuringSchedulingIgnoredDuringExecution": [term]}
    return {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "podAffinityTerm": term}]}
