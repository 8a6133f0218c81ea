"""Retries by cause on a real cluster: the job itself sees to them, and nobody has to wait for it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.backends.slurm import cluster
from tests.backends.slurm.conftest import PATIENCE_S, ended, outside, until
from torchx.schedulers.slurm_scheduler import SlurmScheduler
from torchx.specs import AppDef, AppState, Resource, Role, macros
from torchx.specs.wishes.retries import RETRY

LONG_S = 3 * PATIENCE_S
"""Slurm waits for the end of what it has requeued, and for its credentials to expire, before it starts it again."""


def submit(scheduler: SlurmScheduler, policy: str, code: str, *, memMB: int = 100, **cfg: str) -> str:
    """A job of one replica that runs Python."""
    role = Role("w", "", entrypoint=sys.executable, args=["-c", code], resource=Resource(1, 0, memMB))
    return scheduler.submit(AppDef("retried", [role], metadata={RETRY: policy}), cfg)


def processes_of(app_id: str) -> list[int]:
    """What runs of a job on the nodes, all of which are this machine: its steps' daemons, its script, its replicas."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            mine = f"SLURM_JOB_ID={app_id}\0".encode() in (folder / "environ").read_bytes()
            step = (folder / "cmdline").read_bytes().startswith(f"slurmstepd: [{app_id}.".encode())
        except OSError:
            continue
        if mine or step:
            found.append(int(folder.name))
    return found


@pytest.fixture
def cancelled(scheduler: SlurmScheduler) -> Iterator[list[str]]:
    """Jobs that are cancelled at the end of the test."""
    made: list[str] = []
    yield made
    for app_id in made:
        scheduler.cancel(app_id)


def test_more_memory_after_it_ran_out(scheduler: SlurmScheduler, cancelled: list[str]) -> None:
    """150 MiB do not fit into 100: the second attempt gets 200, of the job and of the step, and succeeds."""
    code = "import os, time; b = bytearray(150 << 20); time.sleep(8); print(os.environ['SLURM_MEM_PER_NODE'])"
    cancelled.append(app_id := submit(scheduler, "oom:2:mem*2", code))
    found = ended(scheduler, app_id, LONG_S)
    assert found.state is AppState.SUCCEEDED, found
    assert [(a.kind, a.again, a.memory) for a in found.attempts] == [("oom", True, 2.0)]
    assert [line.rstrip() for line in scheduler.log_iter(app_id, "w")][-1] == "200"


def test_a_node_that_dies_is_avoided(scheduler: SlurmScheduler, cancelled: list[str]) -> None:
    """slurmd and all that it runs are killed: Slurm puts the job back, and it does not start on that node again."""
    code = "import os, time; n = os.environ['SLURMD_NODENAME']; print(n, flush=True); time.sleep(9999 * (n == 'n3'))"
    cancelled.append(app_id := submit(scheduler, "node:2:avoid", code, exclude="n[1-2]"))
    found = until(scheduler, app_id, lambda f: f.state is AppState.RUNNING and list(scheduler.log_iter(app_id, "w")))
    host = found.roles_statuses[0].replicas[0].hostname
    assert host == "n3"
    cluster.stop(f"slurmd-{host}", signal.SIGKILL)
    for pid in processes_of(app_id):
        os.kill(pid, signal.SIGKILL)
    try:
        subprocess.run(["scontrol", "update", f"NodeName={host}", "State=DOWN", "Reason=test"], check=True)
        found = ended(scheduler, app_id, LONG_S)
    finally:
        outside("up")
    assert found.state is AppState.SUCCEEDED, found
    assert [(a.kind, a.hosts, a.avoid) for a in found.attempts] == [("node", ["n3"], ["n3"])]


def test_preempted_jobs_are_not_given_up(scheduler: SlurmScheduler, cancelled: list[str]) -> None:
    """A partition of higher priority takes the node: the job waits and runs again, as often as it takes."""
    code = "import os, time; time.sleep(9999 if not os.environ.get('SLURM_RESTART_COUNT') else 0)"
    cancelled.append(app_id := submit(scheduler, "preempted:free", code, nodelist="n2"))
    until(scheduler, app_id, lambda found: found.state is AppState.RUNNING)
    subprocess.run(
        ["sbatch", "--partition=urgent", "--nodes=1", "--exclusive", "--wrap=sleep 5", "--output=/dev/null"], check=True
    )
    found = ended(scheduler, app_id, LONG_S)
    assert found.state is AppState.SUCCEEDED, found
    assert [(a.kind, a.again) for a in found.attempts] == [("preempted", True)]


