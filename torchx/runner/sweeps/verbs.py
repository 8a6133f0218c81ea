"""The Runner's verbs for sweeps: one job that runs many times with different values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torchx.errors import NotFoundError
from torchx.runner.ground.registry import run_registry
from torchx.runner.watching.handling import Handles

if TYPE_CHECKING:
    from torchx.runner.sweeps.batch import Batch
    from torchx.runner.sweeps.sweeps import FailureGroup, SweepResults
    from torchx.specs.api import AppDef, AppDryRunInfo, CfgVal, Workspace
    from torchx.specs.tasks import TaskList, TaskTable
    from torchx.tracker.api import TrackerBase


class Sweeps(Handles):
    """Submits sweeps, retries their failed tasks, and reads their results."""

    def schedule_sweep(self, dryrun_info: AppDryRunInfo[Any], tasks: TaskList) -> str:
        """Submit a sweep, which runs a request of :meth:`dryrun` once per task, and return its app handle.

        Placeholders ``{name}`` in arguments and environment variables are replaced by the values of each task. The
        handle of task 17 is that of the sweep plus ``/17``; every verb accepts it.

        Args:
            tasks: the values of each task, and how many tasks may run at the same time.

        Raises:
            SpecError: a placeholder has no value, or there are no tasks.
            NotSupportedError: the scheduler cannot run the job as a sweep.
        """
        from torchx.runner.sweeps.sweeps import check_job, submitter

        scheduler = str(dryrun_info._scheduler)
        self.check_sweep(tasks)
        check_job(dryrun_info._app, tasks)
        backend = submitter(self._scheduler(scheduler), dryrun_info, tasks)
        return self._recorder.submit(dryrun_info, scheduler, backend, tasks)

    def run_many(
        self,
        apps: Sequence[AppDef],
        scheduler: str,
        cfg: Mapping[str, CfgVal] | None = None,
        workspace: Workspace | str | None = None,
        *,
        max_parallel: int = 0,
    ) -> Batch:
        """Submit several apps as one sweep. They may differ only in arguments and in values of environment variables.

        The sweep has the name of the first app.

        ``batch.as_completed()`` iterates over the results as tasks end; ``await batch`` returns all of them.

        Args:
            max_parallel: how many apps may run at the same time; 0: the scheduler decides.

        Raises:
            SpecError: ``apps`` is empty, or the apps differ in anything else.
            NotSupportedError: the scheduler cannot run these jobs as a sweep.
        """
        from torchx.runner.sweeps.batch import submit

        return submit(self, apps, scheduler, {"cfg": cfg, "workspace": workspace}, max_parallel)

    def check_sweep(self, tasks: TaskList, scheduler: str | None = None) -> None:
        """Validate the tasks of a sweep, before an image is built for it.

        Raises:
            SpecError: there are no tasks, or a value is invalid, or named like a credential.
            NotSupportedError: tasks are to share elements of an array, which ``scheduler`` cannot do.
        """
        from torchx.runner.sweeps import sweeps

        sweeps.check(tasks)
        if scheduler and tasks.pack > 1:
            sweeps.check_pack(self._scheduler(scheduler), scheduler, tasks)

    def retry_sweep(self, app_handle: str, *, max_parallel: int | None = None) -> tuple[AppDryRunInfo[Any], TaskList]:
        """Return a request and the tasks of a sweep that failed, were cancelled or lost, for :meth:`schedule_sweep`.

        Args:
            max_parallel: how many tasks may run at the same time; None: as in the original sweep.

        Raises:
            NotFoundError: there is no such sweep on record, all its tasks succeeded or run, or are unknown.
            ConfigError: a value is masked on record, and is not in the environment.
        """
        from torchx.runner.sweeps import sweeps

        run = self.recorded(app_handle)
        tasks = run_registry().tasks(run)
        if run is None or tasks is None:
            raise _no_sweep(app_handle)
        app, cfg, more = sweeps.again(run, tasks, self.status(app_handle), max_parallel)
        return self.dryrun(app, run.scheduler, cfg=cfg, parent_run_id=run.parent_run_id or None), more

    def sweep_failures(self, app_handle: str, table: TaskTable) -> list[FailureGroup]:
        """Group the failed tasks of a sweep by cause, most frequent cause first.

        Args:
            table: :attr:`AppStatus.tasks` of the sweep.
        """
        from torchx.runner.sweeps import sweeps

        _, backend, app_id = self._locate(app_handle)
        return sweeps.failures(backend, app_id, table)

    def sweep_results(self, app_handle: str, tracker: TrackerBase) -> SweepResults:
        """Return what the tasks of a sweep wrote to a tracker, with the values of each task.

        Raises:
            NotFoundError: there is no such sweep on record.
        """
        from torchx.runner.sweeps.sweeps import read_results

        found = read_results(self.resolve(app_handle), tracker)
        if found is None:
            raise _no_sweep(app_handle)
        return found


def _no_sweep(handle: str) -> NotFoundError:
    return NotFoundError(f"`{handle}` is not a sweep on record", hint="`torchx list` shows the runs on record")
