"""The Runner's verbs for a job: handles, status, waiting, logs, cancellation."""

from __future__ import annotations

import os
import re
import time

import pytest

from tests.runner.memory_backend import MemoryScheduler, backend, echo_app
from torchx.errors import (
    BackendError,
    HandleError,
    NotFoundError,
    NotSupportedError,
    TransientError,
)
from torchx.runner import Runner
from torchx.runner.api import WaitTimeoutError
from torchx.runs import default_registry
from torchx.schedulers.api import DescribeAppResponse, Stream
from torchx.specs import (
    AppDef,
    AppState,
    MalformedAppHandleException,
    UnknownAppException,
    parse_app_handle,
)

# -- handles ---------------------------------------------------------------------------------------


def test_every_verb_takes_a_short_reference(runner):
    """An app id, its prefix and `@last` work like a handle."""
    handle = runner.run(echo_app(), "memory")
    for reference in (handle, "echo-1", "ech", "@last"):
        assert runner.resolve(reference) == handle
        assert runner.status(reference).state is AppState.RUNNING
        assert runner.describe(reference).name == "echo"
        assert list(runner.log_lines(reference, "echo"))
        assert runner.recorded(reference).handle == handle
    runner.cancel("ech")
    assert runner.wait("@last").state is AppState.CANCELLED
    runner.delete("echo-1")
    with pytest.raises(NotFoundError):
        runner.status("@last")


@pytest.mark.parametrize("verb", ["status", "wait", "describe", "cancel", "delete", "resolve", "recorded"])
@pytest.mark.parametrize(
    ("handle", "error"),
    [
        ("memory://", MalformedAppHandleException),
        ("://s/a", MalformedAppHandleException),
        ("memory://s/", MalformedAppHandleException),
        ("nothing-of-that-name", NotFoundError),
        ("", NotFoundError),
        ("@last/\u00b2", NotFoundError),  # a digit, but not a number
    ],
)
def test_a_handle_that_is_none(runner, verb, handle, error):
    """Every verb raises a torchx error with a hint."""
    with pytest.raises(error) as e:
        getattr(runner, verb)(handle)
    assert e.value.hint


def test_a_task_of_thousands_of_digits(runner):
    """There is none; the number is not even read, which would be another error."""
    handle = runner.run(echo_app(), "memory")
    with pytest.raises(NotFoundError):
        runner.status(f"echo-1/{'9' * 5000}")
    assert runner.status(f"{handle}/{'9' * 5000}") is None


def test_an_ambiguous_reference(runner):
    """It is rejected."""
    runner.run(echo_app(), "memory")
    runner.run(echo_app(), "memory")
    with pytest.raises(HandleError, match="could be any of"):
        runner.cancel("echo")


def test_a_job_of_another_session_is_asked_for_in_its_name(runner, jobs):
    """A handle works in every Runner: the scheduler is created for the session in the handle."""
    jobs["a-1"] = DescribeAppResponse("a-1", AppState.RUNNING)
    assert runner.status("memory://elsewhere/a-1").state is AppState.RUNNING
    assert backend(runner, session="elsewhere").session_name == "elsewhere"
    assert backend(runner).asked == []


def test_a_status_by_handle_does_not_open_the_registry(runner, jobs, monkeypatch):
    """The status of a local job is fast, because it does not need the registry."""
    jobs["a-1"] = DescribeAppResponse("a-1", AppState.RUNNING)
    backend(runner).wait_hint = 0.0
    monkeypatch.setattr(default_registry(), "store", lambda: pytest.fail("the registry was opened"))
    assert runner.status("memory://test/a-1").state is AppState.RUNNING


# -- what became of it -----------------------------------------------------------------------------


