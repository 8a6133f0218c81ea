"""Jobs that wait, limits that end them, and a cluster whose daemons come and go."""

from __future__ import annotations

import re
import threading
import time
from pathlib import Path

import pytest

from tests.backends.slurm import cluster
from tests.backends.slurm.conftest import (
    PATIENCE_S,
    Job,
    becomes,
    command,
    ended,
    lines,
    restart_controller,
    running,
    until,
    wait_for,
)
from torchx.errors import CommandError
from torchx.schedulers.kit.commands import LocalCommandRunner
from torchx.schedulers.slurm_scheduler import SlurmScheduler
from torchx.specs import AppState, Resource


def test_pending_is_explained(scheduler: SlurmScheduler, submit: Job, overtime: str) -> None:
    """For each reason that this cluster can produce, the message has a sentence, and Slurm's own word."""
    held = submit("true", cfg={"extra": ["--hold"]})
    failed = submit("exit 1")
    ended(scheduler, failed)
    first = [
        submit("sleep 600", cfg={"qos": "onejob"}),
        submit("sleep 600", cfg={"licenses": "matlab:2"}),
        submit("sleep 600", cfg={"qos": "fewcpus"}, resource=Resource(2, 0, 100)),
    ]
    for app_id in first:
        running(scheduler, app_id)
    command("scontrol", "update", "nodename=n4", "state=drain", "reason=test")
    try:
        jobs = {
            "JobHeldUser": held,
            "BeginTime": submit("true", cfg={"extra": ["--begin=now+1hour"]}),
            "Dependency": submit("true", cfg={"extra": [f"--dependency=afterok:{held}"]}),
            "DependencyNeverSatisfied": submit("true", cfg={"extra": [f"--dependency=afterok:{failed}"]}),
            "Licenses": submit("true", cfg={"licenses": "matlab:2"}),
            "PartitionDown": submit("true", cfg={"partition": "closed"}),
            "PartitionTimeLimit": submit("true", cfg={"partition": "short", "time": "60"}),
            "PartitionNodeLimit": submit("true", 2, cfg={"partition": "short"}),
            "QOSMaxJobsPerUserLimit": submit("true", cfg={"qos": "onejob"}),
            "QOSMaxGRESPerUser": submit("true", cfg={"qos": "onegpu"}, resource=Resource(1, 2, 100)),
            "QOSGrpCpuLimit": submit("true", cfg={"qos": "fewcpus"}, resource=Resource(2, 0, 100)),
            "ReqNodeNotAvail": submit("true", cfg={"nodelist": "n4"}),
        }
        told = _explanations(scheduler, jobs)
    finally:
        command("scontrol", "update", "nodename=n4", "state=resume")
    assert told == dict.fromkeys(jobs, True)
    msg = scheduler.describe_many([held])[held].msg
    assert msg == "its owner holds it: `scontrol release` lets it go (JobHeldUser)"


def test_pending_behind_others_is_explained(scheduler: SlurmScheduler, submit: Job) -> None:
    """The first that waits for nodes waits for resources, those behind it for their turn."""
    whole = Resource(6, 0, 100)  # of 8 CPUs: the job that runs into its limit has one of them
    running(scheduler, submit("sleep 600", 4, resource=whole, cfg={"time": "30"}))
    # The first one is so in spite of what others may have in the queue.
    first = {"time": "10", "extra": ["--nice=-1000"]}
    jobs = {
        "Resources": submit("true", 4, resource=whole, cfg=first),
        "Priority": submit("true", 4, resource=whole, cfg={"time": "10"}),
    }
    assert _explanations(scheduler, jobs) == dict.fromkeys(jobs, True)
    expected = re.compile(r"expected to start in about (\d+) min, at")
    job = until(scheduler, jobs["Resources"], lambda j: expected.search(j.msg))
    assert 20 <= int(expected.search(job.msg)[1]) <= 30


