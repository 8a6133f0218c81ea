"""Sweeps on Slurm, with an `sbatch` that runs the tasks of an array here, one after the other."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.schedulers.batch.fake_ssh import FakeSsh
from tests.supervisor.forks import eventually
from torchx.components import utils
from torchx.errors import BackendError, CommandError, NotFoundError, NotSupportedError, SpecError
from torchx.runner import get_runner
from torchx.schedulers.batch.ssh.master import end_all
from torchx.schedulers.kit.commands import LocalCommandRunner
from torchx.schedulers.kit.logs import LogQuery
from torchx.schedulers.kit.tasks import values_line
from torchx.schedulers.slurm.inside import of_task
from torchx.schedulers.slurm.sweeps import Sweep, _ranges
from torchx.schedulers.slurm_scheduler import SlurmScheduler
from torchx.specs import AppDef, AppState, Resource, Role, Workspace
from torchx.specs.secret import Secret
from torchx.specs.tasks import TaskList
from torchx.specs.wishes.after import AFTER

SBATCH = f"""#!{sys.executable} -IS
import os, subprocess, sys
home = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
words = sys.argv[1:]
options = {{}}
while words[0].startswith("--"):
    name, _, value = words.pop(0)[2:].partition("=")
    options[name] = value
script = os.path.join(options["chdir"], os.path.basename(words.pop(0)))
last = int(options["array"].partition("%")[0].rpartition("-")[2])
with open(home + "/sbatch.log", "a") as f:
    f.write(" ".join([options["array"], *words, options.get("dependency", "")]).strip() + chr(10))
    number = f.tell()
if last + 1 > int(open(home + "/most").read()):
    sys.exit("sbatch: error: Batch job submission failed: Job violates accounting/QOS policy (job submit limit, ...)")
down = os.path.exists(home + "/down")
for k in range(0 if not down else last + 1, last + 1):
    env = dict(os.environ, SLURM_ARRAY_JOB_ID=str(number), SLURM_ARRAY_TASK_ID=str(k), SLURM_ARRAY_TASK_MAX=str(last),
               SLURM_JOB_ID=str(number), SLURMD_NODENAME="n1")
    with open(options["output"].replace("%%", "%").replace("%a", str(k)), "ab") as out:
        subprocess.run(["bash", script, *words], env=env, stdout=out, stderr=out, cwd=options["chdir"])
print(number)
"""


class Cluster:
    """Programs in place of Slurm's; ``most`` is the maximum size of an array."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "bin").mkdir(parents=True)
        self.program("sbatch", SBATCH.replace("range(0 if not down else last + 1", "range(last + 1 if down else 0"))
        self.says(squeue="", sacct="", scontrol="MaxArraySize            = 5", scancel="")
        self.most(5)

    def most(self, tasks: int) -> None:
        (self.folder / "most").write_text(str(tasks))

    def program(self, name: str, text: str) -> None:
        (self.folder / "bin" / name).write_text(text)
        (self.folder / "bin" / name).chmod(0o755)

    def says(self, **answers: str) -> None:
        for name, text in answers.items():
            log = self.folder / f"{name}.log"
            self.program(name, f"#!/bin/sh\necho \"$*\" >> {log}\ncat <<'X'\n{text}\nX\n")

    def asked(self, name: str) -> list[str]:
        path = self.folder / f"{name}.log"
        return path.read_text().splitlines() if path.exists() else []


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    made = Cluster(tmp_path / "slurm")
    monkeypatch.setenv("PATH", f"{made.folder}/bin:{os.environ['PATH']}")
    return made


@pytest.fixture
def scheduler() -> SlurmScheduler:
    made = SlurmScheduler("test")
    made.fresh_s = 0
    return made


JOB_ID = {"TORCHX_JOB_ID": "slurm://test/${app_id}"}
"""As the Runner sets it."""


def submit(scheduler: SlurmScheduler, script: str, count: int, *, width: int = 0, **more: Any) -> str:
    role = Role("w", "", entrypoint="sh", args=["-c", script], resource=Resource(1, 0, 10), **more)
    info = scheduler.submit_dryrun(AppDef("job", [role]), {})
    info._app = AppDef("job", [role])
    points = [(str(k), f"it's\n${{{k}}}") for k in range(count)]
    return scheduler.submit_tasks(info, TaskList(names=["k", "v"], points=points, max_parallel=width))


