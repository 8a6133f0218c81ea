"""Copying logs to a file in the background."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable

import pytest

from torchx.schedulers.kit.logs import LogQuery
from torchx.specs import AppState, AppStatus
from torchx.util.log_tee_helpers import replica_formats, tee_logs, wait_until_started


class Runner:
    """A fake Runner with a job of two replicas that is queued for a while."""

    def __init__(self, *states: AppState, error: Exception | None = None) -> None:
        self.states = list(states)
        self.error = error
        self.asked: list[tuple[list[tuple[str, int]], LogQuery]] = []

    def status(self, app_handle: str) -> AppStatus | None:
        return AppStatus(self.states.pop(0) if len(self.states) > 1 else self.states[0])

    def log_replicas(self, app_handle: str) -> list[tuple[str, int]]:
        return [("a", 0), ("a", 1)]

    def open_logs(self, app_handle: str, replicas: list[tuple[str, int]], query: LogQuery) -> list[Iterable[str]]:
        self.asked.append((replicas, query))
        if self.error:
            raise self.error
        return [[f"line {i}\n" for i in range(2)] for _ in replicas]


@pytest.mark.parametrize("should_tail", [False, True])
def test_all_replicas_are_copied(should_tail: bool) -> None:
    """The thread ends with the logs; all lines are copied with their replica, and the query is passed on."""
    file, runner = io.StringIO(), Runner(AppState.PENDING, AppState.RUNNING)
    thread = tee_logs(file, "x://s/app", "re", runner, should_tail=should_tail)
    thread.join(300)
    assert sorted(file.getvalue().splitlines()) == ["a/0 line 0", "a/0 line 1", "a/1 line 0", "a/1 line 1"]
    assert runner.asked == [([("a", 0), ("a", 1)], LogQuery(regex=re.compile("re"), follow=should_tail))]
    assert thread.error is None


def test_an_error_is_kept() -> None:
    """An error is available after the end; the thread prints nothing."""
    error = ValueError("no logs")
    thread = tee_logs(io.StringIO(), "x://s/app", None, Runner(AppState.SUCCEEDED, error=error))
    thread.join(300)
    assert thread.error is error


def test_colors() -> None:
    """Neighbouring replicas have different colours; without colours, names are plain."""
    formats = replica_formats([("a", 0), ("a", 1)], color=True)
    assert formats["a", 0].prefix != formats["a", 1].prefix.replace("a/1", "a/0")
    assert replica_formats([("a", 0)])["a", 0].prefix == "a/0 "


@pytest.mark.parametrize("last", [AppState.RUNNING, AppState.SUCCEEDED, AppState.CANCELLED], ids=str)
def test_waiting_for_the_start(last: AppState) -> None:
    """It returns when the job runs or has ended."""
    runner = Runner(AppState.SUBMITTED, AppState.PENDING, AppState.UNKNOWN, last)
    assert wait_until_started(runner, "x://s/app", first_s=0).state == last
