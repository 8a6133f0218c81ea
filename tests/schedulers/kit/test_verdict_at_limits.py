"""The verdict at its limits: the last replica that can be lost, the first that is looked into, nothing to say."""

from __future__ import annotations

from typing import Any

import pytest

from torchx.schedulers.api import NONE, DescribeAppResponse
from torchx.schedulers.kit.caps import Capabilities
from torchx.schedulers.kit.facts import JobFacts, ReplicaFacts, RoleFacts
from torchx.schedulers.kit.failures.reader import Evidence
from torchx.schedulers.kit.verdict import describe, fold, judge, on_answer, phrase, state_of
from torchx.specs import AppState, ReplicaStatus, RoleStatus
from torchx.specs.failures import Failure, parse_failure

F, R, S, C, P = AppState.FAILED, AppState.RUNNING, AppState.SUCCEEDED, AppState.CANCELLED, AppState.PENDING
U = AppState.UNKNOWN


def _job(*states: AppState, role: dict[str, Any] | None = None, **more: Any) -> JobFacts:
    replicas = [
        ReplicaFacts(role="w", replica=k, state=s, exit_code=1 if s is F else None) for k, s in enumerate(states)
    ]
    return JobFacts(app_id="a", roles=[RoleFacts(name="w", replicas=replicas, **(role or {}))], **more)


@pytest.mark.parametrize(
    ("states", "least", "folded"),
    [
        ([F, S, S], 2, S), ([F, S, S], 3, F), ([F, R, S], 2, R), ([C, S], 1, S), ([C, C], 1, C), ([C, F], 1, F),
        ([C, S], None, C), ([S, P], None, R), ([P, P], None, P), ([], 1, AppState.UNKNOWN),
        ([R, AppState.UNKNOWN], None, R), ([S, AppState.UNKNOWN], None, AppState.UNKNOWN),
    ],
)  # fmt: skip
def test_folds(states: list[AppState], least: int | None, folded: AppState) -> None:
    """To the last replica that an elastic gang can do without."""
    assert fold(states, min_replicas=least) is folded


@pytest.mark.parametrize(("failed", "looks"), [(1, [1]), (8, [8]), (9, [8, 1]), (40, [8, 8, 8, 8])])
def test_how_many_are_looked_into(failed: int, looks: list[int]) -> None:
    """Eight together, thirty-two at most, round by round as long as all of them are victims."""
    asked: list[int] = []

    def look(replicas: Any) -> list[Evidence]:
        asked.append(len(replicas))
        return [Evidence(stderr="RuntimeError: Connection closed by peer [n1]:4\n") for _ in replicas]

    judge(_job(*[F] * failed), look)
    assert asked == looks
    asked.clear()
    judge(
        _job(*[F] * 40), lambda replicas: asked.append(len(replicas)) or [Evidence(stderr="boom\n") for _ in replicas]
    )
    assert asked == [8]


@pytest.mark.parametrize(("at_once", "looks"), [(1, [1, 2, 4, 8, 8, 8, 1]), (20, [20, 12])])
def test_each_round_takes_twice_as_many(at_once: int, looks: list[int]) -> None:
    """Up to eight; who asks for more at once gets them."""
    asked: list[int] = []

    def look(replicas: Any) -> list[Evidence]:
        asked.append(len(replicas))
        return [Evidence(stderr="RuntimeError: Connection closed by peer [n1]:4\n") for _ in replicas]

    judge(_job(*[F] * 40), look, at_once=at_once)
    assert asked == looks


@pytest.mark.parametrize(("lost", "named"), [(1, "(w/0)"), (3, "(w/0, w/1, w/2)"), (4, "(w/0, w/1, w/2, ...)")])
def test_who_was_lost(lost: int, named: str) -> None:
    """Three are named."""
    facts = _job(*[F] * lost, S, role={"min_replicas": 1})
    assert judge(facts).sentence == f"{lost} of {lost + 1} replicas lost {named}; the job went on with the others"


@pytest.mark.parametrize(("restarts", "said"), [(-1, ""), (0, ""), (1, "; after 1 restart"), (2, "; after 2 restarts")])
def test_how_often_it_was_started_again(restarts: int, said: str) -> None:
    """Said where it was."""
    assert judge(_job(F, restarts=restarts)).sentence == f"w/0: exit code 1{said}"


