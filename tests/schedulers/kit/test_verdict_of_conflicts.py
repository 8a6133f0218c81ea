"""The verdict where several parties speak: the scheduler, the owner of a role, replicas, and what these left behind."""

from __future__ import annotations

from typing import Any

import pytest

from torchx.schedulers.api import NONE, DescribeAppResponse
from torchx.schedulers.kit.facts import JobFacts, ReplicaFacts, RoleFacts
from torchx.schedulers.kit.failures.reader import Evidence
from torchx.schedulers.kit.verdict import describe, judge, on_answer, role_state, state_of
from torchx.specs import AppState, ReplicaStatus, RoleStatus
from torchx.specs.failures import Failure, parse_failure
from torchx.specs.wishes.retries import Attempt

F, R, S, C, P = AppState.FAILED, AppState.RUNNING, AppState.SUCCEEDED, AppState.CANCELLED, AppState.PENDING
U, SUBMITTED = AppState.UNKNOWN, AppState.SUBMITTED
LOST_PEER = "RuntimeError: Connection closed by peer [n1]:4\n"
ELASTIC: dict[str, Any] = {"min_replicas": 1}


def _one(state: AppState, replica: int = 0, **more: Any) -> ReplicaFacts:
    return ReplicaFacts(**{"role": "w", "replica": replica, "state": state, **more})


def _of(*replicas: ReplicaFacts, role: dict[str, Any] | None = None, **more: Any) -> JobFacts:
    return JobFacts(app_id="a", roles=[RoleFacts(name="w", replicas=replicas, **(role or {}))], **more)


def _two(first: RoleFacts, second: RoleFacts, **more: Any) -> JobFacts:
    return JobFacts(app_id="a", roles=[first, second], **more)


def _left(*stderr: str) -> Any:
    """A look that finds these outputs, by number."""
    return lambda some: [Evidence(stderr=stderr[r.replica] if r.replica < len(stderr) else "") for r in some]


# -- states ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("facts", "state"),
    [
        (_of(_one(F), role={"restarts": True}, state=F), F),
        (_of(_one(S), _one(F, 1), role=ELASTIC, state=F), S),
        (_of(_one(S), _one(F, 1), role=ELASTIC, state=F, kind="node"), F),
        (_of(_one(S), _one(F, 1), role=ELASTIC, state=C), C),
        (_of(_one(S), _one(P, 1), role=ELASTIC, state=F), F),
        (_of(_one(S), _one(F, 1), role={**ELASTIC, "state": C}), S),
        (_of(_one(S), _one(P, 1), role={**ELASTIC, "state": F}), F),
        (_of(_one(S), _one(S, 1), state=F), F),
        (_two(RoleFacts(name="v", replicas=[_one(S)]), RoleFacts(name="w", replicas=[_one(S)], **ELASTIC), state=F), S),
        (_of(_one(S), role={"ending": True}), R),
        (_of(_one(S), role={"ending": True}, state=S), S),
    ],
)
def test_who_decides_on_the_state(facts: JobFacts, state: AppState) -> None:
    """The scheduler, unless it counts the losses of an elastic job that has succeeded without them."""
    assert state_of(facts) is state
    assert judge(facts).state is state


def test_the_state_of_a_role_at_its_end() -> None:
    """A role that is ending has its final state then; one that restarts its replicas goes on."""
    ending = RoleFacts(name="w", replicas=[_one(F)], ending=True)
    restarting = RoleFacts(name="w", replicas=[_one(F)], restarts=True)
    assert [role_state(role) for role in (ending, restarting)] == [R, R]
    assert [role_state(role, at_its_end=True) for role in (ending, restarting)] == [F, R]


@pytest.mark.parametrize(
    ("facts", "shown"),
    [
        (_of(_one(R), state=U), [U]),
        (_of(_one(S), _one(R, 1), state=U), [S, U]),
        (_of(_one(P), _one(SUBMITTED, 1)), [P, SUBMITTED]),
        (_of(_one(P), state=R), [P]),
        (_of(_one(S), _one(F, 1, signal="SIGKILL"), role=ELASTIC), [S, F]),
        (_of(_one(P, kind="lost"), _one(F, 1, exit_code=1), state=F), [U, F]),
        (_of(_one(P, kind="oom"), _one(F, 1, exit_code=1), state=F), [C, F]),
        (_of(_one(F, exit_code=1, stopped=True), _one(F, 1, exit_code=2), state=F), [C, F]),
        (_of(_one(F, signal="SIGTERM"), state=C), [C]),
    ],
)
def test_what_is_shown_of_each_replica(facts: JobFacts, shown: list[AppState]) -> None:
    """Its own state, as far as it agrees with that of the job; what nobody has heard of is unknown."""
    assert list(judge(facts).states.values()) == shown


