"""A checkpoint that a program writes upon SIGTERM: what it starts for it is not signalled before the grace is over."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.supervisor.forks import Clock, Gate, eventually, in_fork, role, started, state, until_dead
from tests.supervisor.sweeps import Sweep
from torchx.supervisor import proctree, supervise, tasks
from torchx.supervisor.statefile import PENDING, RUNNING

NOW = 1000.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock(NOW)
    monkeypatch.setattr(supervise, "time", clock)
    monkeypatch.setattr(tasks, "time", clock)
    return clock


@pytest.fixture
def job(tmp_path: Path) -> Path:
    return tmp_path / "job"


@pytest.fixture
def idle(tmp_path: Path) -> Iterator[Gate]:
    """Where a program waits for ever, without another one that might be signalled while it starts."""
    gate = Gate(tmp_path / "idle")
    yield gate
    gate.close()


@pytest.mark.parametrize("time_is_up", [False, True])
@pytest.mark.parametrize("start", ["{}", "{} &", "env -i setsid {} &"], ids=["waits", "leaves", "hides"])
def test_what_a_handler_starts_has_the_rest_of_the_grace(
    job: Path, gate: Gate, up: Gate, idle: Gate, clock: Clock, tmp_path: Path, start: str, time_is_up: bool
) -> None:
    """SIGTERM goes once, to what ran then. A program that writes a checkpoint upon it is not signalled until the deadline."""
    (tmp_path / "save.sh").write_text(f"{up.pass_on}\n{gate.wait}\necho saved > '{tmp_path}/saved'\n")
    start = start.format(f"/bin/sh '{tmp_path}/save.sh'")

    def steps() -> None:
        script = f'trap "{start}\n exit 0" TERM; {up.pass_on}; while :; do {idle.wait}; done'
        supervisor = started(str(job), role(script), grace_s=10.0)
        up.reached()

        def look(now: float) -> bool:
            supervisor._reap(now)
            supervisor._next_sweep = 0.0
            supervisor._sweep(now)
            return supervisor._is_over(now)

        supervisor._cancel("")
        up.reached()
        for now in (1000.1, 1005.0, 1009.9):
            clock.now = now
            for _ in range(3):
                assert not look(now)
        if not time_is_up:
            gate.open()
        eventually(lambda: look(1010.0 if time_is_up else 1009.9))
        assert (tmp_path / "saved").exists() is not time_is_up
        assert not supervisor._has_children

    in_fork(steps)


@pytest.mark.parametrize("time_is_up", [False, True])
def test_a_cancelled_task_is_over_when_nothing_of_it_is_left(
    job: Path, up: Gate, gate: Gate, idle: Gate, clock: Clock, tmp_path: Path, time_is_up: bool
) -> None:
    """Its first process may end of SIGTERM at once, while another one has a handler, and still writes a checkpoint."""
    (tmp_path / "save.sh").write_text(f"{up.pass_on}\n{gate.wait}\necho saved > '{tmp_path}/saved'\n")
    train = f"trap \"sh '{tmp_path}/save.sh'; exit 0\" TERM; {up.pass_on}; while :; do {idle.wait}; done"

    def steps() -> None:
        made = Sweep(job, f"({train}) & wait", "true", width=1).made()
        assert made._fill()
        up.reached()
        made._cancel(0)
        until_dead(made.job.replicas[0].pid)
        made._reap()
        line = state(job).replicas[0]
        assert (line.state, line.exit) == (RUNNING, -15), "who waits for the sweep waits for the checkpoint"
        up.reached()
        for clock.now in (NOW, NOW + 9.9):
            made._look_after()
            assert made._patience_ms() == pytest.approx(min(200, (NOW + 10 - clock.now) * 1000))
            assert made._fill() and made.job.replicas[1].state == PENDING, "it still takes a place"
        if time_is_up:
            clock.now = NOW + 10.0
        else:
            gate.open()
        eventually(lambda: made._look_after() or not made._left)
        eventually(lambda: not [p for p in proctree.marked(str(job)) if p.pid != os.getpid()])
        assert (tmp_path / "saved").exists() is not time_is_up
        assert (state(job).replicas[0].state, state(job).replicas[0].exit) == ("CANCELLED", -15)
        assert made._patience_ms() is None and not made._busy()

    in_fork(steps)