@pytest.mark.parametrize(
    ("failure", "told"),
    [
        (Failure("x", 1, role="w", replica=0, rank=0, host="n1"), "w/0 rank 0 on n1: exit code 1: x"),
        (Failure("x", 1, role="w", replica=0, host="localhost"), "w/0: exit code 1: x"),
        (Failure("x", 1, host="n1"), "on n1: exit code 1: x"),
        (Failure("x", 1), "exit code 1: x"),
        (Failure(role="w", replica=1), "w/1: it did not say why: see its log"),
    ],
)
def test_who_and_why(failure: Failure, told: str) -> None:
    """As much of it as is known."""
    assert phrase(failure) == told
    assert "n1" not in phrase(failure, tell_host=False)


def test_an_answer_has_all_of_the_facts() -> None:
    """Times, restarts, the page; the end only of what has ended."""
    facts = _job(R, restarts=2, started=1.0, ended=2.0, ui_url="http://ui", metadata={"k": "v"})
    found = describe(facts)
    assert (found.num_restarts, found.started_at, found.ended_at, found.ui_url) == (2, 1.0, None, "http://ui")
    assert found.metadata == {"k": "v"}
    assert describe(_job(S, ended=2.0)).ended_at == 2.0
    assert [r.state for r in found.roles_statuses[0].replicas] == [R]


# -- what is not said ------------------------------------------------------------------------------


def test_nothing_is_claimed_by_default() -> None:
    """A backend reports what it knows: what it leaves out is not known, and it can do what it says that it can."""
    assert not any(vars(Capabilities()).values())
    replica = ReplicaFacts(role="w", replica=0, state=R)
    left_out = {name: value for name, value in vars(replica).items() if name not in ("role", "replica", "state")}
    assert {name for name, value in left_out.items() if value} == set()
    assert (replica.exit_code, replica.address) == (None, None)
    role = RoleFacts(name="w", replicas=())
    assert (role.min_replicas, role.state, role.reason, role.restarts, role.ending) == (None, None, "", False, False)
    facts = JobFacts(app_id="a", roles=())
    assert (facts.state, facts.restarts, facts.started, facts.ended, facts.ui_url) == (None, -1, None, None, None)
    assert (facts.cancelled, facts.unattended, facts.tell_hosts) == (False, False, True)
    assert (facts.native, facts.reason, facts.kind, facts.notes, facts.definition) == ("", "", "", (), ())
    assert vars(Evidence()) == {"error_file": None, "stderr": "", "stdout": "", "said": "", "reason": "", "kind": ""}


def test_a_job_without_news_says_nothing() -> None:
    """No sentence, no cause; in the answer both are none."""
    verdict = judge(_job(R, R))
    assert (verdict.state, verdict.sentence, verdict.cause, verdict.failures) == (R, "", None, {})
    found = describe(_job(R))
    assert (found.msg, found.structured_error_msg) == (NONE, NONE)


# -- states ----------------------------------------------------------------------------------------


def _one(state: AppState, **more: Any) -> ReplicaFacts:
    return ReplicaFacts(**{"role": "w", "replica": 0, "state": state, **more})


def _of(*replicas: ReplicaFacts, role: dict[str, Any] | None = None, **more: Any) -> JobFacts:
    return JobFacts(app_id="a", roles=[RoleFacts(name="w", replicas=replicas, **(role or {}))], **more)


@pytest.mark.parametrize(
    ("facts", "state"),
    [
        (_job(F, R), R),
        (_job(F, R, unattended=True), F),
        (_job(F, P), F),
        (_job(R, state=F), R),
        (_job(F, state=P), P),
        (_job(F, role={"restarts": True}), R),
        (_job(F, role={"ending": True}), R),
        (_job(F, role={"restarts": True, "state": F}), F),
        (_job(S, role={"state": F}), F),
        (_job(S, F, role={"state": F, "min_replicas": 1}), S),
        (_job(S, R, role={"state": F, "min_replicas": 1}), R),
        (_job(S, F, role={"state": S, "min_replicas": 2}), S),
        (JobFacts(app_id="a", roles=()), U),
    ],
)
def test_states(facts: JobFacts, state: AppState) -> None:
    """What the scheduler says of the whole goes before its roles, what an owner says before its replicas; nothing has
    ended while something runs."""
    assert state_of(facts) is state
    assert judge(facts).state is state


