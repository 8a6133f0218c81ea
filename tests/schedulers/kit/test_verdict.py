"""The one verdict: facts in, state, culprit, class and sentence out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pytest

from torchx.schedulers.api import NONE, DescribeAppResponse
from torchx.schedulers.kit.facts import JobFacts, ReplicaFacts, RoleFacts
from torchx.schedulers.kit.failures.classes import CLASSES
from torchx.schedulers.kit.failures.reader import Evidence
from torchx.schedulers.kit.verdict import describe, fold, judge, on_answer, state_of
from torchx.specs import AppState, ReplicaStatus, RoleStatus
from torchx.specs.failures import Failure, parse_failure
from torchx.specs.wishes.retries import Attempt

PENDING, RUNNING, SUCCEEDED = AppState.PENDING, AppState.RUNNING, AppState.SUCCEEDED
FAILED, CANCELLED, UNKNOWN = AppState.FAILED, AppState.CANCELLED, AppState.UNKNOWN

LOST_PEER = """Traceback (most recent call last):
  File "train.py", line 9, in <module>
    dist.all_reduce(t)
RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:27045
"""
BAD_BATCH = """Traceback (most recent call last):
  File "train.py", line 12, in <module>
    raise ValueError("bad batch")
ValueError: bad batch
"""
CUDA_OOM = """Traceback (most recent call last):
  File "train.py", line 3, in <module>
    x = torch.empty(1 << 40, device="cuda")
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 4096.00 GiB. GPU 0 has a total capacity of 79.15 GiB
"""


def replica(k: int, state: AppState, **more: Any) -> ReplicaFacts:
    return ReplicaFacts(**{"role": "w", "replica": k, "state": state, "host": f"n{k}", **more})


def job(*replicas: ReplicaFacts, role: Mapping[str, Any] | None = None, **more: Any) -> JobFacts:
    return JobFacts(app_id="a", roles=[RoleFacts(name="w", replicas=replicas, **(role or {}))], **more)


class Row(NamedTuple):
    """Facts and what was left behind, and the verdict that is expected."""

    facts: JobFacts
    left: Mapping[int, Evidence]
    state: AppState
    culprit: int | None
    kind: str | None
    sentence: str


ROWS = {
    "all run": Row(job(replica(0, RUNNING), replica(1, RUNNING)), {}, RUNNING, None, None, ""),
    "why it was told to end is not why it failed": Row(
        job(replica(0, FAILED, exit_code=1, ended=10),
            replica(1, CANCELLED, exit_code=3, ended=11, stopped=True, reason="its owner killed it")),
        {0: Evidence(stderr=LOST_PEER), 1: Evidence(stderr=BAD_BATCH)},
        FAILED, 1, "error", "w/1 on n1: exit code 3: ValueError: bad batch",
    ),
    "nobody ends the others": Row(
        job(replica(0, FAILED, exit_code=7), replica(1, RUNNING), state=RUNNING, unattended=True), {},
        RUNNING, None, None, "w/0 on n0: exit code 7; the others are still running",
    ),
    "cancelled, and replicas say by whom": Row(
        job(replica(0, CANCELLED, reason="its owner killed it"), replica(1, CANCELLED, reason="its owner killed it")), {},
        CANCELLED, None, None, "its owner killed it",
    ),
    "what the look says of a signal takes the place of last words": Row(
        job(replica(0, FAILED, signal="SIGKILL")), {0: Evidence(stderr="error: x", reason="out of memory", kind="oom")},
        FAILED, 0, "oom", "w/0 on n0: killed by SIGKILL: out of memory",
    ),
    "what the look says of an exit code goes before last words": Row(
        job(replica(0, FAILED, exit_code=1)), {0: Evidence(stderr="error: x", reason="out of memory", kind="oom")},
        FAILED, 0, "oom", "w/0 on n0: exit code 1: out of memory: error: x",
    ),
    "all have succeeded": Row(job(replica(0, SUCCEEDED)), {}, SUCCEEDED, None, None, ""),
    "one runs and one waits": Row(job(replica(0, RUNNING), replica(1, PENDING)), {}, RUNNING, None, None, ""),
    "nothing is known": Row(job(state=UNKNOWN, reason="its host does not answer"), {}, UNKNOWN, None, None,
                            "its host does not answer"),
    "pending, and the scheduler says why": Row(
        job(replica(0, PENDING), state=PENDING, reason="jobs of higher priority go first (Priority)"), {},
        PENDING, None, None, "jobs of higher priority go first (Priority)",
    ),
    "pending, and replicas say why": Row(
        job(replica(0, PENDING, reason="no node fits"), replica(1, PENDING, reason="no node fits")), {},
        PENDING, None, None, "w/0 (and 1 more): no node fits",
    ),
    "what is stuck goes first": Row(
        job(replica(0, PENDING, reason="no node fits"), replica(1, PENDING, reason="its image cannot be pulled",
                                                                stuck=True)), {},
        PENDING, None, None, "w/1: its image cannot be pulled",
    ),
    "one fails by an exit code and last words": Row(
        job(replica(0, FAILED, exit_code=1, ended=10)), {0: Evidence(stderr="no data in /data\n")},
        FAILED, 0, "error", "w/0 on n0: exit code 1: no data in /data",
    ),
    "hosts that are not told apart": Row(
        job(replica(0, FAILED, exit_code=1, ended=10), tell_hosts=False), {0: Evidence(stderr="no data in /data\n")},
        FAILED, 0, "error", "w/0: exit code 1: no data in /data",
    ),
    "the lost peer fails before the guilty one": Row(
        job(replica(0, FAILED, exit_code=1, ended=10), replica(1, FAILED, exit_code=1, ended=11)),
        {0: Evidence(stderr=LOST_PEER), 1: Evidence(stderr=BAD_BATCH)},
        FAILED, 1, "error", "w/1 on n1: exit code 1: ValueError: bad batch",
    ),
    "of two with reasons of their own the earlier": Row(
        job(replica(0, FAILED, exit_code=1, ended=12), replica(1, FAILED, exit_code=1, ended=11)),
        {0: Evidence(stderr=CUDA_OOM), 1: Evidence(stderr=BAD_BATCH)},
        FAILED, 1, "error", "w/1 on n1: exit code 1: ValueError: bad batch",
    ),
    "all lost their peers": Row(
        job(replica(0, FAILED, exit_code=1, ended=12), replica(1, FAILED, exit_code=1, ended=11)),
        {0: Evidence(stderr=LOST_PEER), 1: Evidence(stderr=LOST_PEER)},
        FAILED, 1, "network", None,
    ),
    "the guilty one is ended by no hand, the others are": Row(
        job(replica(0, FAILED, signal="SIGKILL", ended=9, stopped=True), replica(1, FAILED, exit_code=3, ended=10)),
        {1: Evidence()}, FAILED, 1, "error", "w/1 on n1: exit code 3",
    ),
    "the guilty one fails while it is told to end": Row(
        job(replica(0, FAILED, exit_code=1, ended=10), replica(1, CANCELLED, exit_code=3, ended=11, stopped=True)),
        {0: Evidence(stderr=LOST_PEER), 1: Evidence(stderr=BAD_BATCH)},
        FAILED, 1, "error", "w/1 on n1: exit code 3: ValueError: bad batch",
    ),
    "one that is told to end, and says so by an exit code": Row(
        job(replica(0, FAILED, exit_code=1, ended=10), replica(1, CANCELLED, exit_code=3, ended=11, stopped=True)),
        {0: Evidence(stderr=BAD_BATCH), 1: Evidence(stderr="told to end: nothing is saved\n")},
        FAILED, 0, "error", "w/0 on n0: exit code 1: ValueError: bad batch",
    ),
    "killed without a word": Row(
        job(replica(0, FAILED, signal="SIGKILL", ended=9)), {}, FAILED, 0, "unknown",
        "w/0 on n0: killed by SIGKILL (often: out of memory)",
    ),
    "killed, and the backend knows why": Row(
        job(replica(0, FAILED, signal="SIGKILL", ended=9, reason="out of memory: its limit is 64 MB", kind="oom")),
        {0: Evidence(stderr="step 7\n")}, FAILED, 0, "oom",
        "w/0 on n0: killed by SIGKILL: out of memory: its limit is 64 MB",
    ),
    "killed, and only the look shows why": Row(
        job(replica(0, FAILED, signal="SIGKILL", ended=9)),
        {0: Evidence(stderr="step 7\n", reason="out of memory: its limit is 64 MB", kind="oom")}, FAILED, 0, "oom",
        "w/0 on n0: killed by SIGKILL: out of memory: its limit is 64 MB",
    ),
    "nobody says which replica ended the job, and one of them does": Row(
        job(*(replica(k, FAILED, stopped=True, ended=9) for k in range(12)), state=FAILED, kind="error",
            reason="AlgorithmError: exit code 1"),
        {0: Evidence(stderr="step 7\n"), 1: Evidence(stderr=LOST_PEER), 11: Evidence(stderr=BAD_BATCH)},
        FAILED, 11, "error", "w/11 on n11: ValueError: bad batch",
    ),
    "nobody says which replica ended the job": Row(
        job(replica(0, FAILED, stopped=True), replica(1, FAILED, stopped=True), state=FAILED, kind="error",
            reason="AlgorithmError: exit code 3"),
        {0: Evidence(stderr="step 7\n")}, FAILED, None, "error", "AlgorithmError: exit code 3",
    ),
    "one that was stopped in silence is less to blame than one that lost its peer": Row(
        job(replica(0, FAILED, stopped=True), replica(1, FAILED, stopped=True), state=FAILED,
            reason="exit code 1"),
        {0: Evidence(stderr="step 7\n"), 1: Evidence(stderr=LOST_PEER)}, FAILED, 1, "network", None,
    ),
    "it is not known how the replica ended, and the scheduler knows the class": Row(
        job(replica(0, FAILED), state=FAILED, kind="quota", reason="no such instances are left"), {},
        FAILED, 0, "quota", "no such instances are left",
    ),
    "GPU memory": Row(
        job(replica(0, FAILED, exit_code=1, ended=12)), {0: Evidence(stderr=CUDA_OOM)}, FAILED, 0, "gpu_oom", None,
    ),
    "a time limit ended it": Row(
        job(replica(0, FAILED, signal="SIGTERM", ended=60, stopped=True), state=FAILED, kind="timeout",
            reason="it reached its time limit"), {}, FAILED, None, "timeout", "it reached its time limit",
    ),
    "a node failed": Row(
        job(replica(0, FAILED, stopped=True), state=FAILED, kind="node", reason="a node failed while it ran: n0"), {},
        FAILED, None, "node", "a node failed while it ran: n0",
    ),
    "preempted": Row(
        job(state=FAILED, kind="preempted", reason="it was preempted by a job of higher priority"), {},
        FAILED, None, "preempted", "it was preempted by a job of higher priority",
    ),
    "the scheduler says failed, and no replica did": Row(
        job(replica(0, SUCCEEDED), state=FAILED, native="FAILED"), {}, FAILED, None, "unknown",
        "the scheduler says `FAILED`",
    ),
    "failed, and the others are being ended": Row(
        job(replica(0, FAILED, exit_code=1, ended=9), replica(1, RUNNING)), {0: Evidence(stderr=BAD_BATCH)},
        RUNNING, None, None, "w/0 on n0: exit code 1: ValueError: bad batch; the others are being ended",
    ),
    "the scheduler says running, and one has failed": Row(
        job(replica(0, FAILED, exit_code=1, ended=9), replica(1, RUNNING), state=RUNNING),
        {0: Evidence(stderr=BAD_BATCH)},
        RUNNING, None, None, "w/0 on n0: exit code 1: ValueError: bad batch; the others are being ended",
    ),
    "an owner that starts it again": Row(
        job(replica(0, FAILED, exit_code=1, ended=9), replica(1, RUNNING), role={"restarts": True}),
        {0: Evidence(stderr=BAD_BATCH)}, RUNNING, None, None, "w/0 failed and is being restarted: exit code 1: ValueError: bad batch",
    ),
    "its owner has given up, and the last replicas have not ended": Row(
        job(replica(0, FAILED, exit_code=1, ended=9), replica(1, PENDING), role={"ending": True}),
        {0: Evidence(stderr=BAD_BATCH)}, RUNNING, None, None,
        "w/0 on n0: exit code 1: ValueError: bad batch; the others are being ended",
    ),
    "a role that nobody ends when another one fails": Row(
        JobFacts(app_id="a", roles=[
            RoleFacts(name="w", replicas=[replica(0, FAILED, exit_code=1, ended=9)], state=FAILED),
            RoleFacts(name="v", replicas=[replica(0, PENDING, role="v")], restarts=True),
        ]),
        {0: Evidence(stderr=BAD_BATCH)}, RUNNING, None, None,
        "w/0 on n0: exit code 1: ValueError: bad batch; the others are still running",
    ),
    "elastic: one lost, the job goes on": Row(
        job(replica(0, FAILED, exit_code=1, ended=9), replica(1, RUNNING), role={"min_replicas": 1}), {},
        RUNNING, None, None, "1 of 2 replicas lost (w/0); the job went on with the others",
    ),
    "elastic: one lost, the job succeeded": Row(
        job(replica(0, FAILED, exit_code=1, ended=9), replica(1, SUCCEEDED), role={"min_replicas": 1}), {},
        SUCCEEDED, None, None, "1 of 2 replicas lost (w/0); the job went on with the others",
    ),
    "elastic: one lost, and its owner calls that a failure": Row(
        job(replica(0, FAILED, exit_code=1, ended=9), replica(1, SUCCEEDED),
            role={"min_replicas": 1, "state": FAILED}), {},
        SUCCEEDED, None, None, "1 of 2 replicas lost (w/0); the job went on with the others",
    ),
    "cancelled": Row(
        job(replica(0, FAILED, signal="SIGTERM", ended=9), state=CANCELLED, cancelled=True), {},
        CANCELLED, None, None, "",
    ),
    "cancelled, and it still runs": Row(
        job(replica(0, CANCELLED), replica(1, RUNNING), cancelled=True), {}, RUNNING, None, None,
        "cancelling",
    ),
    "being cancelled, says the scheduler": Row(
        job(replica(0, CANCELLED, started=5), state=RUNNING, attempts=[Attempt(ended=4, again=True)]), {},
        RUNNING, None, None, "cancelling",
    ),
    "between two pieces": Row(
        job(replica(0, CANCELLED, started=5), state=RUNNING, attempts=[Attempt(ended=9, again=True)]), {},
        RUNNING, None, None, "",
    ),
    "ended by its limit, before the next piece": Row(
        job(replica(0, CANCELLED, started=5), state=RUNNING, kind="timeout", reason="it reached its time limit"), {},
        RUNNING, None, None, "it reached its time limit",
    ),
    "cancelled between two pieces": Row(
        job(replica(0, CANCELLED), state=RUNNING, cancelled=True, attempts=[Attempt(ended=9, again=True)]), {},
        RUNNING, None, None, "cancelling",
    ),
    "after restarts": Row(
        job(replica(0, FAILED, exit_code=1, ended=9), restarts=2), {0: Evidence(stderr=BAD_BATCH)},
        FAILED, 0, "error", "w/0 on n0: exit code 1: ValueError: bad batch; after 2 restarts",
    ),
    "notes come last": Row(
        job(replica(0, SUCCEEDED), notes=["as last heard from host `n9`"]), {}, SUCCEEDED, None, None,
        "as last heard from host `n9`",
    ),
}  # fmt: skip


def looker(row: Row) -> Any:
    return lambda replicas: [row.left.get(r.replica, Evidence()) for r in replicas]


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_the_table(row: Row) -> None:
    """State, culprit, class and sentence of a job, out of its facts."""
    verdict = judge(row.facts, looker(row))
    assert verdict.state is row.state
    assert (verdict.cause.kind if verdict.cause else None) == row.kind
    assert (verdict.cause.replica if verdict.cause else None) == row.culprit
    if row.sentence is not None:
        assert verdict.sentence == row.sentence
    assert state_of(row.facts) is verdict.state  # `list` says what `status` says


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_a_page_never_contradicts_itself(row: Row) -> None:
    """Nothing runs or waits in a job that is over; a cause is named only of a job that failed, and is on record."""
    answer = describe(row.facts, looker(row))
    states = [r.state for role in answer.roles_statuses for r in role.replicas]
    if answer.state in (SUCCEEDED, FAILED, CANCELLED):
        assert not set(states) & {RUNNING, PENDING, UNKNOWN}
    if answer.state is CANCELLED:
        assert FAILED not in states
    failure = parse_failure(answer.structured_error_msg)
    assert (failure is not None) == (answer.state is FAILED)
    assert failure is None or failure.kind in CLASSES


def test_a_victim_of_a_hundred_is_found_behind_the_others() -> None:
    """Where the first replicas that failed only lost their peer, later ones are looked into; in few questions."""
    replicas = [replica(k, FAILED, exit_code=1, ended=10 + k) for k in range(100)]
    asked: list[int] = []

    def look(some: Sequence[ReplicaFacts]) -> list[Evidence]:
        asked.append(len(some))
        return [Evidence(stderr=BAD_BATCH if r.replica == 20 else LOST_PEER) for r in some]

    verdict = judge(job(*replicas), look)
    assert verdict.cause is not None
    assert verdict.cause.replica == 20
    assert asked == [8, 8, 8]


def test_where_a_look_is_dear_the_first_is_looked_into_alone() -> None:
    """A backend that asks for each replica begins with one; more are looked into only behind victims."""
    asked: list[list[int]] = []

    def look(some: Sequence[ReplicaFacts]) -> list[Evidence]:
        asked.append([r.replica for r in some])
        return [Evidence(stderr=BAD_BATCH if r.replica == guilty else LOST_PEER) for r in some]

    told = [replica(k, FAILED, signal="SIGTERM", ended=9) for k in range(100, 200)]
    facts = job(*told, *(replica(k, FAILED, exit_code=1, ended=10 + k) for k in range(100)))
    for guilty, rounds in ((0, [1]), (5, [1, 2, 4]), (99, [1, 2, 4, 8, 8, 8, 1])):
        asked.clear()
        cause = judge(facts, look, at_once=1).cause
        assert cause is not None
        assert [len(some) for some in asked] == rounds
        assert cause.replica == (guilty if guilty < 32 else 0)
    asked.clear()
    assert judge(job(*told), look, at_once=1).cause is not None
    assert asked == [[100]], "who was told to end is looked into only where nobody else has failed"


def test_a_job_that_nobody_looks_after_has_failed_with_its_first_replica() -> None:
    """Others may run until somebody cancels it, and are shown as what they are."""
    facts = job(replica(0, FAILED, exit_code=3), replica(1, RUNNING), unattended=True, notes=["1 replica is running"])
    verdict = judge(facts)
    assert (verdict.state, state_of(facts)) == (FAILED, FAILED)
    assert verdict.sentence == "w/0 on n0: exit code 3; 1 replica is running"
    assert verdict.states == {("w", 0): FAILED, ("w", 1): RUNNING}


def test_a_guilty_one_is_looked_for_with_an_end() -> None:
    """Of thousands of victims, not all are read."""
    replicas = [replica(k, FAILED, exit_code=1, ended=10 + k) for k in range(1000)]
    asked: list[int] = []

    def look(some: Sequence[ReplicaFacts]) -> list[Evidence]:
        asked.append(len(some))
        return [Evidence(stderr=LOST_PEER) for _ in some]

    verdict = judge(job(*replicas), look)
    assert verdict.cause is not None
    assert (verdict.cause.replica, verdict.cause.kind, sum(asked)) == (0, "network", 32)


def test_the_same_facts_give_the_same_sentence_in_any_order() -> None:
    """The order in which a backend lists replicas decides nothing."""
    replicas = [replica(0, FAILED, exit_code=1, ended=10), replica(1, FAILED, exit_code=1, ended=11)]
    left = {0: Evidence(stderr=LOST_PEER), 1: Evidence(stderr=BAD_BATCH)}
    said = {judge(job(*some), lambda rs: [left[r.replica] for r in rs]).sentence for some in (replicas, replicas[::-1])}
    assert said == {"w/1 on n1: exit code 1: ValueError: bad batch"}


def test_a_whole_message_is_in_the_sentence() -> None:
    """What an exception says in several lines is not cut to its first."""
    text = 'Traceback (most recent call last):\n  File "t.py", line 1\nRuntimeError: Error(s) in loading state_dict:\n\tMissing key(s): "a".\n'
    verdict = judge(job(replica(0, FAILED, exit_code=1)), lambda _: [Evidence(stderr=text)])
    assert verdict.sentence == (
        'w/0 on n0: exit code 1: RuntimeError: Error(s) in loading state_dict: Missing key(s): "a".'
    )


def test_victims_are_shown_as_cancelled() -> None:
    """What a signal ended after another had failed did not fail itself."""
    facts = job(replica(0, FAILED, exit_code=1, ended=9), replica(1, FAILED, signal="SIGTERM", ended=10))
    assert judge(facts).states == {("w", 0): FAILED, ("w", 1): CANCELLED}


def test_what_the_same_signal_ended_is_no_victim_of_the_other() -> None:
    """A machine that goes down kills all replicas: each has failed, and the first stands for them."""
    facts = job(replica(0, FAILED, signal="SIGKILL", ended=9), replica(1, FAILED, signal="SIGKILL", ended=10))
    assert judge(facts).states == {("w", 0): FAILED, ("w", 1): FAILED}


def test_the_fold_of_nothing_is_unknown() -> None:
    """A job without replicas is in no state at all."""
    assert fold([]) is UNKNOWN


def answer(*replicas: ReplicaStatus, **more: Any) -> DescribeAppResponse:
    return DescribeAppResponse("a", FAILED, roles_statuses=[RoleStatus("w", list(replicas))], **more)


def test_an_answer_without_facts_gets_the_same_verdict() -> None:
    """A plugin that answers by itself is judged by what its replicas say."""
    lost = Failure("RuntimeError: Connection closed by peer", 1, timestamp=10).to_structured_msg()
    guilty = Failure("ValueError: bad batch", 1, timestamp=11).to_structured_msg()
    given = answer(ReplicaStatus(0, FAILED, "w", "n0", lost), ReplicaStatus(1, FAILED, "w", "n1", guilty))
    judged = on_answer(given)
    assert judged.msg == "w/1 on n1: exit code 1: ValueError: bad batch"
    failure = parse_failure(judged.structured_error_msg)
    assert failure is not None
    assert (failure.role, failure.replica, failure.host, failure.kind) == ("w", 1, "n1", "error")
    assert on_answer(judged) is judged
    assert (given.msg, given.structured_error_msg) == (NONE, NONE)


def test_an_answer_that_did_not_fail_is_left_alone() -> None:
    """Only failures are judged."""
    given = DescribeAppResponse("a", RUNNING, msg="x")
    assert (on_answer(given).msg, given.structured_error_msg) == ("x", NONE)


def test_who_says_only_that_it_was_told_to_end_is_not_to_blame() -> None:
    """As torchrun does when the job has reached its time limit, or was silent; what else was said then is."""
    for said, cause in (
        ("SignalException: Process 1 got signal: 15", "no output for 1 min"),
        ("KeyError: 'x'", "KeyError: 'x'"),
    ):
        told = replica(0, CANCELLED, exit_code=1, stopped=True)
        facts = job(told, state=FAILED, reason="no output for 1 min", kind="timeout")
        verdict = judge(
            facts,
            lambda found, said=said: (
                [Evidence(stderr=f'Traceback (most recent call last):\n  File "t.py", line 1, in f\n{said}\n')]
                * len(found)
            ),
        )
        assert verdict.cause is not None
        assert (verdict.cause.kind, verdict.cause.message) == ("timeout", cause)


@pytest.mark.parametrize(
    ("started", "attempts", "expected"),
    [(500.0, [100.0, 300.0], 100.0), (500.0, [0.0], 500.0), (90.0, [100.0], 90.0), (None, [100.0], None)],
    ids=["the first of several", "not known", "created before", "it waits"],
)
def test_a_job_starts_with_its_first_attempt(
    started: float | None, attempts: list[float], expected: float | None
) -> None:
    """What it uses counts from then, whichever attempt is the first that somebody sees."""
    past = [Attempt(started=at, ended=at + 50, again=True) for at in attempts]
    assert describe(job(replica(0, RUNNING), started=started, attempts=past)).started_at == expected
