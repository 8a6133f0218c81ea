"""Sweeps on Kubernetes: one Indexed Job, the commands of its pods, and the states of its tasks."""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.schedulers.kubernetes.fake_cluster import Cluster, refusal
from torchx.errors import BackendError, NotFoundError, NotSupportedError
from torchx.runner import Runner
from torchx.schedulers.kit.inside.run import Ran
from torchx.schedulers.kit.logs import LogQuery
from torchx.schedulers.kit.tasks import values_line
from torchx.schedulers.kubernetes import sweeps
from torchx.schedulers.kubernetes.pod_files import PodFiles
from torchx.schedulers.kubernetes.pods.facts import Pod, read_pod, unix_time
from torchx.schedulers.kubernetes.sweeps import MAX_BYTES, table_of
from torchx.schedulers.kubernetes_scheduler import KubernetesScheduler, create_scheduler
from torchx.specs import AppDef, AppState, Resource, Role
from torchx.specs.tasks import TaskList

ODD = [
    "a,b",
    "x \"y\" 'z'",
    "$HOME `id` $(id) $(TORCHX_REPLICA_ID) $$",
    "{lr}",
    "two\nlines\n",
    "größe 日本",
    "-x",
    "",
    "a\\b",
]


def submit(
    scheduler: KubernetesScheduler,
    points: list[str],
    *args: str,
    cfg: dict[str, Any] | None = None,
    width: int = 0,
    pack: int = 1,
    **fields: Any,
) -> str:
    role = Role("w", "img", entrypoint="python", args=[*args], resource=Resource(1, 0, 64), **fields)
    info = scheduler.submit_dryrun(AppDef("train", [role]), cfg or {})
    tasks = TaskList(names=["v"], points=[(point,) for point in points], max_parallel=width, pack=pack)
    scheduler.check_tasks(info, tasks)
    return scheduler.submit_tasks(info, tasks)


def run_task(cluster: Cluster, k: int, folder: Path, program: str, container: str = "main") -> Any:
    """Runs the command of a container in pod ``k`` with `sh`, after Kubernetes' expansion of variables."""
    (job,), config = cluster.of("jobs"), next(c for c in cluster.of("configmaps") if "values" in c.get("data", {}))
    for name, text in config["data"].items():
        (folder / name).write_text(text)
    spec = job["spec"]["template"]["spec"]
    main = next(c for c in [*spec.get("initContainers", ()), *spec["containers"]] if c["name"] == container)
    env = {"PATH": os.environ["PATH"]}
    env |= {item["name"]: str(k) for item in main["env"] if "fieldRef" in item.get("valueFrom", {})}

    def expanded(text: str) -> str:
        def replaced(found: re.Match[str]) -> str:
            return "$" if found[0] == "$$" else env.get(found[1], found[0])

        return re.sub(r"\$\$|\$\(([^)]*)\)", replaced, text)

    for item in main["env"]:
        if "value" in item:
            env[item["name"]] = expanded(item["value"])
    places = {"/torchx-values": folder, "/torchx-pack": folder, "/dev/termination-log": folder / f"end.{container}"}
    argv = [expanded(word) for word in main["command"]]
    for place, instead in places.items():
        argv = [word.replace(place, str(instead)) for word in argv]
    (folder / "python").write_text(f"#!/bin/sh\nexec {program}\n")
    (folder / "python").chmod(0o755)
    env["PATH"] = f"{folder}:{env['PATH']}"
    return subprocess.run(argv, env=env, capture_output=True, check=False)


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


@pytest.fixture
def scheduler(cluster: Cluster) -> KubernetesScheduler:
    return create_scheduler("me", client=cluster)


def test_one_job_whatever_the_number_of_tasks(cluster: Cluster, scheduler: KubernetesScheduler) -> None:
    """Pods have indexes and limited parallelism; a failed task does not end others."""
    submit(scheduler, [str(k) for k in range(500)], "{v}", width=7)
    (job,) = cluster.of("jobs")
    spec = job["spec"]
    assert (spec["completionMode"], spec["completions"], spec["parallelism"]) == ("Indexed", 500, 7)
    assert (spec["backoffLimitPerIndex"], "backoffLimit" in spec, "maxFailedIndexes" in spec) == (0, False, False)
    assert len(cluster.objects) == 3


