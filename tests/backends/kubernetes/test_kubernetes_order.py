"""Roles in order on a real node: probes of the kubelet, and pods that wait for the names of ready ones."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.backends.kubernetes import cluster, dns
from tests.backends.kubernetes.jobs import Jobs
from tests.backends.kubernetes.operators import served, set_status
from tests.backends.orders import ORDER_CASES, PROGRAM, OrderContract, OrderGround, once, orders_of
from torchx.schedulers.api import DescribeAppResponse
from torchx.specs import AppDef, AppState, BindMount, Ready, Role

ALL_AT_ONCE = "server-restarts-the-trainer"
"""Needs a JobSet, whose controller cannot be had here."""


@pytest.fixture
def ground(jobs: Jobs, tmp_path: Path) -> Iterator[OrderGround]:
    with dns.served(jobs.namespace) as names:
        overlay = tmp_path / "overlay.json"
        overlay.write_text(json.dumps({"spec": {**names["spec"], "terminationGracePeriodSeconds": 3}}))

        def role(name: str, script: str) -> Role:
            return jobs.role(script, name, mounts=[BindMount(str(tmp_path), "/shared")])

        def left(handle: str) -> list[str]:
            pods = jobs.pods(handle.rpartition("/")[2])
            return [pod["metadata"]["name"] for pod in pods if pod["status"]["phase"] in ("Pending", "Running")]

        def first() -> tuple[str, str]:
            return once("/shared")

        cfg = {"namespace": jobs.namespace, "reserved_millicpu": 1000, "kind": "job", "pod_overlay": str(overlay)}
        with orders_of("tests", "kubernetes", role, cfg=cfg, left=left, first=first, file="/tmp/up") as made:
            yield made


class TestKubernetesOrder(OrderContract):
    """The contract."""

    @pytest.mark.parametrize("name", sorted(ORDER_CASES.keys() - {ALL_AT_ONCE}))
    def test_order(self, ground: OrderGround, name: str) -> None:
        super().test_order(ground, name)

    def test_example(self, ground: OrderGround) -> None:
        """As elsewhere, but the pods of the servers and of the trainer are gone at the end, with their logs."""
        component = f"{PROGRAM.parent}/components/serve_and_run.py:serve_and_run"
        args = ["--program", "program.py", "--image", ground.role("any", "true").image]
        cfg = {**ground.cfg, "code": "inline"}
        handle = ground.runner.run_component(component, args, "kubernetes", cfg=cfg, workspace=f"file://{PROGRAM}")
        status = ground.ended(handle)
        found = {role.role: [r.state.name for r in role.replicas] for role in status.roles}
        assert status.state is AppState.SUCCEEDED, status
        assert found == {"server": ["CANCELLED"] * 2, "trainer": ["CANCELLED"], "driver": ["SUCCEEDED"]}
        said = [line.rpartition(" ")[2].strip() for line in ground.runner.log_lines(handle, "driver", 0)]
        assert said == ["0.0000", "0.0000"]


JOBSET = "apis/jobset.x-k8s.io/v1alpha2"


def play(jobs: Jobs, name: str) -> None:
    """What JobSet and the Job controller make of a part of the only JobSet: its pods."""
    (item,) = cluster.call("GET", jobs.path("jobsets", group=JOBSET))["items"]
    jobset = item["metadata"]["name"]
    (part,) = (part for part in item["spec"]["replicatedJobs"] if part["name"] == name)
    job = part["template"]["spec"]
    for k in range(job["completions"]):
        host = f"{jobset}-{name}-0-{k}"
        marks = {"batch.kubernetes.io/job-completion-index": str(k)}
        metadata = {"name": f"{host}-abcde", "labels": job["template"]["metadata"]["labels"], "annotations": marks}
        pod = {**job["template"]["spec"], "hostname": host, "subdomain": jobset}
        cluster.call("POST", jobs.path("pods"), {"metadata": metadata, "spec": pod})


def test_a_jobset(jobs: Jobs) -> None:
    """Its later part is created later, its pods find the others by their names, and it ends with one role."""
    with served("jobset.x-k8s.io"), dns.served(jobs.namespace) as names:
        serve = "cd /tmp; touch up; exec python3 -m http.server ${role.server.port.http}"
        ask = "python3 -c 'import sys, urllib.request as u; print(u.urlopen(sys.argv[1]).status)' http://$1/up"
        server = jobs.role(serve, "server", overlay=names, port_map={"http": 8000}, ready=Ready(http="/up"))
        server.num_replicas = 2
        trainer = jobs.role(ask, "trainer", overlay=names, after=["server"], ends_job=True)
        trainer.args = [*trainer.args, "sh", "${role.server.host}:${role.server.port.http}"]
        app_id = jobs.run(AppDef("rl", [trainer, server]), cfg={"kind": "jobset"})
        name = app_id.partition(":")[2]
        network = {"clusterIP": "None", "publishNotReadyAddresses": True}
        spec = {**network, "selector": {"app.kubernetes.io/instance": name}}
        cluster.call("POST", jobs.path("services"), {"metadata": {"name": name}, "spec": spec})
        play(jobs, "server")
        jobs.until(app_id, lambda found: "waits for server to be ready (" in found.msg, timeout_s=60)
        jobs.until(app_id, lambda found: states(found)[1:] == ["RUNNING", "RUNNING"] and "waits" not in found.msg)
        play(jobs, "trainer")
        jobs.until(app_id, lambda found: states(found)[0] == "SUCCEEDED")
        assert jobs.log(app_id, "trainer") == ["200"]
        set_status(jobs.path("jobsets", name, JOBSET), {"conditions": [{"type": "Completed", "status": "True"}]})
        for k in range(2):
            cluster.call("DELETE", jobs.path("pods", f"{name}-server-0-{k}-abcde") + "?gracePeriodSeconds=0")
        ended = jobs.until(app_id)
        assert (ended.state, states(ended)) == (AppState.SUCCEEDED, ["SUCCEEDED", "CANCELLED", "CANCELLED"])


def states(found: DescribeAppResponse) -> list[str]:
    return [r.state.name for of in found.roles_statuses for r in of.replicas]
