"""`--wait`: how long it took, what is said meanwhile, and how long a job may stay unsubmitted."""

from __future__ import annotations

import time
from typing import Any

import pytest

from torchx.cli import waiting
from torchx.runner.watching.wait import WaitTimeoutError
from torchx.specs import AppState, AppStatus, ReplicaStatus, RoleStatus, UnknownAppException
from torchx.specs.tasks import TaskTable
from torchx.testing import FakeClock

HANDLE = "memory://s/a-1"


class Runner:
    """Its job ends after some seconds of the clock; each wait is as long as it may be."""

    def __init__(self, clock: FakeClock, ends: float, state: AppState | None = AppState.SUCCEEDED) -> None:
        self.clock, self.ends, self.state = clock, clock.now + ends, state
        self.waited: list[tuple[float, float | None]] = []

    def wait(self, handle: str, wait_interval: float = 10, timeout: float | None = None) -> AppStatus | None:
        self.waited.append((wait_interval, timeout))
        left = self.ends - self.clock.now
        if timeout is not None and left > timeout:
            self.clock.advance(timeout)
            raise WaitTimeoutError("not yet")
        self.clock.advance(left)
        return None if self.state is None else AppStatus(self.state)

    def recorded(self, handle: str) -> None:
        """Nothing is on record, so there are no results to fetch."""

    def seen(self, handle: str) -> AppStatus | None:
        replicas = [ReplicaStatus(0, AppState.RUNNING, "r", ""), ReplicaStatus(1, AppState.PENDING, "r", "")]
        return AppStatus(AppState.RUNNING, roles=[RoleStatus("r", replicas)])


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    clock = FakeClock()
    monkeypatch.setattr(waiting, "time", clock)
    return clock


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "is_tty", lambda stream: True)
    monkeypatch.setattr(waiting, "has_color", lambda stream: False)
    monkeypatch.setattr(waiting, "width", lambda stream: 80)


def _wait(runner: Any, **options: bool) -> None:
    waiting.wait_for(runner, HANDLE, **{"with_logs": False, "as_json": False, **options})


@pytest.mark.usefixtures("terminal")
def test_how_long_it_took(clock: FakeClock, capsys: pytest.CaptureFixture[str]) -> None:
    """The time counts from the start of the wait; meanwhile the line shows running replicas by role."""
    _wait(Runner(clock, 187.0))
    out, err = capsys.readouterr()
    assert out == f"{HANDLE}\n"
    assert err.splitlines()[-1].endswith("SUCCEEDED in 3 min 7 s")
    assert "Ctrl-C cancels · r 1/2" in err
    assert "RUNNING 42 s" in err or "RUNNING 1 min" in err


def test_nothing_is_said_where_nobody_looks(clock: FakeClock, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a terminal only the handle is printed, and the job is waited for at once."""
    runner = Runner(clock, 187.0)
    _wait(runner)
    assert capsys.readouterr() == (f"{HANDLE}\n", "")
    assert [timeout for _, timeout in runner.waited] == [None]


@pytest.mark.parametrize(("state", "code"), [(AppState.FAILED, 1), (AppState.CANCELLED, 1)])
def test_exit_codes(clock: FakeClock, state: AppState, code: int) -> None:
    """The exit code is that of the job's state."""
    with pytest.raises(SystemExit) as e:
        _wait(Runner(clock, 1.0, state))
    assert e.value.code == code


def test_a_job_that_is_lost(clock: FakeClock) -> None:
    """A job that the scheduler does not know is an error."""
    with pytest.raises(UnknownAppException):
        _wait(Runner(clock, 1.0, None))


def test_a_job_that_is_gone(clock: FakeClock, capsys: pytest.CaptureFixture[str]) -> None:
    """A job that no longer exists has its own exit code, and shows the last known state."""

    class Gone(Runner):
        def wait(self, handle: str, wait_interval: float = 10, timeout: float | None = None) -> AppStatus | None:
            return AppStatus(AppState.UNKNOWN, msg="it was last seen RUNNING", gone=True)

    with pytest.raises(SystemExit) as e:
        _wait(Gone(clock, 1.0))
    assert e.value.code == 7
    assert "last seen RUNNING" in capsys.readouterr().err


def test_json_has_no_other_line(clock: FakeClock, capsys: pytest.CaptureFixture[str]) -> None:
    """stdout has only the document."""
    import json

    _wait(Runner(clock, 1.0), as_json=True)
    found = json.loads(capsys.readouterr().out)
    assert (found["handle"], found["state"]) == (HANDLE, "SUCCEEDED")


def test_ctrl_c_is_told_by_the_exit_code(clock: FakeClock) -> None:
    """Ctrl-C exits with 130, even if the job has succeeded."""
    runner = Runner(clock, 5.0)
    real, calls = runner.wait, []

    def wait(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        if len(calls) == 1:
            raise KeyboardInterrupt
        return real(*args, **kwargs)

    runner.wait = wait  # type: ignore[method-assign]
    runner.cancel = calls.append  # type: ignore[attr-defined]
    with pytest.raises(SystemExit) as e:
        _wait(runner)
    assert (e.value.code, calls) == (130, [1, HANDLE, 1])


@pytest.mark.usefixtures("terminal")
def test_why_it_waits(capsys: pytest.CaptureFixture[str]) -> None:
    """The progress line of a queued job has the reason; that of a sweep counts tasks."""
    queued = AppStatus(state=AppState.PENDING, msg="no node is free")
    waiting.show_progress(queued, time.monotonic(), ctrl_c="detaches")
    assert "PENDING 0.0 s: no node is free · Ctrl-C detaches" in capsys.readouterr().err
    table = TaskTable(states=[AppState.SUCCEEDED, AppState.RUNNING], exit_codes=[0, None], ended=[1.0, 0.0])
    waiting.show_progress(AppStatus(state=AppState.RUNNING, tasks=table), time.monotonic())
    assert "Ctrl-C cancels · tasks 1/2 done" in capsys.readouterr().err
