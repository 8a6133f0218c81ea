"""How often a cluster is polled on behalf of the followers of a job."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from torchx.schedulers.kubernetes import logs


@pytest.mark.parametrize(
    ("took", "next_after"),
    [
        (0.01, 1),
        (0.5, 5),  # a large job
        (600, 615),  # the cluster was away, or we were stopped: nobody is blind for hours after it
    ],
)
def test_a_look_that_takes_long_is_taken_less_often_but_is_taken(monkeypatch, took, next_after):
    """Slow polls are less frequent; in between, all followers get the last result."""
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(logs, "time", SimpleNamespace(monotonic=lambda: clock.now))
    looks = []

    def look():
        clock.now += took
        looks.append(clock.now)
        return logs.Snapshot([])

    poller = logs.JobPoller(look)
    poller.now()
    clock.now = 1000 + next_after - 0.001
    poller.now()
    assert len(looks) == 1
    clock.now = 1000 + next_after
    poller.now()
    assert len(looks) == 2


def test_what_is_read_to_its_end_is_looked_at_once():
    """One poll is sufficient, whatever the duration and the number of replicas."""
    looks = []
    poller = logs.JobPoller(lambda: looks.append(1) or logs.Snapshot([]), once=True)
    assert poller.now() is poller.now()
    assert len(looks) == 1
