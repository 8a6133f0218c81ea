"""The status of a local job that has ended is cached as long as the job exists."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from typing import Any

import pytest

from tests.runner.memory_backend import MemoryScheduler, backend
from torchx.runner import Runner, events, get_runner
from torchx.runner.watching import answers
from torchx.runner.watching.answers import EndedJobs
from torchx.runs import NewRun, default_registry
from torchx.runs.statuses import to_text
from torchx.schedulers.api import DescribeAppResponse
from torchx.specs import AppDef, AppState, AppStatus, ReplicaStatus, Role, RoleStatus
from torchx.specs.api import NONE
from torchx.specs.failures import Failure, parse_failure

HANDLE = "near://s/a-1"


class NearScheduler(MemoryScheduler):
    """A local scheduler, which can check cheaply whether a job exists."""

    wait_hint = 0.05

    def still_there(self, app_id):
        return None if app_id not in self.jobs else lambda: app_id in self.jobs


@pytest.fixture
def near(jobs):
    """A Runner with local jobs, one of which has ended."""
    jobs["a-1"] = DescribeAppResponse(
        "a-1",
        AppState.FAILED,
        msg="boom",
        roles_statuses=[RoleStatus("w", [ReplicaStatus(0, AppState.FAILED, "w", "")])],
    )
    factories: Any = {"near": lambda session: NearScheduler(session, jobs=jobs), "memory": MemoryScheduler}
    with Runner("s", factories) as found:
        yield found


def asked(runner):
    """How often the scheduler was queried."""
    return len(backend(runner, "near").asked)


def test_a_job_that_has_ended_is_described_once(near, jobs):
    """All later statuses are equal to the first one, without a query."""
    first = near.status(HANDLE)
    assert first == near.status(HANDLE) == near.status(HANDLE)
    assert first.roles[0].replicas[0].state is AppState.FAILED
    assert asked(near) == 1


@pytest.mark.parametrize("how_many", [1, 2])
def test_callers_share_nothing(near, jobs, how_many):
    """A caller that modifies a status does not affect the statuses of others."""
    mine = [near.status(HANDLE) for _ in range(how_many)][-1]
    mine.state, mine.msg = AppState.RUNNING, "mine"
    mine.roles[0].replicas[0].state = AppState.RUNNING
    mine.roles.append(RoleStatus("x", []))
    other = near.status(HANDLE)
    assert (other.state, other.msg, len(other.roles)) == (AppState.FAILED, "boom", 1)
    assert other.roles[0].replicas[0].state is AppState.FAILED


def test_a_deletion_is_seen_at_once(near, jobs):
    """By any process: the job is queried again, and is gone; if it reappears, it is described again."""
    assert near.status(HANDLE).state is AppState.FAILED
    kept = jobs.pop("a-1")
    assert near.status(HANDLE) is None
    jobs["a-1"] = kept
    kept.state = AppState.SUCCEEDED
    assert near.status(HANDLE).state is AppState.SUCCEEDED
    assert asked(near) == 3


def test_a_job_that_runs_is_asked_for_each_time(near, jobs):
    """Only the status of an ended job is final."""
    jobs["a-1"].state = AppState.RUNNING
    for _ in range(3):
        assert near.status(HANDLE).state is AppState.RUNNING
    assert asked(near) == 3
    jobs["a-1"].state = AppState.SUCCEEDED
    assert near.status(HANDLE).state is AppState.SUCCEEDED


def test_a_cluster_is_asked_each_time(runner, jobs):
    """A scheduler without a cheap check is queried for each status."""
    jobs["a-1"] = DescribeAppResponse("a-1", AppState.SUCCEEDED)
    for _ in range(3):
        runner.status("memory://test/a-1")
    assert len(backend(runner).asked) == 3


def test_a_short_reference_is_looked_up_each_time(near, jobs):
    """`@last` may refer to another run later: only handles are cached."""
    app = AppDef("a", [Role("w", "i", entrypoint="x")])
    first = near.run(app, "near")
    jobs[first.rpartition("/")[2]].state = AppState.FAILED
    assert near.status("@last").state is AppState.FAILED
    near.run(app, "near")
    assert near.status("@last").state is AppState.RUNNING


def test_closing_forgets(near, jobs):
    """A closed Runner has an empty cache."""
    near.status(HANDLE)
    near.close()
    near.status(HANDLE)
    assert asked(near) == 1  # of a scheduler made anew


def test_an_event_is_told_of_each_call(near, jobs, monkeypatch):
    """Events are sent for cached statuses, too, also to handlers that are added later."""
    seen = []
    near.status(HANDLE)
    near.status(HANDLE)
    monkeypatch.setenv("TORCHX_INTERNAL_SESSION_ID", "s")
    monkeypatch.setattr(events, "record", seen.append)
    near.status(HANDLE)
    near.status(HANDLE)
    assert [(event.api, event.app_id) for event in seen] == [("status", "a-1")] * 2


def test_only_so_many_are_kept(monkeypatch):
    """The cache keeps only the latest entries."""
    monkeypatch.setattr(answers, "MAX_ENDED", 2)
    kept = EndedJobs()
    for name in "abc":
        kept.keep(name, AppStatus(AppState.SUCCEEDED, msg=name), lambda: True)
    assert kept.status("a") is None
    assert [kept.status(name).msg for name in "bc"] == ["b", "c"]
    kept.clear()
    assert kept.status("c") is None


# -- the real thing --------------------------------------------------------------------------------

FAILING = AppDef("f", [Role("w", "", entrypoint="sh", args=["-c", "echo why >&2; exit 3"], num_replicas=2)])


def test_a_local_job(tmp_path, monkeypatch):
    """Each field of the cached status equals that of a new Runner, and of the Runner that waited."""
    monkeypatch.chdir(tmp_path)
    with get_runner() as runner, get_runner() as other:
        handle = runner.run(FAILING, "local_cwd")
        waited = runner.wait(handle, timeout=300)
        again, fresh = runner.status(handle), other.status(handle)
        assert vars(again).keys() == vars(fresh).keys()
        assert waited == again == fresh
        assert (again.state, again.roles[0].replicas[0].hostname) == (AppState.FAILED, "localhost")
        assert "exit code 3" in again.msg
        again.roles[0].replicas.clear()
        assert runner.status(handle) == fresh

        # the answers of the scheduler itself are everybody's own, too
        scheduler = runner._scheduler("local_cwd")
        app_id = handle.rpartition("/")[2]
        scheduler.describe(app_id).roles_statuses[0].replicas.clear()
        assert len(scheduler.describe(app_id).roles_statuses[0].replicas) == 2


@pytest.mark.parametrize("how", ["another process", "by hand", "another Runner"])
def test_a_local_job_that_others_delete(tmp_path, monkeypatch, how):
    """It is gone on the next call, although the status is cached."""
    monkeypatch.chdir(tmp_path)
    with get_runner() as runner:
        handle = runner.run(AppDef("t", [Role("w", "", entrypoint="true")]), "local_cwd")
        assert runner.wait(handle, timeout=300).state is AppState.SUCCEEDED
        assert runner.status(handle).state is AppState.SUCCEEDED
        if how == "another process":
            subprocess.run([sys.executable, "-m", "torchx", "delete", handle], check=True, capture_output=True)
        elif how == "by hand":
            shutil.rmtree(os.path.join(os.environ["TORCHX_HOME"], "local", "torchx", handle.rpartition("/")[2]))
        else:
            with get_runner() as other:
                other.delete(handle)
        status = runner.status(handle)
        assert status is None or "no longer knows" in status.msg
        assert (status is None) is (how != "by hand")


def test_events_of_a_local_job_go_to_their_file(tmp_path, monkeypatch):
    """With `TORCHX_EVENTS`, each call writes a line, also for a cached status."""
    code = """
