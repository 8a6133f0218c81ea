"""Sweeps: how they are submitted, and the view of one task. The tasks of a sweep are the replicas of one job."""

from __future__ import annotations

import copy
import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING

from torchx.errors import Unsent
from torchx.schedulers.api import DescribeAppResponse
from torchx.schedulers.batch.base import BatchScheduler
from torchx.schedulers.kit.tasks import as_replicas
from torchx.schedulers.kit.views import View
from torchx.schedulers.lsf import sweeps
from torchx.schedulers.lsf.request import LsfBsub
from torchx.schedulers.lsf.submission import SubmitsJobs
from torchx.specs.api import AppDryRunInfo, is_terminal
from torchx.specs.handles import JobId
from torchx.specs.tasks import TaskList
from torchx.util.records import replace

if TYPE_CHECKING:
    from torchx.schedulers.kit.inside import InsideProcess, Tty


class SpecialJobs(SubmitsJobs):
    """The part of the backend that knows special jobs. Arguments: see :class:`BatchScheduler`."""

    def view_of(self, app_id: str) -> BatchScheduler:
        return self if JobId.of(app_id).task is None else TaskJob.of(self)

    def check_tasks(self, dryrun_info: AppDryRunInfo[LsfBsub], tasks: TaskList) -> None:  # noqa: ARG002  # the contract's signature
        sweeps.check(dryrun_info._app, dryrun_info.request.cfg)

    def check_pack(self, dryrun_info: AppDryRunInfo[LsfBsub]) -> None:
        """See :class:`torchx.schedulers.kit.abilities.PacksTasks`. All tasks of an array can share an element."""

    def submit_tasks(self, dryrun_info: AppDryRunInfo[LsfBsub], tasks: TaskList) -> str:
        info = copy.copy(dryrun_info)
        run = functools.partial(self.run_command, self._site_of(info._cfg))
        with Unsent():
            size = sweeps.most_tasks(run)
        info.request = replace(info.request, arrays=sweeps.Arrays(tasks=tasks, size=size))
        info._app = as_replicas(info.request.app, tasks)
        return self.schedule(info)

    def describe_tasks(self, app_id: str, numbers: Sequence[int]) -> list[DescribeAppResponse] | None:
        known = self._known(app_id)
        if known is None or known.answer is None or known.folder is None:
            return None
        return sweeps.describe_some(known.facts, numbers, functools.partial(self._look, known.folder))

    def cancel_task(self, app_id: str, number: int) -> None:
        site, folder = self._site(app_id), self._folder(app_id)
        if folder is not None and sweeps.size_of(folder.text(sweeps.SWEEP_FILE))[2] > 1:
            known = self._known(app_id)
            if known is None or not is_terminal(known.facts.replicas()[number].state):
                folder.files.write(folder.file(f"{sweeps.SKIPPED}{number}"), b"")  # its element sees it, and goes on
                self._queries.forget(app_id)
        elif row := next((row for row in self._bjobs(site, [app_id]) if row.k == number), None):
            self._accept_cancel(self.run_command(site, ["bkill", row.jobid]))
            self._queries.forget(app_id)


class TaskJob(View, BatchScheduler):
    """The view of a scheduler on one task: a replica of its sweep."""

    def enter(self, app_id: str, role: str, k: int, argv: Sequence[str], tty: Tty | None = None) -> InsideProcess:  # noqa: ARG002  # the scheduler's
        sweep, task = JobId.of(app_id).job, JobId.of(app_id).task
        found: InsideProcess = super().enter(sweep, role, task, argv, tty)  # type: ignore[misc]  # the scheduler's
        return found
