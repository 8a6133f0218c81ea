"""``local_cwd``: runs replicas as processes of this machine, owned by a supervisor that outlives the submitting shell.

Options: ``log_dir``, ``prepend_cwd``, ``auto_set_cuda_visible_devices``, ``cancel_grace_s``.

Each job has a folder ``$TORCHX_HOME/local/<session>/<app id>``; see :mod:`torchx.supervisor.layout` for its files. A
replica runs in the current directory with the caller's environment, overridden by the role's. Its output goes to
``<role>/<k>/stdout.log`` and ``stderr.log``, and both, whole lines in the order of writing, to ``combined.log``.

Limits: images are not used and nothing is mounted, so a replica sees the machine's own files. Resources are not
enforced; requests for more than the machine has cause a warning. When the last replica of a job ends, all remaining
processes that the job started, including daemons, are ended.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torchx.errors import BackendError, NotFoundError, SpecError
from torchx.schedulers.api import NONE, DescribeAppResponse, ListAppResponse, Scheduler, shortcut
from torchx.schedulers.kit.caps import COMMON
from torchx.schedulers.local.jobs import ForeignError, LocalJob, LocalJobs, delete
from torchx.schedulers.local.options import Opts
from torchx.specs.api import AppDef, AppDryRunInfo, AppState, CfgVal, Resource, is_terminal, runopts
from torchx.specs.handles import JobId
from torchx.supervisor.layout import COMBINED_LOG, STDERR_LOG, STDOUT_LOG
from torchx.supervisor.reader import send_command, wait_for_end
from torchx.supervisor.statefile import TASKS
from torchx.util.notices import logger
from torchx.util.records import replace
from torchx.util.reexports import reexports

if TYPE_CHECKING:
    import io
    import subprocess

    from torchx.schedulers.kit.export import Export
    from torchx.schedulers.kit.findings import Check
    from torchx.schedulers.kit.inside import InsideProcess, Tty
    from torchx.schedulers.kit.inside.kept import Kept
    from torchx.schedulers.kit.logs import LogQuery
    from torchx.schedulers.kit.nodes import Pool
    from torchx.schedulers.kit.simulations import Simulation
    from torchx.schedulers.local.images import CWDImageProvider, ImageProvider, LocalDirectoryImageProvider
    from torchx.schedulers.local.logs import LogIterator
    from torchx.schedulers.local.processes import PopenProtocol, SignalException
    from torchx.schedulers.local.request import ENV_CUDA_VISIBLE_DEVICES, PopenRequest, ReplicaParam

    _Jobs = list[ListAppResponse]  # within the class below, `list` is a method
    from torchx.schedulers.kit.metrics import ReplicaMetrics
    from torchx.schedulers.kit.pace import Rank
    from torchx.specs.tasks import TaskList

    _Answers = list[DescribeAppResponse]
    _Metrics = list[ReplicaMetrics]
    _Ranks = list[Rank]
    _Replicas = list[tuple[str, int]]

reexports(__name__)

__all__ = [
    "COMBINED_LOG",
    "ENV_CUDA_VISIBLE_DEVICES",
    "NA",
    "NONE",
    "STDERR_LOG",
    "STDOUT_LOG",
    "AppId",
    "CWDImageProvider",
    "ImageProvider",
    "LocalDirectoryImageProvider",
    "LocalOpts",
    "LocalScheduler",
    "LogIterator",
    "Opts",
    "PopenProtocol",
    "PopenRequest",
    "ReplicaParam",
    "SignalException",
    "create_scheduler",
]

NA = "<N/A>"
AppId = str
LocalOpts = Mapping[str, CfgVal]

CAPABILITIES = replace(
    COMMON,
    setup="bash",
    log_streams=("stdout", "stderr", "combined"),
    exec=True,
    log_previous=True,
    metrics="kept",
    retry_actions=("retry", "checkpoint"),
    timeout="yes",
    watchdog=True,
)


_killed: set[str] = set()
"""Folders of jobs that :meth:`_LocalAppDef.kill` ended; several objects may stand for one job."""


class _LocalAppDef(LocalJob):
    """A job that this process has submitted or looked up. NeMo-Run makes it, and reads all of its attributes."""

    def __init__(self, id: str, log_dir: str, folder: str = "", roles: list[Any] | None = None) -> None:
        super().__init__(folder or log_dir, roles)
        self.id = id
        self._log_dir = log_dir
        self._state = AppState.UNKNOWN
        self._role_replicas: dict[str, list[Any]] | None = None

    @property
    def log_dir(self) -> str:
        """The folder that contains the roles' folders."""
        return self._log_dir or self.logs()

    @property
    def state(self) -> AppState:
        """The job's current state; of a job without files the one that :meth:`set_state` set."""
        described = self.describe()
        return described.state if described else self._state

    def describe(self) -> DescribeAppResponse | None:
        """Return the response of ``describe``; a job that :meth:`kill` ended has failed."""
        described = super().describe()
        if described is not None and described.state is AppState.CANCELLED and self.folder in _killed:
            described.state = AppState.FAILED
        return described

    def set_state(self, state: AppState) -> None:
        """Set the state of a job without files."""
        self._state = state

    @property
    def role_replicas(self) -> dict[str, list[Any]]:
        """The numbers of the replicas of each role, unless something else was assigned."""
        if self._role_replicas is not None:
            return self._role_replicas
        job = self.read()
        return {role: [*range(count)] for role, count in job.roles} if job else {}

    @role_replicas.setter
    def role_replicas(self, replicas: dict[str, list[Any]]) -> None:
        self._role_replicas = replicas

    def kill(self) -> None:
        """Cancel the job, if it has not ended. It counts as failed: NeMo-Run ends the others of a failed group."""
        if not is_terminal(self.state):
            _killed.add(self.folder)
            self.cancel()

    def cancel(self) -> None:
        """Cancel the job, if it has not ended. Raises BackendError if it runs on another host."""
        state = self.read()
        if state is None or state.ended or send_command(self.folder, "cancel"):
            return
        state = self.read()
        if state is not None and not state.ended:
            raise BackendError(
                f"job `{self.id}` runs on host `{state.facts.get('host')}`, which this host cannot reach",
                hint="cancel it there",
            )