@pytest.mark.parametrize(
    ("facts", "shown"),
    [
        (_of(_one(R), state=P), [P]),
        (_of(_one(S), state=P), [S]),
        (_of(_one(R), _one(F, replica=1, exit_code=1), state=F, unattended=True), [R, F]),
        (_of(_one(P), state=S), [S]),
        (_of(_one(P), state=F), [C]),
        (_of(_one(P), _one(F, replica=1, exit_code=1), state=F, unattended=True), [C, F]),
        (_of(_one(F, exit_code=1, ended=1.0), _one(F, replica=1, signal="SIGKILL", ended=2.0)), [F, C]),
        (_of(_one(F, exit_code=1, ended=1.0), _one(F, replica=1, exit_code=1, ended=2.0)), [F, F]),
        (_of(_one(F, exit_code=1, stopped=True), state=C), [C]),
    ],
)
def test_states_of_replicas(facts: JobFacts, shown: list[AppState]) -> None:
    """They never contradict the job's: victims and what never ran are CANCELLED, the culprit FAILED."""
    assert list(judge(facts).states.values()) == shown


# -- who, and why ----------------------------------------------------------------------------------


def test_the_first_to_end_is_to_blame() -> None:
    """Who ended at no known time comes last; at the same time, who exited comes before who was killed."""

    def culprit(*replicas: ReplicaFacts) -> int | None:
        cause = judge(_of(*replicas)).cause
        return cause.replica if cause else None

    assert culprit(_one(F, exit_code=1, ended=2.0), _one(F, replica=1, exit_code=1, ended=1.0)) == 1
    assert culprit(_one(F, exit_code=1), _one(F, replica=1, exit_code=1, ended=1.0)) == 1
    assert culprit(_one(F, signal="SIGKILL", ended=1.0), _one(F, replica=1, exit_code=1, ended=1.0)) == 1
    assert culprit(_one(F, signal="SIGTERM", ended=1.0), _one(F, replica=1, exit_code=1, ended=2.0)) == 1
    assert culprit(_one(F, signal="SIGTERM", ended=1.0)) == 0


@pytest.mark.parametrize(("code", "blamed"), [(1, True), (127, True), (128, False), (0, False), (None, False)])
def test_who_was_told_to_end_may_have_failed_by_itself(code: int | None, blamed: bool) -> None:
    """With an exit code of its own, and not that of the signal."""
    victim = _one(F, exit_code=1, ended=1.0)
    told = _one(C, replica=1, exit_code=code, ended=2.0, stopped=True)

    def look(replicas: Any) -> list[Evidence]:
        lost = "RuntimeError: Connection closed by peer [n1]:4\n"
        return [Evidence(stderr=lost if r.replica == 0 else "ValueError: x\n") for r in replicas]

    cause = judge(_of(victim, told), look).cause
    assert cause is not None and cause.replica == (1 if blamed else 0)


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        (_of(_one(P, reason="no node")), "no node"),
        (_of(_one(P, reason="no node"), _one(P, replica=1)), "w/0: no node"),
        (
            _of(_one(P, reason="no node"), _one(P, replica=1, reason="no node"), _one(P, replica=2, reason="x")),
            "w/0 (and 1 more): no node",
        ),
        (
            _of(_one(P, reason="no node", before="exit code 1")),
            "w/0: no node; restarted because it failed: exit code 1",
        ),
        (_of(_one(P), reason="a queue"), "a queue"),
        (_of(_one(S, reason="old"), state=P, reason="a queue"), "a queue"),
        (_of(_one(R, before="exit code 1"), role={"restarts": True}), "w/0 failed and is being restarted: exit code 1"),
        (_of(_one(R, before="exit code 1")), ""),
        (_of(_one(F, exit_code=2), role={"restarts": True}), "w/0 failed and is being restarted: exit code 2"),
        (_of(_one(R), cancelled=True), "cancelling"),
        (_of(_one(C), _one(R, replica=1)), "cancelling"),
        (_of(_one(F, exit_code=2), _one(R, replica=1)), "w/0: exit code 2; the others are being ended"),
        (_of(_one(C), reason="by root", notes=["a note"]), "by root; a note"),
        (_of(_one(F), native="BOOT_FAIL"), "w/0: it did not say why: see its log"),
        (_of(_one(C), state=F, native="BOOT_FAIL"), "the scheduler says `BOOT_FAIL`"),
        (_of(_one(C), state=F), "it is not known how it ended"),
        (_of(_one(F, exit_code=2), reason="exit code 2"), "w/0: exit code 2"),
        (_of(_one(F, exit_code=2), reason="its node"), "w/0: exit code 2; its node"),
        (_of(_one(F, signal="SIGKILL"), reason="time limit", kind="timeout"), "time limit"),
        (_of(_one(F, exit_code=2), reason="time limit", kind="timeout"), "time limit; w/0: exit code 2"),
    ],
)
def test_sentences(facts: JobFacts, said: str) -> None:
    """One for each case, in the same words for every backend."""
    assert judge(facts).sentence == said


