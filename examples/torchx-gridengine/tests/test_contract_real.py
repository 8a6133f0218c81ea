"""What every scheduler promises, where there is a Grid Engine: jobs really run."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from torchx_gridengine import STATES, GridEngineScheduler, app_state, create_scheduler
from torchx_gridengine.answers import parse_qstat

from torchx.schedulers.api import Scheduler
from torchx.schedulers.kit.commands import LocalCommandRunner
from torchx.specs import AppState, RetryPolicy, macros
from torchx.testing import FaultyCommandRunner, SchedulerContract

if shutil.which("qsub") is None:
    pytest.skip("no Grid Engine here: `qsub` is not on PATH", allow_module_level=True)


class TestGridEngine(SchedulerContract):
    """Every test of the contract."""

    can_run = True
    timeout_s = 180.0
    ends_gently = False  # qdel kills
    raw_states = STATES
    name_rule = r"[A-Za-z][A-Za-z0-9_-]{0,80}"

    def create_scheduler(self, folder: str) -> Scheduler[Any]:  # noqa: ARG002  # jobs lie in TORCHX_HOME
        made = create_scheduler("contract")
        made.fresh_s = 0.05
        return made

    def map_state(self, raw: str) -> AppState:
        return app_state(raw)


def test_a_lost_answer_starts_one_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`qsub` took the job and its answer did not come: the job is found by its name, and is there once."""
    monkeypatch.setenv("TORCHX_HOME", str(tmp_path / "home"))
    faulty = FaultyCommandRunner(LocalCommandRunner())
    faulty.lose_answer("qsub")
    scheduler = GridEngineScheduler("test", commands=faulty)
    app_id = scheduler.submit(SchedulerContract().app("600", entrypoint="sleep"), {})
    try:
        rows = parse_qstat(LocalCommandRunner().run(["qstat", "-u", "$user", "-g", "d", "-xml"]).check().stdout)
        assert [row.name for row in rows].count(app_id) == 1
    finally:
        scheduler.delete(app_id)
    assert faulty.met == 1
    assert scheduler.describe(app_id) is None


def test_replicas_know_where_the_first_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each role has a rank 0, whose host all of its replicas are told; they are started again as often as asked for."""
    monkeypatch.setenv("TORCHX_HOME", str(tmp_path / "home"))
    scheduler = create_scheduler("test")
    scheduler.fresh_s = 0.05
    again = (
        f"cd $(dirname $TORCHELASTIC_ERROR_FILE); echo $${macros.rank0_env}; [ -e twice ] || {{ touch twice; exit 1; }}"
    )
    retried = {"max_retries": 1, "retry_policy": RetryPolicy.REPLICA}
    app = SchedulerContract().app("-c", again, entrypoint="/bin/sh", num_replicas=2, **retried)
    app.roles.append(replace(app.roles[0], name="other"))
    app_id = scheduler.submit(app, {})
    done = SchedulerContract().wait(scheduler, app_id, AppState.SUCCEEDED, AppState.FAILED)
    assert (done.state, done.num_restarts) == (AppState.SUCCEEDED, 4)
    hosts = [list(scheduler.log_iter(app_id, role, k)) for role in ("worker", "other") for k in range(2)]
    assert [len(lines) for lines in hosts] == [2] * 4
    assert all(line.strip() for lines in hosts for line in lines)
    scheduler.delete(app_id)