def test_a_sweep_is_submitted_in_arrays(cluster: Cluster, scheduler: SlurmScheduler) -> None:
    """Each array has the maximum size; all tasks record their ends, so Slurm is not queried."""
    app_id = submit(scheduler, "echo {k} $TORCHX_TASK; test {k} != 7", 12)
    assert app_id.startswith("sweep-")
    assert [line.split()[:2] for line in cluster.asked("sbatch")] == [["0-4", "0"], ["0-4", "5"], ["0-1", "10"]]
    asked = len(cluster.asked("squeue"))
    found = scheduler.describe(app_id)
    assert found is not None
    assert found.tasks is not None
    assert len(cluster.asked("squeue")) == asked
    assert not cluster.asked("sacct")
    assert (found.state, found.tasks.failed(), found.tasks.exit_codes[7]) == (AppState.FAILED, [7], 1)
    assert found.msg == "11 of 12 tasks succeeded, 1 failed"


def test_the_end_of_a_sweep_is_heard_of(cluster: Cluster, scheduler: SlurmScheduler) -> None:
    """The tasks' records show it at once, without a query, and only after the last task."""
    app_id = submit(scheduler, "true", 7)
    ends = Path(scheduler._sweep(app_id).folder.path, "ends.n1")
    lines = ends.read_text().splitlines(keepends=True)
    ends.write_text("".join([*lines[:6], lines[0]]))  # one was started again, the last one goes on
    asked = len(cluster.asked("squeue"))
    assert scheduler.changed([app_id, "4711"], 0) == set()
    writes = threading.Timer(0.3, ends.write_text, ["".join(lines)])
    writes.start()
    began = time.monotonic()
    assert scheduler.changed([app_id], 60) == {app_id}
    assert time.monotonic() - began < 30
    found = scheduler.describe(app_id)
    assert found is not None
    assert found.state is AppState.SUCCEEDED
    assert len(cluster.asked("squeue")) == asked


