"""Roles in order: what the request asks of the cluster, what is refused, and what the answers mean."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tests.schedulers.kubernetes.fake_cluster import Cluster, Response, refusal
from torchx.errors import TorchXError
from torchx.schedulers.kubernetes.names import JOB, JOBSET, KUBEFLOW, PYTORCH, VOLCANO
from torchx.schedulers.kubernetes.overlays import set_overlay
from torchx.schedulers.kubernetes.pods import order
from torchx.schedulers.kubernetes_scheduler import create_scheduler
from torchx.specs import AppDef, AppState, Ready, Resource, RetryPolicy, Role
from torchx.specs.failures import parse_failure

R, S, F, C, P = AppState.RUNNING, AppState.SUCCEEDED, AppState.FAILED, AppState.CANCELLED, AppState.PENDING


def role(name: str, **fields: Any) -> Role:
    return Role(name, "img", entrypoint="run", resource=Resource(1, 8, 64), **fields)


def server(**fields: Any) -> Role:
    given = {"num_replicas": 2, "port_map": {"http": 8000}, "ready": Ready(http="/up", within="1m"), **fields}
    return role("server", **given)


def app(*more: Role, **fields: Any) -> AppDef:
    return AppDef("rl", [role("trainer", after=["server"], ends_job=True), server(**fields), *more])


def objects(what: AppDef, kind: str) -> list[dict[str, Any]]:
    resource = create_scheduler("me").submit_dryrun(what, {"kind": kind}).request.resource
    return resource["items"] if resource["kind"] == "List" else [resource]


def pods_of(items: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The pod of each role, by its label."""
    found: dict[str, dict[str, Any]] = {}
    for item in items:
        spec = item["spec"]
        parts = [part.get("template", {}) for part in spec.get("replicatedJobs", ())] or [{"spec": spec}]
        for template in (
            *(part["spec"].get("template") for part in parts),
            *(t["template"] for t in spec.get("tasks", ())),
        ):
            if template:
                found.setdefault(template["metadata"]["labels"]["torchx.pytorch.org/role-name"], template["spec"])
    return found


# -- the request -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "host"), [(JOB, "-server-{}"), (JOBSET, "-server-0-{}"), (VOLCANO, "-server-{}-0")])
def test_who_waits_for_whom_and_knows_whose_address(kind: str, host: str) -> None:
    """Addresses, the probe, and the container that waits, which is allowed and costs what the program is and does."""
    what = app(args=["--host=${role.server.host}", "--port=${role.server.port.http}"])
    what.roles[0].args = ["${role.server.hosts}"]
    allowed = {"allowPrivilegeEscalation": False}
    containers = [{"name": "main", "securityContext": allowed}]
    set_overlay(what.roles[0], "kubernetes", "pod", {"spec": {"containers": containers}})
    items = objects(what, kind)
    name = items[0]["metadata"]["name"]
    trainer, serves = (pods_of(items)[role]["containers"][0] for role in ("trainer", "server"))
    both = ",".join(f"{name}{host.format(k)}.{name}:8000" for k in (0, 1))
    assert trainer["command"] == ["run", both]
    assert {"name": "TORCHX_HOSTS_SERVER", "value": both} in trainer["env"]
    own = host.format(0 if kind == VOLCANO else "$(TORCHX_REPLICA_ID)")
    assert serves["command"] == ["run", f"--host={name}{own}.{name}", "--port=8000"]
    often = {"periodSeconds": 1, "timeoutSeconds": 1, "failureThreshold": 61}
    assert serves["startupProbe"] == {"httpGet": {"path": "/up", "port": 8000}, **often}
    assert "startupProbe" not in trainer
    (waiter,) = pods_of(items)["trainer"]["initContainers"]
    assert waiter["command"][3:] == ["wait", f"{name}-server", "2", f"{name}{host.format(0)}.{name}", "3660", "server"]
    assert (waiter["image"], waiter["securityContext"]) == ("img", allowed)
    assert sorted(waiter["resources"]["limits"]) == ["cpu", "memory"]
    assert "initContainers" not in pods_of(items)["server"]
    services = [item for item in items if item["metadata"]["name"] == f"{name}-server" and item["kind"] == "Service"]
    selector = {"app.kubernetes.io/instance": name, "torchx.pytorch.org/role-index": "1"}
    assert [item["spec"] for item in services] == [{"clusterIP": "None", "selector": selector}]


