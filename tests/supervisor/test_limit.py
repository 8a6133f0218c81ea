"""The time limit of a job: attempts end by it, ranks are asked for a checkpoint before, and what decides on restarts decides."""

from __future__ import annotations

import os

import pytest

from tests.supervisor.forks import GUARDIAN, Gate, forked, request, role, state
from torchx.supervisor.limit import Limit
from torchx.supervisor.reader import send_command
from torchx.supervisor.supervise import Supervisor

SAVES = 'while ! test -e "$ASK"; do sleep 0.02; done; touch "$DONE"; sleep 600'


@pytest.fixture
def job(tmp_path) -> str:
    return str(tmp_path / "job")


def _run(job: str, *roles: dict, limit: dict, again: str = "", env: dict | None = None):
    asked = request(job, *roles, env=env, grace_s=5.0)
    asked["limit"] = limit
    if again:
        asked["again"] = ["/bin/sh", "-c", again]
    return forked(lambda: Supervisor(asked, GUARDIAN).run())


def test_without_one_nothing_is_ever_due() -> None:
    """A job without a limit wakes nobody."""
    limit = Limit({})
    limit.begin(5.0)
    assert (limit.due, limit.is_over(1e12)) == (None, False)


def test_a_new_attempt_has_all_of_its_time() -> None:
    """The clock starts again with each attempt, and stands still between two."""
    limit = Limit({"seconds": 10, "text": "10s"})
    limit.begin(0.0)
    assert (limit.due, limit.is_over(9.9), limit.is_over(10.0)) == (10.0, False, True)
    limit.forget()
    assert not limit.is_over(20.0)
    limit.begin(20.0)
    assert (limit.is_over(29.9), limit.is_over(30.0)) == (False, True)
    assert limit.why == "it reached its time limit of 10s"


def test_ranks_are_asked_early(tmp_path) -> None:
    """The file appears so long before the end; the mark of progress ends the attempt before its time."""
    ask, done = tmp_path / "ask", tmp_path / "done"
    done.touch()
    os.utime(done, (1.0, 1.0))
    limit = Limit({"seconds": 10, "early_s": 4, "ask": str(ask), "progress": str(done)})
    limit.begin(0.0)
    assert not limit.is_over(5.9)
    assert not ask.exists()
    assert not limit.is_over(6.0)
    assert ask.exists()
    os.utime(done, (ask.stat().st_mtime + 1,) * 2)
    assert limit.is_over(6.5)


def test_the_job_fails_at_its_limit(job) -> None:
    """Without a policy for retries that was it, though `max_retries` is left."""
    with _run(job, role("sleep 600", "sleep 600", retries=3), limit={"seconds": 0.1, "text": "0.1s"}) as fork:
        assert fork.end() == 0
    found = state(job)
    assert (found.state, found.kind, found.restarts) == ("FAILED", "timeout", 0)
    assert found.msg == "it reached its time limit of 0.1s"
    assert {r.state for r in found.replicas} == {"CANCELLED"}


def test_a_job_that_ends_before_is_not_touched(job) -> None:
    """What has succeeded has no reason for its end."""
    with _run(job, role("true"), limit={"seconds": 60, "text": "1m"}) as fork:
        assert fork.end() == 0
    assert (state(job).state, state(job).kind, state(job).msg) == ("SUCCEEDED", "", "")


def test_it_starts_again_where_that_is_decided(job, tmp_path) -> None:
    """Each attempt runs into the limit; after the second the answer is no, and the reason is kept."""
    count = f"echo x >>'{tmp_path}/asked'; test $(wc -l <'{tmp_path}/asked') -lt 2"
    with _run(job, role("sleep 600"), limit={"seconds": 0.1, "text": "0.1s"}, again=count) as fork:
        assert fork.end() == 0
    found = state(job)
    assert (found.state, found.kind, found.restarts) == ("FAILED", "timeout", 1)
    assert found.replicas[0].attempt == 1


def test_the_reason_of_one_attempt_is_not_that_of_the_next(job, tmp_path) -> None:
    """After a retry that succeeds nothing is said of the limit."""
    once = f"test -e '{tmp_path}/was' || {{ touch '{tmp_path}/was'; sleep 600; }}"
    with _run(job, role(once), limit={"seconds": 0.5, "text": "0.5s"}, again="true") as fork:
        assert fork.end() == 0
    assert (state(job).state, state(job).kind, state(job).msg) == ("SUCCEEDED", "", "")


def test_a_checkpoint_that_is_written_ends_the_wait(job, tmp_path, up) -> None:
    """The limit is an hour away when it is made to expire: the ranks are asked, answer, and the attempt ends."""
    env = {"ASK": str(tmp_path / "ask"), "DONE": str(tmp_path / "done")}
    limit = {"seconds": 3600, "text": "1h", "early_s": 600, "ask": env["ASK"], "progress": env["DONE"]}
    with _run(job, role(f"{up.pass_on}; {SAVES}"), limit=limit, env=env) as fork:
        up.reached()
        assert send_command(job, "expire")
        assert fork.end() == 0
    assert (state(job).kind, state(job).msg) == ("timeout", "it reached its time limit (simulated)")
    assert os.path.exists(env["DONE"])


def test_a_job_that_is_ending_is_not_preempted_too(job, tmp_path, up) -> None:
    """It was cancelled first, and stays so."""
    gate = Gate(tmp_path / "gate")
    script = f"trap 'echo heard; {up.pass_on}; {gate.wait}; exit 3' TERM; {up.pass_on}; while :; do sleep 0.05; done"
    with _run(job, role(script), limit={}) as fork:
        up.reached()
        assert send_command(job, "cancel")
        up.reached()
        assert send_command(job, "preempt")
        gate.open()
        assert fork.end() == 0
    assert (state(job).state, state(job).kind) == ("CANCELLED", "")
    gate.close()


@pytest.mark.parametrize(("word", "kind"), [("preempt", "preempted"), ("expire", "timeout")])
def test_an_attempt_that_begins_is_ended(job, tmp_path, up, word, kind) -> None:
    """A command that comes between two attempts is for the next one."""
    gate = Gate(tmp_path / "gate")
    script = f"""
        test -e '{tmp_path}/was' && exec sleep 600
        touch '{tmp_path}/was'
        trap "{up.pass_on}; {gate.wait}; exit 3" TERM
        {up.pass_on}
        while :; do sleep 0.05; done
    """
    once = f"test ! -e '{tmp_path}/asked' && touch '{tmp_path}/asked'"
    with _run(job, role(script), limit={}, again=once) as fork:
        up.reached()
        assert send_command(job, "preempt")
        up.reached()
        assert send_command(job, word)
        gate.open()
        assert fork.end() == 0
    assert (state(job).state, state(job).kind, state(job).replicas[0].attempt) == ("FAILED", kind, 1)
    gate.close()


def test_preemption_has_a_class(job, up) -> None:
    """Where nothing starts it again the job has failed, and is not called cancelled."""
    with _run(job, role(f"{up.pass_on}; exec sleep 600"), limit={}) as fork:
        up.reached()
        assert send_command(job, "preempt")
        assert fork.end() == 0
    assert (state(job).state, state(job).kind, state(job).msg) == (
        "FAILED",
        "preempted",
        "it was preempted (simulated)",
    )
