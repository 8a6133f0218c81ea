"""Whether there is another attempt, where a budget, a day or a file is just at its limit."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from torchx.errors import SpecError
from torchx.schedulers.kit.attempts import (
    ATTEMPTS_FILE,
    BEGINS,
    PROGRESS_FILE,
    begins_of,
    decide,
    digest,
    judged,
    put_down,
    refuse_parts,
)
from torchx.schedulers.kit.caps import Capabilities
from torchx.schedulers.kit.facts import JobFacts, ReplicaFacts, RoleFacts
from torchx.schedulers.kit.failures.reader import Evidence
from torchx.schedulers.kit.native_retries import NativeSystem, attempt_of
from torchx.schedulers.kit.verdict import Verdict, judge
from torchx.specs.api import AppDef, AppState, RetryPolicy, Role
from torchx.specs.failures import Failure
from torchx.specs.wishes.retries import RETRY, Attempt, RetryRules, read_attempts

DAY = 86400.0

# -- decisions ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "kinds", "again", "why"),
    [
        ("oom:2", ["oom"], True, "oom: retry 1 of 2"),
        ("oom:2", ["oom", "oom"], True, "oom: retry 2 of 2"),
        ("oom:2", ["oom", "oom", "oom"], False, "oom: all 2 retries are used"),
        ("oom:free", ["oom"], True, "oom: retried"),
        ("oom:free", ["oom"] * 20, True, "oom: retried"),
        ("oom:free", ["oom"] * 21, False, "oom: 20 retries in a row made no progress"),
        ("oom:0", ["oom"], False, "oom: the policy does not retry it"),
        ("oom:2", ["cancelled"], False, "cancelled"),
    ],
)
def test_each_decision_says_why(policy: str, kinds: list[str], again: bool, why: str) -> None:
    """The limit counts restarts, so the job fails once more often; `free` ends after 20, as documented."""
    last = decide(RetryRules.parse(policy), [Attempt(kind=kind) for kind in kinds])
    assert (last.again, last.why) == (again, why)


def test_an_attempt_that_is_the_last_one_changes_nothing_for_the_next() -> None:
    """There is none: no memory is added and no host avoided, whatever was recorded before."""
    rules = RetryRules.parse("oom:1:mem*2:avoid")
    attempts = [
        Attempt(kind="oom", hosts=["n1"]),
        Attempt(kind="oom", hosts=["n2"], again=True, avoid=["n0"], memory=4),
    ]
    last = decide(rules, attempts)
    assert (last.again, last.avoid, last.memory) == (False, [], 1.0)


def test_a_first_exception_is_no_repetition() -> None:
    """Nothing came before it; the one before the last counts, not an earlier one, and only with a message."""
    rules = RetryRules.parse("error:9:differs")

    def again(*digests: str) -> bool:
        return decide(rules, [Attempt(kind="error", digest=each) for each in digests]).again

    assert again("aa") and again("aa", "bb", "aa") and again("", "")
    assert not again("bb", "aa", "aa")


@pytest.mark.parametrize(("kind", "again"), [("oom", True), ("error", False)])
def test_progress_of_the_attempt_itself_counts(kind: str, again: bool) -> None:
    """It gives the whole budget back, except for errors of the program."""
    last = decide(RetryRules.parse("oom:1, error:1"), [Attempt(kind=kind), Attempt(kind=kind, progress=True)])
    assert last.again is again
    assert last.why == (f"{kind}: retry 1 of 1" if again else f"{kind}: all 1 retries are used")


@pytest.mark.parametrize(("hosts", "avoided"), [(0, 8), (1, 1), (9, 1), (19, 1), (20, 2), (29, 2), (89, 8), (200, 8)])
def test_a_tenth_of_the_hosts_is_avoided(hosts: int, avoided: int) -> None:
    """One at least, eight at most; eight where nobody knows how many there are."""
    attempts = [Attempt(kind="node", hosts=[f"n{k}"]) for k in range(12)]
    assert len(decide(RetryRules.parse("node:free:avoid"), attempts, hosts=hosts).avoid) == avoided


def test_a_host_is_avoided_for_less_than_a_day() -> None:
    """Since the last failure; only for classes whose rule says so, and each host once."""
    rules = RetryRules.parse("node:free:avoid, network:free")
    attempts = [
        Attempt(kind="node", hosts=["day"], ended=0.0),
        Attempt(kind="node", hosts=["later", "twice"], ended=1.0),
        Attempt(kind="network", hosts=["other"], ended=2.0),
        Attempt(kind="node", hosts=["twice"], ended=DAY),
    ]
    assert decide(rules, attempts).avoid == ["twice", "later"]


def test_a_digest_is_of_the_innermost_calls() -> None:
    """Three of them: the way by which they were reached may differ."""

    def of(*lines: int) -> str:
        return digest(
            Failure("ValueError: x", traceback="".join(f'  File "a.py", line {n}, in f\n    x\n' for n in lines))
        )

    assert of(1, 2, 3, 4) == of(9, 2, 3, 4)
    assert of(1, 2, 3, 4) != of(1, 9, 3, 4)
    assert len({of(1, 2, 3, 4), of(1, 2, 3, 9), of(), digest(Failure("KeyError: x"))}) == 4


def test_a_job_that_is_restarted_as_a_whole() -> None:
    """A role that wants to restart by itself is refused by name; the default is not."""
    whole = Role("w", "img", retry_policy=RetryPolicy.APPLICATION)
    refuse_parts(AppDef("a", [whole]), "docker")
    with pytest.raises(SpecError, match="role `v` has the retry policy `REPLICA`: with `--retry` docker starts"):
        refuse_parts(AppDef("a", [whole, Role("v", "img", retry_policy=RetryPolicy.REPLICA)]), "docker")


# -- what is recorded --------------------------------------------------------------------------------


def _verdict(**replica: Any) -> Verdict:
    facts = ReplicaFacts(**{"role": "w", "replica": 0, "state": AppState.FAILED, **replica})
    left = Evidence(stderr="ValueError: x\n")
    return judge(JobFacts(app_id="a", roles=[RoleFacts(name="w", replicas=[facts])]), lambda some: [left for _ in some])


@pytest.mark.parametrize(
    ("marked", "started", "progress"),
    [(None, 100.0, False), (99.0, 100.0, False), (100.0, 100.0, True), (101.0, 1.0, True), (100.0, 0.0, False)],
)
def test_progress_is_a_mark_of_this_attempt(
    tmp_path: Path, marked: float | None, started: float, progress: bool
) -> None:
    """The mark of an attempt before does not count, nor any mark if it is not known when this one started."""
    if marked is not None:
        (tmp_path / PROGRESS_FILE).touch()
        os.utime(tmp_path / PROGRESS_FILE, (marked, marked))
    rules = RetryRules.parse("error:1")
    for attempt in (Attempt(started=started, kind="oom"), Attempt(started=started, ended=2.0, progress=True)):
        found = put_down(str(tmp_path), _verdict(exit_code=1), rules, [], attempt)
        assert found is attempt
        assert (found.progress, found.again, found.kind) == (progress, True, "error")
    with open(tmp_path / ATTEMPTS_FILE, encoding="utf-8") as f:
        assert [(a.progress, a.ended) for a in read_attempts(f)] == [(progress, 0.0), (progress, 2.0)]


def test_what_is_known_of_an_attempt() -> None:
    """Class, sentence and hash are those of the cause; without one, what the verdict says."""
    rules = RetryRules.parse("error:1:differs, unknown:1")
    first = judged(_verdict(exit_code=1), rules, [], Attempt(hosts=["n1"]))
    assert (first.kind, first.cause, first.hosts) == ("error", "w/0: exit code 1: ValueError: x", ["n1"])
    assert first.digest and first.again
    second = judged(_verdict(exit_code=1), rules, [first], Attempt())
    assert (second.digest, second.why) == (first.digest, "error: the same failure twice in a row")
    ended = judge(JobFacts(app_id="a", roles=[], state=AppState.CANCELLED, reason="by root"))
    nobody = judged(ended, rules, [], Attempt(kind="oom", digest="old"))
    assert (nobody.kind, nobody.cause, nobody.digest, nobody.why) == ("unknown", "by root", "", "unknown: retry 1 of 1")
    silent = judge(JobFacts(app_id="a", roles=[], state=AppState.FAILED, native="BOOT_FAIL"))
    assert judged(silent, rules, [], Attempt()).cause == "the scheduler says `BOOT_FAIL`"


def test_where_nobody_knows_how_many_hosts_there_are(tmp_path: Path) -> None:
    """All that failed lately are avoided."""
    rules = RetryRules.parse("error:9:avoid")
    earlier = [Attempt(kind="error", hosts=["n1"], ended=1.0)]
    assert judged(_verdict(exit_code=1), rules, earlier, Attempt(hosts=["n2"], ended=2.0)).avoid == ["n2", "n1"]
    last = Attempt(hosts=["n2"], ended=2.0)
    assert put_down(str(tmp_path), _verdict(exit_code=1), rules, earlier, last).avoid == ["n2", "n1"]
    assert put_down(str(tmp_path), _verdict(exit_code=1), rules, earlier, last, hosts=3).avoid == ["n2"]


@pytest.mark.parametrize(
    ("attempts", "begins"),
    [
        ([], {}),
        ([Attempt(more={BEGINS: {"a.log": 3}})], {}),
        ([Attempt(again=True)], {}),
        ([Attempt(again=True, more={BEGINS: [3]})], {}),
        ([Attempt(again=True, more={BEGINS: {"a.log": 3, "b.log": "4", "c.log": 0}})], {"a.log": 3, "c.log": 0}),
        ([Attempt(again=True, more={BEGINS: {"a.log": n}}) for n in (1, 2, 3)], {"a.log": 3}),
        ([Attempt(again=True, more={BEGINS: {"a.log": 1}}), Attempt(more={BEGINS: {"a.log": 2}})], {"a.log": 1}),
    ],
)
def test_where_the_output_of_the_last_attempt_begins(attempts: list[Attempt], begins: dict[str, int]) -> None:
    """As the newest attempt that was followed by another one has it; what is no offset is left out."""
    assert begins_of(attempts) == begins


# -- systems that count by themselves ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "times", "retried"),
    [
        ("oom:3", 3, {"oom"}),
        ("oom:free", 3, {"oom"}),
        ("standard, error:3", 3, {"error", "node", "lost"}),
        ("standard, error:2", 2, {"error", "oom", "node", "lost"}),
        ("lost:free", 0, {"node", "lost"}),
        ("error:0", 0, set()),
    ],
)
def test_as_many_retries_as_the_system_allows(policy: str, times: int, retried: set[str]) -> None:
    """Its maximum is allowed, and `free` means as many; classes that look alike are retried together."""
    groups = [("node", "lost"), ("oom",), ("error",)]
    system = NativeSystem(name="x", groups=groups, uncounted=("node", "lost"), most=3)
    app = AppDef("a", metadata={RETRY: policy})
    found = system.policy(app, Capabilities(retry_actions=("retry",)))
    assert found is not None and (found.times, set(found.retried)) == (times, retried)


@pytest.mark.parametrize(("policy", "hint"), [("oom:4", "write `oom:3`"), ("oom:1, error:2", "`oom:1` or `error:2`")])
def test_more_than_the_system_counts(policy: str, hint: str) -> None:
    """It is refused with what can be written instead; of `standard` no more than that is retried."""
    system = NativeSystem(name="x", groups=[("oom",), ("error",)], most=3)
    with pytest.raises(SpecError) as e:
        system.keep(RetryRules.parse(policy))
    assert hint in (e.value.hint or "")
    few = NativeSystem(name="x", groups=[("node",), ("oom",), ("error",)], most=1)
    assert (few.keep(RetryRules.parse("standard")).times, few.keep(RetryRules.parse("standard, error:1")).times) == (
        1,
        1,
    )
    assert few.policy(AppDef("a"), Capabilities()) is None


def test_an_attempt_of_one_process() -> None:
    """Its times, its host and its cause with the class; the class is unknown where nothing is."""
    facts = ReplicaFacts(
        role="w", replica=3, state=AppState.FAILED, exit_code=1, started=1.0, ended=2.0, host="n1", kind="node"
    )
    found = attempt_of(facts, Evidence(stderr="ValueError: x\n"))
    assert (found.started, found.ended, found.kind, found.hosts) == (1.0, 2.0, "node", ["n1"])
    assert found.cause == "w/3 on n1: exit code 1: ValueError: x"
    ended = attempt_of(ReplicaFacts(role="w", replica=0, state=AppState.SUCCEEDED))
    assert (ended.kind, ended.hosts, ended.again, ended.cause) == ("unknown", [], False, "")
