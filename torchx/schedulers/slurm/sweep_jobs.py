"""Jobs that are special: how sweeps are submitted, and which view shows a job."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from torchx.errors import CommandError, NotSupportedError, Unsent
from torchx.schedulers.api import DescribeAppResponse
from torchx.schedulers.batch.base import BatchScheduler
from torchx.schedulers.batch.folders import JobFolder
from torchx.schedulers.batch.sites import Site
from torchx.schedulers.kit.commands import Completed
from torchx.schedulers.kit.metrics import ReplicaMetrics, read_kept
from torchx.schedulers.kit.views import View, by_view
from torchx.schedulers.slurm import sweeps
from torchx.schedulers.slurm.allocations import STEP_ID, AllocatedJobs
from torchx.schedulers.slurm.ends import ReportsItsEnd
from torchx.schedulers.slurm.events import SWEEP_PREFIX
from torchx.schedulers.slurm.request import SlurmBatchRequest
from torchx.schedulers.slurm.scripts.jobs import ScriptJobs
from torchx.schedulers.slurm.sweeps import Sweep
from torchx.specs.api import AppDryRunInfo, is_terminal
from torchx.specs.handles import JobId
from torchx.specs.tasks import TaskList, replica_names, replica_of
from torchx.specs.wishes.scripts import is_script

if TYPE_CHECKING:
    from torchx.schedulers.kit.logs import LogQuery

_Replica = tuple[str, int]


class SpecialJobs(ReportsItsEnd):
    """The part of the backend that knows special jobs. Arguments: see :class:`BatchScheduler`."""

    def view_of(self, app_id: str) -> BatchScheduler:
        if (sweep := self._sweep(app_id)) is not None:
            view = SweepJobs.of(self)
            view.sweep, view.task = sweep, JobId.of(app_id).task
            return view
        if STEP_ID.fullmatch(app_id):
            return AllocatedJobs.of(self)
        folder = self._folder(app_id)
        return ScriptJobs.of(self) if folder is not None and is_script(folder.roles()) else self

    def check_tasks(self, dryrun_info: AppDryRunInfo[SlurmBatchRequest], tasks: TaskList) -> None:  # noqa: ARG002  # the contract's signature
        sweeps.check(dryrun_info.request, dryrun_info._app)

    def check_pack(self, dryrun_info: AppDryRunInfo[SlurmBatchRequest]) -> None:
        """See :class:`torchx.schedulers.kit.abilities.PacksTasks`."""
        if sweeps.is_whole(dryrun_info.request):
            raise NotSupportedError(
                "tasks with several replicas, or in containers, cannot share an element", hint="omit `--pack`"
            )

    def submit_tasks(self, dryrun_info: AppDryRunInfo[SlurmBatchRequest], tasks: TaskList) -> str:
        request = dryrun_info.request
        sweeps.check(request, dryrun_info._app)
        request.notify = False  # not for each task
        site = self._site_of(dryrun_info._cfg)
        self._ready = None  # it was rendered as a single job
        with Unsent():
            size = sweeps.most_tasks(functools.partial(self.run_command, site))
        while True:
            dryrun_info.request.arrays = sweeps.Arrays(tasks=tasks, size=size)  # of a copy without memory, if need be
            try:
                job_id = self.schedule(dryrun_info)
                break
            except CommandError as e:
                if size <= 1 or not sweeps.NO_ROOM.search(str(e)):
                    raise
                size = min(size, len(tasks.points)) // 2
        app_id = f"{SWEEP_PREFIX}{job_id}"
        folder = JobFolder(site.files, self.folders(site).place(request.name, request.job_dir))
        self._remember(app_id, site, folder.path)
        return app_id

    @by_view
    def describe_tasks(self, app_id: str, numbers: Sequence[int]) -> list[DescribeAppResponse] | None:  # noqa: ARG002
        """None: no sweep. The view describes its own."""
        return None

    @by_view
    def cancel_task(self, app_id: str, number: int) -> None:
        """Do nothing: no sweep."""

    def _query(
        self, site: Site, app_ids: list[str], folders: Mapping[str, JobFolder]
    ) -> dict[str, DescribeAppResponse]:
        jobs = {i: folders.get(i) for i in app_ids if not i.startswith(SWEEP_PREFIX)}
        answers = super()._query(site, [*jobs], {i: f for i, f in jobs.items() if f is not None}) if jobs else {}
        for app_id in app_ids:
            view = self.view_of(app_id) if app_id not in jobs else None
            if isinstance(view, SweepJobs) and (found := view.answer()) is not None:
                answers[app_id] = found
        return answers


class SweepJobs(View, BatchScheduler):
    """The view of a scheduler on one sweep, or on one task of it."""

    sweep: Sweep
    task: int | None

    def answer(self) -> DescribeAppResponse | None:
        """Return what became of the sweep, or of the task."""
        if self.task is None:
            return self.sweep.describe()
        return next(iter(self.describe_tasks(self.sweep.app_id, [self.task]) or ()), None)

    def describe_tasks(self, app_id: str, numbers: Sequence[int]) -> list[DescribeAppResponse] | None:
        found = self.describe(self.sweep.app_id)
        if found is None or found.tasks is None:
            return None
        answers = self.sweep.describe_some(found.tasks, numbers)
        wholes = {k: self.sweep.element(k) for k in numbers} if self.sweep.is_whole() else {}
        if wholes:
            folders = {job: self.sweep.task_folder(k) for k, job in wholes.items()}
            jobs = self._query(self._site(app_id), [*folders], folders)
            for i, k in enumerate(numbers):
                job = jobs.get(wholes[k])
                if job is not None and job.state is found.tasks.states[k]:
                    job.app_id = answers[i].app_id
                    answers[i] = job
        return answers

    def cancel_task(self, app_id: str, number: int) -> None:
        table = self.sweep.look()
        if table is not None and not is_terminal(table.states[number]):
            self._cancelled(app_id, self.sweep.cancel_task(number))

    def _cancel_existing(self, app_id: str) -> None:
        found = self.describe(app_id)
        if found is None or found.tasks is None or not all(map(is_terminal, found.tasks.states)):
            self._cancelled(app_id, self.sweep.cancel())

    def _cancelled(self, app_id: str, done: Completed | None) -> None:
        self._queries.forget(app_id)
        if done is not None:
            self._accept_cancel(done)

    def log_replicas(self, app_id: str) -> list[_Replica] | None:  # noqa: ARG002  # the contract's signature
        return replica_names(self.sweep.folder.roles(), self.sweep.count) if self.sweep.count else None

    def open_logs(self, app_id: str, replicas: Sequence[_Replica], query: LogQuery) -> Sequence[Iterable[str]]:
        if not self.sweep.is_whole():
            over = [functools.partial(self._is_over, app_id, k) for _, k in replicas]
            return [self.sweep.open_log(*at, query, is_over) for at, is_over in zip(replicas, over, strict=True)]
        roles = self.sweep.folder.roles()
        wanted = [replica_of(roles, replica) for replica in replicas]
        return [super(SweepJobs, self).open_logs(f"{app_id}/{k}", [r], query)[0] for k, r in wanted]

    def _folder(self, app_id: str) -> JobFolder:
        task = JobId.of(app_id).task
        return self.sweep.folder if task is None else self.sweep.task_folder(task)

    def _log_folder(self, site: Site, app_id: str) -> JobFolder:  # noqa: ARG002  # the scheduler's
        return self._folder(app_id)

    def _place_of(self, site: Site, app_id: str, role: str, k: int) -> tuple[str, str, str, int | None]:  # noqa: ARG002  # the scheduler's
        from torchx.schedulers.slurm.inside import of_task

        return *of_task(self.sweep, functools.partial(self.run_command, site), self.task, role, k), None

    def metrics(self, app_id: str) -> list[ReplicaMetrics] | None:
        if self.task is None:  # too many files to read
            return []
        if self.sweep.is_whole():
            return super().metrics(app_id)  # type: ignore[no-any-return,misc]  # the scheduler's
        role = next(role.name for role in self.sweep.folder.roles())
        path = self.sweep.log_path(role, self.task).stdout.removesuffix(".log")
        return read_kept(self._site(app_id).files, {(role, self.task): f"{path}.jsonl"})