def test_the_version_is_asked_once(cluster: Cluster, scheduler: KubernetesScheduler) -> None:
    """By the check and the submission together."""
    submit(scheduler, ["a", "b"], "{v}")
    assert [path for _, path, _ in cluster.calls].count("/version") == 1


def test_values_arrive(cluster: Cluster, scheduler: KubernetesScheduler, tmp_path: Path) -> None:
    """They are passed unchanged in arguments and variables, together with macros and the task's number."""
    app_id = submit(
        scheduler,
        ODD,
        "{v}",
        "{{v}} $(HOME) ${{replica_id}}",
        "${replica_id}",
        env={"A": "x{v}", "B": "$(A) $HOME", "TORCHX_JOB_ID": "kubernetes://me/${app_id}"},
    )
    show = f"{os.sys.executable} -c 'import json,os,sys; print(json.dumps([sys.argv[1:], dict(os.environ)]))' \"$@\""  # type: ignore[attr-defined]
    for k, value in enumerate(ODD):
        done = run_task(cluster, k, tmp_path, show)
        assert done.returncode == 0, done.stderr
        argv, env = json.loads(done.stdout)
        assert argv == [value, "{v} $(HOME) ${replica_id}", str(k)]
        assert (env["A"], env["B"], env["TORCHX_TASK"]) == (f"x{value}", "$(A) $HOME", str(k))
        assert env["TORCHX_JOB_ID"] == f"kubernetes://me/{app_id}/{k}"


def test_a_task_that_was_cancelled_does_not_begin(
    cluster: Cluster, scheduler: KubernetesScheduler, tmp_path: Path
) -> None:
    """Its pod is deleted, a later pod ends at once, and the other tasks run."""
    app_id = submit(scheduler, ["a", "b", "c"], "{v}", width=2)
    scheduler.cancel_task(app_id, 2)
    scheduler.cancel_task(app_id, 1)
    assert [run_task(cluster, k, tmp_path, "echo ran").stdout for k in range(3)] == [b"ran\n", b"", b""]
    found = scheduler.describe(app_id)
    assert found is not None
    assert found.tasks is not None
    assert [state.name for state in found.tasks.states] == ["PENDING", "CANCELLED", "CANCELLED"]
    with pytest.raises(NotFoundError, match="no task `3`"):
        scheduler.cancel_task(app_id, 3)


@pytest.mark.parametrize("moment", range(1, 6))
def test_two_processes_cancel_different_tasks(
    cluster: Cluster, scheduler: KubernetesScheduler, tmp_path: Path, moment: int
) -> None:
    """At whatever call the other one does it as a whole, both tasks are cancelled."""
    app_id = submit(scheduler, ["a", "b", "c"], "{v}", width=2)
    calls = itertools.count()

    def meanwhile(method: str, path: str) -> None:
        if next(calls) == moment:
            scheduler.cancel_task(app_id, 2)

    cluster.away = meanwhile
    scheduler.cancel_task(app_id, 1)
    assert next(calls) > moment
    assert [run_task(cluster, k, tmp_path, "echo ran").stdout for k in range(3)] == [b"ran\n", b"", b""]
    found = scheduler.describe(app_id)
    assert found is not None and found.tasks is not None
    assert [state.name for state in found.tasks.states] == ["PENDING", "CANCELLED", "CANCELLED"]


def test_a_task_of_a_job_that_changes_all_the_time(cluster: Cluster, scheduler: KubernetesScheduler) -> None:
    """After many conflicts the error of the server is raised, and nothing was changed."""
    app_id = submit(scheduler, ["a", "b"], "{v}", width=2)
    conflict = refusal(409, "Conflict", "the object has been modified")
    cluster.away = lambda method, path: conflict if method == "PATCH" else None
    with pytest.raises(BackendError, match="has been modified"):
        scheduler.cancel_task(app_id, 1)
    assert sum(method == "PATCH" for method, _, _ in cluster.calls) == 21


