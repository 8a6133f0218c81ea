"""Whether a job is started again: the class of the failure decides, budgets count, and a bug is not retried for ever."""

from __future__ import annotations

import pytest

from torchx.errors import NotSupportedError, SpecError
from torchx.schedulers.kit.attempts import MAX_IN_A_ROW, decide, digest, policy_of
from torchx.schedulers.kit.caps import Capabilities
from torchx.schedulers.kit.failures.classes import CLASSES
from torchx.specs.api import AppDef
from torchx.specs.failures import Failure
from torchx.specs.wishes import Wishes
from torchx.specs.wishes.retries import RETRY, Attempt, RetryRules, read_attempts, to_line

STANDARD = RetryRules.parse("standard")


def _of(*kinds: str, **last: object) -> list[Attempt]:
    attempts = [Attempt(kind=kind) for kind in kinds]
    for name, value in last.items():
        setattr(attempts[-1], name, value)
    return attempts


def test_the_class_decides() -> None:
    """What is nobody's fault is retried, a bug is not, and what has no rule is not."""
    assert [decide(STANDARD, _of(kind)).again for kind in ("preempted", "node", "oom", "timeout", "network")] == [
        True
    ] * 5
    assert [decide(STANDARD, _of(kind)).again for kind in ("error", "image", "cancelled")] == [False] * 3
    assert [decide(STANDARD, _of(*kinds)).again for kinds in (["unknown"], ["unknown"] * 2)] == [True, False]


def test_budgets_count_by_class() -> None:
    """The third failure for lack of memory ends the job; those of other classes do not count."""
    assert decide(STANDARD, _of("oom", "node", "oom")).again
    ended = decide(STANDARD, _of("oom", "node", "oom", "oom"))
    assert (ended.again, ended.why) == (False, "oom: all 2 retries are used")
    assert decide(STANDARD, _of("oom", "oom", "node")).again


def test_progress_gives_the_budget_back() -> None:
    """What was achieved since counts; but not for the program's own errors."""
    attempts = _of("oom", "oom", "oom")
    attempts[1].progress = True
    assert decide(STANDARD, attempts).again
    bugs = _of("error", "error", digest="b", progress=True)
    bugs[0].digest = "a"
    assert not decide(RetryRules.parse("error:1"), bugs).again


def test_the_same_exception_twice() -> None:
    """It ends the job if the rule says so, or sets no limit; a number that the user wrote is obeyed."""
    three = _of(*["error"] * 4)
    for attempt in three:
        attempt.digest = "aa"
    for policy in ("error:3", "standard, error:3"):
        assert [decide(RetryRules.parse(policy), three[:n]).again for n in (1, 2, 3, 4)] == [True, True, True, False]
    assert decide(RetryRules.parse("error:free"), three[:2]).why == "error: the same failure twice in a row"
    rules = RetryRules.parse("error:5:differs, node:5")
    assert str(rules) == "error:5:differs, node:5"
    same = _of("error", "error")
    same[0].digest = same[1].digest = "aa"
    assert decide(rules, same).why == "error: the same failure twice in a row"
    same[0].digest = "bb"
    assert decide(rules, same).again
    nodes = _of("node", "node")
    nodes[0].digest = nodes[1].digest = "aa"
    assert decide(rules, nodes).again


def test_free_is_not_for_ever() -> None:
    """So many attempts in a row without progress end it; one with progress starts the count anew."""
    attempts = _of(*["preempted"] * MAX_IN_A_ROW)
    assert decide(STANDARD, attempts).again
    attempts.append(Attempt(kind="preempted"))
    assert not decide(STANDARD, attempts).again
    attempts[3].progress = True
    assert decide(STANDARD, attempts).again


def test_memory_grows_with_each_shortage() -> None:
    """One and a half times, then that again; a failure of another class leaves it as it is."""
    assert decide(STANDARD, _of("oom")).memory == 1.5
    assert decide(STANDARD, _of("oom", "node", "oom")).memory == 2.25


def test_hosts_are_avoided_for_a_day_and_not_all_of_them() -> None:
    """The newest first, 8 at most, and a tenth of what there is; after a day they are tried again."""
    rules = RetryRules.parse("node:free:avoid")
    attempts = [Attempt(kind="node", hosts=[f"n{k}"], ended=float(k)) for k in range(12)]
    assert decide(rules, attempts).avoid == ["n11", "n10", "n9", "n8", "n7", "n6", "n5", "n4"]
    assert decide(rules, attempts, hosts=4).avoid == ["n11"]
    assert decide(rules, attempts, hosts=30).avoid == ["n11", "n10", "n9"]
    attempts[-1].ended = 86400 + 9.5
    assert decide(rules, attempts).avoid == ["n11", "n10"]


