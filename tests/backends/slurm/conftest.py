"""The cluster that the tests share, and jobs on it."""

from __future__ import annotations

import ctypes
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.backends.shell import ROOT
from tests.backends.slurm import cluster
from torchx.schedulers.api import DescribeAppResponse
from torchx.schedulers.slurm_scheduler import SlurmScheduler, create_scheduler
from torchx.specs import AppDef, AppState, Resource, Role, is_terminal

Job = Callable[..., str]

PATIENCE_S = 180.0
"""How long tests wait for what comes at once on a machine that is not busy."""


@pytest.fixture(scope="session", autouse=True)
def slurm() -> Iterator[None]:
    """A cluster that runs. One that ran before the tests goes on after them; another is taken down."""
    was_up = cluster.is_up()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{os.environ['PATH']}:/usr/sbin:/sbin")
        try:
            cluster.up()
            yield
        except cluster.NoClusterHereError as e:
            pytest.skip(f"no Slurm here: {e}")
        finally:
            if not was_up:
                cluster.down()


@pytest.fixture(scope="session")
def overtime(slurm: None) -> Iterator[str]:
    """A job with the shortest limit there is, a minute: tests that come earlier ask for it, too, so that it is over by then."""
    early = create_scheduler("test")
    command_line = "trap 'echo saving; exit 3' TERM; trap 'echo soon' USR1; while :; do sleep 1; done 2>/dev/null"
    role = Role("r", "", entrypoint="sh", args=["-c", command_line], resource=Resource(1, 0, 50))
    # Slurm looks at limits twice a minute, and sends the signal when it looks last before it is due.
    app_id = early.submit(AppDef("overtime", [role]), {"time": "1", "signal": "USR1@1"})
    yield app_id
    early.cancel(app_id)
    early.close()


@pytest.fixture
def scheduler() -> Iterator[SlurmScheduler]:
    """A scheduler whose jobs are cancelled at the end of the test."""
    made = create_scheduler("test")
    made.fresh_s = 0.05
    yield made
    made.close()


@pytest.fixture
def submit(scheduler: SlurmScheduler) -> Iterator[Job]:
    """Submit ``sh -c command`` in ``n`` replicas; further keywords are the role's, ``cfg`` the run options."""
    made = []

    def run(command: str, n: int = 1, *, cfg: dict | None = None, name: str = "job", **role: Any) -> str:
        role.setdefault("resource", Resource(cpu=1, gpu=0, memMB=100))
        app = AppDef(name, [Role("r", "", entrypoint="sh", args=["-c", command], num_replicas=n, **role)])
        made.append(scheduler.submit(app, cfg or {}))
        return made[-1]

    yield run
    if made:
        subprocess.run(["scancel", *made], capture_output=True, check=False)
        deadline = time.monotonic() + 60
        while _alive(made) and time.monotonic() < deadline:
            time.sleep(0.1)


def ended(scheduler: SlurmScheduler, app_id: str, within_s: float = PATIENCE_S) -> DescribeAppResponse:
    """What became of the job, once it has ended."""
    return until(scheduler, app_id, lambda found: is_terminal(found.state), within_s)


def running(scheduler: SlurmScheduler, app_id: str, within_s: float = PATIENCE_S) -> DescribeAppResponse:
    """The job, once it runs."""
    return until(scheduler, app_id, lambda found: found.state is AppState.RUNNING, within_s)


def until(
    scheduler: SlurmScheduler,
    app_id: str,
    wanted: Callable[[DescribeAppResponse], object],
    within_s: float = PATIENCE_S,
) -> DescribeAppResponse:
    """The job, once it is as wanted."""
    deadline = time.monotonic() + within_s
    while True:
        found = scheduler.describe(app_id)
        if found is not None and wanted(found):
            return found
        if time.monotonic() > deadline:
            pytest.fail(f"{app_id} is {found} after {within_s} s\n{evidence(app_id)}")
        time.sleep(0.1)


def evidence(app_id: str) -> str:
    """What Slurm, its daemons and the job itself have to say of the job."""
    shown = subprocess.run(["scontrol", "show", "job", app_id], capture_output=True, text=True, check=False).stdout
    folder = Path(shown.partition("StdOut=")[2].partition("\n")[0]).parent
    about = re.compile(rf"(JobId=|[Jj]ob |JOB |\[){app_id}\b")
    daemons = [
        f"{log.name}: {line}"
        for log in sorted(cluster.STATE.glob("slurm*.log"))
        for line in log.read_text(errors="replace").splitlines()
        if about.search(line)
    ]
    files = [f"{name}:\n{(folder / name).read_text()}" for name in ("events", "slurm.log") if (folder / name).exists()]
    return "\n".join([shown, *files, *daemons])


def becomes(answer: Callable[[], object], wanted: object, within_s: float = PATIENCE_S) -> None:
    """Wait until the answer is the wanted one."""
    deadline = time.monotonic() + within_s
    while (found := answer()) != wanted:
        assert time.monotonic() < deadline, f"{found!r} is not {wanted!r} after {within_s} s"
        time.sleep(0.1)


def wait_for(*files: Path | str) -> str:
    """The words of a shell that wait for files."""
    return " && ".join(f"until [ -e {shlex.quote(str(file))} ]; do sleep 0.1; done 2>/dev/null" for file in files)


def lines(scheduler: SlurmScheduler, app_id: str, k: int = 0, role: str = "r", **query: Any) -> list[str]:
    """The replica's output."""
    return list(scheduler.log_iter(app_id, role, k, **query))


def command(*argv: str) -> str:
    """What a command of Slurm's says."""
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{argv}: {done.stdout}{done.stderr}"
    return done.stdout


def start_now(app_id: str) -> None:
    """Let a job start that was put back into the queue, where it waits until its credential has expired: two minutes."""
    command("scontrol", "update", f"jobid={app_id}", "starttime=now")


def restart_controller(*options: str) -> None:
    """Stop slurmctld and start it again, so that it outlives these tests if it has been there before them."""
    outside("restart", *options)


def outside(*words: str) -> None:
    """Let a process of its own do something about the cluster: what it starts is not ours."""
    libc = ctypes.CDLL(None, use_errno=True)
    adopting = 36  # PR_SET_CHILD_SUBREAPER: the tests adopt what their processes leave behind
    libc.prctl(adopting, 0, 0, 0, 0)
    try:
        argv = [sys.executable, "-m", "tests.backends.slurm.cluster", *words]
        done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    finally:
        libc.prctl(adopting, 1, 0, 0, 0)
    assert done.returncode == 0, done.stderr


def _alive(app_ids: list[str]) -> bool:
    argv = ["squeue", "-h", "-o", "%A", f"--jobs={','.join(app_ids)}"]
    return bool(subprocess.run(argv, capture_output=True, text=True, check=False).stdout.strip())