def test_a_time_limit_asks_for_a_checkpoint_first(
    scheduler: SlurmScheduler, cancelled: list[str], tmp_path: Path
) -> None:
    """Before the minute is over the program is asked, writes its checkpoint, and goes on from there in the next attempt."""
    saved = tmp_path / "checkpoint"
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    code = f"""
import sys, time
sys.path.insert(0, {root!r})
from torchx import distributed
try:
    step = int(open({str(saved)!r}).read())
except OSError:
    step = 0
first = step
while not first or step < first + 10:
    step += 1
    time.sleep(0.1)
    if distributed.should_checkpoint():
        open({str(saved)!r}, "w").write(str(step))
        distributed.progress()
print("went on from", first)
"""
    cancelled.append(app_id := submit(scheduler, "timeout:free:checkpoint", code, time="1"))
    found = ended(scheduler, app_id, LONG_S)
    assert found.state is AppState.SUCCEEDED, found
    assert [(a.kind, a.progress, a.again) for a in found.attempts] == [("timeout", True, True)]
    assert f"went on from {saved.read_text()}" in "".join(scheduler.log_iter(app_id, "w"))


def test_a_bug_is_not_retried(scheduler: SlurmScheduler, cancelled: list[str]) -> None:
    """One attempt, which is on record with its reason."""
    cancelled.append(app_id := submit(scheduler, "standard", "raise ValueError('bad batch')"))
    found = ended(scheduler, app_id)
    assert found.state is AppState.FAILED
    assert [(a.kind, a.again) for a in found.attempts] == [("error", False)]
    assert "not retried (error: the policy does not retry it)" in found.msg


def test_a_gang_gets_more_memory_together(scheduler: SlurmScheduler, cancelled: list[str]) -> None:
    """One of two replicas runs out of memory: both end, both start again, each with twice the memory."""
    code = "import os, time; b = bytearray((150 << 20) * (1 - {k})); time.sleep(9999 if {first} else 8); print('done')"
    code = code.format(k=macros.replica_id, first="os.environ['SLURM_MEM_PER_NODE'] == '100'")
    role = Role("w", "", entrypoint=sys.executable, args=["-c", code], num_replicas=2, resource=Resource(1, 0, 100))
    cancelled.append(app_id := scheduler.submit(AppDef("gang", [role], metadata={RETRY: "oom:1:mem*2"}), {}))
    found = ended(scheduler, app_id, LONG_S)
    assert found.state is AppState.SUCCEEDED, found
    assert [(a.kind, a.again, a.memory) for a in found.attempts] == [("oom", True, 2.0)]
    assert [[line.rstrip() for line in scheduler.log_iter(app_id, "w", k)] for k in (0, 1)] == [["done"], ["done"]]


def test_a_heterogeneous_job_starts_again_as_a_whole(
    scheduler: SlurmScheduler, cancelled: list[str], tmp_path: Path
) -> None:
    """Two roles that ask for different resources are two components; a failure of the second starts both again."""
    once = tmp_path / "once"
    fails = f"[ -e {once} ] && exit 0; : > {once}; echo 'no data in /data' >&2; exit 3"
    waits = f"[ -e {once}.2 ] && exit 0; : > {once}.2; exec sleep 9999"
    roles = [
        Role("a", "", entrypoint="sh", args=["-c", waits], resource=Resource(1, 0, 100)),
        Role("b", "", entrypoint="sh", args=["-c", fails], resource=Resource(2, 0, 100)),
    ]
    cancelled.append(app_id := scheduler.submit(AppDef("two", roles, metadata={RETRY: "error:1:avoid"}), {}))
    found = ended(scheduler, app_id, LONG_S)
    assert found.state is AppState.SUCCEEDED, found
    assert [(a.kind, a.again, a.avoid == a.hosts) for a in found.attempts] == [("error", True, True)]
    (failed,) = found.attempts[0].hosts
    assert failed not in [r.hostname for role in found.roles_statuses for r in role.replicas]


def test_a_job_on_a_node_that_it_is_to_avoid_goes_back(scheduler: SlurmScheduler, cancelled: list[str]) -> None:
    """Somebody undoes the change while the job waits: it wakes on the node, and does not run there."""
    code = "import os, sys; n = os.environ['SLURMD_NODENAME']; print(n, flush=True); sys.exit(3 * (n == 'n3'))"
    cancelled.append(app_id := submit(scheduler, "error:1:avoid", code, exclude="n[1-2]"))
    found = until(scheduler, app_id, lambda f: f.attempts)
    assert [(a.hosts, a.again) for a in found.attempts] == [(["n3"], True)]
    deadline = time.monotonic() + LONG_S
    while not re.search(r"ExcNodeList=(n\[1-3\]|n\[1-2\],n3)\s", shown := show(app_id)):
        assert time.monotonic() < deadline and "JobState=COMPLETED" not in shown, shown
        time.sleep(0.05)
    subprocess.run(["scontrol", "update", f"JobId={app_id}", "ExcNodeList=n[1-2,4]"], check=True)
    found = ended(scheduler, app_id, 2 * LONG_S)
    assert found.state is AppState.SUCCEEDED, found
    assert [line.rstrip() for line in scheduler.log_iter(app_id, "w")] == ["n3", "n4"]
    assert len(found.attempts) == 1


def show(app_id: str) -> str:
    return subprocess.run(["scontrol", "show", "job", app_id], check=True, capture_output=True, text=True).stdout
