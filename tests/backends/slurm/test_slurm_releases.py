"""Jobs on other releases of Slurm, each with a file system and namespaces of its own: see `releases.py`.

Debian trixie's (24.11) by default. ``TORCHX_SLURM_SUITES=bullseye,jammy,noble,trixie,resolute,sid`` says which, or
``none``; a suite that was never installed takes one or two minutes more.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest

from tests.backends.slurm import releases, roots
from tests.backends.slurm.cluster import NoClusterHereError
from tests.backends.slurm.conftest import PATIENCE_S, Job, becomes, command, ended, lines, running
from tests.backends.slurm.test_slurm_jobs import (  # noqa: F401  # they run here, too
    partition,
    test_a_job_that_must_not_be_requeued,
    test_a_node_that_dies,
    test_a_program_that_is_not_there,
    test_an_elastic_job_loses_a_replica,
    test_cancelled_jobs_write_their_last_words,
    test_gpus_are_reserved_and_seen,
    test_memory_is_left_out_where_it_cannot_be_taken,
    test_one_replica_or_one_role_starts_again_in_place,
    test_retried_by_requeue_and_counted,
    test_the_first_failure_is_told_and_the_others_are_stopped,
    test_two_roles_are_one_heterogeneous_job,
)
from torchx.errors import CommandError
from torchx.schedulers.slurm.client import squeue_argv
from torchx.schedulers.slurm.parse import parse_squeue
from torchx.schedulers.slurm_scheduler import SlurmScheduler, create_scheduler, version
from torchx.specs import AppDef, AppState, Resource, Role

SUITES = [name for name in os.environ.get("TORCHX_SLURM_SUITES", "trixie").split(",") if name not in ("", "none")]


@pytest.fixture(scope="module", params=SUITES, autouse=True)
def slurm(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[releases.Release]:
    """The cluster of one release, instead of the one that the other modules have."""
    if not str(tmp_path_factory.getbasetemp()).startswith("/tmp/"):
        pytest.skip("the nodes share /tmp with this machine, and nothing else: give `--basetemp=/tmp/...`")
    release = releases.Release(request.param)
    was_up = release.is_up()
    with pytest.MonkeyPatch.context() as patch:
        try:
            release.up()
        except NoClusterHereError as e:
            pytest.skip(f"no Slurm of {request.param} here: {e}")
        patch.setenv("PATH", f"{release.bin}:{os.environ['PATH']}")
        patch.chdir(tmp_path_factory.mktemp("cwd"))
        patch.setenv("TORCHX_HOME", str(tmp_path_factory.mktemp("home")))
        yield release
        if not was_up:
            release.down()


@pytest.fixture(scope="module", autouse=True)
def overtime(slurm: releases.Release) -> Iterator[str]:
    """A job with the shortest limit there is, a minute, which other tests need not wait for."""
    early = create_scheduler("test")
    role = Role("r", "", entrypoint="sh", args=["-c", "while :; do sleep 1; done"], resource=Resource(1, 0, 50))
    app_id = early.submit(AppDef("overtime", [role]), {"time": "1"})
    yield app_id
    early.cancel(app_id)
    early.close()


def test_the_release_is_the_one(slurm: releases.Release) -> None:
    """The commands are those of the release; suites that roll have it or a later one."""
    found, expected = version(), tuple(map(int, roots.ROOTS[slurm.suite].slurm.split(".")))
    assert found == expected or (slurm.suite == "sid" and found > expected)


def test_what_squeue_tells(slurm: releases.Release, submit: Job, scheduler: SlurmScheduler) -> None:
    """The jobs, in their states."""
    jobs = [submit("true", cfg={"extra": ["--hold"]}), submit("exit 3"), submit("sleep 600", 2)]
    ended(scheduler, jobs[1])
    running(scheduler, jobs[2])
    plain = _facts(parse_squeue(command(*squeue_argv(jobs))))
    assert [row[1:3] for row in plain] == [
        ("PENDING", "JobHeldUser"),
        ("FAILED", "NonZeroExitCode"),
        ("RUNNING", "None"),
    ]


def _facts(records) -> list[tuple]:
    return sorted((r.job_id, r.state, r.reason, r.name, r.folder, r.nodes, r.restarts, r.exit_code) for r in records)


def test_out_of_memory(slurm: releases.Release, scheduler: SlurmScheduler, submit: Job) -> None:
    """A job that takes more memory than it may ends so, be it held by cgroups or watched; another does not."""
    greedy = submit("exec python3 -c 'import time; x = bytes([7]) * (400 << 20); time.sleep(600)'")
    parent = submit("python3 -c 'x = bytes([7]) * (400 << 20)'; echo lost a child >&2; exit 1")
    killed = submit("kill -9 $$")
    assert "out of memory" in ended(scheduler, greedy).msg
    if slurm.has_cgroups():  # only they see to it at once
        assert ended(scheduler, parent).msg.endswith("exit code 1: out of memory: lost a child")
    msg = ended(scheduler, killed).msg
    assert "killed by SIGKILL" in msg
    assert "memory" not in msg


def test_what_runs_is_listed(scheduler: SlurmScheduler, submit: Job) -> None:
    """Our jobs, and a job array of somebody else, a task each."""
    ours = submit("sleep 600")
    array = command("sbatch", "--parsable", "--array=1-2", "--mem=50", "--output=/dev/null", "--wrap=sleep 600").strip()
    wanted = dict.fromkeys((ours, f"{array}_1", f"{array}_2"), AppState.RUNNING)
    try:
        becomes(lambda: {j.app_id: j.state for j in scheduler.list() if j.app_id in wanted}, wanted)
    finally:
        command("scancel", array)


def test_reasons_to_wait(slurm: releases.Release, scheduler: SlurmScheduler, submit: Job) -> None:
    """Each that this cluster can be brought to give has a sentence, with Slurm's own word behind it."""
    failed = submit("exit 1")
    held = submit("true", cfg={"extra": ["--hold"]})
    ended(scheduler, failed)
    first = [submit("sleep 600", cfg=cfg) for cfg in ({"qos": "onejob"}, {"licenses": "matlab:2"})]
    first.append(submit("sleep 600", cfg={"qos": "fewcpus"}, resource=Resource(2, 0, 100)))
    for app_id in first:
        running(scheduler, app_id)
    whole = Resource(8, 0, 100)
    start = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(time.time() + 3600))
    command(
        "scontrol", "create", "reservationname=later", f"starttime={start}", "duration=10", "nodes=n3", "users=root"
    )
    command("scontrol", "update", "nodename=n4", "state=drain", "reason=test")
    try:
        jobs = {
            "JobHeldUser": held,
            "JobHeldAdmin": submit("true", cfg={"extra": ["--hold"]}),
            "BeginTime": submit("true", cfg={"extra": ["--begin=now+1hour"]}),
            "Dependency": submit("true", cfg={"extra": [f"--dependency=afterok:{held}"]}),
            "DependencyNeverSatisfied": submit("true", cfg={"extra": [f"--dependency=afterok:{failed}"]}),
            "Licenses": submit("true", cfg={"licenses": "matlab:2"}),
            "Reservation": submit("true", cfg={"reservation": "later"}),
            "PartitionDown": submit("true", cfg={"partition": "closed"}),
            "PartitionTimeLimit": submit("true", cfg={"partition": "short", "time": "60"}),
            "PartitionNodeLimit": submit("true", 2, cfg={"partition": "short"}),
            "QOSMaxJobsPerUserLimit": submit("true", cfg={"qos": "onejob"}),
            "QOSMaxGRESPerUser": submit("true", cfg={"qos": "onegpu"}, resource=Resource(1, 2, 100)),
            "QOSGrpCpuLimit": submit("true", cfg={"qos": "fewcpus"}, resource=Resource(2, 0, 100)),
            "ReqNodeNotAvail": submit("true", cfg={"nodelist": "n4"}),
        }
        command("scontrol", "hold", jobs["JobHeldAdmin"])
        with pytest.raises(CommandError):  # it starts no jobs, and takes none
            submit("true", cfg={"partition": "frozen"})
        wrong = _explained(scheduler, jobs)
        # Who waits for nodes lets all others wait.
        last = {
            "Resources": submit("true", 3, resource=whole, cfg={"time": "10", "extra": ["--nice=-1000"]}),
            "Priority": submit("true", 3, resource=whole, cfg={"time": "10"}),
        }
        wrong.update(_explained(scheduler, last))
    finally:
        command("scontrol", "update", "nodename=n4", "state=resume")
        command("scancel", *(job for job in jobs.values()))
        command("scontrol", "delete", "reservationname=later")
    assert wrong == {}


