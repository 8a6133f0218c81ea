"""Sweeps: how they are submitted, and the view of a scheduler on one, or on one of its tasks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from torchx.schedulers.api import DescribeAppResponse, Scheduler
from torchx.schedulers.kit.views import View, by_view
from torchx.schedulers.local.managing import ManagesJobs
from torchx.specs.handles import JobId
from torchx.supervisor.reader import send_command

if TYPE_CHECKING:
    from torchx.schedulers.kit.logs import LogQuery
    from torchx.schedulers.kit.metrics import ReplicaMetrics
    from torchx.schedulers.kit.pace import Rank
    from torchx.schedulers.local.request import PopenRequest
    from torchx.specs.api import AppDryRunInfo
    from torchx.specs.tasks import TaskList

    _Answers = list[DescribeAppResponse]
    _Metrics = list[ReplicaMetrics]
    _Ranks = list[Rank]


class SpecialJobs(ManagesJobs):
    """The part of the backend that knows sweeps."""

    def view_of(self, app_id: str) -> ManagesJobs:
        named = JobId.of(app_id)
        job = self._known(named.job)
        if job is None or not job.is_sweep():
            return self
        view = SweepJobs.of(self)
        view.sweep, view.task = named.job, named.task
        return view

    def check_tasks(self, dryrun_info: AppDryRunInfo[PopenRequest], tasks: TaskList) -> None:  # noqa: ARG002  # the contract's signature
        from torchx.schedulers.kit.tasks import only_role

        only_role(dryrun_info._app, "local_cwd")

    def submit_tasks(self, dryrun_info: AppDryRunInfo[PopenRequest], tasks: TaskList) -> str:
        from torchx.schedulers.local.sweeps import submit

        return submit(self._jobs, dryrun_info, tasks)

    @by_view
    def describe_tasks(self, app_id: str, numbers: Sequence[int]) -> _Answers | None:  # noqa: ARG002
        """None: no sweep. The view describes its own."""
        return None

    def cancel_task(self, app_id: str, number: int) -> None:
        if (job := self._find(app_id)) is not None:
            send_command(job.folder, f"cancel {number}")


class SweepJobs(View, SpecialJobs):
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
