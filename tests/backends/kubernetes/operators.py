"""Operators that a cluster may have, as far as their resource definitions; a test plays their controllers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.backends.kubernetes import cluster

_PATH = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_OPEN: dict[str, Any] = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}


def definitions() -> dict[str, dict[str, Any]]:
    """Group -> definition, of `crds.yaml`."""
    import yaml

    found = yaml.safe_load(Path(__file__).with_name("crds.yaml").read_text())
    return {row["group"]: definition(row) for row in found}


def definition(row: dict[str, Any]) -> dict[str, Any]:
    """That of a kind: its group, version, names, and the fields that its spec must have; others pass unchecked."""
    spec = {**_OPEN, "required": row["required"]} if row["required"] else _OPEN
    schema = {**_OPEN, "properties": {"spec": spec, "status": _OPEN}}
    if row["required"]:
        schema["required"] = ["spec"]
    version = {
        "name": row["version"],
        "served": True,
        "storage": True,
        "subresources": {"status": {}},
        "schema": {"openAPIV3Schema": schema},
    }
    names = {"kind": row["kind"], "plural": row["plural"], "singular": row["kind"].lower()}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{row['plural']}.{row['group']}",
            # Groups of kubernetes-sigs are protected: https://kep.k8s.io/2337
            "annotations": {"api-approved.kubernetes.io": "unapproved, for tests"},
        },
        "spec": {"group": row["group"], "names": names, "scope": "Namespaced", "versions": [version]},
    }


@contextmanager
def served(*groups: str) -> Iterator[None]:
    """The cluster has these operators' kinds meanwhile."""
    known = definitions()
    with defined(*(known[group] for group in groups)):
        yield


@contextmanager
def defined(*kinds: dict[str, Any]) -> Iterator[None]:
    """The cluster has these definitions meanwhile."""
    try:
        for kind in kinds:
            cluster.call("POST", _PATH, kind)
        _until(lambda: all(_objects_of(kind) is not None and _listed(kind) for kind in kinds))
        yield
    finally:
        for kind in kinds:
            cluster.call("DELETE", f"{_PATH}/{kind['metadata']['name']}")
        _until(lambda: not any(_listed(kind) or _there(kind) for kind in kinds))


def set_status(path: str, status: dict[str, Any]) -> None:
    """What a controller would write."""
    cluster.call("PATCH", f"{path}/status", {"status": status}, "application/merge-patch+json")


def _objects_of(definition: dict[str, Any]) -> object:
    spec = definition["spec"]
    return cluster.call("GET", f"/apis/{spec['group']}/{spec['versions'][0]['name']}/{spec['names']['plural']}")


def _listed(definition: dict[str, Any]) -> bool:
    # Somewhat later than its objects are served, and for a while after its definition is gone.
    groups = cluster.call("GET", "/apis")["groups"]
    return any(group["name"] == definition["spec"]["group"] for group in groups)


def _there(definition: dict[str, Any]) -> object:
    return cluster.call("GET", f"{_PATH}/{definition['metadata']['name']}")


def _until(condition: Any, timeout_s: float = 120) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "the resource definitions do not come or go"
        time.sleep(0.1)
