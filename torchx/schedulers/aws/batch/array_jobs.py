"""Array jobs: how sweeps are submitted, and the view of a scheduler on one."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from torchx.schedulers.api import DescribeAppResponse
from torchx.schedulers.aws.base import AwsScheduler
from torchx.schedulers.aws.batch import answers, sweeps
from torchx.schedulers.aws.batch.request import BatchJob
from torchx.schedulers.aws.batch.submission import SubmitsJobs
from torchx.schedulers.kit.logs import LogQuery
from torchx.schedulers.kit.tasks import check_numbers
from torchx.schedulers.kit.views import View
from torchx.specs.api import AppDryRunInfo
from torchx.specs.tasks import TaskList

if TYPE_CHECKING:
    from torchx.schedulers.kit.inside import InsideProcess, Tty

_Object = dict[str, Any]


class SpecialJobs(SubmitsJobs):
    """The part of the backend that knows array jobs. Arguments: see :class:`BatchJobs`."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self._arrays: dict[str, int] = {}  # app id -> number of tasks; 0: no array

    def view_of(self, app_id: str) -> AwsScheduler:
        if app_id not in self._arrays:
            self._look(app_id)
        return ArrayJobs.of(self) if self._arrays.get(app_id) else self

    def _find(self, app_ids: list[str]) -> dict[str, _Object]:
        found = super()._find(app_ids)
        self._arrays.update((a, answers.array_size(job)) for a, job in found.items())
        return found

    def _answer(self, app_id: str, job: _Object, *, detailed: bool) -> DescribeAppResponse:
        if answers.array_size(job):
            return sweeps.describe(self._client, app_id, job)
        return super()._answer(app_id, job, detailed=detailed)

    def _replicas(self, app_id: str, job: _Object) -> list[tuple[str, int]]:
        found = super()._replicas(app_id, job)
        return [(role, k) for role, _ in found for k in range(size)] if (size := answers.array_size(job)) else found

    def schedule(self, dryrun_info: AppDryRunInfo[BatchJob]) -> str:
        app_id = super().schedule(dryrun_info)
        self._arrays.setdefault(app_id, 0)
        return app_id

    def check_tasks(self, dryrun_info: AppDryRunInfo[BatchJob], tasks: TaskList) -> None:
        sweeps.check(dryrun_info.request, dryrun_info._app, tasks)

    def submit_tasks(self, dryrun_info: AppDryRunInfo[BatchJob], tasks: TaskList) -> str:
        info = copy.copy(dryrun_info)
        info.request = sweeps.with_values(info.request, tasks)
        self._arrays[self.submission_token(info)] = len(tasks.points)
        return self.schedule(info)

    def describe_tasks(self, app_id: str, numbers: Sequence[int]) -> list[DescribeAppResponse] | None:
        """Describe each task by itself: for Batch, the child of an array is a job like any other."""
        job = self._look(app_id)
        if job is None:
            return None
        check_numbers(app_id, numbers, answers.array_size(job))
        found = [self.describe(f"{app_id}/{k}") for k in numbers]
        return [answer for answer in found if answer is not None]

    def cancel_task(self, app_id: str, number: int) -> None:
        self._cancel_existing(f"{app_id}/{number}")


class ArrayJobs(View, SpecialJobs):
    """The view of a scheduler on an array job."""

    def open_logs(self, app_id: str, replicas: Sequence[tuple[str, int]], query: LogQuery) -> Sequence[Iterable[str]]:
        return [super(ArrayJobs, self).open_logs(f"{app_id}/{k}", [(r, 0)], query)[0] for r, k in replicas]

    def enter(self, app_id: str, role: str, k: int, argv: Sequence[str], tty: Tty | None = None) -> InsideProcess:
        return self._enter(self._look(f"{app_id}/{k}"), (app_id, role, k), argv, tty)
