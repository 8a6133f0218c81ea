"""The Runner's verbs about many runs, and those that look into one: a line or two here, a room of its own behind each.

Nothing else is imported at the top: a verb imports its room when it is called.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from torchx.config import SourcedCfg
from torchx.errors import NotFoundError, SpecError
from torchx.runner.core import RunnerCore
from torchx.runner.events import log_event
from torchx.runner.record import run_registry, tell
from torchx.runner.wait import is_read
from torchx.settings import SAMPLE_S
from torchx.specs.api import AppDef, AppDryRunInfo, AppStatus, CfgVal, Workspace

if TYPE_CHECKING:
    from torchx.runner.aio import AsyncRunner
    from torchx.runner.batch import Batch
    from torchx.runner.capsule.differences import Comparison
    from torchx.runner.capsule.rerun import Plan, Rerun
    from torchx.runner.changes import News, Watch
    from torchx.runner.copy import Copied
    from torchx.runner.forward import Forwarding
    from torchx.runner.inside import Ran
    from torchx.runner.sweeps import FailureGroup, SweepResults
    from torchx.runs import Run
    from torchx.schedulers.api import Scheduler
    from torchx.schedulers.findings import Finding
    from torchx.schedulers.inside import InsideProcess, Tty
    from torchx.schedulers.kit.export import Export
    from torchx.schedulers.kit.simulations import Simulation
    from torchx.schedulers.metrics import ReplicaMetrics
    from torchx.schedulers.stacks import Stacks
    from torchx.specs.tasks import TaskList, TaskTable
    from torchx.tracker.api import TrackerBase


class RunnerVerbs(RunnerCore):
    """What :class:`torchx.runner.api.Runner` can do beyond submitting a job and looking at it."""

    _aio: AsyncRunner | None = None

    def watch(self, *app_handles: str, mine: bool = False, tasks: bool = False) -> Watch:
        """Each change of these jobs, or of all runs on record and to come: ``for``, or ``async for``, ``change in`` it.

        The first ones say how the runs are now. It is over when all of the named jobs have ended. However many
        processes of this machine watch, each scheduler is asked by one of them.

        Args:
            mine: without names: only runs of the current user, where several people share the record.
            tasks: also each change of a task of the named sweeps; its handle is the sweep's and ``/17``.

        Raises:
            NotFoundError: a job is not on record.
        """
        from torchx.runner.changes import TaskChanges, Watch

        self._recorder.settle_intents(self._scheduler)
        handles = [self.resolve(reference) for reference in app_handles] or None
        looks = TaskChanges(self.status, handles) if tasks and handles else None
        return Watch(run_registry(), self._backends, handles, mine=mine, tasks=looks)

    def wait(self, app_handle: str, wait_interval: float = 10, timeout: float | None = None) -> AppStatus | None:
        """Waits until the job has ended, or is gone; bears an outage of ten minutes. None when nobody knows the job.

        Args:
            wait_interval: seconds between two looks, at most. The first ones follow one another more quickly. Of jobs
                on clusters the record is read, as :meth:`watch` does, however many wait.
            timeout: seconds to wait for at most; None: for ever.

        Raises:
            WaitTimeoutError: the job has not ended in time; it is a ``TimeoutError``.
        """
        with log_event("wait") as event:
            handle, backend, app_id = self._find(app_handle)
            tell(event, handle=handle)
            ask, news = self._asking(handle, backend, timeout)
            status = self._waiter.until_over(
                ask, backend, app_id, interval_s=wait_interval, timeout_s=timeout, what=handle, news=news
            )
            if status is not None and not status.gone:
                run_registry().saw(handle, status.state, msg=status.msg, ended_at=status.ended_at)
                self._keep_metrics(handle, backend, status)
            return status

    def news(self, app_handles: Iterable[str]) -> News:
        """What to sleep on while jobs go on; for those who wait for several, as ``torchx wait`` does."""
        from torchx.runner.changes import News

        return News(run_registry(), self._backends, app_handles)

    def _asking(
        self, handle: str, backend: Scheduler[Any], timeout: float | None
    ) -> tuple[Callable[[], AppStatus | None], News | None]:
        """How one who waits for a job asks, and what to sleep on.

        A scheduler of this machine, and one that reports an end at once, are asked themselves. Where many jobs are one
        question, the record is read, which one of all who wait keeps up to date.
        """
        run = run_registry().get(handle) if is_read(backend) else None
        if run is None:
            return lambda: self.status(handle), None
        if timeout == 0:  # once
            seen = run_registry().status(handle) if run.is_terminal() else None
            return lambda: seen or self.status(handle), None
        if self._news is None:
            self._news = self.news([])
        news = self._news
        news.add([handle])
        return lambda: news.status(handle) or self.status(handle), news

    def seen(self, app_handle: str) -> AppStatus | None:
        """The status as whoever polls has seen it, for who waits and shows how it goes; else :meth:`status`."""
        handle = self.resolve(app_handle)
        return (self._news.status(handle) if self._news is not None else None) or self.status(handle)

    @property
    def aio(self) -> AsyncRunner:
        """The verbs for ``await``: ``await runner.aio.wait(handle)``."""
        from torchx.runner.aio import AsyncRunner

        if self._aio is None:
            self._aio = AsyncRunner(self)
        return self._aio

    def simulate(self, reference: str, fault: str, chosen: Sequence[tuple[str, int]] | None = None) -> Simulation:
        """What it would take to make a fault happen to a job of yours; ``make()`` of the answer does it.

        Args:
            fault: one of :data:`torchx.schedulers.kit.simulations.FAULTS`.
            chosen: the replica that it hits, as ``[(role, number)]``; None: the first one, or the whole job.

        Raises:
            NotSupportedError: the job is not yours, or its scheduler cannot make this happen; says why.
            BackendError: the job does not run.
        """
        from torchx.runner import simulations

        return simulations.plan(self, reference, fault, chosen)

    def rerun(self, reference: str, wish: Rerun | None = None) -> str:
        """Launches a run on record again; returns the app handle of the new job.

        Args:
            wish: what is to be different.

        Raises:
            NotFoundError: something that it needs is gone, such as its code.
            ConfigError: a value is masked on record, and nowhere to be found.
            SpecError: a change does not fit.
            NotSupportedError: a sweep is to be exported.
        """
        return self.rerun_planned(self.rerun_plan(reference, wish))

    def rerun_plan(self, reference: str, wish: Rerun | None = None) -> Plan:
        """What :meth:`rerun` would launch, and what is to be said of it."""
        from torchx.runner.capsule import rerun

        return rerun.plan(self, self._on_record(reference), rerun.Rerun() if wish is None else wish)

    def _on_record(self, reference: str) -> Run:
        if (run := self.recorded(reference)) is None:
            raise NotFoundError(f"`{reference}` is not on record", hint="`torchx list` has runs, and sweeps as a whole")
        return run

    def rerun_dryrun(self, plan: Plan) -> AppDryRunInfo[Any]:
        """The request of a plan; to be asked for within its ``surroundings()``."""
        cfg, parent = SourcedCfg(plan.cfg), plan.run.parent_run_id or None
        return plan.finish(self.dryrun(plan.app, plan.scheduler, cfg, plan.workspace or None, parent))

    def rerun_planned(self, plan: Plan) -> str:
        """Launches what :meth:`rerun_plan` returned."""
        with log_event("run", plan.scheduler) as event, plan.surroundings():
            return plan.submit(self, self.rerun_dryrun(plan), event)

    def export(self, dryrun_info: AppDryRunInfo[Any], folder: str, workspace: str = "") -> Export:
        """Writes what :meth:`dryrun` returned down as files with which the job is run without torchx.

        Args:
            folder: must not hold anything yet.
            workspace: code of roles that have none of their own.
        """
        from torchx.runner.capsule.export import write

        if dryrun_info._scheduler is None:
            raise SpecError("this AppDryRunInfo does not name a scheduler", hint="export what `Runner.dryrun` returned")
        return write(dryrun_info, self._scheduler(dryrun_info._scheduler), folder, workspace)

    def compare(self, a: str, b: str) -> Comparison:
        """What differs between two runs on record."""
        from torchx.runner.capsule.differences import compare

        found = []
        for run in map(self._on_record, (a, b)):
            if not run.is_terminal() and (status := self.status(run.handle)) is not None:
                run.state, run.msg, run.ended_at = status.state, status.msg, status.ended_at
            found.append(run)
        return compare(*found)

    def open(
        self, app_handle: str, argv: Sequence[str], role_name: str | None = None, k: int = 0, *, tty: Tty | None = None
    ) -> InsideProcess:
        """Starts a command inside replica ``k`` of a role; the first role when None.

        Args:
            argv: the command. It runs in the folder of the replica, with its environment, in its container.
            tty: it gets a terminal of this size; None: three pipes.

        Returns:
            The process: ``read``, ``write``, ``close_stdin``, ``send_signal``, ``wait``. Close it, or use it as a
            context manager: it is ended then.

        Raises:
            NotFoundError: there is no such job or replica, or it does not run.
            NotSupportedError: the scheduler, or this job, does not let anybody in.
        """
        from torchx.runner import answers, inside

        handle, backend, app_id = self._find(app_handle)
        role = self._role(handle, role_name)
        try:
            return inside.enter(backend, app_id, (role, k), argv, tty)
        except NotFoundError:
            answers.check_replica(self.log_replicas(handle), handle, role, k)  # what there is, if not this one
            raise

    def check_open(self, scheduler: str) -> None:
        """Refuses a scheduler that lets nobody into its jobs, before one is submitted for that.

        Raises:
            NotSupportedError: it is such a one.
        """
        from torchx.runner import inside

        inside.able(self._scheduler(scheduler))

    def exec(
        self, app_handle: str, argv: Sequence[str], role_name: str | None = None, k: int = 0, *, stdin: bytes = b""
    ) -> Ran:
        """Runs a command inside a replica to its end: see :meth:`open`.

        Returns:
            ``exit_code`` (128 and the number for a signal), ``stdout``, ``stderr``.
        """
        from torchx.runner import inside

        return inside.run(self.open(app_handle, argv, role_name, k), stdin)

    def metrics(self, app_handle: str) -> list[ReplicaMetrics]:
        """What each replica of a job uses: processors, memory, GPUs; of one that has ended, what it used.

        Raises:
            NotSupportedError: the scheduler does not say.
        """
        from torchx.runner import metrics

        handle, backend, app_id = self._find(app_handle)
        return metrics.read(backend, app_id, self.recorded(handle), handle.partition("://")[0])

    def fill_metrics(self, app_handle: str, status: AppStatus, run: Run | None = None) -> None:
        """Writes into a status what the replicas used at most, as far as that is known without asking a cluster.

        Args:
            run: what is on record; None: it is looked for there only where the scheduler no longer knows the job.
        """
        from torchx.runner import metrics

        _, backend, app_id = self._find(app_handle)
        metrics.fill(status, backend, app_id, run)

    def _keep_metrics(self, handle: str, backend: Scheduler[Any], status: AppStatus) -> None:
        """Puts what a job that has ended used on record, unless it was too short to have been looked at."""
        if status.started_at and status.ended_at and status.ended_at - status.started_at >= SAMPLE_S:
            from torchx.runner import metrics

            metrics.keep(run_registry(), backend, handle)

    def stacks(self, app_handle: str, replicas: Sequence[tuple[str, int]] | None = None) -> Stacks:
        """What every rank is doing: ``sentence`` first, ``groups`` of ranks that do the same, and their stacks.

        Args:
            replicas: as ``(role, number)``; None: all that run.

        Raises:
            NotFoundError: there is no such job or replica, or none runs.
            NotSupportedError: the scheduler, or this job, does not let anybody in.
        """
        from torchx.schedulers.stacks.look import look

        handle = self.resolve(app_handle)
        bring = partial(self.copy, handle, into=True)
        return look(partial(self.exec, handle), self.status(handle), self.log_replicas(handle), replicas, bring)

    def _role(self, handle: str, name: str | None) -> str:
        return self.log_replicas(handle)[0][0] if name is None else name

    def schedule_sweep(self, dryrun_info: AppDryRunInfo[Any], tasks: TaskList) -> str:
        """Submits what :meth:`dryrun` returned once for each task, as one job; returns the app handle of the sweep.

        A value stands in the job's arguments and variables as ``{name}``. Task 17 has the handle of the sweep and
        ``/17``, and every verb takes it.

        Args:
            tasks: the values, and how many tasks run at the same time.

        Raises:
            SpecError: a placeholder has no value, or there are no tasks.
            NotSupportedError: the scheduler cannot run such a job.
        """
        from torchx.runner.sweeps import check_job, submitter

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
        """Submits apps that differ in arguments and values of variables alone, as one sweep.

        ``for result in batch.as_completed()`` has the results as they come, ``await batch`` all of them.

        Args:
            max_parallel: how many run at the same time; 0: as many as the scheduler finds right.

        Raises:
            SpecError: there are none, or they differ in more than that.
            NotSupportedError: the scheduler cannot run such jobs.
        """
        from torchx.runner.batch import submit

        return submit(self, apps, scheduler, {"cfg": cfg, "workspace": workspace}, max_parallel)

    @staticmethod
    def check_sweep(tasks: TaskList) -> None:
        """Refuses what could not be submitted, before an image is built for it.

        Raises:
            SpecError: the sweep has no tasks, or values that are secret.
        """
        from torchx.runner import sweeps

        sweeps.check(tasks)

    def retry_sweep(self, app_handle: str, *, max_parallel: int | None = None) -> tuple[AppDryRunInfo[Any], TaskList]:
        """The tasks of a sweep that failed, were cancelled or lost, for :meth:`schedule_sweep`.

        Args:
            max_parallel: how many run at the same time; None: as many as then.

        Raises:
            NotFoundError: there is no such sweep on record, or all its tasks succeeded or still run.
            ConfigError: a value that was secret is needed, and is not in the environment.
        """
        from torchx.runner import sweeps

        run = self.recorded(app_handle)
        tasks = run_registry().tasks(run)
        status = self.status(app_handle) if tasks is not None else None
        if run is None or tasks is None or status is None or status.tasks is None:
            raise _no_sweep(app_handle)
        app, cfg, more = sweeps.again(run, tasks, status.tasks, max_parallel)
        return self.dryrun(app, run.scheduler, cfg=cfg, parent_run_id=run.parent_run_id or None), more

    def sweep_failures(self, app_handle: str, table: TaskTable) -> list[FailureGroup]:
        """Why tasks of a sweep failed, most frequent cause first.

        Args:
            table: :attr:`AppStatus.tasks` of the sweep.
        """
        from torchx.runner import sweeps

        _, backend, app_id = self._find(app_handle)
        return sweeps.failures(backend, app_id, table)

    def sweep_results(self, app_handle: str, tracker: TrackerBase) -> SweepResults:
        """What the tasks of a sweep wrote to a tracker, beside the values that they differ in.

        Raises:
            NotFoundError: there is no such sweep on record.
        """
        from torchx.runner.sweeps import read_results

        found = read_results(self.resolve(app_handle), tracker)
        if found is None:
            raise _no_sweep(app_handle)
        return found

    def copy(  # as of `open`, between two ends
        self,
        app_handle: str,
        source: str,
        target: str,
        role_name: str | None = None,
        k: int = 0,
        *,
        into: bool = False,
        progress: Callable[[int], None] = lambda _: None,
    ) -> Copied:
        """Copies a file or folder out of a replica, or into it; what is there, of the same size and time, stays.

        Args:
            source: with a slash at its end: what is in the folder, instead of the folder.
            target: a folder that exists, or the new name.
            into: from here into the replica, instead of the other way.
            progress: called with the bytes of each piece.

        Returns:
            ``files`` and ``bytes`` that were sent, files ``skipped`` since they were there, names ``left_out``: links
            that lead out of the folder, and special files.
        """
        from torchx.runner import copy, inside

        start = partial(self.open, app_handle, role_name=role_name, k=k)
        where = (*self._find(app_handle)[1:], self._role(app_handle, role_name), k)
        archive, here = inside.archives(*where), inside.shares_files(*where)
        return (copy.upload if into else copy.download)(start, source, target, progress, archive, here=here)

    def forward(
        self, app_handle: str, ports: Sequence[tuple[int, int]], role_name: str | None = None, k: int = 0
    ) -> Forwarding:
        """Makes ports of a replica ports of this machine, on loopback alone.

        Args:
            ports: port there, and port here (0: any that is free).

        Returns:
            ``local_ports``; connections pass while its ``run`` does, until it is closed.
        """
        from torchx.runner import inside
        from torchx.runner.forward import forwarding

        where = (*self._find(app_handle)[1:], self._role(app_handle, role_name), k)
        start = lambda words: self.open(app_handle, words, role_name, k)  # noqa: E731  # as `copy` has it
        return forwarding(start, lambda: inside.way_to(*where), ports)

    def doctor(
        self,
        scheduler: str = "",
        cfg: Mapping[str, CfgVal] | None = None,
        *,
        deep: bool = False,
        image: str = "",
        probe_timeout_s: float = 120.0,
    ) -> list[Finding]:
        """What keeps jobs from running here, or on a scheduler: good, bad, or what cannot be told from here.

        Args:
            scheduler: its name; none: this machine.
            deep: run a small job there, too, with ``image``, for ``probe_timeout_s`` seconds at most.
        """
        from torchx.runner.doctor import here, online

        if not scheduler:
            return online.ask(here.checks(self._backends, self.name()))
        found = online.of_system(self, scheduler, cfg)
        return found + online.probe(self, scheduler, cfg, image, probe_timeout_s) if deep else found

    def check(
        self,
        app: AppDef,
        scheduler: str,
        cfg: Mapping[str, CfgVal] | None = None,
        workspace: Workspace | str | None = None,
    ) -> list[Finding]:
        """What is wrong with a job, found without submitting it; arguments as of ``dryrun``. No image is built.

        Returns:
            Findings, what is good among them; those with the verdict ``bad`` are certain.
        """
        from torchx.runner.doctor import online
        from torchx.specs.images import NamesOnly

        with NamesOnly():
            return online.of_job(self, app, scheduler, cfg, workspace)


def _no_sweep(handle: str) -> NotFoundError:
    return NotFoundError(f"`{handle}` is not a sweep on record", hint="`torchx list` shows the runs on record")
