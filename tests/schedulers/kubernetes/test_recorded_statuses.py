"""Statuses as controllers write them, made of their published types: what the verdict says of each.

`tests/recorded/controllers/kubernetes.json`: of Kueue v1beta2, AppWrapper v1beta2, Volcano v1alpha1, Trainer v1alpha1.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from torchx.schedulers.kit.failures.reader import Evidence
from torchx.schedulers.kit.verdict import describe
from torchx.schedulers.kubernetes import names
from torchx.schedulers.kubernetes.answers import facts_of
from torchx.schedulers.kubernetes.owners import JobObjects
from torchx.schedulers.kubernetes.pods.admission import evictions, why_it_waits
from torchx.schedulers.kubernetes.pods.facts import read_pods
from torchx.specs import AppDef, AppState, Role
from torchx.specs.failures import parse_failure
from torchx.specs.serialize import appdef_to_dict

RECORDED = Path(__file__).parents[2] / "recorded/controllers/kubernetes.json"
ROWS: list[dict[str, Any]] = json.loads(RECORDED.read_text())
SPECS: dict[str, dict[str, Any]] = {
    names.JOB: {"parallelism": 1, "backoffLimit": 0},
    names.KUBEFLOW: {"trainer": {"numNodes": 1}},
    names.VOLCANO: {"policies": [{"event": "PodFailed", "action": "AbortJob"}]},
}


def objects(row: dict[str, Any]) -> JobObjects:
    """The owner with the definition of a job of one replica, and its pods."""
    definition = json.dumps(appdef_to_dict(AppDef("a", [Role("w", "img")])))
    owner = {
        "apiVersion": names.V1BETA2 if row["kind"] == names.APPWRAPPER else "",
        "metadata": {
            "name": "j",
            "annotations": {names.ANNOTATION_APP: definition},
            "labels": {names.LABEL_QUEUE: "q"},
        },
        "spec": {**SPECS.get(row["kind"], {}), "suspend": row.get("suspend", False)},
        "status": row["status"],
    }
    if row["kind"] == names.JOB:
        owner["metadata"]["labels"][names.LABEL_ROLE_INDEX] = "0"
    pods = []
    for pod in row.get("pods", ()):
        labels = {names.LABEL_ROLE_INDEX: "0", names.LABEL_REPLICA_ID: str(pod["replica"])}
        pods.append({"metadata": {"name": f"j-{pod['replica']}", "labels": labels}, "status": pod["status"]})
    return JobObjects(row["kind"], [owner], pods)


@pytest.mark.parametrize("row", ROWS, ids=[row["name"] for row in ROWS])
def test_the_verdict(row: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """State, class, sentence, attempts, and the failure that stays on record."""
    monkeypatch.setattr("torchx.util.datetime.time.localtime", time.gmtime)
    found, workloads = objects(row), [{"status": row["workload"]}] if "workload" in row else []
    missing = "".join(why_it_waits(workload, "q") for workload in workloads)
    pods = read_pods(found.pods)
    facts = facts_of("n:j", found, pods, missing=missing)
    left = {pod.facts.replica: pod.evidence() for pod in pods}
    answer = describe(facts, lambda replicas: [left.get(r.replica, Evidence()) for r in replicas])
    cause = parse_failure(answer.structured_error_msg)
    said = "" if answer.msg == "<NONE>" else answer.msg
    assert (answer.state, cause.kind if cause else "", said) == (AppState[row["state"]], row["class"], row["msg"])
    assert [[a.kind, a.again] for a in evictions(workloads)] == row["attempts"]
    errors = [parse_failure(r.structured_error_msg) for role in answer.roles_statuses for r in role.replicas]
    if "error" in row:
        assert [error.exit_code for error in errors if error] == [row["error"]]