def test_objects_are_valid() -> None:
    validate = pytest.importorskip("kubernetes_validate")
    probes = [Ready(tcp="http"), Ready(file="a b"), Ready(http="9/up", at_least=1)]
    others = [role(f"r{i}", ready=ready, port_map={"http": 1}, num_replicas=2) for i, ready in enumerate(probes)]
    for item in objects(app(*others), JOB):
        for version in ("1.25", "1.37"):
            validate.validate(item, version, strict=True)
    probe = pods_of(objects(app(*others), JOB))["r1"]["containers"][0]["startupProbe"]
    assert probe["exec"]["command"] == ["sh", "-c", '[ -e "$0" ]', "a b"]


@pytest.mark.parametrize(
    ("fields", "limit", "seconds"),
    [({"at_least": 1}, 10_000_000, "60"), ({}, 61, "3660")],
    ids=["others-may-come-late", "all"],
)
def test_pods_that_may_be_late_are_not_ended(fields: dict[str, Any], limit: int, seconds: str) -> None:
    found = pods_of(objects(app(ready=Ready(http="/up", within="1m", **fields)), JOB))
    assert found["server"]["containers"][0]["startupProbe"]["failureThreshold"] == limit
    assert found["trainer"]["initContainers"][0]["command"][7] == seconds


def test_an_elastic_role_goes_on_without_its_late_pods() -> None:
    found = pods_of(objects(app(min_replicas=1), JOB))
    assert found["server"]["containers"][0]["startupProbe"]["failureThreshold"] == 61


def test_a_jobset_creates_later_parts_later() -> None:
    """After all pods of the others are ready; parts stand after those that they wait for, whatever the order of roles."""
    spec = objects(
        app(role("half", after=["few"]), role("few", num_replicas=2, ready=Ready(file="x", at_least=1))), JOBSET
    )
    parts = spec[0]["spec"]["replicatedJobs"]
    assert [(part["name"], part.get("dependsOn")) for part in parts] == [
        ("server", None),
        ("half", None),
        ("few", None),
        ("trainer", [{"name": "server", "status": "Ready"}]),
    ]
    assert spec[0]["spec"]["successPolicy"] == {"operator": "Any", "targetReplicatedJobs": ["trainer"]}


@pytest.mark.parametrize(
    "answer",
    [None, refusal(422, "Invalid", "dependsOn: Too many: 2: must have at most 1 items"), Response(201, {})],
    ids=["taken", "too-many", "older"],
)
def test_a_jobset_of_an_older_version_has_no_dependencies(answer: Response | None) -> None:
    """Its pods wait by themselves."""
    cluster = Cluster(groups=["jobset.x-k8s.io/v1alpha2"])
    if answer is not None and answer.status == 201:
        bare = {"spec": {"replicatedJobs": [{"name": "server"}, {"name": "trainer"}]}}
        answer = Response(201, bare)
    if answer is not None:
        cluster.faults.append(("POST", "/jobsets", answer, "before"))
    create_scheduler("me", client=cluster).submit(app(), {})
    (item,) = cluster.of("jobsets")
    assert ["dependsOn" in part for part in item["spec"]["replicatedJobs"]] == [False, answer is None]
    assert [service["metadata"]["ownerReferences"][0]["kind"] for service in cluster.of("services")] == ["JobSet"]


def test_volcano_ends_the_job_with_the_task() -> None:
    tasks = objects(app(), VOLCANO)[0]["spec"]["tasks"]
    assert [task.get("policies") for task in tasks] == [
        [{"event": "TaskCompleted", "action": "CompleteJob"}],
        None,
        None,
    ]


_REPLICA = {"max_retries": 1, "retry_policy": RetryPolicy.REPLICA}


