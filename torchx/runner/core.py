"""The Runner's core verbs: submit, describe, list, cancel and delete jobs, and resolve references to them."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from torchx import config
from torchx.config.files import ConfigFiles
from torchx.errors import BackendError, SpecError, TransientError
from torchx.runner.events import is_on, log_event
from torchx.runner.ground.backends import Backends, is_near
from torchx.runner.launch import pipeline
from torchx.runner.launch.record import Recorder, describe_event, forget_notices, read_run, run_registry
from torchx.runner.watching import answers, wait
from torchx.specs.api import NONE, AppState, UnknownAppException, is_terminal, make_app_handle, parse_app_handle

if TYPE_CHECKING:
    from datetime import datetime

    from torchx.runner.foreign import Explained
    from torchx.runner.watching.changes import News
    from torchx.runs import Run, RunQuery
    from torchx.schedulers import SchedulerFactory
    from torchx.schedulers.api import ListAppResponse, Scheduler, Stream
    from torchx.schedulers.kit.logs import LogQuery
    from torchx.specs.api import AppDef, AppDryRunInfo, AppStatus, CfgVal, Workspace, runopts

    _Runs = list[Run]  # `list` is a method of the Runner
    _Strings = list[str]
    _Replicas = list[tuple[str, int]]
    _Arguments = list[str] | dict[str, Any]
DEFAULT_SESSION = "torchx"


class RunnerCore:
    """The core verbs of :class:`torchx.runner.api.Runner`; all other verbs are built on them."""

    _news: News | None = None

    def __init__(
        self,
        name: str = "",
        scheduler_factories: dict[str, SchedulerFactory] | None = None,
        component_defaults: dict[str, dict[str, str]] | None = None,
        scheduler_params: dict[str, object] | None = None,
    ) -> None:
        self._name = name or DEFAULT_SESSION
        self._backends = Backends(scheduler_factories, dict(scheduler_params or {}))
        self._component_defaults = component_defaults
        self._apps: dict[str, AppDef] = {}  # for subclasses, which store the apps they launched here
        self._checked_config = False
        self._ended = answers.EndedJobs()
        self._waiter = wait.Waiter()
        self._recorder = Recorder(self._name)

    # -- about this Runner -----------------------------------------------------------------------

    def name(self) -> str:
        """Returns the session name, which is part of the handles of this Runner's jobs."""
        return self._name

    def scheduler_backends(self) -> _Strings:
        """Returns the names of the installed schedulers, the default scheduler first."""
        return [*self._backends.factories()]

    def scheduler_run_opts(self, scheduler: str) -> runopts:
        """Returns the run options of a scheduler.

        Raises:
            UnknownSchedulerException: the scheduler is not installed.
        """
        return self._scheduler(scheduler).run_opts()

    def cfg_from_str(self, scheduler: str, *cfg_literal: str) -> Mapping[str, CfgVal]:
        """Parses run options in the syntax of the command line: ``name=value,list=x;y``.

        Raises:
            ConfigError: an option is malformed, or the scheduler does not have it.

        >>> from torchx.runner import Runner
        >>> Runner().cfg_from_str("local_cwd", "prepend_cwd=yes")
        {'prepend_cwd': True}
        """
        opts = self._backends.run_opts(scheduler, self._name)
        cfg: dict[str, CfgVal] = {}
        for literal in cfg_literal:
            cfg.update(opts.cfg_from_str(literal))
        for key in opts.unknown(cfg):
            raise config.unknown_option(scheduler, opts, key)
        return config.SourcedCfg(cfg)

    # -- submission ------------------------------------------------------------------------------

    def run_component(  # noqa: PLR0917  # public signature
        self,
        component: str,
        component_args: _Arguments,
        scheduler: str,
        cfg: Mapping[str, CfgVal] | None = None,
        workspace: Workspace | str | None = None,
        parent_run_id: str | None = None,
    ) -> str:
        """Submits a component by name and returns the app handle.

        Arguments and errors are those of :meth:`dryrun_component` and :meth:`schedule`.
        """
        with log_event("run_component", scheduler) as event:
            given = _given(cfg=cfg, workspace=workspace, parent_run_id=parent_run_id)
            info = self.dryrun_component(component, component_args, scheduler, **given)
            return self._schedule_or_discard(info, event)

    def dryrun_component(  # noqa: PLR0917  # public signature
        self,
        component: str,
        component_args: _Arguments,
        scheduler: str,
        cfg: Mapping[str, CfgVal] | None = None,
        workspace: Workspace | str | None = None,
        parent_run_id: str | None = None,
    ) -> AppDryRunInfo[Any]:
        """Returns the request that :meth:`run_component` would submit. Other arguments are those of :meth:`dryrun`.

        Args:
            component: name of a component: ``dist.ddp``, ``path/file.py:function``, or that of a plugin's component.
            component_args: the component's command line as a list, or its arguments by name.

        Raises:
            SpecError: the component does not exist, or an argument is wrong.
        """
        from torchx.runner.ground import components

        app = components.make_app(component, component_args, self._component_defaults)
        return self.dryrun(app, scheduler, **_given(cfg=cfg, workspace=workspace, parent_run_id=parent_run_id))

    def run(
        self,
        app: AppDef,
        scheduler: str,
        cfg: Mapping[str, CfgVal] | None = None,
        workspace: Workspace | str | None = None,
        parent_run_id: str | None = None,
    ) -> str:
        """Submits an AppDef and returns the app handle. Arguments and errors: :meth:`dryrun`, :meth:`schedule`."""
        with log_event("run", scheduler) as event:
            info = self.dryrun(app, scheduler, **_given(cfg=cfg, workspace=workspace, parent_run_id=parent_run_id))
            return self._schedule_or_discard(info, event)

    def dryrun(
        self,
        app: AppDef,
        scheduler: str,
        cfg: Mapping[str, CfgVal] | None = None,
        workspace: Workspace | str | None = None,
        parent_run_id: str | None = None,
    ) -> AppDryRunInfo[Any]:
        """Returns the request that :meth:`run` would submit; ``print`` it to see it. ``app`` is not changed.

        Args:
            scheduler: name of the scheduler.
            cfg: run options; they override those of the environment and the config files.
            workspace: code to build into the image of every role that has no workspace of its own.
            parent_run_id: id of the parent run, for trackers.

        Returns:
            The request. ``_app``, ``_cfg`` and ``_scheduler`` hold what it was made from; ``_settings`` holds the value
            and the source of each run option.

        Raises:
            SpecError: the app is invalid, or this scheduler cannot run it.
            ConfigError: a run option is invalid or missing.
            UnknownSchedulerException: there is no scheduler of that name.
        """
        with log_event("dryrun", scheduler) as event:
            backend = self._scheduler(scheduler)
            new = pipeline.prepare(app, workspace, scheduler, backend)
            files = config.load_files()
            settings = self._settings(scheduler, cfg, files)
            info = pipeline.dry_run(
                new, scheduler, backend, session=self._name, settings=settings, files=files, parent_run_id=parent_run_id
            )
            describe_event(event, info=info)
            return info

    def schedule(self, dryrun_info: AppDryRunInfo[Any]) -> str:
        """Submits a request that :meth:`dryrun` returned, records the run, and returns the app handle.

        Raises:
            BackendError: the scheduler rejected the request.
            HandleError: the session name cannot be part of an app handle.
        """
        scheduler = dryrun_info._scheduler
        if scheduler is None:
            raise SpecError("this AppDryRunInfo does not name a scheduler", hint="submit what `Runner.dryrun` returned")
        with log_event("schedule", scheduler) as event:
            handle = self._recorder.submit(dryrun_info, scheduler, self._scheduler(scheduler))
            describe_event(event, info=dryrun_info, handle=handle)
            return handle

    def discard(self, dryrun_info: AppDryRunInfo[Any]) -> None:
        """Removes what :meth:`dryrun` created for this job only, such as its job folder.

        The request cannot be submitted afterwards.
        """
        app, scheduler = dryrun_info._app, dryrun_info._scheduler
        if app is not None and scheduler is not None:
            pipeline.discard(app, self._scheduler(scheduler))

    # -- what became of it -----------------------------------------------------------------------

    def resolve(self, reference: str) -> str:
        """Resolves a short reference to an app handle. A handle is returned unchanged.

        Raises:
            NotFoundError: no run on record matches.
            HandleError: several runs match, or the reference is malformed.
        """
        if "://" in reference:
            parse_app_handle(reference)
            return reference
        sweep, slash, task = reference.rpartition("/")
        if slash and task.isascii() and task.isdigit() and len(task) < 20:
            return f"{self.resolve(sweep)}/{int(task)}"
        self._settle_intents()
        return run_registry().find(reference).handle

    def status(self, app_handle: str) -> AppStatus | None:
        """Returns the status of a job, or None if neither its scheduler nor the run registry knows the job.

        If the scheduler no longer knows the job, the status is the recorded final one, or else UNKNOWN. If the
        scheduler cannot be queried, it is the last recorded one, with ``as_of`` and ``error``. ``msg`` says so.

        Raises:
            BackendError: the scheduler cannot be queried, and the job is not on record.
        """
        if not is_on() and (known := self._ended.status(app_handle)) is not None:
            return known
        with log_event("status") as event:
            handle, backend, app_id = self._find(app_handle, event)
            try:
                found = backend.describe(app_id)
            except BackendError as e:
                return answers.as_recorded(read_run(handle), e)
            if found is None:
                self._settle_intents()
                return answers.last_known(read_run(handle))
            near = is_near(backend)
            if (found.attempts or found.state is AppState.FAILED) and backend.may_have_secrets(app_id):
                read_run(answers.whole(handle))  # masks its secrets
            status = answers.status_of(found, near=near)
            if not near:  # clusters forget jobs, and cannot always be asked
                run_registry().saw(handle, status.state, msg=status.msg, ended_at=status.ended_at)
            elif is_terminal(found.state):
                self._ended.keep(handle, status, backend.still_there(app_id))
            return status

    def describe(self, app_handle: str) -> AppDef | None:
        """Returns the AppDef of a job, from its scheduler or else from the run registry; None if neither has it."""
        with log_event("describe") as event:
            handle, backend, app_id = self._find(app_handle, event)
            found = backend.describe(app_id)
            return answers.definition(found, run_registry().get(handle), app_id)

    def recorded(self, app_handle: str) -> Run | None:
        """Returns the job's entry in the run registry: sources of its run options, code version, times; or None."""
        return read_run(self.resolve(app_handle))

    def runs(self, query: RunQuery | None = None, *, refresh: bool = True, timeout_s: float = 10.0) -> _Runs:
        """Returns the runs in the run registry, of all schedulers, newest first.

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

    def tells_ends(self, app_handle: str) -> bool:
        """Whether the job's scheduler notifies torchx when a job ends, so that waiting needs no polling."""
        return wait.reports_ends(self._find(app_handle)[1])

    def is_near(self, app_handle: str) -> bool:
        """Whether the job's scheduler runs on this machine, so that a query costs next to nothing."""
        return is_near(self._find(app_handle)[1])

    def why(self, reference: str, scheduler: str | None = None, *, lines: int = 20) -> Explained:
        """Explains the state of any job, also of one that torchx did not launch.

        Arguments and errors are those of :func:`torchx.runner.foreign.why`.
        """
        from torchx.runner import foreign

        return foreign.why(self, reference, scheduler, lines=lines)

    def adopt(self, reference: str, scheduler: str | None = None, **given: Any) -> str:
        """Records a job that torchx did not launch and returns its handle; see :func:`torchx.runner.foreign.adopt`."""
        from torchx.runner import foreign

        return foreign.adopt(self, reference, scheduler, **given)

    def disown(self, app_handle: str) -> str:
        """Removes an adopted job from the run registry and returns its handle. The job itself is not changed.

        Raises:
            SpecError: torchx launched the job.
        """
        from torchx.runner import foreign

        return foreign.disown(self.resolve(app_handle))

    def log_lines(  # noqa: PLR0917  # public signature
        self,
        app_handle: str,
        role_name: str,
        k: int = 0,
        regex: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        should_tail: bool = False,
        streams: Stream | None = None,
    ) -> Iterable[str]:
        """Iterates over the log lines of replica ``k`` of a role, each with its line end.

        Args:
            regex: only lines that match this regular expression.
            since: only lines written at or after this time; a time without a time zone is local time.
            until: only lines written before this time.
            should_tail: follow the log until the job ends.
            streams: stdout, stderr or both combined; None: the scheduler's default.

        Raises:
            UnknownAppException: the scheduler does not know the job.
            NotFoundError: the job has no such role or replica.
            NotSupportedError: the scheduler does not provide logs.
        """
        with log_event("log_lines") as event:
            handle, backend, app_id = self._find(app_handle, event)
            answers.check_replica(self.log_replicas(handle), handle, role_name, k)
            return backend.log_iter(app_id, role_name, k, regex, since, until, should_tail, streams=streams)

    def log_replicas(self, app_handle: str) -> _Replicas:
        """Returns all replicas of a job as ``(role, number)``.

        Raises:
            UnknownAppException: the scheduler does not know the job.
        """
        handle, backend, app_id = self._find(app_handle)
        if (found := backend.log_replicas(app_id)) is None:
            raise UnknownAppException(handle)
        return found

    def open_logs(self, app_handle: str, replicas: _Replicas, query: LogQuery) -> Sequence[Iterable[str]]:
        """Returns an iterable of log lines for each of several replicas; the scheduler is queried once."""
        from torchx.schedulers.api import open_logs

        with log_event("log_lines") as event:
            handle, backend, app_id = self._find(app_handle, event)
            if backend.may_have_secrets(app_id):
                read_run(answers.whole(handle))  # masks its secrets
            return open_logs(backend, app_id, replicas, query)

    # -- the end ---------------------------------------------------------------------------------

    def cancel(self, app_handle: str, *, force: bool = False) -> None:
        """Cancels a job. Does nothing if the job has ended.

        Args:
            force: also cancel a job that torchx did not launch.

        Raises:
            UnknownAppException: neither the scheduler nor the run registry knows the job.
            NotSupportedError: torchx did not launch the job, and ``force`` is not set.
        """
        with log_event("cancel") as event:
            _, backend, app_id = self._known(app_handle, event, force=force)
            backend.cancel(app_id)

    def stop(self, app_handle: str) -> None:
        """Deprecated: use :meth:`cancel`."""
        import warnings

        warnings.warn("`Runner.stop` is deprecated, use `Runner.cancel`", DeprecationWarning, stacklevel=2)
        self.cancel(app_handle)

    def delete(self, app_handle: str, *, force: bool = False) -> None:
        """Deletes a job from its scheduler and from the run registry. A job that still runs is cancelled first.

        Arguments and errors are those of :meth:`cancel`.
        """
        with log_event("delete") as event:
            handle, backend, app_id = self._known(app_handle, event, force=force)
            backend.delete(app_id)
            run_registry().forget(handle)
            forget_notices(handle)

    def list(self, scheduler: str, cfg: Mapping[str, CfgVal] | None = None) -> list[ListAppResponse]:
        """Lists the jobs that a scheduler knows, including those that torchx did not submit.

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

    def close(self) -> None:
        """Closes the schedulers and the run registry. Jobs keep running."""
        self._recorder.settle()
        self._ended.clear()
        if self._news is not None:
            self._news.close()
            self._news = None
        self._backends.close()
        if "torchx.runs" in sys.modules:
            run_registry().close()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}(name={self._name!r})"

    def _schedule_or_discard(self, info: AppDryRunInfo[Any], event: log_event) -> str:
        """Submits a request that only this call uses; if the scheduler rejects it, discards the request."""
        try:
            handle = self.schedule(info)
            describe_event(event, info=info, handle=handle)
            return handle
        except TransientError:
            raise  # the job may exist nevertheless
        except Exception:
            self.discard(info)
            raise

    def _settle_intents(self, timeout_s: float = 10.0) -> None:
        """Finds out what became of submissions, of any process, whose answer was lost; see :mod:`.intents`."""
        if run_registry().intents():
            from torchx.runner.watching.intents import settle_intents

            settle_intents(run_registry(), self._scheduler, timeout_s)

    # -- schedulers ------------------------------------------------------------------------------

    def _scheduler(self, scheduler: str, session: str | None = None) -> Scheduler[Any]:
        """The scheduler of that name, for jobs of the given session (by default this Runner's)."""
        return self._backends.get(scheduler, session or self._name)

    def _find(self, reference: str, event: log_event | None = None) -> tuple[str, Scheduler[Any], str]:
        """Resolves a reference to the job's handle, its scheduler, and the app id to query that scheduler with."""
        handle = reference if "://" in reference else self.resolve(reference)
        scheduler, session, app_id = parse_app_handle(handle)
        backend = self._scheduler(scheduler, session)
        if "/" in app_id or app_id.startswith("sweep-"):
            from torchx.runner.sweeps.sweeps import resolve_backend

            backend, app_id = resolve_backend(backend, app_id)
        if event is not None:
            describe_event(event, handle=handle)
        return handle, backend, app_id

    def _known(self, reference: str, event: Any, *, force: bool = False) -> tuple[str, Scheduler[Any], str]:
        """Like :meth:`_find`, but raises UnknownAppException for a job that is neither on record nor exists."""
        handle, backend, app_id = self._find(reference, event)
        if force:
            from torchx.schedulers.foreign import forced

            backend = forced(backend)
        if run_registry().get(handle) is None and not backend.exists(app_id):
            raise UnknownAppException(handle)
        return handle, backend, app_id

    def _settings(
        self, scheduler: str, cfg: Mapping[str, CfgVal] | None, files: ConfigFiles | None = None
    ) -> dict[str, config.Setting]:
        if not self._checked_config:
            config.check_sections(self._backends.factories(), files)
            self._checked_config = True
        return config.resolve(scheduler, self._backends.run_opts(scheduler, self._name), cfg, files=files)


def _given(**arguments: Any) -> dict[str, Any]:
    """Drops arguments that are None: a subclass may override a verb with fewer parameters."""
    return {name: value for name, value in arguments.items() if value is not None}