def test_status_is_what_the_scheduler_says(runner, jobs):
    """Each field of the answer is in the status; the placeholder for no message becomes empty."""
    jobs["a-1"] = DescribeAppResponse("a-1", AppState.FAILED, 2, "boom", "{}", "http://ui", roles_statuses=[])
    status = runner.status("memory://test/a-1")
    assert (status.state, status.num_restarts, status.msg) == (AppState.FAILED, 2, "boom")
    assert (status.structured_error_msg, status.ui_url) == ("{}", "http://ui")
    jobs["a-2"] = DescribeAppResponse("a-2", AppState.RUNNING)
    assert runner.status("memory://test/a-2").msg == ""


def test_a_job_that_nobody_knows(runner):
    """status, wait and describe return None; verbs that need a job raise an error with its handle."""
    handle = "memory://test/nobody"
    assert runner.status(handle) is None
    assert runner.wait(handle) is None
    assert runner.describe(handle) is None
    assert runner.recorded(handle) is None
    for verb in (runner.cancel, runner.delete, lambda h: runner.log_lines(h, "role")):
        with pytest.raises(UnknownAppException, match="nobody"):
            verb(handle)


@pytest.mark.parametrize(
    ("seen", "age_s", "state", "msg"),
    [
        pytest.param(AppState.FAILED, 1e6, AppState.FAILED, "as last seen", id="ended"),
        pytest.param(AppState.RUNNING, 1e6, AppState.UNKNOWN, "last seen RUNNING", id="ran"),
        pytest.param(None, 0, AppState.SUBMITTED, "does not show the job yet", id="just-submitted"),
    ],
)
def test_a_job_that_its_scheduler_forgot(runner, jobs, monkeypatch, seen, age_s, state, msg):
    """The last recorded state with a note; UNKNOWN for a job whose end was not observed."""
    handle = runner.run(echo_app(), "memory")
    if seen is not None:
        default_registry().saw(handle, seen)
    jobs.clear()
    import time

    now = time.time()
    monkeypatch.setattr("torchx.runner.watching.answers.time.time", lambda: now + age_s)
    status = runner.status(handle)
    assert status.state is state
    assert msg in status.msg
    assert runner.describe(handle).roles[0].args == ["hello"]
    runner.cancel(handle)  # quiet: it was there
    runner.delete(handle)
    assert runner.status(handle) is None


def test_the_end_of_a_job_is_on_record_once_it_was_seen(runner, jobs):
    """The recorded end remains after the cluster has forgotten the job."""
    handle = runner.run(echo_app(), "memory")
    jobs["echo-1"].state = AppState.SUCCEEDED
    runner.status(handle)
    jobs.clear()
    assert runner.status(handle).state is AppState.SUCCEEDED


def test_describe_gives_the_definition_back(runner):
    """The roles are the scheduler's; the name and missing fields are from the record."""
    app = echo_app()
    app.metadata["team"] = "vision"
    handle = runner.run(app, "memory")
    found = runner.describe(handle)
    assert (found.name, found.metadata) == ("echo", {"team": "vision"})
    assert found.roles[0].args == ["hello"]


def test_describe_of_a_job_that_is_not_on_record(runner, jobs):
    """From the scheduler only: the name of the app is its id."""
    jobs["a-1"] = DescribeAppResponse("a-1", AppState.RUNNING, roles=echo_app().roles, metadata={"k": "v"})
    found = runner.describe("memory://test/a-1")
    assert (found.name, found.roles[0].name, found.metadata) == ("a-1", "echo", {"k": "v"})
    jobs["a-2"] = DescribeAppResponse("a-2", AppState.RUNNING)
    assert runner.describe("memory://test/a-2") == AppDef("a-2")


# -- waiting ---------------------------------------------------------------------------------------