def _explanations(
    scheduler: SlurmScheduler, jobs: dict[str, str], within_s: float = PATIENCE_S
) -> dict[str, bool | str]:
    """For each reason whether its job has it; what the job says instead when it does not come in time."""
    deadline = time.monotonic() + within_s
    while True:
        found = scheduler.describe_many(jobs.values())
        told = {
            reason: f"({reason}" in found[app_id].msg and found[app_id].state is AppState.PENDING
            for reason, app_id in jobs.items()
        }
        if all(told.values()) or time.monotonic() > deadline:
            return {reason: ok or found[jobs[reason]].msg for reason, ok in told.items()}
        time.sleep(0.3)


def test_the_controller_restarts_while_we_ask(scheduler: SlurmScheduler, submit: Job, tmp_path: Path) -> None:
    """Questions wait until Slurm answers again; the job goes on, and its end is seen."""
    go = tmp_path / "go"
    app_id = submit(f"echo up; {wait_for(go)}; echo done")
    becomes(lambda: lines(scheduler, app_id), ["up\n"])
    asked = threading.Event()

    class Watched(LocalCommandRunner):
        def run(self, argv, *, stdin="", timeout=None):
            asked.set()
            return super().run(argv, stdin=stdin, timeout=timeout)

    answers = []
    asking = threading.Thread(target=lambda: answers.append(ended(SlurmScheduler("test", commands=Watched()), app_id)))
    cluster.stop("slurmctld")
    try:
        asking.start()
        assert asked.wait(PATIENCE_S)
    finally:
        restart_controller()
        go.touch()
        asking.join(PATIENCE_S)
    assert [answer.state for answer in answers] == [AppState.SUCCEEDED]
    assert lines(scheduler, app_id) == ["up\n", "done\n"]


def test_a_cluster_without_accounting(scheduler: SlurmScheduler, submit: Job) -> None:
    """Where there is no slurmdbd, all that a job needs works; exit codes come from the job's own files."""
    restart_controller("--no-accounting")
    try:
        good, bad = submit("echo fine", 2), submit("exit 4", 2)
        assert ended(scheduler, good).state is AppState.SUCCEEDED
        assert "exit code 4" in ended(scheduler, bad).msg
        assert lines(scheduler, good, 1) == ["fine\n"]
        assert {good, bad} <= {job.app_id for job in scheduler.list()}
        assert scheduler.describe("999999999") is None
    finally:
        restart_controller()


def test_two_hundred_jobs_cost_one_command(scheduler: SlurmScheduler, submit: Job) -> None:
    """State and list of 200 jobs are one question to Slurm each (and one to its accounting for those that ended)."""
    jobs = [submit("true", cfg={"extra": ["--hold"]}) for _ in range(200)]
    asked: list[list[str]] = []

    class Counting(LocalCommandRunner):
        def run(self, argv, *, stdin="", timeout=None):
            asked.append(list(argv))
            return super().run(argv, stdin=stdin, timeout=timeout)

    fresh = SlurmScheduler("test", commands=Counting())
    found = fresh.describe_many(jobs)
    assert {job.state for job in found.values()} == {AppState.PENDING}
    assert [_program(argv) for argv in asked] == ["squeue"]
    asked.clear()
    assert set(jobs) <= {job.app_id for job in fresh.list()}
    assert [_program(argv) for argv in asked] == ["squeue", "sacct"]


def _program(argv: list[str]) -> str:
    words = [word for word in argv if word != "env" and not word.startswith("SLURM_")]
    return " ".join(words[:2]) if words[1] == "--version" else words[0]


def test_what_is_refused_is_told_and_leaves_nothing(scheduler: SlurmScheduler, submit: Job) -> None:
    """A partition that does not exist: Slurm's words, a hint, and no folder."""
    with pytest.raises(CommandError, match="Invalid partition") as caught:
        submit("true", cfg={"partition": "nowhere"})
    assert caught.value.hint == "`sinfo` shows the partitions"
    site = scheduler._here
    root = site.files.torchx_home("slurm")
    assert [name for name in site.files.names(root) if name.startswith("job-")] == []


def test_time_limit(scheduler: SlurmScheduler, overtime: str) -> None:
    """A job over its limit was warned by the signal that it asked for, hears SIGTERM, and the limit is the cause."""
    done = ended(scheduler, overtime, within_s=300)
    assert done.state is AppState.FAILED
    assert done.msg.startswith("it reached its time limit")
    assert lines(scheduler, overtime) == ["soon\n", "saving\n"]