@pytest.mark.parametrize(
    ("facts", "kind", "message"),
    [
        (_of(_one(F, exit_code=2)), "error", ""),
        (_of(_one(F, exit_code=2, reason="killed by the kernel", kind="oom")), "oom", "killed by the kernel"),
        (_of(_one(F, signal="SIGKILL"), reason="time limit", kind="timeout"), "timeout", "time limit"),
        (_of(_one(F, exit_code=2), reason="time limit", kind="timeout"), "timeout", ""),
        (_of(_one(F, exit_code=2, reason="r", kind="oom"), reason="x", kind="error"), "oom", "r"),
        (_of(_one(F, exit_code=2), reason="x", kind="oom"), "oom", ""),
        (_of(_one(C), state=F, reason="its node died", kind="node", ended=7.0), "node", "its node died"),
        (_of(_one(C), state=F), "unknown", "it is not known how it ended"),
    ],
)
def test_causes(facts: JobFacts, kind: str, message: str) -> None:
    """The culprit's, unless the job's own reason explains more; its evidence is that reason then."""
    cause = judge(facts).cause
    assert cause is not None and (cause.kind, cause.message) == (kind, message)
    assert cause.timestamp == (facts.ended or 0)


# -- backends that report no facts -----------------------------------------------------------------


def _answer(*replicas: ReplicaStatus, state: AppState = F, msg: str = NONE, error: str = NONE) -> DescribeAppResponse:
    return DescribeAppResponse(
        "a", state, msg=msg, structured_error_msg=error, roles_statuses=[RoleStatus("w", list(replicas))]
    )


def _replica(k: int, state: AppState, failure: Failure | None = None) -> ReplicaStatus:
    return ReplicaStatus(k, state, "w", f"n{k}", failure.to_structured_msg() if failure else NONE)


def test_an_answer_gets_its_verdict() -> None:
    """Of what each replica reports; else of what the answer does, for those that failed."""
    first, second = (
        Failure("RuntimeError: Connection closed by peer [n1]:4", 1, timestamp=1),
        Failure("ValueError: x", 1, timestamp=2),
    )
    given = _answer(_replica(0, F, first), _replica(1, F, second), msg="job failed")
    found = on_answer(given)
    assert found.msg == "w/1 on n1: exit code 1: ValueError: x; job failed"
    cause = parse_failure(found.structured_error_msg)
    assert cause is not None and (cause.replica, cause.kind) == (1, "error")
    assert given.msg == "job failed"
    whole = on_answer(_answer(_replica(0, S), _replica(1, F), error=second.to_structured_msg()))
    assert whole.msg == "w/1 on n1: exit code 1: ValueError: x"


@pytest.mark.parametrize(
    "answer",
    [
        _answer(_replica(0, F), state=R),
        _answer(_replica(0, C)),
        _answer(_replica(0, F), error=Failure("x", 1, kind="error").to_structured_msg()),
        _answer(),
    ],
    ids=["runs", "nobody failed", "given already", "no replicas"],
)
def test_answers_that_stay_as_they_are(answer: DescribeAppResponse) -> None:
    """Where there is nothing to judge, or it has been judged."""
    assert on_answer(answer) is answer
