"""Several tasks in each element of a job array, without a cluster."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

from tests.schedulers.slurm.test_slurm_sweeps import Cluster, chunks, cluster, scheduler
from torchx.errors import NotSupportedError
from torchx.runner.sweeps.sweeps import submitter
from torchx.schedulers.kit.logs import LogQuery
from torchx.schedulers.local_scheduler import create_scheduler
from torchx.schedulers.slurm_scheduler import SlurmScheduler
from torchx.specs import AppDef, AppState, Resource, Role
from torchx.specs.tasks import TaskList

__all__ = ["cluster", "scheduler"]


def _submit(scheduler: SlurmScheduler, script: str, count: int, pack: int) -> str:
    app = AppDef("job", [Role("w", "", entrypoint="sh", args=["-c", script], resource=Resource(1, 0, 10))])
    info = scheduler.submit_dryrun(app, {})
    info._app = app
    return scheduler.submit_tasks(info, TaskList(names=["k"], points=[(str(k),) for k in range(count)], pack=pack))


def test_each_task_has_its_own_log_end_and_cause(cluster: Cluster, scheduler: SlurmScheduler) -> None:
    """Also in a second array; the last element has fewer tasks."""
    cluster.most(2)
    cluster.says(scontrol="MaxArraySize = 2", squeue="", sacct="", scancel="")
    app_id = _submit(scheduler, "echo task {k} $TORCHX_TASK; test {k} != 3 || exit 5", 8, 3)
    found = scheduler.describe(app_id)
    assert found is not None
    assert found.tasks is not None
    assert found.tasks.exit_codes == [0, 0, 0, 5, 0, 0, 0, 0]
    assert [line.split()[:2] for line in Path(chunks(scheduler, app_id)).read_text().splitlines()] == [
        ["0", "2"],
        ["2", "1"],
    ]
    logs = scheduler.open_logs(app_id, [("w", k) for k in range(8)], LogQuery())
    assert [[*lines] for lines in logs] == [[f"task {k} {k}\n"] for k in range(8)]
    third = scheduler.describe_tasks(app_id, [3])
    assert third is not None
    assert third[0].msg == "w/3: exit code 5: task 3 3"
    assert len(cluster.asked("sbatch")) == 2


def test_tasks_run_one_after_another(cluster: Cluster, scheduler: SlurmScheduler) -> None:
    """In an element that runs, the first without an end runs, the others wait; a task that was taken out ends alone."""
    (cluster.folder / "down").touch()
    app_id = _submit(scheduler, "true", 8, 3)
    job = app_id.removeprefix("sweep-")
    folder = Path(chunks(scheduler, app_id)).parent
    (folder / "ends.n1").write_text("0 0 5\n3 143 6\n")
    cluster.says(squeue=f"{job}_[0-1]|RUNNING\n{job}_2|PENDING", sacct="", scancel="")
    scheduler.cancel_task(app_id, 3)
    assert cluster.asked("scancel") == []
    found = scheduler.describe(app_id)
    assert found is not None
    assert found.tasks is not None
    names = [state.name for state in found.tasks.states]
    assert names == ["SUCCEEDED", "RUNNING", "PENDING", "CANCELLED", "RUNNING", "PENDING", "PENDING", "PENDING"]
    scheduler.cancel_task(app_id, 2)
    scheduler.cancel_task(app_id, 6)
    found = scheduler.describe(app_id)
    assert found is not None
    assert found.tasks is not None
    assert [k for k, state in enumerate(found.tasks.states) if state is AppState.CANCELLED] == [2, 3, 6]


@pytest.mark.parametrize("signal", [False, True])
def test_what_ends_a_task(signal: bool, cluster: Cluster, scheduler: SlurmScheduler) -> None:
    """`cancel` of a task ends its processes, and the next one starts; SIGTERM ends the element."""
    (cluster.folder / "down").touch()
    app_id = _submit(scheduler, "echo up; sleep 60; echo no", 2, 2)
    folder = Path(chunks(scheduler, app_id)).parent
    env = {"SLURM_ARRAY_JOB_ID": "1", "SLURM_ARRAY_TASK_ID": "0", "SLURM_ARRAY_TASK_MAX": "0", "SLURMD_NODENAME": "n1"}
    with subprocess.Popen(["bash", f"{folder}/array.sh", "0"], env={**os.environ, **env}, cwd=folder) as process:
        for k in (0, 1):
            while not (log := folder / f"w/0+0.{k}.log").exists() or not log.read_text():
                time.sleep(0.02)
            if signal:
                process.terminate()
                break
            scheduler.cancel_task(app_id, k)
        process.wait(30)
    ends = [line.split()[:2] for line in (folder / "ends.n1").read_text().splitlines()]
    assert ends == ([["0", "143"]] if signal else [["0", "143"], ["1", "143"]])
    if not signal:
        found = scheduler.describe(app_id)
        assert found is not None
        assert found.tasks is not None
        assert found.tasks.states == [AppState.CANCELLED] * 2


def test_an_element_that_starts_again(cluster: Cluster, scheduler: SlurmScheduler) -> None:
    """Tasks that had ended are left alone; the one that Slurm had terminated runs again."""
    (cluster.folder / "down").touch()
    app_id = _submit(scheduler, "echo {k}", 4, 4)
    folder = Path(chunks(scheduler, app_id)).parent
    (folder / "ends.n2").write_text("0 0 5\n1 143 6\n")
    (folder / "skipped.3").touch()
    env = {"SLURM_ARRAY_JOB_ID": "1", "SLURM_ARRAY_TASK_ID": "0", "SLURM_ARRAY_TASK_MAX": "0", "SLURMD_NODENAME": "n1"}
    subprocess.run(["bash", f"{folder}/array.sh", "0"], env={**os.environ, **env}, cwd=folder, check=True)
    assert [line.split()[:2] for line in (folder / "ends.n1").read_text().splitlines()] == [
        ["1", "0"],
        ["2", "0"],
        ["3", "143"],
    ]


def test_what_is_refused(cluster: Cluster, scheduler: SlurmScheduler) -> None:
    """With one line: a scheduler without arrays of this kind, and tasks that are whole jobs."""
    app = AppDef("job", [Role("w", "", entrypoint="true", num_replicas=2, resource=Resource(1, 0, 10))])
    tasks = TaskList(names=["k"], points=[("1",), ("2",)], pack=2)
    with pytest.raises(NotSupportedError, match="several replicas"):
        submitter(scheduler, scheduler.submit_dryrun(app, {}), tasks)
    again = AppDef("job", [Role("w", "", entrypoint="true", max_retries=1)])
    with pytest.raises(NotSupportedError, match="not started again") as e:
        submitter(scheduler, scheduler.submit_dryrun(again, {}), tasks)
    assert "`--pack`" in e.value.hint
    local = create_scheduler("test")
    info = local.submit_dryrun(app, {})
    info._scheduler = "local_cwd"
    with pytest.raises(NotSupportedError, match="`local_cwd` runs each task by itself"):
        submitter(local, info, tasks)
    local.close()
