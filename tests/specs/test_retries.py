"""Retry policies: syntax, meaning and errors."""

from __future__ import annotations

import pytest

from torchx.errors import SpecError
from torchx.specs.wishes.retries import FREE, STANDARD, RetryRule, RetryRules


def test_a_policy_is_read_as_it_is_written() -> None:
    """Each rule has a class, a number and actions; blanks are ignored; `preempt` means `preempted`."""
    rules = RetryRules.parse("preempt:free,node:5:avoid , oom:2:mem*1.5, timeout:free:checkpoint")
    assert rules.rule("preempted") == RetryRule("preempted", FREE)
    assert rules.rule("node") == RetryRule("node", 5, avoid=True)
    assert rules.rule("oom") == RetryRule("oom", 2, memory=1.5)
    assert rules.rule("timeout") == RetryRule("timeout", FREE, checkpoint=True)
    assert rules.rule("error").times == 0
    assert str(rules) == "preempted:free, node:5:avoid, oom:2:mem*1.5, timeout:free:checkpoint"


def test_standard_can_be_changed() -> None:
    """A rule after `standard` replaces the standard rule of its class; the others are kept."""
    rules = RetryRules.parse("standard, error:1, node:0")
    assert (rules.rule("error").times, rules.rule("node").times, rules.rule("network").times) == (1, 0, 3)
    assert str(RetryRules.parse("standard")) == STANDARD


@pytest.mark.parametrize(
    ("text", "said", "hint"),
    [
        ("", "there is no class ``", "the classes are"),
        ("nod:3", "there is no class `nod`", "node"),
        ("node", "has no valid number of retries", "node:3"),
        ("node:", "has no valid number of retries", "node:3"),
        ("node:-1", "has no valid number of retries", "node:free"),
        ("node:1001", "has no valid number of retries", "at most 1000"),
        ("node:²", "has no valid number of retries", "node:3"),
        ("oom:2:mem*0.5", "there is no action `mem*0.5`", "factor above 1"),
        ("oom:2:mem*11", "there is no action `mem*11`", "up to 10"),
        ("oom:2:reboot", "there is no action `reboot`", "checkpoint"),
        ("cancelled:3", "cancelled", "omit it"),
        ("node:1, node:2", "`node` has two rules", "one of them"),
        ("error:1, standard", "`standard` is not the first word", "standard, error:1"),
    ],
)
def test_what_is_refused(text: str, said: str, hint: str) -> None:
    """The error is one line with the rule and the reason; the hint shows the correct form."""
    with pytest.raises(SpecError) as caught:
        RetryRules.parse(text)
    assert said in str(caught.value)
    assert hint in (caught.value.hint or "")


def test_what_a_backend_cannot_do() -> None:
    """Unsupported actions of `standard` are dropped; explicit ones raise an error with an alternative."""
    kept = RetryRules.parse("standard").within(("mem",), "b")
    assert (kept.rule("oom").memory, kept.rule("node").avoid, kept.rule("timeout").checkpoint) == (1.5, False, False)
    with pytest.raises(SpecError, match="`b` cannot keep `node:5:avoid`") as caught:
        RetryRules.parse("standard, node:5:avoid").within(("mem",), "b")
    assert "`node:5`" in (caught.value.hint or "")


def test_a_policy_is_read_once() -> None:
    """The parsed policy is cached, because a dry run needs it several times."""
    assert RetryRules.parse("standard, error:1") is RetryRules.parse("standard, error:1")