# -- who is to blame ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("facts", "left", "culprit", "kind", "said"),
    [
        (_of(_one(F, stopped=True)), [], 0, "lost", "w/0: it did not say why: see its log"),
        (
            _of(_one(F, exit_code=1), _one(F, 1, signal="SIGKILL", stopped=True)),
            [LOST_PEER, "ValueError: x\n"],
            0, "network", "w/0: exit code 1: RuntimeError: Connection closed by peer [n1]:4",
        ),
        (
            _of(_one(F, signal="SIGTERM", stopped=True), state=F, kind="node", reason="n0 is down"),
            ["ValueError: x\n"],
            None, "node", "n0 is down",
        ),
        (
            _of(_one(C, exit_code=1, stopped=True), state=F, kind="timeout", reason="time limit"),
            [LOST_PEER],
            None, "timeout", "time limit",
        ),
        (
            _of(_one(C, exit_code=1, stopped=True), state=F, kind="timeout", reason="time limit"),
            ["ValueError: x\n"],
            0, "timeout", "time limit; w/0: exit code 1: ValueError: x",
        ),
        (_of(_one(F, stopped=True, reason="its owner killed it")), [], 0, "lost", "w/0: its owner killed it"),
        (
            _of(_one(F, exit_code=2, reason="the kernel said so")),
            ["error: x\n"],
            0, "error", "w/0: exit code 2: the kernel said so",
        ),
        (
            _of(_one(F, exit_code=1, ended=2.0, stopped=True), _one(F, 1, exit_code=1, ended=1.0, stopped=True)),
            ["ValueError: x\n", "ValueError: y\n"],
            1, "error", "w/1: exit code 1: ValueError: y",
        ),
        (_of(_one(F, exit_code=2), reason="AlgorithmError", kind="error"), [], 0, "error", "w/0: exit code 2"),
        (_of(_one(F, exit_code=2), reason="its host", kind="oom"), [], 0, "oom", "w/0: exit code 2; its host"),
        (_of(_one(F), role={"state": F, "reason": "BackoffLimitExceeded"}), [], 0, "lost", "BackoffLimitExceeded"),
        (
            _of(_one(F, exit_code=2), role={"state": F, "reason": "Backoff"}, reason="Backoff"),
            [],
            0, "error", "w/0: exit code 2; Backoff",
        ),
    ],
)  # fmt: skip
def test_whom_the_evidence_is_against(
    facts: JobFacts, left: list[str], culprit: int | None, kind: str, said: str
) -> None:
    """A replica is blamed for what it did by itself, and not for what was done to it or to the job."""
    verdict = judge(facts, _left(*left))
    assert verdict.cause is not None
    assert (verdict.cause.replica, verdict.cause.kind, verdict.sentence) == (culprit, kind, said)


def test_the_next_ones_are_looked_into_behind_a_silent_one() -> None:
    """Where one alone is looked into first, and it left nothing behind; only a replica that says why ends the search."""
    asked: list[list[int]] = []

    def look(some: Any) -> list[Evidence]:
        asked.append([r.replica for r in some])
        return [Evidence(stderr="ValueError: x\n" if r.replica == 2 else "") for r in some]

    silent = [_one(F, k, ended=float(k + 1), exit_code=1 if k == 2 else None) for k in range(4)]
    judge(_of(*silent), look, at_once=1)
    assert asked == [[0], [1, 2]]


def test_the_first_to_end_are_looked_into_first() -> None:
    """Who exited before who was killed at the same time; those of whom no time is known, and those stopped, come last."""
    asked: list[int] = []

    def look(some: Any) -> list[Evidence]:
        asked.extend(r.replica for r in some)
        return [Evidence(stderr=LOST_PEER) for _ in some]

    ended = [
        _one(F, 0, exit_code=1),
        _one(F, 1, exit_code=1, ended=5.0, stopped=True),
        _one(C, 2, exit_code=1, ended=4.0, stopped=True),
        _one(F, 3, signal="SIGABRT", ended=9.0),
        _one(F, 4, exit_code=1, ended=9.0),
        _one(F, 5, exit_code=1, ended=8.0),
        _one(F, 6, signal="SIGTERM", ended=1.0),
        _one(C, 7, signal="SIGKILL", ended=1.0, stopped=True),
        _one(S, 8, exit_code=0, ended=1.0, stopped=True),
    ]
    judge(_of(*ended), look)
    assert asked == [5, 4, 3, 0, 2, 1]


def test_a_look_answers_for_each() -> None:
    """One that forgets a replica is a bug of the backend, and not evidence against another one."""
    with pytest.raises(ValueError, match="shorter"):
        judge(_of(_one(F), _one(F, 1)), lambda some: [Evidence()])


def test_the_class_that_the_backend_knows_goes_before_what_the_look_found() -> None:
    """With its reason as evidence; what the look found is used where the backend knows none."""

    def cause(**known: Any) -> Failure:
        found = judge(_of(_one(F, exit_code=1, **known)), lambda _: [Evidence(reason="a", kind="node")]).cause
        assert found is not None
        return found

    assert (cause(kind="oom").kind, cause(kind="oom", reason="b").evidence) == ("oom", "a")
    assert (cause().kind, cause().message, cause().evidence) == ("node", "a", "a")