@pytest.mark.parametrize(
    ("kind", "what", "said"),
    [
        (KUBEFLOW, AppDef("a", [server()]), "a TrainJob cannot start roles in order"),
        (PYTORCH, AppDef("a", [server()]), "a PyTorchJob cannot start roles in order"),
        (JOB, app(restarts_after=True), "replaced one by one, which cannot restart the roles after it"),
        (JOBSET, app(restarts_after=True, **_REPLICA), "replaced one by one"),
        (VOLCANO, AppDef("a", [server(ends_job=True)]), "Volcano would end it with the first of them"),
        (
            JOB,
            app(env={"DB_PASSWORD": "x${role.server.host}"}),
            "`DB_PASSWORD` of role `server` is secret, and contains the address",
        ),
        (JOB, app(env={"A": "x" * 300_000}), "cannot wait for each other: its definition is too large"),
    ],
)
def test_what_cannot_be(kind: str, what: AppDef, said: str) -> None:
    with pytest.raises(TorchXError, match=re.escape(said)):
        objects(what, kind)


def test_a_jobset_restarts_all() -> None:
    assert objects(app(restarts_after=True, max_retries=2), JOBSET)[0]["spec"]["failurePolicy"]["maxRestarts"] == 2


# -- waiting ---------------------------------------------------------------------------------------


def _wait(folder: Path, tools: dict[str, str], *words: str) -> tuple[int, str]:
    """Exit code and message of the script with these programs, each a script of `sh`, and the shell's own."""
    for name in ("sed", "date"):
        (folder / name).symlink_to(str(shutil.which(name)))
    for name, text in {"sleep": f"echo >>{folder}/slept", **tools}.items():
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
    script = (Path(order.__file__).parent / "wait.sh").read_text().replace("/dev/termination-log", f"{folder}/message")
    argv = [str(shutil.which("sh")), "-c", script, "wait", *words]
    done = subprocess.run(argv, env={"PATH": str(folder)}, capture_output=True, text=True, timeout=60, check=False)
    message = folder / "message"
    return done.returncode, message.read_text() if message.exists() else done.stderr


_BUSYBOX = (
    r"printf 'Server:\t10.0.0.1\nAddress:\t10.0.0.1:53\n\nName:\tx\nAddress: 10.1.0.1\nName:\tx\nAddress: 10.1.0.2\n'"
)


@pytest.mark.parametrize(
    ("tools", "words", "expected"),
    [
        ({"getent": "printf '10.1.0.1 STREAM x\\n10.1.0.1 DGRAM\\n10.1.0.2 STREAM x\\n'"}, ("s", "2"), (0, "")),
        ({"nslookup": _BUSYBOX}, ("s", "2"), (0, "")),
        ({"nslookup": _BUSYBOX}, ("s", "3"), (3, "serv er")),
        ({"getent": '[ "$2" = h ] || exit 2; echo 10.1.0.1'}, ("s", "1"), (3, "serv er")),
        ({"getent": "exit 2", "nslookup": _BUSYBOX}, ("s", "2"), (0, "")),
        ({}, ("s", "1"), (3, "the image needs python3, getent or nslookup to wait for role serv er\n")),
    ],
    ids=["getent", "nslookup", "too-few", "none-ready", "falls-back", "no-tool"],
)
def test_the_waiter(tmp_path: Path, tools: dict[str, str], words: tuple[str, str], expected: tuple[int, str]) -> None:
    """It counts different addresses, and says for whom it has waited too long."""
    assert _wait(tmp_path, tools, *words, "h", "0", "serv er") == expected


def test_the_waiter_waits(tmp_path: Path) -> None:
    """For one role after the other, and longer before the first of their pods is there."""
    answer = (
        f"n=0; [ ! -e {tmp_path}/slept ] || read n <{tmp_path}/slept; [ -s {tmp_path}/slept ] || exit 2; echo 10.1.0.1"
    )
    tools = {"getent": answer, "sleep": f"echo 1 >{tmp_path}/slept"}
    assert _wait(tmp_path, tools, "s", "1", "h", "0", "a", "t", "1", "h", "0", "b") == (0, "")
    assert os.path.getsize(tmp_path / "slept")


# -- the answers -----------------------------------------------------------------------------------


