"""The Runner's other verbs; each is implemented in a module of its own, which is imported when the verb is called."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from torchx.config import SourcedCfg
from torchx.errors import NotFoundError, SpecError
from torchx.runner.core import RunnerCore
from torchx.runner.events import log_event
from torchx.runner.launch.record import run_registry
from torchx.runner.watching.wait import is_polled
from torchx.settings import SAMPLE_S
from torchx.specs.api import AppDef, AppDryRunInfo, AppStatus, CfgVal, Workspace

if TYPE_CHECKING:
    from torchx.runner.capsule.differences import Comparison
    from torchx.runner.capsule.rerun import Plan, Rerun
    from torchx.runner.inside.copy import Copied
    from torchx.runner.inside.forward import Forwarding
    from torchx.runner.sweeps.batch import Batch
    from torchx.runner.sweeps.sweeps import FailureGroup, SweepResults
    from torchx.runner.watching.aio import AsyncRunner
    from torchx.runner.watching.changes import News, Watch
    from torchx.runs import Run
    from torchx.schedulers.api import Scheduler
    from torchx.schedulers.findings import Finding
    from torchx.schedulers.inside import InsideProcess, Tty
    from torchx.schedulers.inside.run import Ran
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
        """Iterates over state changes of the given jobs, or of all current and future runs if none are given.

        Iterate with ``for`` or ``async for``. The first changes report the current states. Iteration stops when all
        given jobs have ended. Only one process of this machine polls each scheduler, no matter how many watch.

        Args:
            mine: if no jobs are given: only runs of the current user, if several users share the run registry.
            tasks: also report changes of the tasks of given sweeps; the handle of task 17 is the sweep's plus ``/17``.

        Raises:
            NotFoundError: a job is not on record.
        """
        from torchx.runner.watching.changes import TaskChanges, Watch

        self._settle_intents()
        handles = [self.resolve(reference) for reference in app_handles] or None
        looks = TaskChanges(self.status, handles) if tasks and handles else None
        return Watch(run_registry(), self._backends, handles, mine=mine, tasks=looks)

    def wait(self, app_handle: str, wait_interval: float = 10, timeout: float | None = None) -> AppStatus | None:
        """Waits until a job ends, or its scheduler no longer knows it, and returns its status; None for an unknown job.

        If the scheduler cannot be reached, queries are retried for ten minutes, at intervals that grow up to 15 s.

        Args:
            wait_interval: maximum time between two polls in seconds; the first polls are more frequent. For jobs on
                clusters, one process of this machine polls for all that wait, as for :meth:`watch`.
            timeout: maximum time to wait in seconds; None: no limit.

        Raises:
            WaitTimeoutError: the job has not ended within ``timeout``; a subclass of ``TimeoutError``.
            BackendError: the scheduler could not be queried for ten minutes, the failure is permanent, or the job has
                been UNSUBMITTED for two minutes, in all waits together.
        """
        with log_event("wait") as event:
            handle, backend, app_id = self._find(app_handle, event)
            query, news = self._status_source(handle, backend, timeout)
            status = self._waiter.until_over(
                query, backend, app_id, interval_s=wait_interval, timeout_s=timeout, what=handle, news=news
            )
            if status is not None and not status.gone:
                run_registry().saw(handle, status.state, msg=status.msg, ended_at=status.ended_at)
                self._keep_metrics(handle, backend, status)
            return status

    def news(self, app_handles: Iterable[str]) -> News:
        """Returns an object that sleeps until one of these jobs needs a query; used to wait for several jobs."""
        from torchx.runner.watching.changes import News

        return News(run_registry(), self._backends, app_handles)

    def _status_source(
        self, handle: str, backend: Scheduler[Any], timeout: float | None
    ) -> tuple[Callable[[], AppStatus | None], News | None]:
        """Returns a function that queries the status of a job, and the News to sleep on between queries, if any.

        Local schedulers, and those that report the end of a job at once, are queried directly. For the others the
        status is read from the run registry, which one of all waiting processes keeps up to date.
        """
        run = run_registry().get(handle) if is_polled(backend) else None
        if run is None:
            return lambda: self.status(handle), None
        if timeout == 0:  # a single query
            recorded = run_registry().status(handle) if run.is_terminal() else None
            return lambda: recorded or self.status(handle), None
        if self._news is None:
            self._news = self.news([])
        news = self._news
        news.add([handle])
        return lambda: news.status(handle) or self.status(handle), news

    def seen(self, app_handle: str) -> AppStatus | None:
        """Returns the status that a polling process recorded last; falls back to :meth:`status` if there is none."""
        handle = self.resolve(app_handle)
        return (self._news.status(handle) if self._news is not None else None) or self.status(handle)

    @property
    def aio(self) -> AsyncRunner:
        """This Runner's verbs as coroutines for ``asyncio``: ``await runner.aio.wait(handle)``."""
        from torchx.runner.watching.aio import AsyncRunner

        if self._aio is None:
            self._aio = AsyncRunner(self)
        return self._aio

    def simulate(self, reference: str, fault: str, chosen: Sequence[tuple[str, int]] | None = None) -> Simulation:
        """Prepares the injection of a fault into one of your jobs; call ``make()`` of the result to inject it.

        Args:
            fault: one of :data:`torchx.schedulers.kit.simulations.FAULTS`.
            chosen: the replica to hit, as ``[(role, number)]``; None: the first replica, or the whole job.

        Raises:
            NotSupportedError: the job is not yours, or its scheduler cannot inject this fault.
            BackendError: the job is not running.
        """
        from torchx.runner.inside import simulations

        return simulations.plan(self, reference, fault, chosen)

    def rerun(self, reference: str, wish: Rerun | None = None) -> str:
        """Launches a recorded run again and returns the app handle of the new job.

        Args:
            wish: what to change compared to the recorded run.

        Raises:
            NotFoundError: something that the run needs no longer exists, such as its code.
            ConfigError: a value is masked on record and cannot be found elsewhere.
            SpecError: a change does not fit the AppDef.
            NotSupportedError: an export of a sweep was requested.
        """
        return self.rerun_planned(self.rerun_plan(reference, wish))

    def rerun_plan(self, reference: str, wish: Rerun | None = None) -> Plan:
        """Returns what :meth:`rerun` would launch, with notes for the user."""
        from torchx.runner.capsule import rerun

        return rerun.plan(self, self._on_record(reference), rerun.Rerun() if wish is None else wish)

    def _on_record(self, reference: str) -> Run:
        if (run := self.recorded(reference)) is None:
            raise NotFoundError(f"`{reference}` is not on record", hint="`torchx list` shows runs, sweeps as a whole")
        return run

    def rerun_dryrun(self, plan: Plan) -> AppDryRunInfo[Any]:
        """Returns the request for a plan. Call it within ``with plan.surroundings():``."""
        cfg, parent = SourcedCfg(plan.cfg), plan.run.parent_run_id or None
        return plan.finish(self.dryrun(plan.app, plan.scheduler, cfg, plan.workspace or None, parent))

    def rerun_planned(self, plan: Plan) -> str:
        """Launches a plan that :meth:`rerun_plan` returned; returns the app handle."""
        with log_event("run", plan.scheduler) as event, plan.surroundings():
            return plan.submit(self, self.rerun_dryrun(plan), event)

    def export(self, dryrun_info: AppDryRunInfo[Any], folder: str, workspace: str = "") -> Export:
        """Writes a request that :meth:`dryrun` returned as files that run the job without torchx.

        Args:
            folder: a new or empty folder.
            workspace: code for roles that have no workspace of their own.

        Raises:
            NotSupportedError: the scheduler cannot export jobs.
            ConfigError: the folder is not empty, or cannot be written.
        """
        from torchx.runner.capsule.export import write

        if dryrun_info._scheduler is None:
            raise SpecError("this AppDryRunInfo does not name a scheduler", hint="export what `Runner.dryrun` returned")
        return write(dryrun_info, self._scheduler(dryrun_info._scheduler), folder, workspace)

    def compare(self, a: str, b: str) -> Comparison:
        """Returns the differences between two recorded runs: code, image, arguments, options, outcome, ..."""
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
        """Starts a command inside replica ``k`` of a role.

        Args:
            argv: the command. It runs in the replica's working directory, environment and container.
            role_name: name of the role; None: the first role.
            tty: size of the terminal to allocate; None: no terminal, but pipes for stdin, stdout and stderr.

        Returns:
            The process: ``read``, ``write``, ``close_stdin``, ``send_signal``, ``wait``. Closing it, as the end of a
            ``with`` block does, kills it.

        Raises:
            NotFoundError: there is no such job or replica, or it is not running.
            NotSupportedError: the scheduler, or this job, does not support commands inside replicas.
        """
        from torchx.runner.inside import entering
        from torchx.runner.watching import answers

        handle, backend, app_id = self._find(app_handle)
        role = self._role(handle, role_name)
        try:
            return entering.enter(backend, app_id, (role, k), argv, tty)
        except NotFoundError:
            answers.check_replica(self.log_replicas(handle), handle, role, k)  # its hint lists the replicas
            raise

    def check_open(self, scheduler: str) -> None:
        """Raises NotSupportedError if a scheduler cannot run commands inside replicas, before a job is submitted."""
        from torchx.runner.inside import entering

        entering.able(self._scheduler(scheduler))

    def exec(
        self, app_handle: str, argv: Sequence[str], role_name: str | None = None, k: int = 0, *, stdin: bytes = b""
    ) -> Ran:
        """Runs a command inside a replica and waits for it. Other arguments and errors are those of :meth:`open`.

        Returns:
            ``exit_code`` (128+n if signal n killed the command), ``stdout``, ``stderr``.
        """
        from torchx.schedulers.inside.run import run

        return run(self.open(app_handle, argv, role_name, k), stdin)

    def metrics(self, app_handle: str) -> list[ReplicaMetrics]:
        """Returns the CPU, memory and GPU usage of each replica; for a job that has ended, the recorded usage.

        Raises:
            NotSupportedError: the scheduler does not report usage.
        """
        from torchx.runner.watching import metrics

        handle, backend, app_id = self._find(app_handle)
        return metrics.read(backend, app_id, self.recorded(handle), handle.partition("://")[0])

    def fill_metrics(self, app_handle: str, status: AppStatus, run: Run | None = None) -> None:
        """Adds the peak memory of each replica to a status, as far as it is known without querying a cluster.

        Args:
            run: the job's entry in the run registry, if available: it holds the usage of a job that has ended.
        """
        from torchx.runner.watching import metrics

        _, backend, app_id = self._find(app_handle)
        metrics.fill(status, backend, app_id, run)

    def _keep_metrics(self, handle: str, backend: Scheduler[Any], status: AppStatus) -> None:
        """Records the usage of a job that has ended, unless it was too short for a single sample."""
        if status.started_at and status.ended_at and status.ended_at - status.started_at >= SAMPLE_S:
            from torchx.runner.watching import metrics

            metrics.keep(run_registry(), backend, handle)

    def stacks(self, app_handle: str, replicas: Sequence[tuple[str, int]] | None = None) -> Stacks:
        """Returns the stacks of all ranks: ``groups`` of ranks with equal stacks, and a ``sentence`` that sums them up.

        Args:
            replicas: as ``(role, number)``; None: all running replicas.

        Raises:
            NotFoundError: there is no such job or replica, or none is running.
            NotSupportedError: the scheduler, or this job, does not support commands inside replicas.
        """
        from torchx.schedulers.stacks.look import look

        handle = self.resolve(app_handle)
        bring = partial(self.copy, handle, into=True)
        return look(partial(self.exec, handle), self.status(handle), self.log_replicas(handle), replicas, bring)

    def _role(self, handle: str, name: str | None) -> str:
        return self.log_replicas(handle)[0][0] if name is None else name

    def schedule_sweep(self, dryrun_info: AppDryRunInfo[Any], tasks: TaskList) -> str:
        """Submits a sweep, which runs a request of :meth:`dryrun` once per task, and returns its app handle.

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
        """Submits several apps as one sweep. They may differ only in arguments and in values of environment variables.

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

    @staticmethod
    def check_sweep(tasks: TaskList) -> None:
        """Validates the tasks of a sweep, before an image is built for it.

        Raises:
            SpecError: there are no tasks, or a value is invalid, or named like a credential.
        """
        from torchx.runner.sweeps import sweeps

        sweeps.check(tasks)

    def retry_sweep(self, app_handle: str, *, max_parallel: int | None = None) -> tuple[AppDryRunInfo[Any], TaskList]:
        """Returns a request and the tasks of a sweep that failed, were cancelled or lost, for :meth:`schedule_sweep`.

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
        """Groups the failed tasks of a sweep by cause, most frequent cause first.

        Args:
            table: :attr:`AppStatus.tasks` of the sweep.
        """
        from torchx.runner.sweeps import sweeps

        _, backend, app_id = self._find(app_handle)
        return sweeps.failures(backend, app_id, table)

    def sweep_results(self, app_handle: str, tracker: TrackerBase) -> SweepResults:
        """Returns what the tasks of a sweep wrote to a tracker, with the values of each task.

        Raises:
            NotFoundError: there is no such sweep on record.
        """
        from torchx.runner.sweeps.sweeps import read_results

        found = read_results(self.resolve(app_handle), tracker)
        if found is None:
            raise _no_sweep(app_handle)
        return found

    def copy(
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
        """Copies a file or folder out of a replica, or into it. Files that are already there are skipped.

        Args:
            source: path to copy; with a trailing slash: the contents of the folder instead of the folder itself.
            target: an existing folder, or the new path.
            into: copy from this machine into the replica, instead of the other way.
            progress: called with the number of bytes of each chunk.

        Returns:
            How many ``files`` and ``bytes`` were copied, and how many files ``skipped``: those of the same size and
            modification time; names ``left_out``: links that point out of the folder, and special files.

        Raises:
            NotFoundError: there is no such job, replica or file.
            BackendError: the copy was interrupted; the same call resumes it.
        """
        from torchx.runner.inside import copy, entering

        start = partial(self.open, app_handle, role_name=role_name, k=k)
        where = entering.job_of(*self._find(app_handle)[1:], (self._role(app_handle, role_name), k))
        archive, here = entering.archives(*where), entering.shares_files(*where[:2])
        return (copy.upload if into else copy.download)(start, source, target, progress, archive, here=here)

    def forward(
        self, app_handle: str, ports: Sequence[tuple[int, int]], role_name: str | None = None, k: int = 0
    ) -> Forwarding:
        """Forwards local ports, on the loopback interface only, to ports of a replica.

        Args:
            ports: pairs of replica port and local port (0: any free port).

        Returns:
            An object with the ``local_ports``. It forwards while its ``run()`` runs; close it to stop.
        """
        from torchx.runner.inside import entering
        from torchx.runner.inside.forward import forwarding

        where = (*self._find(app_handle)[1:], (self._role(app_handle, role_name), k))
        start = partial(self.open, app_handle, role_name=role_name, k=k)
        return forwarding(start, lambda: entering.way_to(*entering.job_of(*where)), ports)

    def doctor(
        self,
        scheduler: str = "",
        cfg: Mapping[str, CfgVal] | None = None,
        *,
        deep: bool = False,
        image: str = "",
        probe_timeout_s: float = 120.0,
    ) -> list[Finding]:
        """Checks whether jobs can run on a scheduler, or whether this machine is set up correctly.

        Args:
            scheduler: name of the scheduler; empty: check this machine.
            deep: also run a small job with ``image``, for at most ``probe_timeout_s`` seconds.
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
        """Checks a job without submitting it or building an image. Arguments are those of :meth:`dryrun`.

        Returns:
            Findings, including good ones. A finding with the verdict ``bad`` is certain.
        """
        from torchx.runner.doctor import online
        from torchx.specs.images import NamesOnly

        with NamesOnly():
            return online.of_job(self, app, scheduler, cfg, workspace)


def _no_sweep(handle: str) -> NotFoundError:
    return NotFoundError(f"`{handle}` is not a sweep on record", hint="`torchx list` shows the runs on record")
