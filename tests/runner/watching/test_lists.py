"""Lists of runs and jobs; and a local job from submission to deletion."""

from __future__ import annotations

from typing import Any

from tests.runner.memory_backend import MemoryScheduler, UnreachableScheduler, backend, echo_app
from torchx.runner import Runner, get_runner
from torchx.runs import RunQuery, default_registry
from torchx.schedulers.api import DescribeAppResponse
from torchx.specs import (
    AppState,
)

# -- lists -----------------------------------------------------------------------------------------


def test_list_is_the_schedulers_own(runner, jobs):
    """Handles are filled in; cfg selects where to look, and is validated."""
    runner.run(echo_app(), "memory")
    jobs["other"] = DescribeAppResponse("other", AppState.PENDING)
    assert [(job.app_handle, job.state) for job in runner.list("memory")] == [
        ("memory://test/echo-1", AppState.RUNNING),
        ("memory://test/other", AppState.PENDING),
    ]
    assert backend(runner).listed_with is None
    runner.list("memory", {"queue": "gpu"})
    assert backend(runner).listed_with["queue"] == "gpu"


def test_runs_refreshes_what_had_not_ended_in_one_query(runner, jobs):
    """Each scheduler is queried once for its unfinished runs; changes are recorded."""
    handles = [runner.run(echo_app(), "memory") for _ in range(5)]
    default_registry().saw(handles[0], AppState.FAILED, msg="long ago")
    jobs["echo-2"].state = AppState.SUCCEEDED
    found = runner.runs()
    assert [run.state.name for run in found] == ["RUNNING"] * 3 + ["SUCCEEDED", "FAILED"]
    assert [set(ids) for ids in backend(runner).asked] == [{"echo-2", "echo-3", "echo-4", "echo-5"}]
    assert [run.state for run in runner.runs(refresh=False)] == [run.state for run in found]
    assert found[3].ended_at is not None
    backend(runner).asked.clear()
    runner.runs(RunQuery(limit=1))
    assert backend(runner).asked == [["echo-5"]]


def test_a_filter_by_state_is_by_the_state_now(runner, jobs):
    """A run that has ended since the last query matches its new state."""
    for _ in range(3):
        runner.run(echo_app(), "memory")
    jobs["echo-2"].state = AppState.FAILED
    assert [run.app_id for run in runner.runs(RunQuery(states=[AppState.FAILED]))] == ["echo-2"]
    assert [run.app_id for run in runner.runs(RunQuery(states=[AppState.RUNNING], limit=1))] == ["echo-3"]
    assert [run.app_id for run in runner.runs(RunQuery(states=[AppState.RUNNING], name="x*"))] == []


def test_many_newer_runs_that_have_ended(runner, jobs, monkeypatch):
    """They do not keep an old run that is still going from being queried."""
    monkeypatch.setattr("torchx.runner.watching.listing._MAX_REFRESHED", 2)
    for k in range(4):
        handle = runner.run(echo_app(), "memory")
        if k:
            default_registry().saw(handle, AppState.FAILED)
    jobs["echo-1"].state = AppState.SUCCEEDED
    assert [run.app_id for run in runner.runs(RunQuery(states=[AppState.SUCCEEDED]))] == ["echo-1"]


def test_states_of_a_filter_that_can_be_iterated_once(runner, jobs):
    """The attribute is an Iterable: a generator selects the same runs, also those that have ended on record."""
    default_registry().saw(runner.run(echo_app(), "memory"), AppState.FAILED)
    runner.run(echo_app(), "memory")
    jobs["echo-2"].state = AppState.FAILED
    found = runner.runs(RunQuery(states=(state for state in [AppState.FAILED])))
    assert [run.app_id for run in found] == ["echo-2", "echo-1"]


def test_a_scheduler_that_cannot_be_asked_leaves_a_note(tmp_path):
    """Its runs keep their last state, with a note; other runs are refreshed."""
    jobs = {}
    factories: dict[str, Any] = {
        "far": UnreachableScheduler,
        "memory": lambda session_name: MemoryScheduler(session_name, jobs=jobs),
    }
    with Runner("s", factories) as runner:
        runner.run(echo_app(), "far")
        runner.run(echo_app(), "memory")
        near, far = runner.runs()
        assert (near.state, near.note) == (AppState.RUNNING, "")
        assert far.state is AppState.SUBMITTED
        assert "connection refused" in far.note
        del factories["far"]
    with Runner("s", factories) as runner:
        assert "`far` is not known" in runner.runs()[1].note


def test_runs_of_a_scheduler_that_is_not_installed_here(jobs):
    """They keep their last state, and other runs are refreshed, in any order."""

    def memory(session_name, **_):
        return MemoryScheduler(session_name, jobs=jobs)

    for names in (("memory", "gone"), ("gone", "memory")):
        with Runner("test", dict.fromkeys(names, memory)) as both:
            for name in names:
                both.run(echo_app(), name)
    for job in jobs.values():
        job.state = AppState.SUCCEEDED
    with Runner("test", {"memory": memory}) as here:
        found = {(run.scheduler, run.state, run.note.partition(";")[0]) for run in here.runs()}
    assert found == {("memory", AppState.SUCCEEDED, ""), ("gone", AppState.SUBMITTED, "last seen")}


def test_a_scheduler_that_is_too_slow_leaves_a_note():
    """A list takes no longer than its time limit."""
    import threading

    answer = threading.Event()

    class Slow(MemoryScheduler):
        def describe_many(self, app_ids):
            answer.wait(600)
            return {}

    with Runner("s", {"slow": Slow}) as runner:
        runner.run(echo_app(), "slow")
        [run] = runner.runs(timeout_s=0.05)
        answer.set()
    assert "did not answer within 0.05 s" in run.note


def test_a_run_that_its_scheduler_forgot_is_not_asked_for_for_ever(runner, jobs, monkeypatch):
    """It is UNKNOWN with a note; a local scheduler is not queried again, a cluster is."""
    import time

    runner.run(echo_app(), "memory")
    jobs.clear()
    [run] = runner.runs()
    assert run.state is AppState.SUBMITTED  # too young to be given up
    later = time.time() + 3600
    monkeypatch.setattr("torchx.runner.watching.answers.time.time", lambda: later)
    [run] = runner.runs()
    assert run.state is AppState.UNKNOWN
    assert "no longer knows" in run.note
    assert len(default_registry().list(unfinished=True)) == 1
    backend(runner).wait_hint = 0.05
    runner.runs()
    assert default_registry().list(unfinished=True) == []


# -- this machine ----------------------------------------------------------------------------------


def test_a_job_of_this_machine_from_run_to_delete(tmp_path, monkeypatch):
    """A real job: its run, end, logs and record, as seen by another Runner."""
    monkeypatch.chdir(tmp_path)
    with get_runner("first") as runner:
        handle = runner.run_component("utils.echo", ["--msg", "hello there"], "local_cwd")
    with get_runner("second") as other:
        status = other.wait("@last", timeout=300)
        assert status.state is AppState.SUCCEEDED, status
        role = other.describe(handle).roles[0].name
        assert list(other.log_lines(handle, role)) == ["hello there\n"]
        [run] = other.runs()
        assert (run.handle, run.state) == (handle, AppState.SUCCEEDED)
        other.delete(handle)
        assert other.status(handle) is None