def test_wait_asks_more_and_more_seldom(runner, jobs, clock):
    """The first polls follow quickly, later ones at the interval, and the end is recorded."""
    handle = runner.run(echo_app(), "memory")
    end = clock.now + 60
    original = backend(runner).describe

    def describe(app_id):
        if clock.now >= end:
            jobs[app_id].state = AppState.SUCCEEDED
        return original(app_id)

    backend(runner).describe = describe
    assert runner.wait(handle, wait_interval=5).state is AppState.SUCCEEDED
    assert clock.slept[0] <= 1.0
    assert max(clock.slept) == 5
    assert clock.slept == sorted(clock.slept)
    assert len(clock.slept) < 20
    assert runner.recorded(handle).state is AppState.SUCCEEDED


def test_waiting_for_a_job_of_this_machine_adds_milliseconds(runner, jobs, clock):
    """A local scheduler is polled at once, then every few milliseconds."""
    handle = runner.run(echo_app(), "memory")
    backend(runner).wait_hint = 0.05
    start = clock.now
    original = backend(runner).describe

    def describe(app_id):
        if clock.now - start >= 0.020:
            jobs[app_id].state = AppState.SUCCEEDED
        return original(app_id)

    backend(runner).describe = describe
    runner.wait(handle)
    assert clock.now - start < 0.035


def test_a_scheduler_that_tells_when_a_job_ends_is_slept_on(runner, jobs, clock):
    """No polls in between; if it returns early and the job still runs, polls do not pile up."""
    handle = runner.run(echo_app(), "memory")
    backend(runner).wait_hint = 0.05
    naps = []

    def wait_for_end(app_id, timeout_s):
        naps.append(timeout_s)
        if len(naps) > 10:  # at first there is nothing to sleep on yet
            clock.sleep(7)
            jobs[app_id].state = AppState.FAILED

    backend(runner).wait_for_end = wait_for_end
    assert runner.wait(handle, wait_interval=60, timeout=100).state is AppState.FAILED
    assert len(naps) == len(backend(runner).asked) - 1 == 11
    assert clock.slept[-1] == 7
    assert min(clock.slept) > 0.0005


@pytest.mark.parametrize(("timeout", "looks"), [(0, 1), (3.0, 4)])
def test_wait_gives_up_when_the_time_is_over(runner, clock, timeout, looks):
    """A TimeoutError with the state of the job, which keeps running."""
    handle = runner.run(echo_app(), "memory")
    start = clock.now
    with pytest.raises(TimeoutError) as e:
        runner.wait(handle, wait_interval=1, timeout=timeout)
    assert isinstance(e.value, WaitTimeoutError)
    assert "RUNNING" in e.value.message
    assert clock.now - start == timeout
    assert len(backend(runner).asked) == looks
    assert runner.status(handle).state is AppState.RUNNING


def test_wait_asks_through_status(runner, clock):
    """A subclass may override `status`."""

    class MyRunner(Runner):
        def status(self, app_handle):
            from torchx.specs import AppStatus

            return AppStatus(AppState.CANCELLED)

    assert MyRunner("s", {"memory": MemoryScheduler}).wait("memory://s/a").state is AppState.CANCELLED


def test_wait_gives_up_on_a_job_that_is_never_submitted(runner, jobs, clock):
    """A job that stays UNSUBMITTED is not waited for; one that had another state is."""
    handle = runner.run(echo_app(), "memory")
    jobs["echo-1"].state = AppState.UNSUBMITTED
    began = clock.now
    with pytest.raises(BackendError, match="is still UNSUBMITTED") as e:
        runner.wait(handle)
    assert "torchx status" in e.value.hint
    assert 120 < clock.now - began < 140
    states = iter([AppState.PENDING, *[AppState.UNSUBMITTED] * 30, AppState.SUCCEEDED])
    backend(runner).describe = lambda app_id: DescribeAppResponse(app_id, next(states))
    assert runner.wait(handle).state is AppState.SUCCEEDED


# -- a scheduler that cannot be asked --------------------------------------------------------------


def down(app_id):
    raise BackendError("connection refused")


