"""Jobs inside the pods of a session, whose processes run on this machine here."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tests.schedulers.kubernetes.fake_cluster import Cluster
from torchx.errors import BackendError, ConfigError, NotFoundError, NotSupportedError, TorchXError
from torchx.schedulers.api import DescribeAppResponse
from torchx.schedulers.kit.inside.run import Ran
from torchx.schedulers.kit.logs import LogQuery, Stream
from torchx.schedulers.kubernetes import allocations
from torchx.schedulers.kubernetes.pod_files import PodFiles
from torchx.schedulers.kubernetes_scheduler import KubernetesScheduler, create_scheduler
from torchx.specs import AppDef, AppState, BindMount, Resource, Role, is_terminal
from torchx.specs.secret import Secret
from torchx.specs.wishes.timeouts import TIMEOUT
from torchx.util.records import replace

RUNNING = {
    "phase": "Running",
    "podIP": "10.0.0.1",
    "containerStatuses": [{"name": "main", "state": {"running": {}}}],
}


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


@pytest.fixture
def scheduler(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> KubernetesScheduler:
    """Its pods run their commands on this machine, below a folder for each."""
    monkeypatch.setenv("TORCHX_HOME", str(tmp_path / "home"))

    def run(self: PodFiles, *argv: str, stdin: bytes = b"") -> Ran:
        top = tmp_path / self._pod["metadata"]["name"].rpartition("-")[0][-1]
        top.mkdir(exist_ok=True)
        words = [word.replace("/tmp/torchx", f"{top}/torchx") for word in argv]
        stdin = stdin.replace(b"/tmp/torchx", f"{top}/torchx".encode())
        done = subprocess.run(words, input=stdin, cwd=top, capture_output=True, check=False, timeout=30)
        return Ran(done.returncode, done.stdout, done.stderr)

    monkeypatch.setattr(PodFiles, "run", run)
    return create_scheduler("me", client=cluster)


def session(cluster: Cluster, scheduler: KubernetesScheduler, pods: int = 1) -> str:
    role = Role("s", "img", entrypoint="sleep", args=["9"], num_replicas=pods, resource=Resource(1, 0, 64))
    app_id = scheduler.submit(AppDef("session", [role]), {"kind": "job"})
    cluster.run_pods(cluster.of("jobs")[0], RUNNING)
    return app_id


def submit(scheduler: KubernetesScheduler, script: str, within: str, n: int = 1, **fields: Any) -> str:
    role = Role("r", "", entrypoint="sh", args=["-c", script], num_replicas=n, resource=Resource(1, 0, 64), **fields)
    return scheduler.submit(AppDef("try", [role]), {"in": within})


def until(scheduler: KubernetesScheduler, app_id: str, over: bool = True) -> DescribeAppResponse:
    deadline = time.monotonic() + 20
    while (found := scheduler.describe(app_id)) is not None and is_terminal(found.state) != over:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert found is not None
    return found


def lines(scheduler: KubernetesScheduler, app_id: str, k: int = 0, stream: Stream | None = None) -> list[str]:
    (log,) = scheduler.open_logs(app_id, [("r", k)], LogQuery(stream=stream))
    return [*log]


def test_a_try_ends_by_itself(
    cluster: Cluster, scheduler: KubernetesScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has an id, an environment, a log, an end and a cause of its own; nothing is created in the cluster."""
    monkeypatch.setenv("TORCHX_CHECKPOINT_NOW", "that of the session")
    within = session(cluster, scheduler)
    made = len(cluster.objects)
    script = "echo $A$TORCHX_ROLE_NAME${TORCHX_CHECKPOINT_NOW}; echo ${TORCHX_JOB_ID##*/}; echo no data >&2; exit 3"
    env = {"A": "it's ", "TORCHX_JOB_ID": "kubernetes://me/${app_id}", "S": Secret("env:HOME")}
    app_id = submit(scheduler, script, f"kubernetes://me/{within}", env=env)
    assert app_id.rpartition(".")[0] == within
    found = until(scheduler, app_id)
    assert (found.state, "exit code 3" in found.msg, "no data" in found.msg) == (AppState.FAILED, True, True)
    assert [(role.name, role.args) for role in found.roles] == [("r", ["-c", script])]
    assert lines(scheduler, app_id, stream=Stream.STDOUT) == ["it's r\n", f"{app_id}\n"]
    assert lines(scheduler, app_id, stream=Stream.STDERR) == ["no data\n"]
    assert (scheduler.log_replicas(app_id), len(cluster.objects)) == ([("r", 0)], made)
    assert scheduler.describe_many([app_id, within])[within] is not None
    assert scheduler.changed([app_id], 0.01) == {app_id}  # no watch notices it
    with pytest.raises(NotFoundError, match="is not running: it is FAILED"):
        scheduler.enter(app_id, "r", 0, ["true"])
    with pytest.raises(NotSupportedError, match="--archive"):
        scheduler.open_logs(app_id, [("r", 0)], LogQuery(keep=True))
    scheduler.delete(app_id)
    assert scheduler.describe(app_id) is None


