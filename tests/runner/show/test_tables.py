"""Timelines of runs: bars of attempts and replicas."""

from __future__ import annotations

from typing import Any

from torchx.runner.show.tables import replica_metrics, timeline
from torchx.schedulers.kit.metrics import ReplicaMetrics, Sample
from torchx.specs.api import AppState, AppStatus, ReplicaStatus, RoleStatus
from torchx.specs.wishes.retries import Attempt


def _replica(k: int, begin: float | None, end: float | None = None, state: str = "RUNNING") -> ReplicaStatus:
    return ReplicaStatus(k, AppState[state], "a-b", f"node{k}", started_at=begin, ended_at=end)


def _bars(status: AppStatus, launched: float | None = 0.0) -> list[tuple[Any, ...]]:
    return [(bar["name"], bar["from"], bar["to"], bar["text"]) for bar in timeline(status, launched)["bars"]]


def test_replicas_of_a_gang_are_one_bar() -> None:
    """Adjacent replicas that began and ended together; one that ended early has its own bar, a waiting one has none."""
    together = [_replica(k, 10.0 + k / 100, 1010.0) for k in range(3)]
    others = [_replica(3, 10.0, 400.0, "FAILED"), _replica(4, 10.0, 1009.0), _replica(5, None)]
    status = AppStatus(AppState.FAILED, roles=[RoleStatus("a-b", [*together, *others])])
    shown = timeline(status, 5.0)
    assert (shown["from"], shown["to"]) == (5.0, 1010.0)
    assert _bars(status) == [
        ("a-b/0-2", 10.0, 1010.0, "3 replicas"),
        ("a-b/3", 10.0, 400.0, "node3"),
        ("a-b/4", 10.0, 1009.0, "node4"),
    ]


def test_a_gang_that_runs_is_one_bar() -> None:
    """The tolerance depends on the time since the start, not on how long replicas took to start."""
    roles = [RoleStatus("a-b", [_replica(k, 10.0 + k) for k in range(24)])]
    assert _bars(AppStatus(AppState.RUNNING, roles=roles)) == [("a-b/0-23", 10.0, None, "24 replicas")]


def test_attempts_come_first() -> None:
    """Each with its cause and the decision; a running one has no end."""
    attempts = [Attempt(1.0, 5.0, "oom", "out of memory", why="more memory")]
    status = AppStatus(AppState.RUNNING, roles=[RoleStatus("a-b", [_replica(0, 6.0)])], attempts=attempts)
    assert _bars(status) == [
        ("attempt 1", 1.0, 5.0, "oom · out of memory · more memory"),
        ("a-b/0", 6.0, None, "node0"),
    ]
    assert timeline(status, None)["to"] is None
    piece = Attempt(1.0, 5.0, "timeout", total=90.0)
    bar = timeline(AppStatus(AppState.RUNNING, attempts=[piece]), None)["bars"][0]
    assert (bar["name"], bar["state"]) == ("piece 1", "CANCELLED"), "a piece of a chain that ended as planned"
    assert timeline(AppStatus(AppState.PENDING), None) == {"from": 0.0, "to": None, "bars": []}


def test_what_was_seen_is_kept() -> None:
    """If the scheduler reports only the current sample; if it reports all samples, these are used."""
    seen = replica_metrics([ReplicaMetrics("a", 0, samples=[Sample(1.0, None, 7)])], {})
    seen = replica_metrics([ReplicaMetrics("a", 0, samples=[Sample(2.0, None, 8)])], seen)
    assert [sample.at for sample in seen["a", 0].samples] == [1.0, 2.0]
    seen = replica_metrics([ReplicaMetrics("a", 0, samples=[Sample(2.0, None, 8), Sample(3.0, None, 9)])], seen)
    assert [sample.at for sample in seen["a", 0].samples] == [2.0, 3.0]