FAILED = {"phase": "Failed", "containerStatuses": [{"name": "main", "state": {"terminated": {"exitCode": 3}}}]}
RUNNING = {"phase": "Running", "containerStatuses": [{"name": "main", "state": {"running": {}}}]}


@pytest.mark.parametrize("cfg", [{}, {"image_repo": "r.io/me/jobs"}], ids=["inline code", "images"])
def test_the_rights_of_the_printed_role_are_enough(
    cluster: Cluster, scheduler: KubernetesScheduler, cfg: dict[str, Any]
) -> None:
    """They suffice to submit a sweep, and to cancel a task that runs."""
    cluster.grant(yaml.safe_load(scheduler.rights(cfg))["rules"])
    app_id = submit(scheduler, ["a", "b"], "{v}")
    cluster.run_pods(cluster.of("jobs")[0], RUNNING)
    scheduler.cancel_task(app_id, 1)
    assert [pod["metadata"]["name"][-7:] for pod in cluster.of("pods")] == ["0-abcde"]


def test_what_became_of_tasks(cluster: Cluster, scheduler: KubernetesScheduler) -> None:
    """The Job has the states of ended tasks, pods those of running ones; succeeded pods are not fetched."""
    app_id = submit(scheduler, [str(k) for k in range(8)], "{v}", width=3)
    (job,) = cluster.of("jobs")
    cluster.run_pods(job, RUNNING, most=3)
    pods = {pod["metadata"]["name"]: pod for pod in cluster.of("pods")}
    next(pod for name, pod in pods.items() if "-1-" in name or name.endswith("-1"))["status"] = FAILED
    job["status"] = {"completedIndexes": "3-5", "failedIndexes": "1", "succeeded": 3, "failed": 1, "active": 2}
    cluster.calls.clear()
    found = scheduler.describe(app_id)
    assert found is not None
    assert found.tasks is not None
    assert [s.name for s in found.tasks.states] == [
        *("RUNNING", "FAILED", "RUNNING", "SUCCEEDED", "SUCCEEDED", "SUCCEEDED", "PENDING", "PENDING"),
    ]
    assert (found.tasks.exit_codes[1], found.tasks.max_parallel, found.state) == (3, 3, AppState.RUNNING)
    assert len(cluster.calls) == 2
    assert "status.phase!=Succeeded" in str(cluster.calls[-1])
    tasks = scheduler.describe_tasks(app_id, [1, 4, 7])
    assert tasks is not None
    assert [(t.app_id.rpartition("/")[2], t.state.name) for t in tasks] == [
        ("1", "FAILED"),
        ("4", "SUCCEEDED"),
        ("7", "PENDING"),
    ]
    assert "exit code 3" in tasks[0].msg
    assert scheduler.log_replicas(app_id) == [("w", k) for k in range(8)]


def test_the_end(cluster: Cluster, scheduler: KubernetesScheduler) -> None:
    """A sweep with failures has failed; a cancelled one has no running or waiting tasks."""
    app_id = submit(scheduler, ["a", "b", "c"], "{v}")
    (job,) = cluster.of("jobs")
    failed = {"type": "Failed", "status": "True", "reason": "FailedIndexes", "message": "Job has failed indexes"}
    job["status"] = {"completedIndexes": "0,2", "failedIndexes": "1", "conditions": [failed]}
    found = scheduler.describe(app_id)
    assert found is not None
    assert (found.state, found.msg) == (AppState.FAILED, "2 of 3 tasks succeeded, 1 failed")
    other = submit(scheduler, ["a", "b", "c"], "{v}")
    cluster.of("jobs")[-1]["status"] = {"completedIndexes": "0"}
    scheduler.cancel(other)
    found = scheduler.describe(other)
    assert found is not None
    assert (found.state, found.msg) == (AppState.CANCELLED, "1 of 3 tasks succeeded, 2 cancelled")


def ended(folder: Path, name: str, code: int) -> dict[str, Any]:
    """The status of a container that was run."""
    left = folder / f"end.{name}"
    said = {"message": left.read_text()} if left.exists() else {}
    return {"name": name, "state": {"terminated": {"exitCode": code, "finishedAt": "2026-01-01T00:00:09Z", **said}}}


