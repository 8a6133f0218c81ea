"""The time limit of a job in containers: marks, the watcher's actions, and the status."""

from __future__ import annotations

import datetime

import pytest

from tests.schedulers.docker.test_gangs import BAD, KILLED, OK, R, job
from tests.schedulers.docker.test_watcher import Engine
from torchx.schedulers.docker import gangs
from torchx.schedulers.docker.answers import facts_of
from torchx.schedulers.docker.gangs import Rules, is_over, next_step, rules_for
from torchx.schedulers.docker.simulate import simulation
from torchx.schedulers.kit.verdict import judge
from torchx.specs.api import AppDef, AppState, Role
from torchx.specs.failures import Failure


def _cause(of: object) -> tuple[AppState, str]:
    verdict = judge(facts_of(of))  # type: ignore[arg-type]
    return verdict.state, (verdict.cause or Failure()).kind


def test_one_container_with_a_limit_is_watched() -> None:
    """No other process would stop it; without a limit there is no watcher."""
    app = AppDef("a", [Role("r", "i")])
    assert rules_for(app, 10, "here", timeout="2h").place == "here"
    assert rules_for(app, 10, "here").place == ""


def test_the_rules_carry_it() -> None:
    """Rules without one are unchanged."""
    assert '"timeout":"2h"' in Rules(timeout="2h").to_json()
    assert "timeout" not in Rules().to_json()


def test_a_job_that_was_too_long_has_failed() -> None:
    """Its class is `timeout`, whatever its processes wrote after SIGTERM."""
    late = job(("r-0.late", KILLED), ("r-1.late", BAD))
    assert _cause(late) == (AppState.FAILED, "timeout")
    assert is_over(late)
    assert "it reached its time limit" in judge(facts_of(late)).sentence


def test_while_it_ends_it_runs() -> None:
    """Replicas that still run are stopped, too."""
    ending = job(("r-0.late", KILLED), ("r-1", R))
    assert [c.id for c in next_step(ending).end] == ["r-1"]
    assert judge(facts_of(ending)).state is AppState.RUNNING


def test_replicas_that_were_done_before_do_not_save_it() -> None:
    """One has succeeded, the other reached the limit."""
    assert _cause(job(("r-0", OK), ("r-1.late", KILLED))) == (AppState.FAILED, "timeout")


def test_a_cancelled_job_is_not_late() -> None:
    """A cancellation while it is being stopped wins."""
    assert _cause(job(("r-0.late.cancelled", KILLED)))[0] is AppState.CANCELLED


@pytest.mark.parametrize(("marks", "asks"), [("late", True), ("late.final", False)])
def test_the_policy_is_asked_once(marks: str, asks: bool) -> None:
    """Without a policy a time limit is final, whatever `max_retries`."""
    policed = job((f"r-0.{marks}", KILLED), policy="timeout:1")
    assert next_step(policed).ask is asks
    counted = job(("r-0.late", KILLED), ("r-1.late", KILLED), retries={"r": (3, "APPLICATION")})
    assert not next_step(counted)


def test_another_attempt_is_not_late_any_more() -> None:
    """Its containers are due for a restart, which removes the mark."""
    again = gangs.another_attempt(job(("r-0.late", KILLED), policy="timeout:1"))
    mark = again.mark(again.again[0], due=True)
    assert (mark.late, mark.due, mark.app) == (False, True, 1)
    assert job(("r-0.app1.due", KILLED)).containers[0].state is AppState.PENDING


class _Timed(Engine):
    """An engine that reports when its containers were started."""

    def __init__(self, n: int, timeout: str, *, ran_s: float) -> None:
        super().__init__(n)
        self.labels[gangs.LABEL_RULES] = Rules(place="here", timeout=timeout).to_json()
        self.started = datetime.datetime.now(datetime.timezone.utc) - datetime.timedelta(seconds=ran_s)

    def get(self, path: str, params: dict | None = None) -> object:
        found = super().get(path, params)
        if path.endswith("/json") and "State" not in found and isinstance(found, dict):
            found["State"] = {"StartedAt": self.started.isoformat().replace("+00:00", "Z")}
        return found


def test_the_watcher_ends_what_runs_too_long() -> None:
    """Also a watcher that took over after the limit."""
    engine = _Timed(2, "1h", ran_s=3700)
    engine.watch().run()
    assert {name.rpartition(".")[2] for name in engine.names.values()} == {"late"}
    assert {state for state, _ in engine.states.values()} == {"exited"}


def test_the_watcher_waits_until_then() -> None:
    """A job that ends before its limit has succeeded."""
    engine = _Timed(1, "1h", ran_s=5)
    engine.script = [engine.ends("r-0")]
    engine.watch().run()
    assert list(engine.names.values()) == ["a-1-r-0"]


class _Api:
    """The engine's calls that a fault uses."""

    def __init__(self, memory: int) -> None:
        self.memory = memory
        self.did: list[tuple[str, object]] = []

    @property
    def api(self) -> _Api:
        return self

    def inspect_container(self, container: str) -> dict:
        return {"HostConfig": {"Memory": self.memory}}

    def kill(self, container: str, signal: str) -> None:
        self.did.append((container, signal))

    def rename(self, container: str, name: str) -> None:
        self.did.append((container, name))

    def stop(self, container: str, timeout: int) -> None:
        self.did.append((container, timeout))

    def exec_create(self, container: str, argv: list[str], user: str) -> dict:
        return {"Id": argv[-1]}

    def exec_start(self, script: str, detach: bool) -> None:
        self.did.append(("exec", script))


def test_faults_of_containers() -> None:
    """A fault happens only when it is made, to the selected container."""
    of, api = job(("r-0", R), ("r-1", R)), _Api(1 << 26)
    plan = simulation(api, of, "kill", ("r", 1))
    assert api.did == []
    plan.make()
    assert api.did == [("r-1", "SIGKILL")]
    api.did.clear()
    simulation(api, of, "timeout", ("r", 0)).make()
    assert sorted(map(str, api.did)) == sorted(
        map(str, [("r-0", "r-0.late"), ("r-0", 10), ("r-1", "r-1.late"), ("r-1", 10)])
    )
    api.did.clear()
    simulation(api, of, "hang", ("r", 0)).make()
    assert api.did == [("exec", "kill -STOP -1"), ("r-0", "SIGSTOP")]
    assert "64 MiB" in simulation(api, of, "oom", ("r", 0)).says


@pytest.mark.parametrize(
    ("fault", "why"),
    [("preempt", "does not preempt"), ("node", "all jobs share"), ("oom", "has no memory limit")],
)
def test_what_cannot_be_done(fault: str, why: str) -> None:
    """The error has the reason."""
    with pytest.raises(NotImplementedError, match=why):
        simulation(_Api(0), job(("r-0", R)), fault, ("r", 0))


def test_a_container_that_does_not_run_is_not_hit() -> None:
    """It has ended meanwhile."""
    with pytest.raises(RuntimeError, match="does not run just now"):
        simulation(_Api(0), job(("r-0", OK), ("r-1", R)), "kill", ("r", 0))