def _explained(scheduler: SlurmScheduler, jobs: dict[str, str], within_s: float = PATIENCE_S) -> dict[str, str]:
    """What jobs say that do not come to say what they should."""
    deadline = time.monotonic() + within_s
    while True:
        found = scheduler.describe_many(jobs.values())
        wrong = {reason: found[i].msg for reason, i in jobs.items() if f" ({reason}" not in found[i].msg}
        if not wrong or time.monotonic() > deadline:
            return wrong
        time.sleep(0.3)


def test_logs_and_delete(scheduler: SlurmScheduler, submit: Job) -> None:
    """The log of a job is followed to its end; a job that was deleted leaves no folder."""
    app_id = submit("echo one; sleep 2; echo two >&2")
    assert list(scheduler.log_iter(app_id, "r", 0, should_tail=True)) == ["one\n", "two\n"]
    assert ended(scheduler, app_id).state is AppState.SUCCEEDED
    assert lines(scheduler, app_id) == ["one\n", "two\n"]
    folder = scheduler._log_folder(scheduler._here, app_id)
    assert folder is not None
    scheduler.delete(app_id)
    assert not os.path.exists(folder.path)


def test_time_limit(scheduler: SlurmScheduler, overtime: str) -> None:
    """A job over its limit says so."""
    done = ended(scheduler, overtime, within_s=300)
    assert (done.state, done.msg) == (AppState.FAILED, "it reached its time limit")
