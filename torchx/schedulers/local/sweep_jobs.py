"""The view of a scheduler on a sweep, or on one of its tasks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from torchx.schedulers.api import DescribeAppResponse, Scheduler
from torchx.schedulers.kit.views import View
from torchx.schedulers.local.managing import ManagesJobs

if TYPE_CHECKING:
    from torchx.schedulers.kit.logs import LogQuery
    from torchx.schedulers.kit.metrics import ReplicaMetrics
    from torchx.schedulers.kit.pace import Rank

    _Answers = list[DescribeAppResponse]
    _Metrics = list[ReplicaMetrics]
    _Ranks = list[Rank]


class SweepJobs(View, ManagesJobs):
    """The view of a scheduler on a sweep, or on one task of it."""

    sweep: str
    task: int | None

    def describe(self, app_id: str) -> DescribeAppResponse | None:
        if self.task is None:
            return super().describe(app_id)
        return next(iter(self.describe_tasks(self.sweep, [self.task]) or ()), None)

    def describe_tasks(self, app_id: str, numbers: Sequence[int]) -> _Answers | None:
        from torchx.schedulers.local.sweeps import describe_some

        job = self._find(self.sweep)
        state = job.read() if job else None
        return None if state is None else describe_some(state, app_id, numbers)

    def wait_for_end(self, app_id: str, timeout_s: float) -> None:
        if self.task is None:
            super().wait_for_end(app_id, timeout_s)
        elif (job := self._find(self.sweep)) is not None and (state := job.read()) is not None and not state.ended:
            Scheduler.wait_for_end(self, app_id, timeout_s)

    def open_logs(self, app_id: str, replicas: Sequence[tuple[str, int]], query: LogQuery) -> Sequence[Iterable[str]]:  # noqa: ARG002  # the contract's signature
        from torchx.schedulers.batch.logs import check_query
        from torchx.schedulers.local.logs import LogIterator

        check_query(query)
        job = self._need(self.sweep)
        logs = [(f"{self.sweep}/{k}", job.task_log(k)) for _, k in replicas]
        return [LogIterator(task, path, self, query.follow, query=query) for task, path in logs]

    def metrics(self, app_id: str) -> _Metrics | None:  # noqa: ARG002  # the contract's signature
        from torchx.schedulers.local import sweeps

        job = self._find(self.sweep)
        state = job.read() if job else None
        return None if job is None or state is None else sweeps.metrics(state, job.folder, self.task)

    def steps(self, app_id: str) -> _Ranks:  # noqa: ARG002  # the contract's signature
        """None: tasks report no steps."""
        return []
