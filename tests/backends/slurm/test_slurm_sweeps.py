"""Sweeps on a real Slurm cluster: arrays in chunks, limits on submitted jobs, and tasks that are killed."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.backends.slurm.conftest import becomes, command, ended, until, wait_for
from tests.backends.sweeps import Ground, SweepContract, sweeps_of
from torchx.schedulers.kit.logs import LogQuery
from torchx.schedulers.slurm_scheduler import SlurmScheduler
from torchx.specs import AppDef, AppState, Resource, Role
from torchx.specs.tasks import TaskList
from torchx.specs.wishes.after import AFTER
from torchx.util.records import replace


class Sweeps:
    """Sweeps of ``sh -c script``, cancelled at the end of the test."""

    def __init__(self, scheduler: SlurmScheduler) -> None:
        self.scheduler = scheduler
        self.made: list[str] = []

    def __call__(self, script: str, count: int, *, width: int = 0, **cfg: str) -> str:
        role = Role("w", "", entrypoint="sh", args=["-c", script], resource=Resource(cpu=1, gpu=0, memMB=20))
        app = AppDef("sweep", [role])
        info = self.scheduler.submit_dryrun(app, cfg)
        info._app = app
        tasks = TaskList(names=["k"], points=[(str(k),) for k in range(count)], max_parallel=width)
        self.made.append(self.scheduler.submit_tasks(info, tasks))
        return self.made[-1]


@pytest.fixture
def sweep(scheduler: SlurmScheduler) -> Iterator[Sweeps]:
    made = Sweeps(scheduler)
    yield made
    for app_id in made.made:
        scheduler.cancel(app_id)
    becomes(lambda: command("squeue", "-h", "--me", "--name=sweep"), "")


@pytest.fixture
def small_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrays of three tasks at most: what a cluster says that has larger ones would take minutes to fill."""
    monkeypatch.setattr("torchx.schedulers.slurm.sweeps.most_tasks", lambda run: 3)


def test_a_sweep_in_several_arrays(small_arrays: None, sweep: Sweeps, tmp_path: Path) -> None:
    """Each task runs once, with its own value; the one that fails is named with its cause, and has its log."""
    witness = tmp_path / "witness"
    app_id = sweep(f"echo {{k}} $TORCHX_TASK >> {witness}; test {{k}} != 4 || {{ echo no data; exit 3; }}", 7)
    found = ended(sweep.scheduler, app_id)
    assert found.tasks is not None
    assert (found.state, found.tasks.failed(), found.tasks.exit_codes[4]) == (AppState.FAILED, [4], 3)
    assert sorted(witness.read_text().split("\n")[:-1]) == [f"{k} {k}" for k in range(7)]
    task = sweep.scheduler.describe_tasks(app_id, [4])
    assert task is not None
    assert task[0].msg == "w/4: exit code 3: no data"
    assert list(sweep.scheduler.open_logs(app_id, [("w", 4)], LogQuery())[0]) == ["no data\n"]


def test_cancel_while_arrays_are_to_come(small_arrays: None, sweep: Sweeps, tmp_path: Path) -> None:
    """Two run at most, whatever the number of arrays; after the cancellation no task is left, and none begins."""
    witness, gate = tmp_path / "witness", tmp_path / "gate"
    app_id = sweep(f"echo {{k}} >> {witness}; {wait_for(gate)}", 8, width=2)
    becomes(lambda: len(witness.read_text().split()) if witness.exists() else 0, 2)
    found = sweep.scheduler.describe(app_id)
    assert found is not None
    assert found.tasks is not None
    assert sorted(state.name for state in found.tasks.states) == ["PENDING"] * 6 + ["RUNNING"] * 2
    sweep.scheduler.cancel(app_id)
    found = until(sweep.scheduler, app_id, lambda f: f.state is AppState.CANCELLED)
    gate.touch()
    assert found.msg == "0 of 8 tasks succeeded, 8 cancelled"
    assert len(witness.read_text().split()) == 2


def test_one_task_is_cancelled(sweep: Sweeps, tmp_path: Path) -> None:
    """The others go on."""
    gate = tmp_path / "gate"
    app_id = sweep(wait_for(gate), 3)
    until(sweep.scheduler, app_id, lambda f: f.tasks is not None and f.tasks.states[1] is AppState.RUNNING)
    sweep.scheduler.cancel_task(app_id, 1)
    until(sweep.scheduler, app_id, lambda f: f.tasks is not None and f.tasks.states[1] is AppState.CANCELLED)
    gate.touch()
    assert ended(sweep.scheduler, app_id).msg == "2 of 3 tasks succeeded, 1 cancelled"


def test_a_task_that_is_killed_without_a_word(sweep: Sweeps) -> None:
    """SIGKILL from Slurm leaves no note: the accounting says what became of it."""
    app_id = sweep("sleep 1000", 2)
    until(sweep.scheduler, app_id, lambda f: f.tasks is not None and f.tasks.states[0] is AppState.RUNNING)
    command("scancel", "--signal=KILL", "--full", f"{app_id.removeprefix('sweep-')}_0")
    found = until(sweep.scheduler, app_id, lambda f: f.tasks is not None and f.tasks.states[0] is not AppState.RUNNING)
    assert found.tasks is not None
    assert found.tasks.states[0] in (AppState.FAILED, AppState.CANCELLED)


