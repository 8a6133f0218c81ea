"""A cache of answers about jobs: callers that wait for jobs at one cluster share their queries."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from torchx.specs.api import is_terminal
from torchx.util.records import dataclass

if TYPE_CHECKING:
    from torchx.schedulers.api import DescribeAppResponse
    from torchx.schedulers.batch.folders import JobFolder
    from torchx.schedulers.kit.facts import JobFacts

    Answers = dict[str, DescribeAppResponse | None]

_WATCHED_S = 60.0
_ROW_S = 0.5  # between two queries of a caller that loops over jobs


@dataclass(frozen=True)
class Known:
    """Facts that a backend reports about one job.

    Attributes:
        facts: the input of the verdict.
        folder: where its replicas left more evidence; None: unknown.
        answer: the verdict, if it exists already.
    """

    facts: JobFacts
    folder: JobFolder | None = None
    answer: DescribeAppResponse | None = None


class JobQueries:
    """Cached answers about jobs.

    A job that has not ended is watched for a minute after a query: each query for any job covers all watched ones.
    """

    def __init__(self) -> None:
        self._answers: dict[str, tuple[float, DescribeAppResponse | None]] = {}
        self._watched: dict[str, float] = {}
        self._asked = -_ROW_S

    def of(
        self,
        app_ids: Iterable[str],
        ask: Callable[[list[str]], Answers],
        *,
        fresh_s: float,
        others: Callable[[list[str]], Iterable[str]] = lambda _: (),
    ) -> Answers:
        """Return the answers for these jobs, none of them older than ``fresh_s``; None for unknown ones.

        ``others`` are likely to be queried next: a caller that loops over jobs queries all of them with the second one.
        """
        wanted = dict.fromkeys(app_ids)
        now = time.monotonic()
        missing = [i for i in wanted if i not in self._answers or now - self._answers[i][0] >= fresh_s]
        if missing:
            also = [i for i, until in self._watched.items() if until > now and i not in wanted]
            if now - self._asked < _ROW_S:
                also += [i for i in others(missing) if i not in self._watched and i not in wanted]
            found, self._asked = ask([*missing, *also]), time.monotonic()
            self._answers.update({i: (self._asked, found.get(i)) for i in (*missing, *also)})
        answers = {app_id: self._answers[app_id][1] for app_id in wanted}
        for app_id, answer in answers.items():
            if answer is not None and not is_terminal(answer.state):
                self._watched[app_id] = now + _WATCHED_S
            else:
                self._watched.pop(app_id, None)
        return answers

    def forget(self, app_id: str) -> None:
        """Drop the answer for a job, because its state was changed."""
        self._answers.pop(app_id, None)

    def running(self, app_ids: Iterable[str]) -> list[str]:
        """Those of these jobs that were running according to the last answer."""
        found = ((i, self._answers.get(i, (0.0, None))[1]) for i in app_ids)
        return [i for i, answer in found if answer is not None and answer.state.name == "RUNNING"]

    def clear(self) -> None:
        """Drop everything."""
        self._answers.clear()
        self._watched.clear()
