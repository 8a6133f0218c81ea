"""Secrets on a real cluster: pods have them, no object but the job's own Secret does, and that goes with the job."""

from __future__ import annotations

import json
import os

import pytest

from tests.backends.canaries import SHOW, Canaries
from tests.backends.kubernetes import cluster
from torchx.specs import AppState, Secret


def objects(jobs) -> list[str]:
    """All objects of the test's namespace but Secrets, and the events about them."""
    paths = [jobs.path(plural) for plural in ("pods", "services", "events", "configmaps")]
    return [json.dumps(cluster.call("GET", path)) for path in [*paths, jobs.path("jobs", group="apis/batch/v1")]]


@pytest.mark.parametrize("code", [0, 3])
def test_pods_have_them_and_nothing_else_does(jobs, monkeypatch, eventually, code):
    """One that the cluster has already, too; after `delete` the job's own is gone, and that one is there."""
    canaries = Canaries()
    monkeypatch.setenv("MY_CANARY", canaries.values[0])
    cluster.call("POST", jobs.path("secrets"), {"metadata": {"name": "hf"}, "stringData": {"token": "was-there"}})
    script = f'{SHOW}; test "$THERE" = was-there || exit 9; exit {code}'
    app_id = jobs.run(script, env={**canaries.env, "THERE": Secret("k8s:hf/token")})
    assert jobs.until(app_id).state is (AppState.FAILED if code else AppState.SUCCEEDED)
    assert jobs.log(app_id) == [line.strip() for line in canaries.shown()]
    assert canaries.found_in(objects(jobs)) == []
    assert canaries.command_lines() == []
    assert canaries.files_below(os.environ["TORCHX_HOME"]) == []

    def names() -> list[str]:
        found = cluster.call("GET", jobs.path("secrets"))["items"]
        return sorted(i["metadata"]["name"] for i in found if not i["metadata"]["name"].startswith("default-token"))

    name = app_id.rpartition(":")[2]
    assert names() == ["hf", name]
    jobs.scheduler.delete(app_id)
    eventually(lambda: names() == ["hf"])
