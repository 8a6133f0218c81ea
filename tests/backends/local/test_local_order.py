"""Roles in order, with real processes: the contract, and faults at random."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.backends.orders import BREAKS, DEFIES, PROGRAM, STAYS, UP, OrderContract, OrderGround, once, orders_of
from torchx.schedulers.local_scheduler import LocalScheduler
from torchx.specs import AppDef, Ready, RetryPolicy, Role, is_terminal
from torchx.supervisor import proctree
from torchx.supervisor.layout import STATE_FILE
from torchx.supervisor.statefile import RUNNING, JobState, ReplicaLine, read_state

FAULTS = int(os.environ.get("TORCHX_TEST_FAULTS", "10"))
_LONGEST_S = 60.0


@pytest.fixture
def ground(scheduler: LocalScheduler, tmp_path: Path) -> Iterator[OrderGround]:
    def role(name: str, script: str) -> Role:
        return Role(name, "", entrypoint="sh", args=["-c", script])

    def left(handle: str) -> list[proctree.Process]:
        folder = scheduler._jobs.find(handle.rpartition("/")[2])
        return proctree.marked(folder) if folder else []

    more = {"cfg": {"cancel_grace_s": 2}, "example": (["--program", f"{PROGRAM}/program.py"], None)}
    with orders_of("test", "local_cwd", role, left=left, first=lambda: once(tmp_path), **more) as made:
        yield made


class TestLocalOrder(OrderContract):
    """The contract."""


def _any_job(chance: random.Random, number: int) -> AppDef:
    """A job of some roles, each of which waits for some of those before it."""
    roles: list[Role] = []
    for k in range(chance.randint(2, 5)):
        slow = f"sleep {chance.random():.2f}"
        ends = chance.choice([STAYS, STAYS, STAYS, BREAKS, DEFIES, "exit 3", "true", f"{slow}; exit 4", slow])
        role = Role(f"r{k}", "", entrypoint="sh", args=["-c", f"{slow}; {UP}; {ends}"])
        role.num_replicas = chance.randint(1, 3)
        role.after = [other.name for other in roles if chance.random() < 0.5]
        at_least = chance.randint(1, role.num_replicas)
        probe = chance.choice(["up", "up", "up", "never"])
        role.ready = Ready(log=probe, within="2s", at_least=at_least) if chance.random() < 0.7 else None
        role.ends_job = chance.random() < 0.3
        role.restarts_after = chance.random() < 0.3
        role.max_retries, role.retry_policy = chance.randint(0, 2), chance.choice(list(RetryPolicy))
        role.min_replicas = chance.choice([None, None, 1])
        roles.append(role)
    return AppDef(f"faults-{number}", roles)


def _strike(chance: random.Random, scheduler: LocalScheduler, app_id: str, job: JobState) -> None:
    """Kill a process of the job, its supervisor, or cancel it."""
    running = [line.pid for line in job.replicas if line.state == RUNNING and line.ticks]
    fault = chance.choice(["replica", "replica", "replica", "stop", "supervisor", "cancel"])
    if fault == "cancel":
        scheduler.cancel(app_id)
        return
    victim = job.supervisor if fault == "supervisor" else chance.choice(running) if running else 0
    with suppress(ProcessLookupError):  # it has just ended
        if victim:
            os.kill(victim, signal.SIGSTOP if fault == "stop" else signal.SIGKILL)


def test_random_faults(scheduler: LocalScheduler) -> None:
    """Whatever happens when, the job ends, no replica runs while it should wait, and nothing is left of it."""
    for number in range(FAULTS):
        chance = random.Random(number)
        app = _any_job(chance, number)
        app_id = scheduler.submit(app, {"cancel_grace_s": 1})
        folder = str(scheduler._jobs.find(app_id))
        deadline = time.monotonic() + _LONGEST_S
        while not (job := read_state(f"{folder}/{STATE_FILE}")).ended:
            assert time.monotonic() < deadline, (number, scheduler.describe(app_id))
            time.sleep(chance.random())
            if job.supervisor and not read_state(f"{folder}/{STATE_FILE}").ended:
                _strike(chance, scheduler, app_id, job)
        described = scheduler.describe(app_id)
        assert described is not None
        assert is_terminal(described.state), (number, described)
        assert proctree.marked(folder) == [], (number, described)
        if not job.restarts:
            _check_order(app, job)


def _check_order(app: AppDef, job: JobState) -> None:
    """Each replica was started when enough replicas of each role that it waits for were ready."""
    lines: dict[str, list[ReplicaLine]] = {role.name: [] for role in app.roles}
    for (name, _), line in zip(job.positions(), job.replicas, strict=True):
        lines[name].append(line)
    for role, name in ((waits, name) for waits in app.roles for name in waits.after):
        other = next(other for other in app.roles if other.name == name)
        if other.ready:
            times, least = [line.ready for line in lines[name] if line.ready], other.ready.at_least
        else:
            times, least = [line.started for line in lines[name] if line.started], other.min_replicas
        for line in lines[role.name]:
            ready = sum(at <= line.started for at in times)
            assert not line.started or ready >= (least or other.num_replicas), (app.name, role.name, name)
