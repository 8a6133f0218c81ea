"""What a system with one counter can keep of a policy: never more retries than asked for, and a refusal that helps."""

from __future__ import annotations

import itertools

import pytest

from torchx.errors import SpecError
from torchx.schedulers.kit.caps import Capabilities
from torchx.schedulers.kit.native_retries import NativeSystem
from torchx.specs.api import AppDef
from torchx.specs.wishes.retries import FREE, RETRY, RetryRules

TAKEN = ("preempted", "node")
CLUSTER = NativeSystem(name="kubernetes", groups=[TAKEN, ("oom",), ("error",)], uncounted=TAKEN, most=20)
QUEUE = NativeSystem(name="aws_batch", groups=[TAKEN, ("image",), ("oom",), ("error",)], most=9, free=False)


def kept(system, text):
    found = system.keep(RetryRules.parse(text).within((), system.name))
    return found.times, sorted(found.retried)


@pytest.mark.parametrize(
    ("system", "text", "times", "retried"),
    [
        (CLUSTER, "standard", 2, ["node", "oom", "preempted"]),
        (CLUSTER, "preempted:free", 0, ["node", "preempted"]),
        (CLUSTER, "standard, error:1", 1, ["error", "node", "oom", "preempted"]),
        (CLUSTER, "standard, error:5", 5, ["error", "node", "preempted"]),
        (CLUSTER, "error:free", 20, ["error"]),
        (CLUSTER, "node:0", 0, []),
        (CLUSTER, "network:0, oom:3", 3, ["oom"]),
        (QUEUE, "standard", 9, ["node", "preempted"]),
        (QUEUE, "standard, preempted:2", 2, ["node", "oom", "preempted"]),
        (QUEUE, "image:3", 3, ["image"]),
    ],
)
def test_what_is_kept(system, text, times, retried):
    """What is written out exactly, of `standard` as much as fits beside it."""
    assert kept(system, text) == (times, retried)


@pytest.mark.parametrize(
    ("system", "text", "what", "works"),
    [
        (CLUSTER, "network:3", "network:3", "`oom`, `error`"),
        (CLUSTER, "node:5", "node:5", "`node:free`"),
        (CLUSTER, "oom:2, error:1", "oom:2, error:1", "counts all failures together"),
        (CLUSTER, "error:30", "error:30", "`error:20`"),
        (CLUSTER, "preempted:free, node:0", "preempted:free, node:0", "look alike"),
        (QUEUE, "preempted:free", "preempted:free", "`preempted:9`"),
        (QUEUE, "timeout:1", "timeout:1", "`image`"),
    ],
)
def test_what_is_refused(system, text, what, works):
    """By name, with what would work."""
    with pytest.raises(SpecError) as error:
        kept(system, text)
    assert f"`{system.name}` cannot keep `{what}`" in str(error.value)
    assert works in error.value.hint


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        ("standard", ["the retry policy: `aws_batch` does not retry oom, timeout, network, unknown"]),
        (
            "standard, oom:2, preempted:0, node:0",
            ["the retry policy: `aws_batch` does not retry timeout, network, unknown"],
        ),
        ("oom:2", []),
    ],
)
def test_what_is_left_out_is_said(policy, said, caplog):
    """Of `standard`; what is written out is kept or refused."""
    app = AppDef("a", metadata={RETRY: policy})
    with caplog.at_level("WARNING", logger="torchx.schedulers"):
        QUEUE.policy(app, Capabilities(retry_actions=("retry",)))
    assert [record.getMessage() for record in caplog.records] == said


@pytest.mark.parametrize("system", [CLUSTER, QUEUE], ids=["cluster", "queue"])
def test_no_class_is_retried_more_often_than_asked(system):
    """Over all policies of three rules: no class without a rule (or one that looks like it) is retried, none too often."""
    words = [
        "preempted:free",
        "preempted:3",
        "node:free",
        "node:0",
        "oom:2",
        "oom:0",
        "error:1",
        "error:2",
        "network:3",
    ]
    for start in ([], ["standard"]):
        for chosen in itertools.combinations(words, 3 - len(start)):
            try:
                rules = RetryRules.parse(", ".join([*start, *chosen])).within((), system.name)
                found = system.keep(rules)
            except SpecError:
                continue
            for group in system.groups:
                asked = [rules.rule(kind).times for kind in group]
                most = system.most if FREE in asked else max(asked)
                assert not found.retried.intersection(group) or most, chosen
                if found.retried.intersection(group) and group[0] not in system.uncounted:
                    assert found.times <= most, chosen