def test_a_sweep_that_is_submitted_in_a_job(
    cluster: Cluster, scheduler: SlurmScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None of its arrays inherits variables of the other job, only Slurm's configuration."""
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    monkeypatch.setenv("SLURM_MEM_PER_CPU", "100")
    monkeypatch.setenv("SLURM_CONF", "/etc/slurm.conf")
    app_id = submit(scheduler, "echo ${SLURM_MEM_PER_CPU-none} $SLURM_CONF", 7)
    for log in scheduler.open_logs(app_id, [("w", 0), ("w", 6)], LogQuery()):
        assert "".join(log) == "none /etc/slurm.conf\n"


def test_smaller_arrays_on_nodes_without_memory(cluster: Cluster, scheduler: SlurmScheduler) -> None:
    """The request without memory is made smaller, too."""
    refuses = "grep -q -- --mem \"$script\" && { echo 'Memory specification can not be satisfied' >&2; exit 1; }"
    (cluster.folder / "bin" / "sbatch").rename(cluster.folder / "bin" / "accepted")
    last = "for word; do case $word in */array.sh|array.sh) script=$word ;; esac; done"
    cluster.program("sbatch", f'#!/bin/bash\n{last}\n{refuses}\nexec accepted "$@"\n')
    cluster.says(sinfo="1")
    cluster.most(2)
    assert submit(scheduler, "true", 5).startswith("sweep-")
    assert [line.split()[0] for line in cluster.asked("sbatch")] == ["0-4", "0-1", "0-1", "0-0"]


def test_a_sweep_whose_folder_cannot_be_recorded(cluster: Cluster, scheduler: SlurmScheduler) -> None:
    """It runs anyway, with all of its arrays."""
    folder = Path(os.environ["TORCHX_HOME"], "slurm")
    folder.mkdir(parents=True)
    (folder / "ids").write_text("")  # in place of the folder of the records
    assert submit(scheduler, "true", 7).startswith("sweep-")
    assert len(cluster.asked("sbatch")) == 2


def test_a_wrapper_of_sbatch_that_prints_more(cluster: Cluster, scheduler: SlurmScheduler) -> None:
    """The ids of later arrays are found in the answers, too."""
    cluster.program(
        "sbatch", SBATCH.replace("print(number)", "print('Welcome', number, 'Balance: 12 hours', sep=chr(10))")
    )
    app_id = submit(scheduler, "true", 12)
    folder = scheduler.folders(scheduler._here).of(app_id)
    assert folder is not None
    lines = [line.split() for line in folder.text("chunks").splitlines()]
    assert [words[:2] for words in lines] == [["0", "5"], ["5", "5"], ["10", "2"]]
    assert all(len(words) == 3 and words[2].isdigit() for words in lines)


def test_a_width_holds_across_arrays(cluster: Cluster, scheduler: SlurmScheduler) -> None:
    """Each array waits for the previous one; otherwise two of them would run twice as many tasks."""
    submit(scheduler, "true", 7, width=3)
    first, second = cluster.asked("sbatch")
    assert first == "0-4%3 0"
    assert second.startswith("0-1%3 5 ")
    assert "afterany:" in second


def test_a_limit_on_submitted_jobs(cluster: Cluster, scheduler: SlurmScheduler) -> None:
    """Arrays are halved until the user's limit on jobs allows one."""
    cluster.most(2)
    app_id = submit(scheduler, "true", 5)
    found = scheduler.describe(app_id)
    assert found is not None
    assert found.msg == "5 of 5 tasks succeeded"


def test_a_limit_on_submitted_jobs_at_a_login_node(
    cluster: Cluster, scheduler: SlurmScheduler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The code that was sent for the first attempt is removed, and sent again for the next one."""
    ssh = FakeSsh(tmp_path / "ssh")
    monkeypatch.setenv("PATH", f"{cluster.folder}/bin:{ssh.path}")
    monkeypatch.setenv("HOME", str(ssh.there))
    cluster.most(2)
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "main.py").write_text("print(1)")
    code = Workspace({str(tmp_path / "code"): ""})
    app = AppDef(
        "job", [Role("w", "", entrypoint="cat", args=["main.py"], resource=Resource(1, 0, 10), workspace=code)]
    )
    scheduler.build_workspaces(app.roles, {"ssh": "login"})
    info = scheduler.submit_dryrun(app, {"ssh": "login"})
    info._app = app
    app_id = scheduler.submit_tasks(info, TaskList(names=["k"], points=[("1",), ("2",), ("3",)]))
    end_all()
    (log,) = scheduler.open_logs(app_id, [("w", 0)], LogQuery())
    assert "".join(log) == "print(1)"
    scheduler.close()


def test_later_arrays_are_submitted_by_whoever_looks(cluster: Cluster, scheduler: SlurmScheduler) -> None:
    """If neither the first nor the last task of an array could submit the next one, a status does."""
    cluster.says(scontrol="MaxArraySize = 2")
    sbatch = (cluster.folder / "bin" / "sbatch").read_text()
    cluster.program("sbatch", sbatch.replace("if last + 1 >", "if words != ['0'] or last + 1 >"))
    app_id = submit(scheduler, "true", 3)
    cluster.program("sbatch", sbatch)
    found = scheduler.describe(app_id)
    assert found is not None
    assert found.msg == "2 of 3 tasks succeeded, 1 pending"
    found = scheduler.describe(app_id)
    assert found is not None
    assert found.msg == "3 of 3 tasks succeeded"


@pytest.mark.parametrize(
    ("owner", "age_s", "left"),
    [
        ("here dead", 0, True),
        ("here alive", 3600, False),
        ("here another", 0, True),
        ("elsewhere 1 1", 0, False),
        ("elsewhere 1 1", 3600, True),
    ],
    ids=["killed", "alive", "its pid is another's", "elsewhere", "elsewhere, long ago"],
)
def test_a_lock_that_was_left(owner: str, age_s: int, left: bool, cluster: Cluster, scheduler: SlurmScheduler) -> None:
    """The lock of a killed process is taken over; that of a running one is kept."""
    (cluster.folder / "down").touch()
    cluster.says(scontrol="MaxArraySize = 2")
    app_id = submit(scheduler, "true", 4, width=2)
    path = Path(chunks(scheduler, app_id))
    path.write_text(f"0 2 {app_id.removeprefix('sweep-')}\n")  # as if the second array were to come
    lock = path.parent / "more.lock"
    done = subprocess.Popen(["true"])
    done.wait()
    started = Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]
    who = {
        "here dead": f"{os.uname().nodename} {done.pid} 1",
        "here alive": f"{os.uname().nodename} {os.getpid()} {started}",
        "here another": f"{os.uname().nodename} {os.getpid()} 1",
    }
    lock.symlink_to(who.get(owner, owner))
    long_ago = time.time() - age_s
    os.utime(lock, (long_ago, long_ago), follow_symlinks=False)
    submitted = len(cluster.asked("sbatch"))
    sweep = scheduler._sweep(app_id)
    assert sweep is not None
    for _ in range(2):
        sweep.submit_more()
    assert len(cluster.asked("sbatch")) == submitted + left
    assert lock.is_symlink() is not left


def test_an_array_that_was_not_written_down(cluster: Cluster, scheduler: SlurmScheduler) -> None:
    """Its submitter was killed first: it is found by its name, and not submitted twice."""
    cluster.says(scontrol="MaxArraySize = 2")
    app_id = submit(scheduler, "true", 4, width=2)
    path = Path(chunks(scheduler, app_id))
    first, second = path.read_text().splitlines(keepends=True)
    path.write_text(first)
    (path.parent / "more.lock").symlink_to(f"{os.uname().nodename} {os.getpid()} 1")
    cluster.says(squeue=second.split()[2])
    submitted = len(cluster.asked("sbatch"))
    sweep = scheduler._sweep(app_id)
    assert sweep is not None
    sweep.submit_more()
    assert path.read_text() == first + second
    assert len(cluster.asked("sbatch")) == submitted
    assert re.search(r"--name=job-\w+\+2\+2 ", cluster.asked("squeue")[-1])


def test_a_submission_that_outlives_its_script(cluster: Cluster, scheduler: SlurmScheduler) -> None:
    """`sbatch` retries for minutes if the queue is full: after its script was killed, it may still submit."""
    cluster.says(scontrol="MaxArraySize = 2")
    cluster.most(2)
    sbatch = (cluster.folder / "bin" / "sbatch").read_text()
    cluster.program("sbatch", sbatch.replace("range(last + 1 if", "range(last + 1 if words != ['0'] or"))
    app_id = submit(scheduler, "true", 4)
    path = Path(chunks(scheduler, app_id))
    first, second = path.read_text().splitlines(keepends=True)
    path.write_text(first)
    slow = f"#!/bin/sh\ntouch {cluster.folder}/asks; until [ -e {cluster.folder}/go ]; do sleep 0.02; done\n"
    cluster.program("sbatch", slow)
    sweep = scheduler._sweep(app_id)
    assert sweep is not None
    script = [str(path.parent / "array.sh"), "more", app_id.removeprefix("sweep-")]
    killed = subprocess.Popen(["bash", *script])
    eventually((cluster.folder / "asks").exists)
    killed.kill()
    killed.wait()
    cluster.program("sbatch", f"#!/bin/sh\ntouch {cluster.folder}/twice; echo 99\n")
    sweep.submit_more()
    assert not (cluster.folder / "twice").exists()
    (cluster.folder / "go").touch()
    cluster.says(squeue=second.split()[2])

    def is_written_down() -> bool:
        sweep.submit_more()
        return path.read_text() == first + second

    eventually(is_written_down)
    assert not (cluster.folder / "twice").exists()


def test_values_and_variables_arrive(cluster: Cluster, scheduler: SlurmScheduler, tmp_path: Path) -> None:
    """Quotes, line ends and dollars in values; macros and placeholders in variables; a task's id is its handle."""
    app_id = submit(
        scheduler, 'printf "%s|%s|%s|%s" "$A" "$1" "$B" "$TORCHX_JOB_ID"', 2, env={"A": "x{k}", "B": "{v}", **JOB_ID}
    )
    logs = scheduler.open_logs(app_id, [("w", 1)], LogQuery())
    assert "".join(logs[0]) == f"x1||it's\n${{1}}|slurm://test/{app_id}/1"


def test_a_task(cluster: Cluster, scheduler: SlurmScheduler) -> None:
    """Its cause and its log; a missing task is rejected."""
    app_id = submit(scheduler, "echo no data in /data; exit 3", 2)
    found = scheduler.describe_tasks(app_id, [1])
    assert found is not None
    assert (found[0].state, found[0].msg) == (AppState.FAILED, "w/1: exit code 3: no data in /data")
    assert scheduler.log_replicas(app_id) == [("w", 0), ("w", 1)]
    with pytest.raises(NotFoundError, match="no task `2`"):
        scheduler.describe_tasks(app_id, [2])


def test_tasks_that_run_and_wait(cluster: Cluster, scheduler: SlurmScheduler) -> None:
    """Slurm lists running tasks one by one and pending ones as ranges; tasks that vanished are looked up."""
    (cluster.folder / "down").touch()
    app_id = submit(scheduler, "true", 5)
    job = app_id.removeprefix("sweep-")
    cluster.says(squeue=f"{job}_1|RUNNING\n{job}_[2-3%2]|PENDING\n{job}_0|COMPLETING", sacct=f"{job}_4|NODE_FAIL")
    found = scheduler.describe(app_id)
    assert found is not None
    assert found.tasks is not None
    assert [state.name for state in found.tasks.states] == ["RUNNING", "RUNNING", "PENDING", "PENDING", "FAILED"]
    assert found.state is AppState.RUNNING


def test_cancel(cluster: Cluster, scheduler: SlurmScheduler) -> None:
    """No array remains, and none is submitted later; a single cancelled task does not start."""
    (cluster.folder / "down").touch()
    app_id = submit(scheduler, "true", 12)
    sweep = scheduler._sweep(app_id)
    assert sweep is not None
    sweep.submit_more()
    scheduler.cancel_task(app_id, 6)
    assert cluster.asked("scancel")[-1].endswith("_1")
    scheduler.cancel(app_id)
    assert len(cluster.asked("scancel")[-1].split()) == 3
    found = scheduler.describe(app_id)
    assert found is not None
    assert (found.state, found.msg) == (AppState.CANCELLED, "0 of 12 tasks succeeded, 12 cancelled")


def test_the_prompt_comes_after_the_first_array(cluster: Cluster, scheduler: SlurmScheduler) -> None:
    """The first task that starts submits the others before its program, even if nothing else was written down."""
    (cluster.folder / "down").touch()
    cluster.says(scontrol="MaxArraySize = 2")
    app_id = submit(scheduler, "echo {k}", 6)
    assert [line.split()[1] for line in cluster.asked("sbatch")] == ["0"]
    folder = Path(chunks(scheduler, app_id)).parent
    env = {"SLURM_ARRAY_JOB_ID": app_id.removeprefix("sweep-"), "SLURM_ARRAY_TASK_ID": "1", "SLURM_ARRAY_TASK_MAX": "1"}
    for _ in range(2):
        subprocess.run(["bash", f"{folder}/array.sh", "0"], env={**os.environ, **env}, cwd=folder, check=True)
        assert [line.split()[1] for line in cluster.asked("sbatch")] == ["0", "2", "4"]


def test_a_cancellation_that_slurm_rejects(cluster: Cluster, scheduler: SlurmScheduler) -> None:
    """It is an error, of the sweep and of a task; arrays that have ended in the meantime are none."""
    (cluster.folder / "down").touch()
    app_id = submit(scheduler, "true", 3)
    for end in (lambda: scheduler.cancel_task(app_id, 1), lambda: scheduler.cancel(app_id)):
        cluster.program(
            "scancel", "#!/bin/sh\necho 'Kill job error on job id 7: Access/permission denied' >&2; exit 1\n"
        )
        with pytest.raises(CommandError, match=r"could not be cancelled: Kill job error .*denied"):
            end()
        cluster.program(
            "scancel", "#!/bin/sh\necho 'Kill job error on job id 7: Invalid job id specified' >&2; exit 1\n"
        )
        end()


def test_who_ends_well_when_killed_was_cancelled(cluster: Cluster, scheduler: SlurmScheduler) -> None:
    """Also for Slurm; a task that is a complete job behaves the same."""
    task = "trap 'exit {k}' TERM; kill -TERM $PPID; while :; do sleep 0.02; done"
    app_id = submit(scheduler, task, 2)
    sweep = scheduler._sweep(app_id)
    assert sweep is not None
    sweep.cancel()
    found = scheduler.describe(app_id)
    assert found is not None
    assert (found.state, found.msg) == (AppState.CANCELLED, "0 of 2 tasks succeeded, 2 cancelled")


def test_tasks_that_are_cancelled_at_the_same_time(cluster: Cluster, scheduler: SlurmScheduler) -> None:
    """None of them starts, whichever process cancels it."""
    (cluster.folder / "down").touch()
    cluster.says(scontrol="MaxArraySize = 2")
    app_id = submit(scheduler, "true", 8, width=1)
    at_once = [threading.Thread(target=SlurmScheduler("test").cancel_task, args=(app_id, k)) for k in range(8)]
    for one in at_once:
        one.start()
    for one in at_once:
        one.join()
    found = scheduler.describe(app_id)
    assert found is not None
    assert found.msg == "0 of 8 tasks succeeded, 8 cancelled"


def test_a_task_that_was_cancelled_before_its_start(cluster: Cluster, scheduler: SlurmScheduler) -> None:
    """Its array is submitted later, and the task does nothing."""
    (cluster.folder / "down").touch()
    cluster.says(scontrol="MaxArraySize = 2")
    app_id = submit(scheduler, "true", 4)
    scheduler.cancel_task(app_id, 3)
    (cluster.folder / "down").unlink()
    sweep = scheduler._sweep(app_id)
    assert sweep is not None
    sweep.submit_more()
    assert [line.split()[0] for line in Path(sweep.folder.path, "ends.n1").read_text().splitlines()] == ["2"]


def test_what_has_ended_is_not_cancelled(cluster: Cluster, scheduler: SlurmScheduler) -> None:
    """Neither as a whole nor by task; in a sweep that goes on, a task that crashed before has failed."""
    app_id = submit(scheduler, "kill -SEGV $$", 1)
    scheduler.cancel_task(app_id, 0)
    scheduler.cancel(app_id)
    found = scheduler.describe(app_id)
    assert found is not None
    assert found.state is AppState.FAILED
    assert cluster.asked("scancel") == []
    sweep = scheduler._sweep(app_id)
    assert sweep is not None
    sweep.cancel()  # as if another task had run
    assert _states(sweep) == [AppState.FAILED]


def test_a_task_that_slurm_starts_again(cluster: Cluster, scheduler: SlurmScheduler) -> None:
    """It goes on after it was preempted, and its last end counts, on whichever nodes it ran."""
    app_id = submit(scheduler, "true", 2)
    sweep = scheduler._sweep(app_id)
    assert sweep is not None
    ends = Path(sweep.folder.path, "ends.n1")
    ends.write_text("0 143 200\n1 0 100\n")
    cluster.says(squeue=f"{sweep.element(0)}|PENDING")
    assert [state.name for state in _states(sweep)] == ["PENDING", "SUCCEEDED"]
    assert scheduler.changed([app_id], 0) == set()
    for node in "a", "z":
        ends.with_name(f"ends.{node}").write_text("0 143 150\n")
    ends.write_text("0 0 300\n1 0 100\n")
    assert [state.name for state in _states(sweep)] == ["SUCCEEDED", "SUCCEEDED"]
    assert scheduler.changed([app_id], 0) == {app_id}


def test_a_long_list_of_waiting_tasks(cluster: Cluster, scheduler: SlurmScheduler) -> None:
    """`squeue` is asked for all of it: by default it prints 64 characters of it."""
    (cluster.folder / "down").touch()
    app_id = submit(scheduler, "true", 5)
    job = app_id.removeprefix("sweep-")
    short = f"[ -n \"$SLURM_BITSTR_LEN\" ] && echo '{job}_[0,2,4]|PENDING' || echo '{job}_[0,...]|PENDING'"
    cluster.program("squeue", f"#!/bin/sh\n{short}\n")
    found = scheduler.describe(app_id)
    assert found is not None
    assert found.tasks is not None
    assert [state.name for state in found.tasks.states[::2]] == ["PENDING"] * 3


def test_the_output_of_a_role_with_any_name(cluster: Cluster, scheduler: SlurmScheduler) -> None:
    """Slurm would expand a percent sign in the name of the folder."""
    seen = cluster.folder / "argv"
    sbatch = (cluster.folder / "bin" / "sbatch").read_text()
    cluster.program(
        "sbatch",
        sbatch.replace("words = sys.argv[1:]", f"words = sys.argv[1:]; print(*words, file=open('{seen}', 'a'))"),
    )
    role = Role("my role", "", entrypoint="true", resource=Resource(1, 0, 10))
    info = scheduler.submit_dryrun(AppDef("job", [role]), {})
    info._app = AppDef("job", [role])
    scheduler.submit_tasks(info, TaskList(names=["k"], points=[(str(k),) for k in range(7)]))
    assert re.findall(r"/(my\S+)", seen.read_text()) == ["my%%20role/0+%a.log", "my%%20role/5+%a.log"]


def test_a_signal_before_the_script_knows_its_child(
    cluster: Cluster, scheduler: SlurmScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends the task: the script does not wait for a task that never got the signal."""
    early = cluster.folder / "early"
    early.write_text("set -T; trap '[[ $BASH_COMMAND != \"child=\\$!\" ]] || kill -TERM $$' DEBUG\n")
    monkeypatch.setenv("BASH_ENV", str(early))
    app_id = submit(scheduler, "sleep 60", 1)
    found = scheduler.describe(app_id)
    assert found is not None
    assert found.tasks is not None
    assert found.tasks.exit_codes == [-15]


def test_where_a_task_is_entered(cluster: Cluster, scheduler: SlurmScheduler) -> None:
    """By Slurm's id, on the node that Slurm reports; nowhere, if it does not run."""
    app_id = submit(scheduler, "true", 7)
    sweep = scheduler._sweep(app_id)
    assert sweep is not None
    run = LocalCommandRunner().run
    assert of_task(sweep, run, None, "w", 6) == ("", "", "TORCHX_TASK=6")
    cluster.says(squeue="4712 n3")
    assert of_task(sweep, run, None, "w", 6) == of_task(sweep, run, 6, "w", 0) == ("4712", "n3", "TORCHX_TASK=6")
    assert f"--jobs={sweep.element(6)}" in cluster.asked("squeue")[-1].split()
    asked = len(cluster.asked("squeue"))
    assert of_task(sweep, run, None, "w", 7) == ("", "", "TORCHX_TASK=7")  # there is no such task
    assert len(cluster.asked("squeue")) == asked


def test_a_job_after_a_sweep(cluster: Cluster, scheduler: SlurmScheduler) -> None:
    """It depends on all arrays, or on one task; parts that are not submitted yet are rejected."""
    sweep = submit(scheduler, "true", 7)
    ids = [line.split()[2] for line in Path(chunks(scheduler, sweep)).read_text().splitlines()]

    def dependency(*earlier: str) -> str:
        app = AppDef("later", [Role("w", "", entrypoint="true", resource=Resource(1, 0, 10))])
        app.metadata[AFTER] = " ".join(earlier)
        words: list[str] = scheduler.submit_dryrun(app, {}).request.cmd
        assert "--kill-on-invalid-dep=yes" in words
        return next(word for word in words if word.startswith("--dependency="))

    assert dependency(f"ok:slurm://t/{sweep}") == f"--dependency=afterok:{':'.join(ids)}"
    assert (
        dependency(f"fail:slurm://t/{sweep}/6", "any:slurm://t/4711")
        == f"--dependency=afternotok:{ids[1]}_1,afterany:4711"
    )
    with pytest.raises(SpecError, match="not a job that Slurm knows"):
        dependency("ok:slurm://t/x")


def test_a_job_after_arrays_that_are_not_submitted_yet(cluster: Cluster, scheduler: SlurmScheduler) -> None:
    """Neither the sweep nor a later task can be named to Slurm; a task of the first array can."""
    app_id = submit(scheduler, "true", 7)
    path = Path(chunks(scheduler, app_id))
    first = path.read_text().splitlines(keepends=True)[0]
    path.write_text(first)
    cluster.most(0)
    sweep = scheduler._sweep(app_id)
    assert sweep is not None
    assert sweep.job_ids(f"{app_id}/4") == [f"{first.split()[2]}_4"]
    for later in app_id, f"{app_id}/5", f"{app_id}/6":
        with pytest.raises(NotSupportedError, match=f"tasks of `{later}` have not been submitted to Slurm yet") as no:
            sweep.job_ids(later)
        assert f"torchx wait {app_id}" in no.value.hint
    with pytest.raises(NotFoundError, match="no task `7`"):
        sweep.job_ids(f"{app_id}/7")
    path.write_text(f"{first}5 2 4712\n")
    sweep = scheduler._sweep(app_id)
    assert sweep is not None
    assert sweep.job_ids(app_id) == [first.split()[2], "4712"]


def _states(sweep: Sweep) -> list[AppState]:
    table = sweep.look()
    assert table is not None
    return list(table.states)


def chunks(scheduler: SlurmScheduler, app_id: str) -> str:
    sweep = scheduler._sweep(app_id)
    assert sweep is not None
    return f"{sweep.folder.path}/chunks"


def test_what_is_refused(cluster: Cluster, scheduler: SlurmScheduler) -> None:
    """Secrets and containers are rejected before the submission; a rejection by Slurm leaves nothing behind."""
    with pytest.raises(NotSupportedError, match="take no secrets"):
        submit(scheduler, "true", 2, env={"TOKEN": Secret("env:TOKEN")})
    with pytest.raises(NotSupportedError, match="not started again"):
        submit(scheduler, "true", 2, max_retries=1)
    for metadata in {"torchx/watchdog": "10m"}, {"torchx/idle": "10m"}:
        app = AppDef("a", [Role("w", "", entrypoint="true")], metadata=metadata)
        with pytest.raises(NotSupportedError, match="not watched"):
            scheduler.check_tasks(scheduler.submit_dryrun(app, {}), TaskList(names=["n"], points=[("1",)]))
    cluster.program("sbatch", "#!/bin/sh\necho 'sbatch: error: invalid partition specified: x' >&2; exit 1\n")
    with pytest.raises(BackendError, match="invalid partition"):
        submit(scheduler, "true", 2)
    root = Path(scheduler.folders(scheduler._site_of({})).place("x")).parent
    assert not list(root.glob("*/array.sh"))


def test_a_batch_script_of_ones_own(
    cluster: Cluster, scheduler: SlurmScheduler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has its own options, so its tasks are single jobs; one job for all of them would not have their values."""
    monkeypatch.chdir(tmp_path)
    Path("train.sbatch").write_text("#!/bin/bash\n#SBATCH -t 10\ntrue\n")
    app = utils.sbatch("train.sbatch", "--lr", "{lr}")
    info = scheduler.submit_dryrun(app, {})
    info._app = app
    tasks = TaskList(names=["lr"], points=[("1",), ("2",)])
    for submit_or_check in scheduler.check_tasks, scheduler.submit_tasks:
        with pytest.raises(NotSupportedError, match="a batch script of your own"):
            submit_or_check(info, tasks)
    assert cluster.asked("sbatch") == []


def test_a_refusal_leaves_no_code_behind(cluster: Cluster, tmp_path: Path) -> None:
    """The workspace copy of the sweep is removed, too."""
    cluster.program("sbatch", "#!/bin/sh\necho 'sbatch: error: invalid partition specified: x' >&2; exit 1\n")
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "main.py").touch()
    apps = [
        AppDef("job", [Role("w", "", entrypoint="sh", args=[str(k)], resource=Resource(1, 0, 10))]) for k in range(2)
    ]
    with get_runner("test") as runner, pytest.raises(BackendError, match="invalid partition"):
        runner.run_many(apps, "slurm", {"job_dir": str(tmp_path / "jobs")}, f"file://{tmp_path / 'code'}")
    assert not list((tmp_path / "jobs").rglob("main.py"))


SRUN = """#!/bin/bash
while [[ $1 == --* ]]; do shift; done
exec "$@"
"""
SCONTROL = """#!/bin/bash
if [[ $2 == hostnames ]]; then printf 'n1\\nn2\\n'; else echo MaxArraySize = 5; fi
"""


def test_tasks_of_several_replicas(cluster: Cluster, scheduler: SlurmScheduler) -> None:
    """Each task of the array gets the nodes of a job, and a step per replica; values and macros arrive."""
    cluster.program("srun", SRUN)
    cluster.program("scontrol", SCONTROL)
    cluster.program("sleep", "#!/bin/sh\n")  # the samplers' first pause, which would outlive the test
    script = 'echo "$A|$B|${replica_id}|$TORCHX_TASK|$TORCHX_JOB_ID"; test "${replica_id}" = 0 -o {k} != 1 || { echo no data; exit 3; }'
    app_id = submit(scheduler, script, 2, num_replicas=2, env={"A": "x{k}", "B": "{v}", **JOB_ID})
    assert "--nodes=2" in Path(chunks(scheduler, app_id)).with_name("array.sh").read_text()
    found = scheduler.describe(app_id)
    assert found is not None
    assert found.tasks is not None
    assert [state.name for state in found.tasks.states] == ["SUCCEEDED", "FAILED"]
    assert found.tasks.exit_codes == [0, 3]
    assert scheduler.log_replicas(app_id) == [("0", 0), ("0", 1), ("1", 0), ("1", 1)]
    first, second = scheduler.open_logs(app_id, [("0", 0), ("1", 1)], LogQuery())
    assert "".join(first) == f"x0|it's\n${{0}}|0|0|slurm://test/{app_id}/0\n"
    assert "".join(second) == f"x1|it's\n${{1}}|1|1|slurm://test/{app_id}/1\nno data\n"
    tasks = scheduler.describe_tasks(app_id, [0, 1])
    assert tasks is not None
    assert [task.state.name for task in tasks] == ["SUCCEEDED", "FAILED"]


@pytest.mark.parametrize("task", ["x", "", "1/2"])
def test_what_is_not_the_number_of_a_task(task: str, cluster: Cluster, scheduler: SlurmScheduler) -> None:
    """There is no such job, and the sweep is left alone."""
    app_id = f"{submit(scheduler, 'true', 1)}/{task}"
    assert scheduler.describe(app_id) is None
    assert scheduler.log_replicas(app_id) is None
    scheduler.cancel(app_id)
    assert cluster.asked("scancel") == []


def test_ranges_of_waiting_tasks() -> None:
    """Numbers and ranges; a list that Slurm truncates with dots is parsed up to them."""
    assert _ranges("0-3,7,9-9") == [(0, 3), (7, 7), (9, 9)]
    assert _ranges("1,2,...") == [(1, 1), (2, 2)]


def test_a_line_of_values_is_one_line() -> None:
    """Whatever the values are."""
    assert values_line(["a\r\nb", "\\n", "'"]).count("\n") == 1
    assert json.dumps(values_line(["$(id)"])) == json.dumps("v_0='$(id)'\n")
