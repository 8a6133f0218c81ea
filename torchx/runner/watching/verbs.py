"""The Runner's verbs that look at jobs: references, statuses, lists, and waiting."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from torchx.config import active_profile, load_files
from torchx.errors import BackendError, TorchXError
from torchx.runner.events import is_on, log_event
from torchx.runner.ground.backends import is_near
from torchx.runner.ground.registry import read_run, run_registry
from torchx.runner.launch.verbs import Launches
from torchx.runner.watching import answers, wait
from torchx.specs.api import NONE, AppState, is_terminal, make_app_handle, parse_app_handle
from torchx.specs.handles import JobId

if TYPE_CHECKING:
    from torchx.runner.watching.aio import AsyncRunner
    from torchx.runner.watching.changes import StatusFeed, Watch
    from torchx.runner.watching.fit import Waste
    from torchx.runs import Run, RunQuery
    from torchx.runs.usage import Used
    from torchx.schedulers.api import ListAppResponse, Scheduler
    from torchx.schedulers.kit.metrics import ReplicaMetrics
    from torchx.specs.api import AppDef, AppStatus, CfgVal

    _Runs = list[Run]  # `list` is a method of the Runner
    _Usage = list[ReplicaMetrics]
    _Used = list[Used]
    _Wastes = list[Waste]


class Watches(Launches):
    """Resolves references to jobs, describes jobs, lists them, and waits for them."""

    _news: StatusFeed | None = None
    _aio: AsyncRunner | None = None

    @functools.cached_property
    def _ended(self) -> answers.EndedJobs:
        made = answers.EndedJobs()
        self._at_close.append(made.clear)
        return made

    @functools.cached_property
    def _logs_of(self) -> set[str]:
        return set()

    @functools.cached_property
    def _waiter(self) -> wait.Waiter:
        return wait.Waiter()

    def resolve(self, reference: str) -> str:
        """Resolve a short reference to an app handle. A handle is returned unchanged.

        Raises:
            NotFoundError: no run on record matches.
            HandleError: several runs match, or the reference is malformed.
        """
        if "://" in reference:
            parse_app_handle(reference)
            return reference
        named = JobId.of(reference)
        if named.task is not None:
            return f"{self.resolve(named.job)}/{named.task}"
        self._settle_intents()
        return run_registry().find(reference).handle

    def status(self, app_handle: str) -> AppStatus | None:
        """Return the status of a job, or None if neither its scheduler nor the run registry knows the job.

        If the scheduler no longer knows the job, the status is the recorded final one, or else UNKNOWN. If the
        scheduler cannot be queried, it is the last recorded one, with ``as_of`` and ``error``. ``msg`` says so.

        Raises:
            BackendError: the scheduler cannot be queried, and the job is not on record.
        """
        if not is_on() and (known := self._ended.status(app_handle)) is not None:
            return known
        with log_event("status") as event:
            handle, backend, app_id = self._locate(app_handle, event)
            try:
                found = backend.describe(app_id)
            except BackendError as e:
                return answers.as_recorded(read_run(handle), e)
            if found is None:
                self._settle_intents()
                return answers.last_known(read_run(handle))
            near = is_near(backend)
            if not near:
                found = answers.with_cause(found, lambda: run_registry().status(handle, outdated=True))
            if (found.attempts or found.state is AppState.FAILED) and backend.may_have_secrets(app_id):
                read_run(answers.whole(handle))  # masks its secrets
            status = answers.status_of(found, near=near)
            if not near:  # clusters forget jobs, and cannot always be asked
                self._saw(handle, backend, status, whole=status)
            elif is_terminal(found.state):
                self._ended.keep(handle, status, backend.still_there(app_id))
            return status

    def statuses(self, app_handles: Iterable[str]) -> dict[str, AppStatus | TorchXError | None]:
        """Return what :meth:`status` returns or raises for each job, with one query per scheduler and session.

        A job that has failed is queried once more, for its cause.

        >>> from torchx.runner import get_runner
        >>> with get_runner() as runner:
        ...     runner.statuses([])
        {}
        """
        groups: dict[tuple[str, str], dict[str, str]] = {}
        for handle in app_handles:
            scheduler, session, app_id = parse_app_handle(handle)
            groups.setdefault((scheduler, session), {})[app_id] = handle
        found: dict[str, AppStatus | TorchXError | None] = {}
        for (scheduler, session), handles in groups.items():
            known: dict[str, Any] = {}
            jobs = [app_id for app_id in handles if JobId.of(app_id).task is None]
            if len(jobs) > 1:
                from torchx.runner.jobs.lookup import describe_many

                with suppress(TorchXError):  # each is told below, from the record
                    known = describe_many(self._scheduler(scheduler, session), jobs)
            for app_id, handle in handles.items():
                answer = known.get(app_id)
                if answer is not None and not is_terminal(answer.state) and not answer.attempts:
                    found[handle] = answers.status_of(answer, near=is_near(self._scheduler(scheduler, session)))
                    continue
                try:
                    found[handle] = self.status(handle)
                except TorchXError as e:
                    found[handle] = e
        return found

    def describe(self, app_handle: str) -> AppDef | None:
        """Return the AppDef of a job, from its scheduler or else from the run registry; None if neither has it."""
        with log_event("describe") as event:
            handle, backend, app_id = self._locate(app_handle, event)
            found = backend.describe(app_id)
            return answers.definition(found, run_registry().get(handle), app_id)

    def runs(self, query: RunQuery | None = None, *, refresh: bool = True, timeout_s: float = 10.0) -> _Runs:
        """Return the runs in the run registry, of all schedulers, newest first.

        Args:
            refresh: query the schedulers for the states of unfinished runs. If a scheduler does not answer, its runs
                keep their last recorded state, and their ``note`` says why.
            timeout_s: time limit in seconds for all schedulers together.
        """
        from torchx.runner.watching import listing
        from torchx.runs import RunQuery

        query = RunQuery() if query is None else query
        if not refresh:
            return answers.Jobs(listing.masked(run_registry().list(query)))
        self._settle_intents(timeout_s)
        found = listing.runs(run_registry(), query, self._scheduler, timeout_s)
        return answers.Jobs(listing.masked(found))

    def list(self, scheduler: str, cfg: Mapping[str, CfgVal] | None = None) -> list[ListAppResponse]:
        """List the jobs that a scheduler knows, including those that torchx did not submit.

        Args:
            cfg: run options that select where to look, such as a namespace.
        """
        with log_event("list", scheduler):
            backend = self._scheduler(scheduler)
            given = None if cfg is None else {key: s.value for key, s in self._settings(scheduler, cfg).items()}
            jobs = backend.list(given)
            for job in jobs:
                if job.app_handle in ("<NOT_SET>", NONE):
                    job.app_handle = make_app_handle(scheduler, self._name, job.app_id)
            return answers.Jobs(jobs)

    def watch(self, *app_handles: str, mine: bool = False, tasks: bool = False) -> Watch:
        """Iterate over state changes of the given jobs, or of all current and future runs if none are given.

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
        """Wait until a job ends, or its scheduler no longer knows it, and return its status; None for an unknown job.

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
            handle, backend, app_id = self._locate(app_handle, event)
            self._report_logs_later(handle)
            if (known := self._recorded_end(handle, backend)) is not None:
                return known
            query, news = self._status_source(handle, backend, timeout)
            status = self._waiter.until_over(
                query, backend, app_id, interval_s=wait_interval, timeout_s=timeout, what=handle, news=news
            )
            if status is not None and not status.gone:
                self._saw(handle, backend, status)
            return status

    def news(self, app_handles: Iterable[str]) -> StatusFeed:
        """Return an object that sleeps until one of these jobs needs a query; used to wait for several jobs."""
        from torchx.runner.watching.changes import StatusFeed

        return StatusFeed(run_registry(), self._backends, app_handles)

    def seen(self, app_handle: str) -> AppStatus | None:
        """Return the status that a polling process recorded last; falls back to :meth:`status` if there is none."""
        handle = self.resolve(app_handle)
        return (self._news.status(handle) if self._news is not None else None) or self.status(handle)

    def tells_ends(self, app_handle: str) -> bool:
        """Whether the job's scheduler notifies torchx when a job ends, so that waiting needs no polling."""
        return wait.reports_ends(self._locate(app_handle)[1])

    @property
    def aio(self) -> AsyncRunner:
        """This Runner's verbs as coroutines for ``asyncio``: ``await runner.aio.wait(handle)``."""
        from torchx.runner.watching.aio import AsyncRunner

        if self._aio is None:
            self._aio = AsyncRunner(self)
        return self._aio

    def metrics(self, app_handle: str) -> _Usage:
        """Return the CPU, memory and GPU usage of each replica; for a job that has ended, the recorded usage.

        Raises:
            NotSupportedError: the scheduler does not report usage.
        """
        from torchx.runner.watching import metrics

        handle, backend, app_id = self._locate(app_handle)
        return metrics.read(backend, app_id, self.recorded(handle), handle.partition("://")[0])

    def fill_metrics(self, app_handle: str, status: AppStatus, run: Run | None = None) -> None:
        """Add the usage of roles and the peak memory of each replica to a status, if they are known without a query.

        Args:
            run: the job's entry in the run registry, if available: it holds the usage of a job that has ended.
        """
        from torchx.runner.watching import metrics

        handle, backend, app_id = self._locate(app_handle)
        if found := metrics.fill(status, backend, app_id, run):
            from torchx.runner.watching import fit

            fit.fill(status, run or read_run(answers.whole(handle)), found, backend)

    def fill_pace(self, app_handle: str, status: AppStatus) -> None:
        """Add to a status how far the job is, if its ranks report steps; see :func:`torchx.distributed.progress`."""
        from torchx.runner.watching import pace

        _, backend, app_id = self._locate(app_handle)
        pace.fill(status, backend, app_id)

    def usage(self, by: str = "name", since: float | None = None, *, refresh: bool = True) -> _Used:
        """Return what the runs on record have used: GPU-hours and CPU-hours that they asked for, while they ran.

        Args:
            by: one of :data:`torchx.runs.usage.GROUPS`; each group has a row for each scheduler.
            since: count only what was used after this Unix time.
            refresh: query the schedulers of unfinished runs first.

        >>> from torchx.runner import get_runner
        >>> with get_runner() as runner:
        ...     hours = sum(row.gpu_hours for row in runner.usage("user", refresh=False))
        """
        if refresh:
            from torchx.runs import RunQuery

            self.runs(RunQuery(states=()))
        from torchx.runs.usage import used

        return used(run_registry(), by, since)

    def wasteful(self, query: RunQuery) -> _Wastes:
        """Return recorded runs that left unused what they asked for, most first; see :func:`.fit.wasteful`."""
        from torchx.runner.watching.fit import wasteful

        return wasteful(run_registry(), query)

    def _end_news(self) -> None:
        if self._news is not None:
            self._news.close()
            self._news = None

    def _settle_intents(self, timeout_s: float = 10.0) -> None:
        """Find out what became of submissions, of any process, whose answer was lost; see :mod:`.intents`."""
        self._report_logs_later()
        if run_registry().intents():
            from torchx.runner.watching.intents import settle_intents

            settle_intents(run_registry(), self._scheduler, timeout_s)

    def _status_source(
        self, handle: str, backend: Scheduler[Any], timeout: float | None
    ) -> tuple[Callable[[], AppStatus | None], StatusFeed | None]:
        """Return a function that queries the status of a job, and the News to sleep on between queries, if any.

        Local schedulers, and those that report the end of a job at once, are queried directly. For the others the
        status is read from the run registry, which one of all waiting processes keeps up to date.
        """
        if timeout == 0 or not wait.is_polled(backend) or run_registry().get(handle) is None:
            return lambda: self.status(handle), None
        if self._news is None:
            self._news = self.news([])
            if self._end_news not in self._at_close:
                self._at_close.append(self._end_news)
        news = self._news
        news.add([handle])
        return lambda: news.status(handle) or self.status(handle), news

    @staticmethod
    def _recorded_end(handle: str, backend: Scheduler[Any]) -> AppStatus | None:
        """Return the whole status of a job that has ended according to the registry; None if there is none, or if the
        scheduler is on this machine, where a query costs little and jobs are deleted.
        """
        known = None if is_near(backend) else run_registry().status(handle)
        return known if known is not None and known.is_terminal() else None

    def _saw(self, handle: str, backend: Scheduler[Any], status: AppStatus, *, whole: AppStatus | None = None) -> None:
        """Record a status that a scheduler reported."""
        times: dict[str, Any] = {"ended_at": status.ended_at, "started_at": status.started_at}
        is_news = run_registry().saw(handle, status.state, msg=status.msg, whole=whole, **times)
        if is_terminal(status.state) and (is_news or whole is None):
            from torchx.runner.watching import ends

            self._report_logs_later(handle)
            ends.keep(run_registry(), backend, handle, status, status.started_at or 0.0)

    def _report_logs_later(self, *handles: str) -> None:
        """Report at the end which logs could not be kept, and try again; those of ``handles`` are waited for."""
        self._logs_of.update(handles)
        if self._report_logs not in self._at_close:
            self._at_close.append(self._report_logs)

    def _report_logs(self) -> None:
        if load_files().section("logs", active_profile()):
            from torchx.runner.watching import keeping

            keeping.settle(run_registry(), self._logs_of)
        self._logs_of.clear()