@pytest.fixture
def few_jobs(request: pytest.FixtureRequest) -> Iterator[int]:
    """A limit on the jobs that a user may have submitted in a QOS of this test's own: others use the cluster, too."""
    limit = ("sacctmgr", "-i", "modify", "qos", "fewjobs", "set")
    subprocess.run(["sacctmgr", "-i", "add", "qos", "fewjobs"], capture_output=True, check=False)
    allow = ["sacctmgr", "-i", "modify", "user", "root", "set", "qos+=fewjobs"]
    subprocess.run(allow, capture_output=True, check=False)  # for good: "nothing new" when it is
    wanted = [*limit, f"MaxSubmitJobsPerUser={request.param}"]
    done = subprocess.run(wanted, capture_output=True, text=True, check=False)
    if done.returncode or "Modified" not in done.stdout:
        pytest.skip(f"no limit can be set here: {done.stdout or done.stderr}")
    yield request.param
    command(*limit, "MaxSubmitJobsPerUser=-1")


@pytest.mark.parametrize(("few_jobs", "count"), [(4, 9), (100, 230)], indirect=["few_jobs"])
def test_a_limit_on_submitted_jobs(few_jobs: int, count: int, sweep: Sweeps, tmp_path: Path) -> None:
    """Arrays are as small as the limit asks for, and the later ones come when there is room; each task runs once."""
    assert "MaxArraySize            = 1001" in command("scontrol", "show", "config")
    witness = tmp_path / "witness"
    app_id = sweep(f"echo {{k}} >> {witness}", count, qos="fewjobs")
    assert ended(sweep.scheduler, app_id).msg == f"{count} of {count} tasks succeeded"
    assert sorted(map(int, witness.read_text().split())) == list(range(count))


def test_a_job_after_another(scheduler: SlurmScheduler, sweep: Sweeps, tmp_path: Path) -> None:
    """It starts when the sweep has ended as was asked for; one that can never start is CANCELLED."""
    gate, order = tmp_path / "gate", tmp_path / "order"
    first = sweep(f"{wait_for(gate)}; echo {{k}} >> {order}; test {{k}} = 0", 2)

    def later(condition: str) -> str:
        role = Role("w", "", entrypoint="sh", args=["-c", f"echo {condition} >> {order}"], resource=Resource(1, 0, 20))
        return scheduler.submit(AppDef("later", [role], metadata={AFTER: f"{condition}:slurm://test/{first}"}), {})

    jobs = {condition: later(condition) for condition in ("ok", "any", "fail")}
    gate.touch()
    assert {condition: ended(scheduler, app_id).state.name for condition, app_id in jobs.items()} == {
        "ok": "CANCELLED",
        "any": "SUCCEEDED",
        "fail": "SUCCEEDED",
    }
    assert sorted(order.read_text().split()[:2]) == ["0", "1"]
    assert sorted(order.read_text().split()[2:]) == ["any", "fail"]


@pytest.fixture
def ground(slurm: None) -> Iterator[Ground]:
    def role(script: str, n: int) -> Role:
        small = Resource(cpu=1, gpu=0, memMB=50)
        return Role("w", "", entrypoint="sh", args=["-c", script], num_replicas=n, resource=small)

    with sweeps_of("test", "slurm", role, native=True) as made:
        yield made


def test_tasks_that_share_an_element(ground: Ground, tmp_path: Path) -> None:
    """Each has its own log, end and cause; one is cancelled alone; those that failed are packed when they are retried."""
    gate = tmp_path / "gate"
    script = (
        f"echo {{k}} $SLURM_ARRAY_TASK_ID; case {{k}} in v1) exit 4 ;; v3) {wait_for(gate)} ;; v4) sleep 1000 ;; esac"
    )
    handle = ground.sweep(script, 7, 0, pack=3)
    becomes(lambda: ground.table(handle).states[3], AppState.RUNNING)
    assert ground.table(handle).states[4:6] == [AppState.PENDING] * 2
    gate.touch()
    becomes(lambda: ground.table(handle).states[4], AppState.RUNNING)
    ground.runner.cancel(f"{handle}/4")
    names = [state.name for state in ground.ended(handle).states]
    assert names == ["SUCCEEDED", "FAILED", "SUCCEEDED", "SUCCEEDED", "CANCELLED", "SUCCEEDED", "SUCCEEDED"]
    assert [ground.lines(f"{handle}/{k}") for k in range(7)] == [[f"v{k} {k // 3}\n"] for k in range(7)]
    status = ground.runner.status(f"{handle}/1")
    assert status is not None
    assert "exit code 4" in status.format()
    _, again = ground.runner.retry_sweep(handle)
    assert (again.points, again.pack) == ([("v1",), ("v4",)], 3)


class TestSweepsAsArrays(SweepContract):
    """The contract; a task of two replicas has two nodes."""

    def test_tasks_that_may_be_started_again_are_single_jobs(self, ground: Ground) -> None:
        """An array's are not: Slurm gets a job for each, two at a time."""
        retried = ground._replace(role=lambda script, n: replace(ground.role(script, n), max_retries=1))
        handle = retried.sweep("echo {k}; test {k} != v1", 3, 2)
        table = retried.ended(handle)
        assert [state.name for state in table.states] == ["SUCCEEDED", "FAILED", "SUCCEEDED"]
        assert retried.lines(f"{handle}/2") == ["v2\n"]
        assert retried.lines(f"{handle}/1") == ["v1\n", "v1\n"]