class _Apps(dict[str, _LocalAppDef]):
    """Jobs by id. Each iteration is over a copy: other threads, also those of subclasses, add and remove jobs."""

    def __iter__(self) -> Iterator[str]:
        return iter([*super().keys()])

    def keys(self) -> Any:
        return [*super().keys()]

    def values(self) -> Any:
        return [*super().values()]

    def items(self) -> Any:
        return [*super().items()]


class LocalScheduler(Scheduler[Mapping[str, CfgVal]]):
    """Runs jobs on this machine.

    Args:
        session_name: groups the jobs.
        image_provider_class: creates an :class:`ImageProvider` from the run options; None: :class:`CWDImageProvider`.
        cache_size: how many jobs this object caches.
        extra_paths: folders to search for programs before ``PATH``.
    """

    capabilities = CAPABILITIES
    wait_hint = 0.05

    def __init__(
        self,
        session_name: str,
        image_provider_class: Callable[[LocalOpts], ImageProvider] | None = None,
        cache_size: int = 100,
        extra_paths: list[str] | None = None,
    ) -> None:
        super().__init__("local", session_name)
        if cache_size < 1:
            raise SpecError(f"`cache_size` is `{cache_size}`", hint="it must be 1 or more")
        self._image_provider_class = image_provider_class
        self._cache_size = cache_size
        self._extra_paths = list(extra_paths or ())
        self._apps = {}

    @property
    def _apps(self) -> dict[AppId, _LocalAppDef]:  # also assigned by subclasses of programs
        return self.__dict__.setdefault("_known_apps", _Apps())  # type: ignore[no-any-return]

    @_apps.setter
    def _apps(self, apps: dict[AppId, _LocalAppDef]) -> None:
        self.__dict__["_known_apps"] = _Apps(apps)

    @functools.cached_property
    def _jobs(self) -> LocalJobs:  # not set in __init__, which subclasses of programs may not call
        return LocalJobs(self.session_name)

    def _run_opts(self) -> runopts:
        return Opts.as_runopts()

    def _validate(self, app: AppDef, scheduler: str, cfg: LocalOpts | None = None) -> None:
        """Accept all roles, even those without a resource."""

    # -- submission ------------------------------------------------------------------------------

    def _submit_dryrun(self, app: AppDef, cfg: LocalOpts) -> AppDryRunInfo[PopenRequest]:
        return AppDryRunInfo(self._to_popen_request(app, cfg), str)

    def _to_popen_request(self, app: AppDef, cfg: LocalOpts) -> PopenRequest:  # subclasses of programs call it
        from torchx.schedulers.local.images import CWDImageProvider
        from torchx.schedulers.local.request import render_request

        opts = Opts.from_cfg(cfg)
        opts.check()
        provider = (self._image_provider_class or CWDImageProvider)(cfg)
        request = render_request(app, opts, provider, session=self.session_name, extra_paths=self._extra_paths)
        self.auto_set_CUDA_VISIBLE_DEVICES(request.role_params, app, opts)
        if app.metadata:
            from torchx.schedulers.kit.attempts import policy_of
            from torchx.specs.wishes import Wishes

            texts = Wishes.of(app).texts
            request.retry = str(policy_of(app, "local_cwd", self.capabilities) or "")
            request.timeout, request.watchdog = texts.get("timeout_s", ""), texts.get("watchdog", "")
        return request

    def auto_set_CUDA_VISIBLE_DEVICES(self, role_params: dict[str, list[ReplicaParam]], app: AppDef, cfg: Opts) -> None:
        """Assign to each replica as many GPUs as its role requests. A role that sets the variable keeps its value.

        Only warns if there are fewer GPUs than requested.
        """
        if cfg.auto_set_cuda_visible_devices:
            from torchx.schedulers.local.resources import share_gpus

            share_gpus(role_params, app)

    def export(self, dryrun_info: AppDryRunInfo[PopenRequest]) -> Export:
        """See :class:`torchx.schedulers.kit.abilities.Exports`."""
        from torchx.schedulers.local.export import export

        return export(dryrun_info.request)

    def diagnose(self, cfg: LocalOpts, job: AppDryRunInfo[PopenRequest] | None = None) -> Iterable[Check]:  # noqa: ARG002
        """See :class:`torchx.schedulers.kit.abilities.Diagnoses`."""
        from torchx.schedulers.local import doctor

        return doctor.of_machine() if job is None or job._app is None else doctor.of_job(job.request, job._app)

    def nodes(self, cfg: LocalOpts, need: Resource | None, count: int) -> Sequence[Pool]:  # noqa: ARG002
        from torchx.schedulers.local.resources import pools

        return pools(need)

    def expected_id(self, dryrun_info: AppDryRunInfo[PopenRequest]) -> str:
        return dryrun_info.request.app_id

    def schedule(self, dryrun_info: AppDryRunInfo[PopenRequest]) -> str:
        """Hand the job over to its supervisor. Returns when the supervisor has accepted it.

        Raises:
            SpecError: a program, a script or a working directory does not exist.
            BackendError: the job could not be started.
        """
        from torchx.schedulers.local.submission import submit

        request, app = dryrun_info.request, dryrun_info._app
        folder = submit(self._jobs, request, dryrun_info)
        self._remember(request.app_id, _LocalAppDef(request.app_id, "", folder, app.roles if app else None))
        return request.app_id

    def run_local_job(
        self,
        args: list[str],
        env: dict[str, str],
        stdout: io.FileIO | None,
        stderr: io.FileIO | None,
        cwd: str | None = None,
    ) -> subprocess.Popen[bytes]:
        """Run one program without a supervisor, in a new session."""
        import os
        import subprocess

        return subprocess.Popen(
            args,
            env={**os.environ, **env},
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            cwd=cwd,
            start_new_session=True,
        )

    # -- state -----------------------------------------------------------------------------------

    def describe(self, app_id: str) -> DescribeAppResponse | None:
        named = JobId.of(app_id)
        if named.task is not None:
            return next(iter(self.describe_tasks(named.job, [named.task]) or ()), None)
        job = self._known(app_id)
        described = job.describe() if job else None
        if described is None:
            self._apps.pop(app_id, None)
        return described

    @shortcut
    def still_there(self, app_id: str) -> Callable[[], bool] | None:
        job = self._apps.get(app_id)
        return None if job is None else job.still_there()

    def may_have_secrets(self, app_id: str) -> bool:
        job = self._known(app_id)
        return job is None or job.may_have_secrets()

    @shortcut
    def exists(self, app_id: str) -> bool:
        return self._find(app_id) is not None

    def list(self, cfg: LocalOpts | None = None) -> _Jobs:  # noqa: ARG002  # the contract's signature
        """All local jobs of this user, of every session."""
        from torchx.schedulers.local.answers import listed

        found = []
        for folder in self._jobs.all():
            try:
                job = LocalJob(folder).read()
            except ForeignError as e:
                logger("torchx.schedulers.local").warning(str(e))
                continue
            except BackendError:
                continue  # a damaged job must not hide the others
            if job is not None:
                found.append(listed(job, folder))
        return found

    def wait_for_end(self, app_id: str, timeout_s: float) -> None:
        named = JobId.of(app_id)
        job = self._known(named.job)
        if job is None or (named.task is None and wait_for_end(job.folder, timeout_s)):
            return
        state = job.read()
        if state is not None and not state.ended:
            super().wait_for_end(app_id, timeout_s)  # on another machine, or a task of a sweep

    @shortcut
    def log_replicas(self, app_id: str) -> _Replicas | None:
        job = self._find(app_id)
        state = job.read() if job else None
        return None if state is None else state.positions()

    def open_logs(self, app_id: str, replicas: Sequence[tuple[str, int]], query: LogQuery) -> Sequence[Iterable[str]]:
        from torchx.schedulers.local.logs import JobEnd, LogIterator, open_log

        job = self._need(app_id)
        end = JobEnd()
        state = job.read()
        if state is not None and TASKS in state.facts:
            from torchx.schedulers.batch.logs import check_query

            check_query(query)
            logs = [(f"{app_id}/{k}", job.task_log(k)) for _, k in replicas]
            return [LogIterator(task, path, self, query.follow, query=query) for task, path in logs]
        return [open_log(self, app_id, job.replica_folder(role, k), query, end) for role, k in replicas]

    def enter(self, app_id: str, role: str, k: int, argv: Sequence[str], tty: Tty | None = None) -> InsideProcess:
        from torchx.schedulers.local.inside import enter

        return enter(self._need(app_id), role, k, argv, tty)

    def kept(self, app_id: str, role: str, k: int, cwd: str) -> Sequence[Kept]:
        from torchx.schedulers.kit.inside.kept import folders

        return folders([cwd, self._need(app_id).replica_folder(role, k)])

    def shares_files(self, app_id: str) -> bool:
        return bool(app_id)

    def metrics(self, app_id: str) -> _Metrics | None:
        from torchx.schedulers.local import usage

        named = JobId.of(app_id)
        return usage.metrics(self._find(named.job), named.task)

    def steps(self, app_id: str) -> _Ranks:
        from torchx.schedulers.local import usage

        return usage.steps(self._find(JobId.of(app_id).job))

    # -- sweeps ----------------------------------------------------------------------------------

    def check_tasks(self, dryrun_info: AppDryRunInfo[PopenRequest], tasks: TaskList) -> None:  # noqa: ARG002  # the contract's signature
        from torchx.schedulers.kit.tasks import only_role

        only_role(dryrun_info._app, "local_cwd")

    def submit_tasks(self, dryrun_info: AppDryRunInfo[PopenRequest], tasks: TaskList) -> str:
        from torchx.schedulers.local.sweeps import submit

        return submit(self._jobs, dryrun_info, tasks)

    def describe_tasks(self, app_id: str, numbers: Sequence[int]) -> _Answers | None:
        from torchx.schedulers.local.sweeps import describe_some

        job = self._find(app_id)
        state = job.read() if job else None
        return None if state is None or TASKS not in state.facts else describe_some(state, app_id, numbers)

    def cancel_task(self, app_id: str, number: int) -> None:
        if (job := self._find(app_id)) is not None:
            send_command(job.folder, f"cancel {number}")

    def simulate(self, app_id: str, fault: str, replica: tuple[str, int]) -> Simulation:
        """See :class:`torchx.schedulers.kit.abilities.Simulates`."""
        from torchx.schedulers.local.simulate import simulation

        return simulation(self._need(app_id), fault, replica)

    # -- cancel and delete -----------------------------------------------------------------------

    def _cancel_existing(self, app_id: str) -> None:
        if (job := self._find(app_id)) is not None:
            job.cancel()

    def _delete_existing(self, app_id: str) -> None:
        """Cancel the job if it runs, and remove its files. Other files in its folders are kept."""
        job = self._find(app_id)
        if job is not None:
            delete(job)
        self._apps.pop(app_id, None)

    def close(self) -> None:
        """Clear the cache of jobs. Jobs keep running."""
        self._apps.clear()

    def _find(self, app_id: str) -> _LocalAppDef | None:
        job = self._known(app_id)
        if job is not None and job.read() is None:
            self._apps.pop(app_id, None)
            return None
        return job

    def _need(self, app_id: str) -> _LocalAppDef:
        job = self._find(app_id)
        if job is None:
            raise NotFoundError(f"there is no local job `{app_id}`", hint="`torchx list` shows the jobs")
        return job

    def _known(self, app_id: str) -> _LocalAppDef | None:
        """Return the job, without checking that it still exists."""
        job = self._apps.get(app_id)
        if job is None and (folder := self._jobs.find(app_id)) is not None:
            job = _LocalAppDef(app_id, "", folder)
            self._remember(app_id, job)
        return job

    def _remember(self, app_id: str, job: _LocalAppDef) -> None:
        if app_id not in self._apps:
            for oldest in [*self._apps][: max(len(self._apps) + 1 - self._cache_size, 0)]:
                self._apps.pop(oldest, None)
            self._apps[app_id] = job


def create_scheduler(
    session_name: str,
    cache_size: int = 100,
    extra_paths: list[str] | None = None,
    image_provider_class: Callable[[LocalOpts], ImageProvider] | None = None,
    **kwargs: Any,  # noqa: ARG001  # parameters meant for other schedulers
) -> LocalScheduler:
    """Return the factory of ``local_cwd``."""
    return LocalScheduler(session_name, image_provider_class, cache_size=cache_size, extra_paths=extra_paths)