def test_a_digest_is_of_the_place_and_the_words() -> None:
    """Numbers and addresses do not matter, the place does; silence has none."""
    one = Failure("ValueError: at 0x7f12", traceback='  File "a.py", line 3, in f\n    x\n')
    assert digest(one) == digest(Failure("ValueError: at 0x9", traceback='  File "a.py", line 3, in f\n    x = 1\n'))
    assert digest(one) != digest(Failure("ValueError: at 0x9", traceback='  File "a.py", line 4, in f\n'))
    assert not digest(Failure(exit_code=3))


def test_what_is_written_is_read() -> None:
    """Unknown keys, wrong types and lines cut off do no harm."""
    attempt = Attempt(started=1.5, ended=2.0, kind="oom", hosts=["n1"], again=True, memory=1.5, more={"a": [1]})
    line = to_line(attempt)
    assert read_attempts([line, line[:-9], "[]\n", '{"hosts": 3, "new": 1}\n']) == [attempt, Attempt()]


def test_a_backend_without_policies_refuses() -> None:
    """Before anything is submitted, with what works there."""
    app = AppDef("a", metadata={RETRY: "node:1"})
    with pytest.raises(NotSupportedError, match="`x` retries by count alone") as caught:
        policy_of(app, "x", Capabilities())
    assert "--max_retries" in (caught.value.hint or "")
    assert policy_of(AppDef("a"), "x", Capabilities()) is None
    assert str(policy_of(app, "x", Capabilities(retry_actions=("retry",)))) == "node:1"


@pytest.mark.parametrize("kind", sorted(set(CLASSES) - {"cancelled"}))
def test_a_policy_may_name_every_class(kind: str) -> None:
    """What a verdict may say of a failure is what a rule may be written for."""
    assert RetryRules.parse(f"{kind}:1").rule(kind).times == 1


def _pieces(*progress: bool, piece_s: float = 100.0) -> list[Attempt]:
    return [Attempt(1000.0 * k, 1000.0 * k + piece_s, kind="timeout", progress=p) for k, p in enumerate(progress, 1)]


def test_a_chain_ends_when_its_total_is_used() -> None:
    """Time between the pieces does not count."""
    rules = RetryRules.parse("standard, total:250s")
    assert decide(rules, _pieces(True, True)).again
    last = decide(rules, _pieces(True, True, True))
    assert (last.again, last.why) == (False, "timeout: the total of 250s is used")
    assert (last.used, last.total) == (300.0, 250.0)
    assert str(rules).endswith(", total:250s:2") and RetryRules.parse(str(rules)).total_s == 250
    assert rules.within(("retry",), "local_cwd").total == "250s"


def test_a_chain_ends_without_progress() -> None:
    """After two pieces, or as many as the user says; other failures between them do not count as pieces."""
    rules = RetryRules.parse("standard, total:5d")
    assert decide(rules, _pieces(True, False)).again
    ended = decide(rules, _pieces(True, False, False))
    assert not ended.again and ended.why.startswith("timeout: no progress in 2 pieces")
    assert decide(RetryRules.parse("standard, total:5d:3"), _pieces(True, False, False)).again
    many = RetryRules.parse(f"standard, total:5d:{MAX_IN_A_ROW + 5}")
    assert decide(many, _pieces(*[False] * (MAX_IN_A_ROW + 4))).again, "the number that the user says counts"
    assert "no progress in 25 pieces" in decide(many, _pieces(*[False] * (MAX_IN_A_ROW + 5))).why
    mixed = _pieces(True, False, False)
    mixed[-1].kind = "preempted"
    assert decide(rules, mixed).again


@pytest.mark.parametrize(
    ("policy", "why"),
    [
        ("standard, total:soon", "`soon` is not a length of time"),
        ("standard, total:5d:x", "`x` is not a number of pieces"),
        ("standard, total:5d:2:3", "`5d` is not a length of time"),
        ("error:1, total:5d", "needs a rule for `timeout`"),
        ("standard, timeout:0, total:5d", "needs a rule for `timeout`"),
    ],
)
def test_wrong_chains(policy: str, why: str) -> None:
    with pytest.raises(SpecError, match=why):
        RetryRules.parse(policy)


def test_a_chain_needs_pieces() -> None:
    """Shorter than the total."""
    metadata = {RETRY: "standard, total:1h"}
    for timeout in ({}, {"torchx/timeout": "1h"}):
        with pytest.raises(SpecError, match="needs the length of a piece"):
            Wishes.of(AppDef("a", metadata={**metadata, **timeout}))
    assert Wishes.of(AppDef("a", metadata={**metadata, "torchx/timeout": "10m"})).timeout_s == 600