# -- what is said ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        (_of(_one(F, exit_code=1), _one(C, 1), role=ELASTIC, state=C), ""),
        (_of(_one(S), _one(C, 1, reason="by root"), role=ELASTIC), ""),
        (_of(_one(C, reason="by root"), state=C, reason="it was cancelled"), "it was cancelled"),
        (_of(_one(C, reason="b"), _one(C, 1, reason="a"), _one(S, 2, reason="c"), state=C), "a; b"),
        (_of(_one(C), role={"state": C, "reason": "its owner is gone"}), "its owner is gone"),
        (_of(_one(R, reason="slow")), "slow"),
        (_of(_one(R), reason="x", cancelled=True), "cancelling"),
        (_of(_one(P), _one(P, 1, reason="a"), _one(P, 2, reason="b", stuck=True)), "w/2: b"),
        (_of(_one(R), _one(F, 1), role=ELASTIC, reason="x"), "x; 1 of 2 replicas lost (w/1); the job went on with the others"),
        (_of(_one(R), _one(P, 1, before="exit code 3"), role={"restarts": True}), "w/1 failed and is being restarted: exit code 3"),
    ],
)  # fmt: skip
def test_what_is_said_of_jobs_that_did_not_fail(facts: JobFacts, said: str) -> None:
    """Losses only of those that go on or have succeeded, and of the cancelled what nobody else says."""
    assert judge(facts).sentence == said


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"restarts": True}, "the others are still running"),
        ({"restarts": True, "state": R}, "the others are being ended"),
        ({}, "the others are being ended"),
    ],
)
def test_what_becomes_of_the_others(other: dict[str, Any], said: str) -> None:
    """They go on if their owner has not been told to end."""
    failed = RoleFacts(name="w", replicas=[_one(F, exit_code=2)], state=F)
    facts = _two(failed, RoleFacts(name="v", replicas=[_one(R, role="v")], **other))
    assert judge(facts).sentence == f"w/0: exit code 2; {said}"


@pytest.mark.parametrize(
    ("attempts", "said"),
    [
        ([], ""),
        ([Attempt(why="used up")], "; not retried (used up)"),
        ([Attempt(why="a", again=True), Attempt(why="b"), Attempt(why="c")], "; not retried (c)"),
        ([Attempt(why="a"), Attempt(why="b", again=True)], ""),
    ],
)
def test_why_it_was_not_retried(attempts: list[Attempt], said: str) -> None:
    """As the last attempt has it."""
    assert judge(_of(_one(F, exit_code=1), attempts=attempts)).sentence == f"w/0: exit code 1{said}"


def test_what_is_passed_on_of_each_replica() -> None:
    """Times that are not known are none; the failure is that of the replica, whatever ended the job."""
    facts = _of(_one(F, exit_code=2, started=1.0, ended=2.0, host="n0", address="10.0.0.1"), _one(C, 1), hang="it hung")
    found = describe(facts)
    first, second = found.roles_statuses[0].replicas
    assert (first.hostname, first.hostaddr, first.started_at, first.ended_at) == ("n0", "10.0.0.1", 1.0, 2.0)
    assert (second.started_at, second.ended_at, second.structured_error_msg) == (None, None, NONE)
    failure = parse_failure(first.structured_error_msg)
    assert failure is not None and (failure.exit_code, failure.host) == (2, "n0")
    assert (found.hang, found.attempts) == ("it hung", [])


# -- backends that report no facts -------------------------------------------------------------------


def _answer(*replicas: ReplicaStatus, error: Failure | None = None) -> DescribeAppResponse:
    text = error.to_structured_msg() if error else NONE
    return DescribeAppResponse("a", F, structured_error_msg=text, roles_statuses=[RoleStatus("w", list(replicas))])


def _status(k: int, state: AppState, failure: Failure | None = None) -> ReplicaStatus:
    return ReplicaStatus(k, state, "w", f"n{k}", failure.to_structured_msg() if failure else NONE)


@pytest.mark.parametrize(
    ("replicas", "given", "said"),
    [
        ([_status(0, F, Failure("own", 1))], Failure("given", 2), "w/0 on n0: exit code 1: own"),
        ([_status(0, F)], Failure("given", 2), "w/0 on n0: exit code 2: given"),
        ([_status(0, C), _status(1, F)], Failure("given", 2), "w/1 on n1: exit code 2: given"),
        ([_status(0, F, Failure(signal="SIGSEGV"))], None, "w/0 on n0: killed by SIGSEGV"),
        ([_status(0, F), _status(1, F, Failure("own", 1, timestamp=5))], None, "w/1 on n1: exit code 1: own"),
        ([_status(0, F)], None, "w/0 on n0: it did not say why: see its log"),
    ],
)
def test_what_an_answer_says_of_its_replicas(replicas: list[ReplicaStatus], given: Failure | None, said: str) -> None:
    """The failure of the whole answer is that of replicas which failed and report none of their own."""
    found = on_answer(_answer(*replicas, error=given))
    assert found.msg == said
    cause = parse_failure(found.structured_error_msg)
    assert cause is not None and cause.kind