def test_a_job_whose_cluster_is_down_is_as_last_seen(runner, jobs):
    """The last recorded state, its time and the scheduler's error; the recorded message is kept."""
    began = time.time()
    handle = runner.run(echo_app(), "memory")
    jobs["echo-1"].msg = "3 of 4 run"
    assert (runner.status(handle).as_of, runner.status(handle).error) == (None, None)
    backend(runner).describe = down
    status = runner.status(handle)
    assert status.state is AppState.RUNNING
    assert re.fullmatch(
        r"3 of 4 run \(last seen RUNNING (\d+ s ago|just now); `memory` cannot be queried: connection refused\)",
        status.msg,
    )
    assert began <= status.as_of <= time.time()
    assert isinstance(status.error, BackendError)
    with pytest.raises(BackendError, match="connection refused"):
        runner.status("memory://test/never-seen")


def test_an_end_that_was_seen_stays_the_end(runner, jobs):
    """The state and end time of an ended job are returned although the scheduler cannot be queried."""
    handle = runner.run(echo_app(), "memory")
    jobs["echo-1"].state, jobs["echo-1"].ended_at = AppState.FAILED, 1000.0
    runner.status(handle)
    backend(runner).describe = down
    assert (runner.status(handle).state, runner.status(handle).ended_at) == (AppState.FAILED, 1000.0)
    assert runner.wait(handle).state is AppState.FAILED


def test_wait_does_not_wait_for_a_scheduler_that_cannot_be_asked(runner):
    """A permanent error is raised at once."""
    handle = runner.run(echo_app(), "memory")
    backend(runner).describe = down
    with pytest.raises(BackendError, match="connection refused"):
        runner.wait(handle)


def away(app_id):
    raise TransientError("connection reset by peer")


def test_wait_goes_on_through_an_outage(runner, jobs, clock, caplog):
    """Transient failures are retried with growing pauses up to 15 s, and reported once, also over several calls."""
    handle = runner.run(echo_app(), "memory")
    asked = backend(runner).describe
    backend(runner).describe = away
    began = clock.now
    with pytest.raises(WaitTimeoutError, match="is SUBMITTED after 100 s"):
        runner.wait(handle, wait_interval=60, timeout=100)
    with pytest.raises(WaitTimeoutError):
        runner.wait(handle, wait_interval=60, timeout=400)
    assert clock.now - began == 500
    assert len(clock.slept) < 50
    [said] = caplog.messages
    assert said == f"connection reset by peer; `{handle}` continues; torchx retries for 10 minutes"
    backend(runner).describe = asked
    with pytest.raises(WaitTimeoutError):
        runner.wait(handle, timeout=0)
    backend(runner).describe = away
    with pytest.raises(WaitTimeoutError):
        runner.wait(handle, wait_interval=60, timeout=300)
    assert len(caplog.messages) == 2, "another outage"
    jobs["echo-1"].state = AppState.SUCCEEDED
    backend(runner).describe = asked
    assert runner.wait(handle).state is AppState.SUCCEEDED


def test_wait_ends_when_an_outage_does_not(runner, clock):
    """The error is raised after ten minutes; another wait is as patient again."""
    handle = runner.run(echo_app(), "memory")
    backend(runner).describe = away
    for _ in range(2):
        began = clock.now
        with pytest.raises(TransientError, match="reset by peer"):
            runner.wait(handle)
        assert 600 < clock.now - began < 630


def test_wait_asks_when_it_cannot_be_told(runner, jobs, clock):
    """If `wait_for_end` fails, the scheduler is polled, but not in a busy loop."""
    handle = runner.run(echo_app(), "memory")
    backend(runner).wait_hint = 0.05
    calls = []

    def wait_for_end(app_id, timeout_s):
        calls.append(timeout_s)
        clock.sleep(0.01)
        if len(calls) == 20:
            jobs[app_id].state = AppState.FAILED
        away(app_id)

    backend(runner).wait_for_end = wait_for_end
    assert runner.wait(handle, wait_interval=60).state is AppState.FAILED
    pauses = [slept for slept in clock.slept if slept != 0.01]
    assert len(pauses) == 19 and max(pauses) == 0.1