import sys
from torchx.runner import get_runner
from torchx.specs import AppDef, Role
with get_runner() as runner:
    handle = runner.run(AppDef("t", [Role("w", "", entrypoint="true")]), "local_cwd")
    runner.wait(handle, timeout=300)
    for _ in range(5):
        runner.status(handle)
"""
    path = tmp_path / "events"
    env = {**os.environ, "TORCHX_EVENTS": f"file:{path}"}
    subprocess.run([sys.executable, "-c", code], env=env, cwd=tmp_path, check=True)
    told = [json.loads(line)["api"] for line in path.read_text().splitlines()]
    assert told[told.index("wait") + 1 :] == ["status"] * 5


# -- on a cluster ----------------------------------------------------------------------------------


class FarScheduler(MemoryScheduler):
    """A cluster, whose every query is a call."""

    wait_hint = 2.0


class ReportingScheduler(FarScheduler):
    """A cluster that reports the end of a job."""

    def wait_for_end(self, app_id, timeout_s):
        self.calls.append("wait_for_end")


@pytest.mark.parametrize("kind", [FarScheduler, ReportingScheduler])
@pytest.mark.parametrize("timeout", [0, None])
def test_a_recorded_end_costs_no_call(kind, timeout):
    """Whoever saw it first, all that wait for the job get the whole status, also after the cluster has forgotten it."""
    replicas = [ReplicaStatus(0, AppState.FAILED, "w", "")]
    jobs = {"1": DescribeAppResponse("1", AppState.FAILED, msg="boom", roles_statuses=[RoleStatus("w", replicas)])}
    handle = "far://s/1"
    registry = default_registry()
    registry.submitted(registry.begin(NewRun(scheduler="far", session="s", name="x", handle=handle)), handle)
    factories: Any = {"far": lambda session: kind(session, jobs=jobs)}
    with Runner("s", factories) as first:
        seen = first.status(handle)
    jobs.clear()
    with Runner("s", factories) as second:
        again = second.wait(handle, timeout=timeout)
        assert (backend(second, "far").asked, backend(second, "far").calls) == ([], [])
    assert (again.state, again.msg, again.roles) == (AppState.FAILED, "boom", seen.roles)


def test_a_status_from_before_the_end_is_not_the_end():
    """A process that recorded only the state does not leave others waiting for a job that has ended."""
    handle = "far://s/1"
    registry = default_registry()
    registry.submitted(registry.begin(NewRun(scheduler="far", session="s", name="x", handle=handle)), handle)
    running = to_text(AppStatus(AppState.RUNNING))
    registry.saw_many([(handle, AppState.RUNNING, "", None)], {handle: running})
    assert registry.status(handle).state is AppState.RUNNING
    registry.saw(handle, AppState.SUCCEEDED)
    assert registry.status(handle) is None
    jobs = {"1": DescribeAppResponse("1", AppState.SUCCEEDED)}
    factories: Any = {"far": lambda session: FarScheduler(session, jobs=jobs)}
    with Runner("s", factories) as runner:
        assert runner.wait(handle).state is AppState.SUCCEEDED


def lost_cause(state, msg, *, code=None):
    """The answer about a job of two replicas, of which the second has failed if there is an exit code."""
    why = Failure("the reason", exit_code=code, kind="error", role="w", replica=1).to_structured_msg() if code else NONE
    other = AppState.RUNNING if state is AppState.RUNNING else AppState.CANCELLED
    states = (other, AppState.FAILED) if code else (AppState.CANCELLED, AppState.CANCELLED)
    replicas = [
        ReplicaStatus(k, s, "w", "", structured_error_msg=why if s is AppState.FAILED else NONE)
        for k, s in enumerate(states)
    ]
    return DescribeAppResponse("1", state, msg=msg, roles_statuses=[RoleStatus("w", replicas)])


@pytest.mark.parametrize("polled", [False, True])
@pytest.mark.parametrize("before", [AppState.RUNNING, AppState.FAILED])
def test_a_cause_that_was_seen_stays_on_record(before, polled):
    """The cluster deletes the objects that showed it: whoever asks then, by `status` or `list`, gets what was seen."""
    jobs = {
        "1": lost_cause(
            before,
            "w/1: exit code 9: the reason" + "; the others are being ended" * (before is AppState.RUNNING),
            code=9,
        )
    }
    handle = "far://s/1"
    registry = default_registry()
    registry.submitted(registry.begin(NewRun(scheduler="far", session="s", name="x", handle=handle)), handle)
    factories: Any = {"far": lambda session: FarScheduler(session, jobs=jobs), "memory": MemoryScheduler}
    with Runner("s", factories) as runner:
        runner.status(handle)
        jobs["1"] = lost_cause(AppState.FAILED, "some of its replicas failed")
        if polled:
            (run,) = runner.runs()
            assert (run.state, run.msg.partition(";")[0]) == (AppState.FAILED, "w/1: exit code 9: the reason")
        status = runner.status(handle)
    assert (status.state, status.msg.partition(";")[0]) == (AppState.FAILED, "w/1: exit code 9: the reason")
    assert "are being ended" not in status.msg
    assert parse_failure(status.structured_error_msg).exit_code == 9
    assert [r.state for r in status.roles[0].replicas] == [AppState.CANCELLED, AppState.FAILED]
    assert registry.get(handle).msg == status.msg


def test_a_cause_of_its_own_is_not_replaced():
    """An answer that names the replica is the newer one; without an earlier cause nothing is invented."""
    now = lost_cause(AppState.FAILED, "w/1: exit code 2", code=2)
    now.structured_error_msg = Failure("x", exit_code=2, role="w", replica=1).to_structured_msg()
    assert answers.with_cause(now, lambda: pytest.fail("it is not asked for")) is now
    weak = lost_cause(AppState.FAILED, "some of its replicas failed")
    assert answers.with_cause(weak, lambda: None) is weak
    assert answers.with_cause(weak, lambda: AppStatus(AppState.RUNNING, msg="runs")) is weak


def test_the_failure_before_a_restart_stays_on_record():
    """A replica that was seen restarting has failed for that reason, if nothing is left of it at the end."""
    why = Failure("the reason", exit_code=9, role="w", replica=1).to_structured_msg()
    known = lost_cause(AppState.RUNNING, "w/1 fails again and again")
    known.roles_statuses[0].replicas[1] = ReplicaStatus(1, AppState.RUNNING, "w", "", structured_error_msg=why)
    before = AppStatus(AppState.RUNNING, num_restarts=6, roles=known.roles_statuses)
    found = answers.with_cause(lost_cause(AppState.FAILED, "one of its jobs failed"), lambda: before)
    assert (found.msg.partition(";")[0], found.num_restarts) == ("w/1: exit code 9: the reason", 6)
    assert [r.state for r in found.roles_statuses[0].replicas] == [AppState.CANCELLED, AppState.FAILED]
    assert parse_failure(found.structured_error_msg).exit_code == 9