def test_a_pod_runs_several_tasks(cluster: Cluster, scheduler: KubernetesScheduler, tmp_path: Path) -> None:
    """Each is a container with its own log and end; a failure ends none of them; the last pod has fewer."""
    more = {"A": "x{v}", "B": "${replica_id}"}
    app_id = submit(scheduler, list("abcde"), "{v}", "$${{HOME}} $(X) ${replica_id}", width=9, pack=3, env=more)
    (job,) = cluster.of("jobs")
    spec = job["spec"]
    names = [c["name"] for kind in ("initContainers", "containers") for c in spec["template"]["spec"][kind]]
    assert (names, spec["completions"], spec["parallelism"]) == (["task-0", "task-1", "main"], 2, 2)
    show = 'sh -c \'echo "$@" $A $B $TORCHX_TASK $TORCHX_REPLICA_ID; test $1 != b || { echo {} >$E; exit 5; }\' sh "$@"'
    cluster.run_pods(job, RUNNING)
    pods = cluster.of("pods")
    for number, pod in enumerate(pods):
        folder = tmp_path / str(number)
        folder.mkdir()
        script = show.replace("$E", str(folder / "end.task-1"))
        codes = []
        for at, name in enumerate(names):
            ran = run_task(cluster, number, folder, script, name)
            codes.append(ran.returncode)
            k = 3 * number + at
            value = "abcde"[k : k + 1]
            assert ran.stdout.decode() == (f"{value} ${{HOME}} $(X) {k} x{value} {k} {k} {k}\n" if value else ""), (
                ran.stderr
            )
        assert codes == ([0, 0, 1] if number == 0 else [0, 0, 0])
        kinds = (
            [ended(folder, n, c) for n, c in zip(names, codes, strict=True)][:2],
            [ended(folder, "main", codes[2])],
        )
        pod["status"] = {"phase": "Running", "initContainerStatuses": kinds[0], "containerStatuses": kinds[1]}
    pods[0]["status"]["phase"] = "Failed"
    waits = {"name": "task-1", "state": {"running": {"startedAt": "2026-01-01T00:00:09Z"}}}
    pods[1]["status"] = {"phase": "Pending", "initContainerStatuses": [ended(tmp_path / "1", "task-0", 0), waits]}
    job["status"] = {"failedIndexes": "0", "failed": 1, "active": 1}
    found = scheduler.describe(app_id)
    assert found is not None and found.tasks is not None
    assert [s.name for s in found.tasks.states] == ["SUCCEEDED", "FAILED", "SUCCEEDED", "SUCCEEDED", "RUNNING"]
    assert (found.tasks.exit_codes, found.tasks.max_parallel) == ([0, 5, 0, 0, None], 9)
    some = scheduler.describe_tasks(app_id, [1])
    assert some is not None and "exit code 5" in some[0].msg
    name = pods[0]["metadata"]["name"]
    cluster.calls.clear()
    cluster.logs[name, ""] = b"2026-01-01T00:00:00.0Z line\n"
    (lines,) = scheduler.open_logs(app_id, [("w", 1)], LogQuery())
    assert [*lines] == ["line\n"]
    assert [query["container"] for _, path, query in cluster.calls if path.endswith("/log")] == ["task-1"]


