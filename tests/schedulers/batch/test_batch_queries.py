"""The cost of queries about many jobs, besides the commands."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from torchx.schedulers.api import DescribeAppResponse
from torchx.schedulers.batch import queries as batch_queries
from torchx.schedulers.batch.queries import JobQueries
from torchx.specs import AppState


class _Id(str):
    """An id that counts how often it is compared."""

    compared = 0
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        _Id.compared += 1
        return str.__eq__(self, other)


def test_ten_times_the_jobs_are_ten_times_the_work() -> None:
    """Polling the same jobs repeatedly takes linear time."""
    ids = [_Id(number) for number in range(1000)]
    queries = JobQueries()
    for _ in range(2):
        found = queries.of(
            [_Id(i) for i in ids],
            lambda asked: {i: DescribeAppResponse(i, AppState.PENDING) for i in asked},
            fresh_s=0,
            others=lambda _: [_Id(i) for i in ids],
        )
    assert len(found) == 1000
    assert _Id.compared < 50 * len(ids)


def test_a_slow_scheduler_is_asked_about_the_others_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop over jobs is recognised by the time from an answer to the next query, however slow the answers are."""
    clock, asked = [100.0], []
    monkeypatch.setattr(batch_queries, "time", SimpleNamespace(monotonic=lambda: clock[0]))

    def ask(ids: list[str]) -> dict[str, DescribeAppResponse | None]:
        clock[0] += 5
        asked.append(len(ids))
        return {i: DescribeAppResponse(i, AppState.PENDING) for i in ids}

    jobs = [str(number) for number in range(50)]
    queries = JobQueries()
    for job in jobs:
        queries.of([job], ask, fresh_s=0.5, others=lambda _: jobs)
    assert asked == [1, 50]