def ready(since: int | None, phase: str = "Running", code: int = 0, until: int = 0) -> dict[str, Any]:
    """A pod whose container began at second 10: ready since a second, or never, and ended at another one."""
    at = "2026-01-01T00:{:02}:{:02}Z"
    stamp = lambda s: at.format(*divmod(s, 60))  # noqa: E731  # short
    terminated = {"exitCode": code, "startedAt": stamp(10), "finishedAt": stamp(until), "message": "a\nloading\n"}
    state = {"terminated": terminated} if until else {"running": {"startedAt": stamp(10)}}
    changed = 9 if since is None else until or since
    condition = {"type": "Ready", "status": "False" if since is None or until else "True"}
    conditions = [{**condition, "lastTransitionTime": stamp(changed)}]
    return {"phase": phase, "conditions": conditions, "containerStatuses": [{"name": "main", "state": state}]}


WAITS = {
    "phase": "Pending",
    "initContainerStatuses": [{"name": "wait", "state": {"running": {}}}],
    "containerStatuses": [{"name": "main", "state": {"waiting": {"reason": "PodInitializing"}}}],
}
GAVE_UP = {
    "phase": "Failed",
    "initContainerStatuses": [{"name": "wait", "state": {"terminated": {"exitCode": 3, "message": "server"}}}],
    "containerStatuses": [{"name": "main", "state": {"waiting": {"reason": "PodInitializing"}}}],
}
UP, SLOW = ready(20), ready(None)
DONE = ready(None, "Succeeded", until=15)
OVER = {"type": "Complete", "status": "True"}
BROKE = {"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded"}
LATE = "role server was not ready within 1m: GET :http/up: statuscode: 503; its last words: loading"


@pytest.mark.parametrize(
    ("servers", "trainer", "ends", "state", "said", "states"),
    [
        ([UP, SLOW], WAITS, "", R, "trainer/0: waits for server to be ready (1 of 2)", [P, R, R]),
        ([UP, UP], UP, "", R, "<NONE>", [R, R, R]),
        (
            [UP, UP],
            ready(11, "Succeeded", until=30),
            "trainer",
            R,
            "trainer ended; the others are being ended",
            [S, R, R],
        ),
        ([], ready(11, "Succeeded", until=30), "trainer stopped", S, "<NONE>", [S, C, C]),
        ([], ready(11, "Failed", 4, until=30), "broke stopped", F, "trainer/0 on n0: exit code 4: loading", [F, C, C]),
        (
            [ready(None, "Failed", 137, until=72), UP],
            WAITS,
            "late",
            R,
            f"{LATE}; the others are being ended",
            [P, C, R],
        ),
        (
            [ready(None, "Succeeded", 0, until=72), UP],
            WAITS,
            "",
            R,
            "role server was not ready within 1m: *",
            [P, C, R],
        ),
        ([ready(None, "Failed", 5, until=40), UP], WAITS, "", R, "server/0 on n0: exit code 5: loading; *", [P, F, R]),
        ([ready(20, "Failed", 5, until=99), UP], UP, "", R, "server/0 on n0: exit code 5: loading; *", [R, F, R]),
        ([DONE, DONE], WAITS, "", R, "role server ended before it was ready: GET :http/up; *", [P, S, S]),
        (
            [ready(12, "Succeeded", until=15)] * 2,
            WAITS,
            "",
            R,
            "role server ended before those after it saw *",
            [P, S, S],
        ),
        ([ready(12, "Succeeded", until=15)] * 2, UP, "", R, "<NONE>", [R, S, S]),
        ([UP, SLOW], GAVE_UP, "", R, "role server was not ready within 1m: GET :http/up; *", [F, R, R]),
    ],
)
def test_answers(
    servers: list[dict[str, Any]],
    trainer: dict[str, Any],
    ends: str,
    state: AppState,
    said: str,
    states: list[AppState],
) -> None:
    """Of plain Jobs, whose others are stopped when one role has decided; `list` agrees."""
    cluster = Cluster()
    scheduler = create_scheduler("me", client=cluster)
    app_id = scheduler.submit(app(), {"kind": "job"})
    of_trainer, of_server = cluster.of("jobs")
    cluster.run_pods(of_trainer, trainer)
    cluster.run_pods(of_server, UP, most=len(servers))
    mine = [pod for pod in cluster.of("pods") if "-server-" in pod["metadata"]["name"]]
    for pod, status in zip(mine, servers, strict=True):
        pod["status"] = status
        cluster.warn({**pod, "kind": "Pod"}, "Unhealthy", "Startup probe failed: statuscode: 503")
    if "trainer" in ends or "broke" in ends:
        of_trainer["status"] = {"conditions": [BROKE if "broke" in ends else OVER]}
    if "late" in ends:
        of_server["status"] = {"conditions": [BROKE]}
    if "stopped" in ends:
        of_server["spec"]["suspend"] = True
        of_server["metadata"]["annotations"]["torchx.pytorch.org/stopped"] = "now"
    found = scheduler.describe(app_id)
    assert found is not None
    assert re.fullmatch(re.escape(said).replace(r"\*", ".*"), found.msg), found.msg
    assert [r.state for of in found.roles_statuses for r in of.replicas] == states
    listed = {job.app_id: job.state for job in scheduler.list()}[app_id]
    stops = "torchx.pytorch.org/stopped" in str([item["metadata"] for item in (of_trainer, of_server)])
    assert (found.state, stops or listed) == (state, stops or state)
    if (cause := parse_failure(found.structured_error_msg)) is not None and found.msg.startswith("role server"):
        assert cause.kind == "timeout"
    scheduler.close()