@pytest.mark.parametrize(
    ("status", "states", "why"),
    [
        ({"phase": "Pending"}, "PENDING PENDING PENDING", ""),
        ({"phase": "Pending", "initContainerStatuses": [{"name": "task-0", "state": {"running": {}}}]},
         "RUNNING PENDING PENDING", "waits until other tasks"),
        ({"phase": "Failed", "reason": "DeadlineExceeded", "initContainerStatuses": [
            {"name": "task-0", "state": {"terminated": {"exitCode": 0, "message": "torchx: exit code 0\n"}}},
            {"name": "task-1", "state": {"terminated": {"exitCode": 0, "message": "torchx: exit code 143\n"}}}]},
         "SUCCEEDED FAILED FAILED", "deadline"),
        ({"phase": "Failed", "initContainerStatuses": [
            {"name": "task-0", "state": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}}]},
         "FAILED FAILED FAILED", "an earlier task in the same pod was killed"),
    ],
)  # fmt: skip
def test_what_becomes_of_tasks_in_one_pod(
    status: dict[str, Any], states: str, why: str, cluster: Cluster, scheduler: KubernetesScheduler
) -> None:
    """What ended or holds up the pod is said of the tasks that have not ended; the last one's reason is shown."""
    app_id = submit(scheduler, list("abc"), "{v}", pack=3)
    cluster.run_pods(cluster.of("jobs")[0], status)
    found = scheduler.describe_tasks(app_id, [0, 1, 2])
    assert found is not None
    assert " ".join(one.state.name for one in found) == states
    assert why in found[2].msg


