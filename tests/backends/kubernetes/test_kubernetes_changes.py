"""Whoever polls hears of changes by a watch of jobs, and one of their pods, on a real API server."""

from __future__ import annotations

from collections.abc import Callable

from tests.backends.kubernetes.jobs import Gate, Jobs, audited
from torchx.schedulers.kit.abilities import PushesChanges
from torchx.specs import AppState

Eventually = Callable[..., object]


def test_the_job_that_ends_is_heard_of(jobs: Jobs, gate: Gate, eventually: Eventually) -> None:
    """That one alone, of two that run; however often one listens, no list is asked for in between, and two watches last."""
    ends, stays = (jobs.run(jobs.role(gate.wait(name), mounts=[gate.mount])) for name in ("ends", "stays"))
    for app_id in (ends, stays):
        jobs.until(app_id, lambda found: found.state is AppState.RUNNING)
    ids, backend = [ends, stays], jobs.scheduler
    assert isinstance(backend, PushesChanges)
    eventually(lambda: backend.changed(ids, 5.0) == set(), timeout_s=120)  # all that there is comes first
    with audited(jobs.namespace) as audit:
        gate.open("ends")
        heard: set[str] = set()
        eventually(lambda: heard.update(backend.changed(ids, 5.0) or ()) or heard, timeout_s=120)
        calls = audit.verbs()
    assert heard == {ends}
    assert ("list" in calls, calls.count("watch") <= 2) == (False, True)
    assert jobs.until(ends).state is AppState.SUCCEEDED
    gate.open("stays")
    jobs.until(stays)
