"""Faults on purpose on a real cluster: what Slurm does then is what the attempts of the job say."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.backends.shell import Shell
from tests.backends.slurm.conftest import ended, until
from tests.backends.slurm.test_slurm_retries import LONG_S, show, submit
from tests.backends.training.held import Held
from torchx.errors import NotSupportedError
from torchx.schedulers.api import DescribeAppResponse
from torchx.schedulers.slurm_scheduler import SlurmScheduler
from torchx.specs import AppDef, AppState, Resource, Role
from torchx.specs.wishes.retries import RETRY
from torchx.specs.wishes.timeouts import TIMEOUT

AGAIN = "import os, time; print('up', flush=True); time.sleep(0 if os.environ.get('SLURM_RESTART_COUNT') else 9999)"


@pytest.fixture
def cancelled(scheduler: SlurmScheduler) -> Iterator[list[str]]:
    """Jobs that are cancelled at the end of the test."""
    made: list[str] = []
    yield made
    for app_id in made:
        scheduler.cancel(app_id)


def _up(scheduler: SlurmScheduler, app_id: str) -> None:
    until(scheduler, app_id, lambda f: f.state is AppState.RUNNING and list(scheduler.log_iter(app_id, "w")))


@pytest.mark.parametrize(("fault", "kind"), [("preempt", "preempted"), ("node", "node")])
def test_slurm_puts_the_job_back(scheduler: SlurmScheduler, cancelled: list[str], fault: str, kind: str) -> None:
    """Requeued, or its node taken down and back: the next attempt succeeds, and the one before has its class."""
    node = "n3" if fault == "node" else "n4"
    cancelled.append(app_id := submit(scheduler, "preempted:free, node:2", AGAIN, nodelist=node))
    _up(scheduler, app_id)
    scheduler.simulate(app_id, fault, ("w", 0)).make()
    found = ended(scheduler, app_id, LONG_S)
    assert found.state is AppState.SUCCEEDED, found
    assert [(a.kind, a.again) for a in found.attempts] == [(kind, True)]


@pytest.mark.parametrize("together", [2, 1], ids=["one node", "two nodes"])
def test_a_step_is_killed(scheduler: SlurmScheduler, cancelled: list[str], together: int) -> None:
    """The replica that is named, and not the one whose step was started first; the job says who it was, and not that
    somebody has cancelled it.
    """
    code = "import time; print('up', flush=True); time.sleep(9999)"
    role = Role("w", "", entrypoint=sys.executable, args=["-c", code], num_replicas=2, resource=Resource(1, 0, 50))
    app = AppDef("killed", [role], metadata={RETRY: "standard, unknown:0"})
    cancelled.append(app_id := scheduler.submit(app, {"replicas_per_node": together}))
    until(scheduler, app_id, lambda f: all(list(scheduler.log_iter(app_id, "w", k)) for k in (0, 1)))
    scheduler.simulate(app_id, "kill", ("w", 1)).make()
    found = ended(scheduler, app_id, LONG_S)
    assert found.state is AppState.FAILED
    assert "w/1" in found.msg
    assert "SIGKILL" in found.msg
    assert [attempt.kind for attempt in found.attempts] == ["unknown"]


def test_a_step_is_stopped(scheduler: SlurmScheduler, cancelled: list[str]) -> None:
    """On one of two nodes: it writes nothing any more, the job runs on, and its time limit ends it with the class `timeout`."""
    code = "import time\nwhile True: print(time.time(), flush=True); time.sleep(0.2)"
    role = Role("w", "", entrypoint=sys.executable, args=["-c", code], num_replicas=2, resource=Resource(1, 0, 50))
    app_id = scheduler.submit(AppDef("hung", [role], metadata={TIMEOUT: "1m"}), {})
    cancelled.append(app_id)
    until(scheduler, app_id, lambda f: all(list(scheduler.log_iter(app_id, "w", k)) for k in (0, 1)))
    scheduler.simulate(app_id, "hang", ("w", 1)).make()
    found = ended(scheduler, app_id, LONG_S)
    lines = [float(line) for line in scheduler.log_iter(app_id, "w", 1)]
    assert found.ended_at is not None
    assert found.ended_at - lines[-1] > 5
    assert found.state is AppState.FAILED
    assert "time limit" in found.msg


def test_a_limit_is_made_to_come_twice(scheduler: SlurmScheduler, cancelled: list[str]) -> None:
    """A gang on two nodes is asked for a checkpoint, answers, and goes on; an hour is the limit of each attempt."""
    code = (
        "import os, time; print('up', flush=True); n = os.environ.get('SLURM_RESTART_COUNT', '0')\n"
        "while n < '2' and not os.path.exists(os.environ['TORCHX_CHECKPOINT_NOW']): time.sleep(0.1)\n"
        "open(os.environ['TORCHX_PROGRESS'], 'w').close(); time.sleep(0 if n == '2' else 9999)"
    )
    role = Role("w", "", entrypoint=sys.executable, args=["-c", code], num_replicas=2, resource=Resource(1, 0, 50))
    app = AppDef("late", [role], metadata={RETRY: "timeout:free:checkpoint"})
    cancelled.append(app_id := scheduler.submit(app, {"time": "60"}))

    def up(times: int, found: DescribeAppResponse) -> bool:
        lines = [len(list(scheduler.log_iter(app_id, "w", k))) for k in (0, 1)]
        return found.state is AppState.RUNNING and lines == [times, times]

    for times in (1, 2):
        until(scheduler, app_id, partial(up, times), LONG_S)
        assert "TimeLimit=01:00:00 " in show(app_id)
        scheduler.simulate(app_id, "timeout", ("w", 0)).make()
    found = ended(scheduler, app_id, LONG_S)
    assert found.state is AppState.SUCCEEDED, found
    assert [(a.kind, a.progress, a.again) for a in found.attempts] == [("timeout", True, True)] * 2


def test_what_cannot_be_done(scheduler: SlurmScheduler, cancelled: list[str]) -> None:
    """Slurm may not requeue a job that was submitted so."""
    role = Role("w", "", entrypoint="sleep", args=["9999"], resource=Resource(1, 0, 50))
    app_id = scheduler.submit(AppDef("once", [role]), {"requeue": "no"})
    cancelled.append(app_id)
    until(scheduler, app_id, lambda found: found.state is AppState.RUNNING)
    with pytest.raises(NotSupportedError, match="may not requeue"):
        scheduler.simulate(app_id, "preempt", ("w", 0))


@pytest.mark.usefixtures("overtime")
def test_the_digits_survive(tmp_path: Path) -> None:
    """The example is requeued in the middle of its training: it goes on from its checkpoint, and learns all."""
    held = Held(tmp_path, 4)
    path = f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"
    env = {**os.environ, "PATH": path, "OMP_NUM_THREADS": "1", "TORCHX_HOME": str(tmp_path / "home")}
    shell = Shell(tmp_path, env)
    handle = shell.launch(
        *(
            "-s",
            "slurm",
            "--workspace=",
            "--retry",
            "standard",
            "dist.ddp",
            "-j",
            "1x2",
            "--cpu",
            "2",
            "--memMB",
            "1500",
        ),
        *("--script", held.script, "--", "--epochs", "15", "--checkpoint", str(tmp_path / "digits.pt")),
    )
    deadline = time.monotonic() + LONG_S
    while "epoch  3/15" not in shell.torchx("log", handle):
        assert time.monotonic() < deadline
    shell.torchx("simulate", "preempt", handle)
    held.go_on()
    log = shell.torchx("log", "-f", handle, timeout_s=LONG_S)
    status = json.loads(shell.torchx("status", "--json", handle))
    assert status["state"] == "SUCCEEDED", status
    assert [attempt["class"] for attempt in status["attempts"]] == ["preempted"]
    assert int(re.findall(r"from epoch (\d+)", log)[-1]) > 3, log[-3000:]
    assert float(re.findall(r"final test accuracy: ([\d.]+)", log)[-1]) >= 0.96
