"""The logs of a job: the last lines of each replica, its colour, and when they are opened."""

from __future__ import annotations

import io
import re
from typing import Any

import pytest

from torchx.runner.watching import tee
from torchx.schedulers.kit.logs import LogQuery
from torchx.specs import AppState, AppStatus


class Lines:
    """A source that can find its own end."""

    def __init__(self, *lines: str) -> None:
        self.lines = lines

    def __iter__(self) -> Any:
        return iter(self.lines)

    def last(self, count: int) -> list[str]:
        return [f"last {count}"]


class LogRunner:
    def __init__(self, *sources: Any) -> None:
        self.sources = sources
        self.asked: list[LogQuery] = []

    def open_logs(self, handle: str, replicas: Any, query: LogQuery) -> Any:
        self.asked.append(query)
        return self.sources


def _query(last: int | None, follow: bool) -> LogQuery:
    return LogQuery(regex=re.compile("x"), follow=follow, last=last)


@pytest.mark.parametrize(
    ("last", "follow", "opened", "asked"),
    [
        (None, False, [["a", "b", "c"], ["own"]], 1),
        (2, False, [["b", "c"], ["last 2"]], 1),
        (9, False, [["a", "b", "c"], ["last 9"]], 1),
        (2, True, [["b", "c"], ["last 2"]], 2),
        (9, True, [["a", "b", "c"], ["last 9"]], 2),
    ],
)
def test_the_last_lines(last, follow, opened, asked) -> None:
    """A source finds its own last lines if it can; else lines are counted, before they are followed."""
    runner = LogRunner(["a", "b", "c"], Lines("own"))
    found = tee.log_openers(runner, "h", [("r", 0), ("r", 1)], _query(last, follow))
    assert [list(open_it()) for open_it in found] == opened
    assert [query.follow for query in runner.asked] == [follow, False][:asked]
    assert runner.asked[-1].regex is runner.asked[0].regex


def test_sources_that_find_their_end_are_opened_once() -> None:
    """Also when they are followed."""
    runner = LogRunner(Lines("a"))
    tee.log_openers(runner, "h", [("r", 0)], _query(2, True))
    assert len(runner.asked) == 1


def test_colours_go_round() -> None:
    """The ninth replica has the colour of the first."""
    formats = tee.replica_formats([("a", k) for k in range(9)], color=True)
    assert formats["a", 8].prefix == formats["a", 0].prefix.replace("a/0", "a/8")
    assert len({formats["a", k].prefix.partition("a/")[0] for k in range(8)}) == 8


def test_a_tee_waits_for_the_job_and_ends_with_the_program() -> None:
    """Logs are opened once the job runs; the thread does not keep the program from exiting."""
    order: list[str] = []

    class Runner(LogRunner):
        def status(self, handle: str) -> AppStatus:
            order.append("status")
            return AppStatus(AppState.RUNNING)

        def log_replicas(self, handle: str) -> list[tuple[str, int]]:
            order.append("replicas")
            return [("r", 0)]

    file = io.StringIO()
    thread = tee.tee_logs(file, "h", None, Runner(["a\n"]))
    thread.join(60)
    assert thread.daemon
    assert (order, file.getvalue()) == (["status", "replicas"], "r/0 a\n")