def test_a_task_in_one_pod_with_others_is_cancelled(
    cluster: Cluster, scheduler: KubernetesScheduler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process in its pod marks the task, and ends its program, whose pid is in a file."""
    app_id = submit(scheduler, list("abcdef"), "{v}", pack=3)
    status = {"phase": "Running", "containerStatuses": [{"name": "main", "state": {"running": {}}}]}
    cluster.run_pods(cluster.of("jobs")[0], status)

    def here(_: PodFiles, *argv: str) -> Ran:
        done = subprocess.run(
            [w.replace("/torchx-pack", str(tmp_path)) for w in argv], capture_output=True, check=False
        )
        return Ran(done.returncode, done.stdout, done.stderr)

    monkeypatch.setattr(PodFiles, "run", here)
    with subprocess.Popen(["sleep", "100"]) as program:
        (tmp_path / "pid.2").write_text(f"{program.pid}\n")
        scheduler.cancel_task(app_id, 2)
        assert program.wait(10) == -15
    scheduler.cancel_task(app_id, 1)  # has no pid yet
    assert sorted(path.name for path in tmp_path.iterdir()) == ["pid.2", "skipped.1", "skipped.2"]


def test_too_many_tasks_in_a_pod(cluster: Cluster, scheduler: KubernetesScheduler) -> None:
    """The statuses of its containers have little room."""
    with pytest.raises(NotSupportedError, match="100 tasks at most"):
        submit(scheduler, ["a"], "{v}", pack=101)


def test_the_list_has_the_state_of_the_status(cluster: Cluster, scheduler: KubernetesScheduler) -> None:
    """Also if a task was cancelled: its pods end at once and successfully."""
    app_id = submit(scheduler, ["a", "b", "c"], "{v}")
    scheduler.cancel_task(app_id, 1)
    complete = {"type": "Complete", "status": "True"}
    cluster.of("jobs")[0]["status"] = {"completedIndexes": "0-2", "succeeded": 3, "conditions": [complete]}
    found = scheduler.describe(app_id)
    assert found is not None
    assert [job.state for job in scheduler.list({})] == [found.state] == [AppState.CANCELLED]


@pytest.mark.parametrize("mark", ["", "all", "-1"])
def test_the_list_survives_a_sweep_of_somebody_who_edits(
    cluster: Cluster, scheduler: KubernetesScheduler, mark: str
) -> None:
    """A Job whose annotation is no number is listed like any other job, and so are all others."""
    app_id, other = (submit(scheduler, ["a", "b"], "{v}") for _ in range(2))
    cluster.of("jobs")[0]["metadata"]["annotations"]["torchx.pytorch.org/sweep"] = mark
    assert {job.app_id for job in scheduler.list({})} == {app_id, other}


def test_those_that_failed_again_with_their_code(cluster: Cluster, tmp_path: Path) -> None:
    """A new sweep ships inline code, too, because it is not in the image."""
    (tmp_path / "train.py").write_text("print(1)\n")
    role = Role("w", "img", entrypoint="python", args=["train.py", "{v}"], resource=Resource(1, 0, 64))
    factories: Any = {"kubernetes": lambda session, **_: create_scheduler(session, client=cluster)}
    with Runner("me", factories) as runner:
        info = runner.dryrun(AppDef("train", [role]), "kubernetes", workspace=f"file://{tmp_path}")
        handle = runner.schedule_sweep(info, TaskList(names=["v"], points=[("a",), ("b",)]))
        (job,) = cluster.of("jobs")
        failed = {"type": "Failed", "status": "True", "reason": "FailedIndexes"}
        job["status"] = {"completedIndexes": "0", "failedIndexes": "1", "conditions": [failed]}
        more, tasks = runner.retry_sweep(handle)
        assert [list(point) for point in tasks.points] == [["b"]]
        runner.schedule_sweep(more, tasks)
        codes = [item for item in cluster.of("configmaps") if "binaryData" in item]
        assert len(codes) == 2
        assert codes[0]["binaryData"] == codes[1]["binaryData"]


def test_what_is_left_to_single_jobs(cluster: Cluster, scheduler: KubernetesScheduler) -> None:
    """Old clusters, other kinds, several replicas, retries, and too large values are rejected; nothing is created."""
    cluster.version = (1, 28)
    with pytest.raises(NotSupportedError, match=r"1\.28 ends a Job at its first failure"):
        submit(scheduler, ["a"], "{v}")
    cluster.version = (1, 29)
    scheduler = create_scheduler("me", client=cluster)  # the other one remembers the version
    with pytest.raises(NotSupportedError, match="kind=jobset"):
        submit(scheduler, ["a"], "{v}", cfg={"kind": "jobset"})
    with pytest.raises(NotSupportedError, match="2 replicas"):
        submit(scheduler, ["a"], "{v}", num_replicas=2)
    with pytest.raises(NotSupportedError, match="cannot have retries"):
        submit(scheduler, ["a"], "{v}", max_retries=1)
    with pytest.raises(NotSupportedError, match="1000 kB of a ConfigMap"):
        submit(scheduler, ["x" * MAX_BYTES], "{v}")
    with pytest.raises(NotSupportedError, match="1000 kB of a ConfigMap"):  # in bytes
        submit(scheduler, ["ü" * (MAX_BYTES // 2)], "{v}")
    assert not cluster.objects


WAITING = {"phase": "Pending"}
DONE = {"phase": "Succeeded", "containerStatuses": [{"name": "main", "state": {"terminated": {"exitCode": 0}}}]}
GONE = {"phase": "Failed", "reason": "Evicted", "message": "The node was low on memory."}


def pod(k: int, status: dict[str, Any]) -> Pod:
    index = {"batch.kubernetes.io/job-completion-index": str(k)}
    return read_pod({"metadata": {"name": f"p-{k}", "annotations": index}, "spec": {}, "status": status})


def sweep_job(
    skipped: str = "", *, ended: str = "", failed: str = "", condition: str = "", cancelled: bool = False
) -> dict[str, Any]:
    """The Job of a sweep of three tasks."""
    annotations = {"torchx.pytorch.org/sweep": "2"} | ({"torchx.pytorch.org/skipped": skipped} if skipped else {})
    if cancelled:
        annotations["torchx.pytorch.org/cancelled"] = "1"
    conditions = [{"type": condition, "status": "True"}] if condition else []
    return {
        "metadata": {"annotations": annotations, "labels": {}, "name": "j", "namespace": "n"},
        "spec": {"completions": 3, "parallelism": 0 if cancelled else 2, "completionMode": "Indexed"},
        "status": {"completedIndexes": ended, "failedIndexes": failed, "conditions": conditions},
    }


P, R, S, F, C = AppState.PENDING, AppState.RUNNING, AppState.SUCCEEDED, AppState.FAILED, AppState.CANCELLED


@pytest.mark.parametrize(
    ("job", "pods", "states", "codes"),
    [
        ({}, {}, [P, P, P], [None] * 3),
        ({}, {0: RUNNING, 2: FAILED}, [R, P, F], [None, None, 3]),
        ({}, {-1: FAILED, 1: WAITING, 3: FAILED, 4: RUNNING}, [P, P, P], [None] * 3),
        ({}, {1: DONE}, [P, S, P], [None, 0, None]),
        ({"ended": "0-1"}, {1: RUNNING, 2: RUNNING}, [S, S, R], [0, 0, None]),
        ({"ended": "0,3-5", "failed": "1,7"}, {1: FAILED}, [S, F, P], [0, 3, None]),
        ({"failed": "2"}, {}, [P, P, F], [None] * 3),
        ({"condition": "Complete", "ended": "0-2"}, {0: RUNNING}, [S, S, S], [0, 0, 0]),
        ({"condition": "Failed", "ended": "0"}, {1: RUNNING, 2: FAILED}, [S, F, F], [0, None, 3]),
        ({"cancelled": True, "ended": "0"}, {0: RUNNING, 1: RUNNING, 2: FAILED}, [S, C, F], [0, None, 3]),
        # tasks that were cancelled one by one: those that wait, and those that have ended since
        ({"skipped": "1"}, {0: RUNNING}, [R, C, P], [None] * 3),
        ({"skipped": "1"}, {0: RUNNING, 1: RUNNING}, [R, R, P], [None] * 3),
        ({"skipped": "0,1", "ended": "1"}, {0: FAILED}, [C, C, P], [3, 0, None]),
        ({"skipped": "1", "ended": "0-2", "condition": "Complete"}, {}, [S, C, S], [0, 0, 0]),
        ({"skipped": "2,3,9,x,"}, {}, [P, P, C], [None] * 3),
    ],
)
def test_the_state_of_each_task(
    job: dict[str, Any], pods: dict[int, dict[str, Any]], states: list[AppState], codes: list[int | None]
) -> None:
    """What the Job says of an ended task, else its pod; a cancelled task is CANCELLED unless it still runs."""
    table = table_of(sweep_job(**job), [pod(k, status) for k, status in pods.items()])
    assert (table.states, table.exit_codes, table.max_parallel) == (states, codes, 2)


def test_the_end_of_a_task() -> None:
    """As its pod has it; unknown for the others."""
    status = {"terminated": {"exitCode": 3, "finishedAt": "2026-01-01T00:00:09Z"}}
    over = {"phase": "Failed", "containerStatuses": [{"name": "main", "state": status}]}
    assert table_of(sweep_job(), [pod(1, over)]).ended == [0.0, unix_time("2026-01-01T00:00:09Z"), 0.0]


def test_why_a_sweep_does_not_go_on(cluster: Cluster, scheduler: KubernetesScheduler) -> None:
    """A queue, while it waits; nothing after its end."""
    app_id = submit(scheduler, ["a", "b"], "{v}")
    (job,) = cluster.of("jobs")
    job["spec"]["suspend"] = True
    found = scheduler.describe(app_id)
    assert found is not None and found.msg.endswith("; it is suspended")
    assert [role.name for role in found.roles] == ["w"]
    job["status"] = {"completedIndexes": "0-1"}
    found = scheduler.describe(app_id)
    assert found is not None and (found.state, "suspended" in found.msg) == (S, False)


def test_what_is_said_of_single_tasks(cluster: Cluster, scheduler: KubernetesScheduler) -> None:
    """With their role and their host, the cause of a failure, and no cause of one that was cancelled."""
    app_id = submit(scheduler, ["a", "b", "c", "d"], "{v}")
    cluster.run_pods(cluster.of("jobs")[0], FAILED, most=2)
    scheduler.cancel_task(app_id, 1)
    scheduler.cancel_task(app_id, 2)
    tasks = scheduler.describe_tasks(app_id, [0, 1, 2, 3])
    assert tasks is not None
    assert [task.state for task in tasks] == [F, C, C, P]
    assert ["exit code 3" in task.msg for task in tasks] == [True, False, False, False]
    assert [(status.role, [r.id for r in status.replicas]) for t in tasks for status in t.roles_statuses] == [
        ("w", [k]) for k in range(4)
    ]
    with pytest.raises(NotFoundError, match="no task `4`"):
        scheduler.describe_tasks(app_id, [1, 4])


@pytest.mark.parametrize(
    ("status", "left"), [(RUNNING, [0, 2]), (WAITING, [0, 2]), (FAILED, [0, 1, 2]), (DONE, [0, 1, 2])]
)
def test_only_the_pod_of_a_cancelled_task_is_deleted(
    cluster: Cluster, scheduler: KubernetesScheduler, status: dict[str, Any], left: list[int]
) -> None:
    """If it has not ended: that of an ended one has its log."""
    app_id = submit(scheduler, ["a", "b", "c"], "{v}")
    cluster.run_pods(cluster.of("jobs")[0], status)
    scheduler.cancel_task(app_id, 1)
    index = "batch.kubernetes.io/job-completion-index"
    assert sorted(int(item["metadata"]["annotations"][index]) for item in cluster.of("pods")) == left


@pytest.mark.parametrize(("status", "reason"), [(403, "Forbidden"), (500, "InternalError")])
def test_a_cancellation_that_is_refused(
    cluster: Cluster, scheduler: KubernetesScheduler, status: int, reason: str
) -> None:
    """It is not tried again and again, and no pod is deleted."""
    app_id = submit(scheduler, ["a", "b"], "{v}")
    cluster.run_pods(cluster.of("jobs")[0], RUNNING)
    cluster.away = lambda method, path: refusal(status, reason, "no") if method == "PATCH" else None
    cluster.calls.clear()
    with pytest.raises(BackendError):
        scheduler.cancel_task(app_id, 1)
    assert len(cluster.of("pods")) == 2
    if status == 403:
        assert sum(method == "PATCH" for method, _, _ in cluster.calls) == 1


def test_a_sweep_without_a_limit(cluster: Cluster, scheduler: KubernetesScheduler) -> None:
    """A hundred tasks at once; its volume cannot be written to; the values belong to the Job."""
    submit(scheduler, [str(k) for k in range(101)], "{v}")
    (job,) = cluster.of("jobs")
    assert job["spec"]["parallelism"] == 100
    template = job["spec"]["template"]["spec"]
    (mount,) = (m for m in template["containers"][0]["volumeMounts"] if m["name"] == "torchx-values")
    assert mount == {"name": "torchx-values", "mountPath": "/torchx-values", "readOnly": True}
    kinds = [key[0] for key in cluster.objects]
    assert len(kinds) == 3
    submit(scheduler, ["a", "b"], "{v}", width=7)
    assert cluster.of("jobs")[-1]["spec"]["parallelism"] == 2


@pytest.mark.parametrize(("count", "fits"), [(4, True), (5, False)])
def test_the_number_of_tasks(
    cluster: Cluster, scheduler: KubernetesScheduler, count: int, fits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kubernetes allows 100,000 for such a Job."""
    assert sweeps.MAX_TASKS == 100_000
    monkeypatch.setattr(sweeps, "MAX_TASKS", 4)
    if fits:
        submit(scheduler, ["a"] * count, "{v}")
    else:
        with pytest.raises(NotSupportedError, match="an Indexed Job has 4 tasks at most"):
            submit(scheduler, ["a"] * count, "{v}")
    assert bool(cluster.objects) is fits


@pytest.mark.parametrize("more", [0, 1])
def test_the_size_of_the_values(cluster: Cluster, scheduler: KubernetesScheduler, more: int) -> None:
    """A million bytes fit, with all that surrounds a value."""
    assert MAX_BYTES == 1_000_000
    values = ["x" * (MAX_BYTES - len(values_line(("x",)).encode()) + 1 + more)]
    if more:
        with pytest.raises(NotSupportedError, match="1000 kB of a ConfigMap"):
            submit(scheduler, values, "{v}")
    else:
        submit(scheduler, values, "{v}")


def test_a_sweep_has_one_role(scheduler: KubernetesScheduler) -> None:
    """Two are left to single jobs."""
    roles = [Role(name, "img", entrypoint="python", resource=Resource(1, 0, 64)) for name in "ab"]
    info = scheduler.submit_dryrun(AppDef("train", roles), {})
    with pytest.raises(NotSupportedError, match="2 replicas"):
        scheduler.check_tasks(info, TaskList(names=["v"], points=[("1",)]))