def test_the_others_are_stopped_when_a_role_has_ended_the_job() -> None:
    """By the command that sees it."""
    cluster = Cluster()
    scheduler = create_scheduler("me", client=cluster)
    app_id = scheduler.submit(app(), {"kind": "job"})
    for item, status in zip(cluster.of("jobs"), (ready(11, "Succeeded", until=30), UP), strict=True):
        cluster.run_pods(item, status)
    cluster.of("jobs")[0]["status"] = {"conditions": [OVER]}
    scheduler.describe(app_id)
    assert [item["spec"].get("suspend") for item in cluster.of("jobs")] == [None, True]
    scheduler.close()


def test_who_waits_hears_at_once_that_a_role_has_ended() -> None:
    """It may end the job, or be needed by others."""
    cluster = Cluster()
    scheduler = create_scheduler("me", client=cluster)
    app_id = scheduler.submit(app(), {"kind": "job"})
    over = {**cluster.of("jobs")[0], "status": {"conditions": [OVER]}}
    cluster.watched = [{"type": "MODIFIED", "object": over}]
    began = time.monotonic()
    scheduler.wait_for_end(app_id, 3600)
    assert time.monotonic() - began < 1.5
    scheduler.close()


def test_a_jobset_that_was_ended_by_a_role() -> None:
    """JobSet has deleted the other pods, or never made them."""
    cluster = Cluster(groups=["jobset.x-k8s.io/v1alpha2"])
    scheduler = create_scheduler("me", client=cluster)
    app_id = scheduler.submit(app(), {})
    (item,) = cluster.of("jobsets")
    item["status"] = {"conditions": [{"type": "Completed", "status": "True"}]}
    found = scheduler.describe(app_id)
    assert found is not None
    assert (found.state, [r.state for of in found.roles_statuses for r in of.replicas]) == (S, [S, C, C])
    scheduler.close()


def test_volcanos_pending_job_runs() -> None:
    """Its controller counts the pods that wait for others as pending; `list` looks at the pods, too."""
    cluster = Cluster(groups=["batch.volcano.sh/v1alpha1"])
    scheduler = create_scheduler("me", client=cluster)
    app_id = scheduler.submit(app(), {})
    (item,) = cluster.of("jobs")
    item["status"] = {"state": {"phase": "Pending"}}
    for task, status in zip(item["spec"]["tasks"], (WAITS, UP, SLOW), strict=True):
        one = {**item, "metadata": {**item["metadata"], "name": task["name"]}}
        cluster.run_pods({**one, "spec": {"completions": 1, "template": task["template"]}}, status)
    found = scheduler.describe(app_id)
    assert found is not None
    assert (found.state, found.msg) == (R, "trainer/0: waits for server to be ready (1 of 2)")
    assert [job.state for job in scheduler.list()] == [R]
    scheduler.close()