def test_a_state_that_is_no_news_is_written_once(runner, jobs):
    """While waiting, only changes are written to the registry: readers are woken by each write."""
    handle = runner.run(echo_app(), "memory")
    runner.status(handle)
    log = f"{default_registry().path}-wal"
    written = os.stat(log).st_mtime_ns
    runner.status(handle)
    assert os.stat(log).st_mtime_ns == written
    jobs["echo-1"].state = AppState.SUCCEEDED
    runner.status(handle)
    assert runner.recorded(handle).state is AppState.SUCCEEDED


# -- logs ------------------------------------------------------------------------------------------


def test_log_lines_pass_everything_on(runner):
    """The scheduler gets each argument."""
    handle = runner.run(echo_app(num_replicas=2), "memory")
    lines = runner.log_lines(handle, "echo", 1, "x.*", should_tail=True, streams=Stream.STDERR)
    assert list(lines) == [f"echo-1 echo 1 x.* True {Stream.STDERR}\n"]


@pytest.mark.parametrize(
    ("role", "k", "hint"), [("ecko", 0, "`echo`"), ("zzz", 0, "echo"), ("echo", 2, "0 to 1"), ("echo", -1, "0 to 1")]
)
def test_logs_of_a_role_or_replica_that_is_not_there(runner, role, k, hint):
    """The error is raised at once, not with the first line, and lists what exists."""
    handle = runner.run(echo_app(num_replicas=2), "memory")
    with pytest.raises(NotFoundError) as e:
        runner.log_lines(handle, role, k)
    assert hint in e.value.hint


def test_logs_that_a_scheduler_does_not_have(runner, jobs):
    """The error is raised at once."""
    jobs["a-1"] = DescribeAppResponse("a-1", AppState.RUNNING)
    backend(runner).log_iter = super(MemoryScheduler, backend(runner)).log_iter
    with pytest.raises(NotSupportedError):
        runner.log_lines("memory://test/a-1", "r")


# -- the end ---------------------------------------------------------------------------------------


def test_cancel_twice_is_quiet_and_stop_is_deprecated(runner):
    """Cancelling an ended job does nothing; `stop` still cancels, with a warning."""
    handle = runner.run(echo_app(), "memory")
    with pytest.warns(DeprecationWarning, match="cancel"):
        runner.stop(handle)
    assert runner.status(handle).state is AppState.CANCELLED
    runner.cancel(handle)


def test_delete_takes_the_run_off_the_record(runner, jobs):
    """After a delete, neither the scheduler nor the registry knows the job."""
    handle = runner.run(echo_app(), "memory")
    runner.delete(handle)
    assert jobs == {}
    assert runner.runs() == []
    with pytest.raises(UnknownAppException):
        runner.delete(handle)


@pytest.mark.parametrize("verb", ["cancel", "delete"])
def test_ending_a_job_on_record_asks_its_scheduler_once(runner, verb):
    """The scheduler itself checks whether the job exists, with a single query."""
    handle = runner.run(echo_app(), "memory")
    asked = runner._scheduler("memory").asked
    asked.clear()
    getattr(runner, verb)(handle)
    assert asked == [[parse_app_handle(handle)[2]]]


def test_waiting_for_a_job_that_its_cluster_lost(runner, jobs, clock, monkeypatch):
    """The wait ends, and the record keeps the last observed state, which later statuses return."""
    handle = runner.run(echo_app(), "memory")
    default_registry().saw(handle, AppState.RUNNING)
    jobs.clear()
    status = runner.wait(handle)
    assert (status.state, status.gone) == (AppState.UNKNOWN, True)
    assert "last seen RUNNING" in status.msg
    assert default_registry().get(handle).state is AppState.RUNNING
    assert runner.status(handle) == status