def test_two_cancels(cluster: Cluster, scheduler: KubernetesScheduler) -> None:
    """The first lets the program save, the second kills one that does not end."""
    within = session(cluster, scheduler)
    kind = submit(scheduler, "trap 'echo saving; exit 0' TERM; echo up; while :; do sleep 0.1; done", within)
    deaf = submit(scheduler, "trap '' TERM; echo up; while :; do sleep 0.1; done", within)
    for app_id in (kind, deaf):
        while lines(scheduler, app_id) != ["up\n"]:
            time.sleep(0.05)
        scheduler.cancel(app_id)
    assert until(scheduler, kind).state is AppState.CANCELLED
    assert lines(scheduler, kind) == ["up\n", "saving\n"]
    assert until(scheduler, deaf, over=False).state is AppState.RUNNING
    scheduler.cancel(deaf)
    assert until(scheduler, deaf).state is AppState.CANCELLED


def test_replicas_in_several_pods(
    cluster: Cluster, scheduler: KubernetesScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One in each, with the address of the first; a failure ends the others, and is the cause when a pod is gone."""
    within = session(cluster, scheduler, 2)
    app_id = submit(scheduler, "echo $TORCHX_RANK0_HOST; test ${replica_id} = 1 && exit 5; exec sleep 60", within, 2)
    found = until(scheduler, app_id)
    assert (found.state, "r/1" in found.msg) == (AppState.FAILED, True)
    while {s.state for s in scheduler.describe(app_id).roles_statuses[0].replicas} & {AppState.RUNNING}:
        time.sleep(0.05)
    assert [lines(scheduler, app_id, k) for k in (0, 1)] == [["10.0.0.1\n"]] * 2
    cluster.of("pods")[0]["status"] = {"phase": "Failed"}
    monkeypatch.setattr(allocations.AllocatedJobs, "_roles_of", lambda *_: [Role("r", "", num_replicas=2)])
    left = scheduler.describe(app_id)
    assert left is not None
    assert ("exit code 5" in left.msg, lines(scheduler, app_id, 1)) == (True, ["10.0.0.1\n"])


def test_the_end_of_the_session(
    cluster: Cluster, scheduler: KubernetesScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is that of a job on record; what was in its pods is gone."""
    within = session(cluster, scheduler)
    app_id = submit(scheduler, "true", within)
    role = Role("r", "", entrypoint="true")
    until(scheduler, app_id)
    cluster.of("pods")[0]["status"] = {"phase": "Failed"}
    assert scheduler.describe(app_id) is None
    monkeypatch.setattr(allocations.AllocatedJobs, "_roles_of", lambda *_: [role])
    found = scheduler.describe(app_id)
    assert found is not None
    assert (found.state, "has ended, and its files with it" in found.msg) == (AppState.CANCELLED, True)
    with pytest.raises(NotFoundError, match="which have ended"):
        lines(scheduler, app_id)


def test_a_lost_answer(cluster: Cluster, scheduler: KubernetesScheduler) -> None:
    """A job that is started again runs once; a script that breaks off starts nothing."""
    within = session(cluster, scheduler)
    app = AppDef("try", [Role("r", "", entrypoint="sh", args=["-c", "echo $$"], resource=Resource(1, 0, 64))])
    info = scheduler.submit_dryrun(app, {"in": within})
    (member,) = info.request.members("localhost")
    script = allocations._script(info.request, member, app, member.role.env)
    files = PodFiles(None, cluster.of("pods")[0])
    files.run("sh", stdin=script[: len(script) // 2])
    app_id = scheduler.expected_id(info)
    assert not scheduler.exists(app_id)
    assert scheduler.schedule(info) == scheduler.schedule(info) == app_id
    until(scheduler, app_id)
    assert len(lines(scheduler, app_id)) == 1


@pytest.mark.parametrize(
    ("within", "fields", "kind", "why"),
    [
        ("default:nope", {}, ConfigError, "the cluster does not know it"),
        ("a.b", {}, ConfigError, "run option `in` is `a.b`"),
        ("", {"n": 2}, ConfigError, "needs 2 pods, and `default:session"),
        ("", {"mounts": [BindMount("/a", "/b")]}, NotSupportedError, "has mounts"),
        ("", {"env": {"A": "[FIELD_PATH]x"}}, NotSupportedError, "comes from the cluster"),
        ("", {"env": {"A": Secret("k8s:a/b")}}, NotSupportedError, "comes from the cluster"),
    ],
)
def test_what_is_refused(
    within: str, fields: dict, kind: type[TorchXError], why: str, cluster: Cluster, scheduler: KubernetesScheduler
) -> None:
    """With one line, before anything runs."""
    here = session(cluster, scheduler)
    with pytest.raises(kind, match=why):
        submit(scheduler, "true", within or here, **fields)


def test_what_needs_a_job_of_its_own(cluster: Cluster, scheduler: KubernetesScheduler) -> None:
    """Wishes of whole jobs, exports, sweeps and faults."""
    here = session(cluster, scheduler)
    role = Role("r", "", entrypoint="true", resource=Resource(1, 0, 64))
    with pytest.raises(NotSupportedError, match="`--timeout` is not available within running pods"):
        scheduler.submit(AppDef("try", [role], metadata={TIMEOUT: "1h"}), {"in": here})
    with pytest.raises(NotSupportedError, match="the roles have an order"):
        scheduler.submit(AppDef("try", [role, replace(role, name="b", after=["r"])]), {"in": here})
    info = scheduler.submit_dryrun(AppDef("try", [role]), {"in": here})
    with pytest.raises(NotSupportedError, match="cannot be exported"):
        scheduler.export(info)
    with pytest.raises(NotSupportedError, match="Indexed Job"):
        scheduler.check_tasks(info, None)
    with pytest.raises(NotSupportedError, match="not its own"):
        scheduler.simulate(f"{here}.try-x1", "kill", ("r", 0))


def test_a_pod_that_cannot_hold_it(
    cluster: Cluster, scheduler: KubernetesScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the shell says there is the reason."""
    monkeypatch.setattr(PodFiles, "run", lambda *_, **__: Ran(78, b"", b"mkdir: read-only file system\n"))
    with pytest.raises(BackendError, match=r"could not be started in pod `session.*read-only file system"):
        submit(scheduler, "true", session(cluster, scheduler))


def test_a_job_that_has_just_been_started(tmp_path: Path) -> None:
    """Its file is there before its content; it is not taken for a job that does not exist."""
    (tmp_path / "started").mkdir()
    (tmp_path / "begun").touch()
    told = subprocess.run(
        ["sh", "-c", allocations._STATE, "sh", str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert told.stdout.split() == ["0", "running"]
