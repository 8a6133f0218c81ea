"""What is known of jobs: many who wait for jobs at one cluster share their questions."""

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
_ROW_S = 0.5  # from an answer to the next question of one who asks about one job after the other


@dataclass(frozen=True)
class Known:
    """What a backend reports of one job.

    Attributes:
        facts: the verdict is drawn from them.
        folder: where its replicas left more; None where that is not known.
        answer: the verdict, where it has been drawn.
    """

    facts: JobFacts
    folder: JobFolder | None = None
    answer: DescribeAppResponse | None = None


class JobQueries:
    """Answers about jobs, which everybody who asks within a moment shares.

    Jobs that have not ended are watched for a minute after somebody asked for them: whenever any of them is asked
    about, the others are, too.
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
        """The jobs; None for those that nobody knows.

        Args:
            ask: answers for all of these jobs, by as few commands as possible.
            fresh_s: answers younger than this are used again, seconds.
            others: jobs that may well be asked about next, by these; who asks about one job after the other asks about
                all of them with the second.
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
        """Ask again for a job: something was done to it."""
        self._answers.pop(app_id, None)

    def running(self, app_ids: Iterable[str]) -> list[str]:
        """Those of these jobs that were running when they were asked about last."""
        found = ((i, self._answers.get(i, (0.0, None))[1]) for i in app_ids)
        return [i for i, answer in found if answer is not None and answer.state.name == "RUNNING"]

    def clear(self) -> None:
        """Forget all."""
        self._answers.clear()
        self._watched.clear()
