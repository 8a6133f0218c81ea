"""Faults of local jobs, of real processes: what happens to the job is what the page says afterwards."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from torchx.errors import BackendError, ConfigError, NotSupportedError
from torchx.runner import Runner, get_runner
from torchx.specs.api import AppDef, AppState, Role
from torchx.specs.failures import parse_failure
from torchx.specs.wishes.retries import RETRY
from torchx.supervisor import proctree

WAITS = 'echo up > "$UP"; exec sleep 600'
RESUMES = 'test -e "$HERE/was" && exit 0; touch "$HERE/was"; ' + WAITS


@pytest.fixture
def runner() -> Iterator[Runner]:
    with get_runner() as runner:
        yield runner


class Job:
    """A job whose replicas have said that they are up."""

    def __init__(self, runner: Runner, folder: Path, script: str, *, policy: str = "", replicas: int = 1) -> None:
        up = folder / "up"
        os.mkfifo(up)
        fd = os.open(up, os.O_RDWR)
        env = {"UP": str(up), "HERE": str(folder)}
        role = Role("w", "", entrypoint="sh", args=["-c", script], env=env, num_replicas=replicas)
        self.runner = runner
        self.handle = runner.run(AppDef("job", [role], metadata={RETRY: policy} if policy else {}), "local_cwd")
        for _ in range(replicas):
            os.read(fd, 3)
        os.close(fd)
        deadline = time.monotonic() + 60  # a process is up a moment before its state is written
        while (status := runner.status(self.handle)) is None or status.state is not AppState.RUNNING:
            assert time.monotonic() < deadline

    def pid(self, k: int = 0) -> int:
        backend: Any = self.runner._scheduler("local_cwd")
        job = backend._find(self.handle.rpartition("/")[2])
        pid: int = job.read().replicas[k].pid
        return pid


@pytest.mark.parametrize(
    ("fault", "kind", "said"),
    [
        ("preempt", "preempted", "it was preempted (simulated)"),
        ("timeout", "timeout", "it reached its time limit (simulated)"),
        ("kill", "unknown", "killed by SIGKILL"),
    ],
)
def test_without_a_policy_that_was_it(runner: Runner, tmp_path: Path, fault: str, kind: str, said: str) -> None:
    """The job has failed, and the cause says of what."""
    job = Job(runner, tmp_path, WAITS)
    runner.simulate(job.handle, fault).make()
    status = runner.wait(job.handle)
    assert status is not None
    cause = parse_failure(status.structured_error_msg)
    assert (status.state, cause and cause.kind) == (AppState.FAILED, kind)
    assert said in status.msg


@pytest.mark.parametrize(("fault", "kind"), [("preempt", "preempted"), ("timeout", "timeout"), ("kill", "unknown")])
def test_with_a_policy_it_goes_on(runner: Runner, tmp_path: Path, fault: str, kind: str) -> None:
    """One attempt more, and the page has both."""
    job = Job(runner, tmp_path, RESUMES, policy="preempted:free, timeout:1, unknown:1")
    runner.simulate(job.handle, fault).make()
    status = runner.wait(job.handle)
    assert status is not None
    assert status.state is AppState.SUCCEEDED
    assert [(a.kind, a.again) for a in status.attempts] == [(kind, True)]


def test_a_replica_hangs_with_all_of_its_processes(runner: Runner, tmp_path: Path) -> None:
    """It is stopped, says nothing, and the job is RUNNING; cancelling ends it all the same."""
    job = Job(runner, tmp_path, 'sleep 600 & echo up > "$UP"; wait', replicas=2)
    runner.simulate(job.handle, "hang", [("w", 1)]).make()
    processes = proctree.snapshot()
    family = proctree.descendants(processes, {job.pid(1)})
    assert len(family) == 2
    deadline = time.monotonic() + 60
    while not all(proctree.is_stopped(p.pid) for p in family):  # a process stops when it next runs
        assert time.monotonic() < deadline
    assert not proctree.is_stopped(job.pid(0))
    status = runner.status(job.handle)
    assert status is not None
    assert status.state is AppState.RUNNING
    runner.cancel(job.handle)
    status = runner.wait(job.handle)
    assert status is not None
    assert status.state is AppState.CANCELLED


@pytest.mark.parametrize("fault", ["oom", "node"])
def test_what_cannot_be_done_is_refused(runner: Runner, tmp_path: Path, fault: str) -> None:
    """With a sentence that says why, and what is near to it."""
    job = Job(runner, tmp_path, WAITS)
    with pytest.raises(NotSupportedError, match=f"`{fault}` cannot be simulated on `local_cwd`: ") as raised:
        runner.simulate(job.handle, fault)
    assert "torchx simulate kill" in raised.value.hint
    runner.cancel(job.handle)
    runner.wait(job.handle)


def test_nothing_is_done_before_it_is_asked_for(runner: Runner, tmp_path: Path) -> None:
    """The plan says what, and leaves the job alone; a fault that does not exist is named."""
    job = Job(runner, tmp_path, WAITS)
    assert runner.simulate(job.handle, "kill").says == "replica w/0 and its processes get SIGKILL"
    with pytest.raises(ConfigError, match="there is no fault `kil`") as raised:
        runner.simulate(job.handle, "kil")
    assert "`kill`" in raised.value.hint
    status = runner.status(job.handle)
    assert status is not None
    assert status.state is AppState.RUNNING
    runner.cancel(job.handle)
    runner.wait(job.handle)
    with pytest.raises(BackendError, match="has ended"):
        runner.simulate(job.handle, "kill")


def test_a_job_of_others_is_left_alone(runner: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What somebody else has on record in a shared home, or nobody has."""
    job = Job(runner, tmp_path, WAITS)
    with monkeypatch.context() as patched:
        patched.setattr("torchx.runner.inside.simulations.user_name", lambda: "somebody")
        with pytest.raises(NotSupportedError, match="only in your own"):
            runner.simulate(job.handle, "kill")
    with pytest.raises(NotSupportedError, match="only in your own"):
        runner.simulate("local_cwd://torchx/nobodys", "kill")
    runner.cancel(job.handle)
    runner.wait(job.handle)


def test_a_process_that_is_not_the_replicas_is_not_signalled(runner: Runner, tmp_path: Path) -> None:
    """The replica has ended between the question and the answer: nothing is killed in its place."""
    os.mkfifo(tmp_path / "go")
    job = Job(runner, tmp_path, 'echo up > "$UP"; read -r _ < "$HERE/go"')
    plan = runner.simulate(job.handle, "kill")
    with open(tmp_path / "go", "w", encoding="utf-8") as f:
        f.write("on\n")
    runner.wait(job.handle)
    with pytest.raises(BackendError, match="is not running on this machine"):
        plan.make()
