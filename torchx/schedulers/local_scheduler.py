"""``local_cwd``: replicas as processes of this machine, owned by a supervisor that outlives the submitting shell.

Options: ``log_dir``, ``prepend_cwd``, ``auto_set_cuda_visible_devices``, ``cancel_grace_s``.

Each job has a folder ``$TORCHX_HOME/local/<session>/<app id>``; see :mod:`torchx.supervisor` for what is in it. A
replica runs in the current directory with the caller's environment, the role's on top. Its output goes to
``<role>/<k>/stdout.log`` and ``stderr.log``, and both, whole lines in the order of writing, to ``combined.log``.

Limits: images are not used, and nothing is mounted: a replica sees the machine's own files. Resources are not
enforced; more than the machine has is warned of. A job, with every process that it started, daemons included, is
over when its last replica ends.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence

from torchx.errors import BackendError, ConfigError, NotFoundError, SpecError
from torchx.schedulers.api import (
    NONE,
    Capabilities,
    DescribeAppResponse,
    ListAppResponse,
    Scheduler,
    StructuredOpts,
)
from torchx.schedulers.ids import make_unique
from torchx.schedulers.kit.logs import LogQuery
from torchx.schedulers.kit.names import FILE_NAME
from torchx.schedulers.kit.replicas import replicas
from torchx.schedulers.local.images import CWDImageProvider, ImageProvider, LocalDirectoryImageProvider
from torchx.schedulers.local.jobs import SCHEME, LocalJob, LocalJobs, discard, write_request
from torchx.schedulers.local.logs import LogIterator, open_log
from torchx.schedulers.local.processes import PopenProtocol, SignalException, start_process
from torchx.schedulers.local.request import (
    PopenRequest,
    ReplicaParam,
    RoleRules,
    check_scripts,
    move_logs,
    replica_requests,
)
from torchx.settings import torchx_home
from torchx.specs.api import AppDef, AppDryRunInfo, AppState, CfgVal, runopts
from torchx.supervisor.layout import COMBINED_LOG, ERROR_FILE, STDERR_LOG, STDOUT_LOG, folder_name, replica_folder

TYPE_CHECKING = False
if TYPE_CHECKING:
    import io
    import subprocess
    from dataclasses import dataclass
    from typing import Any

    _Jobs = list[ListAppResponse]  # within the class below, `list` is a method
    _Replicas = list[tuple[str, int]]
else:
    from torchx.util.records import dataclass

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
ENV_CUDA_VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"
ENV_RANK0_HOST = "TORCHX_RANK0_HOST"
ENV_RANK0_PORT = "TORCHX_RANK0_PORT"
ENV_ERROR_FILE = "TORCHELASTIC_ERROR_FILE"

AppId = str
LocalOpts = Mapping[str, CfgVal]

CAPABILITIES = Capabilities(
    logs=True,
    log_streams=("stdout", "stderr", "combined"),
    log_since=True,
    log_follow=True,
    cancel=True,
    delete=True,
    list=True,
    retries=("REPLICA", "ROLE", "APPLICATION"),
    elastic=True,
    multi_role=True,
    gpus=True,
    durable=True,
)


@dataclass
class Opts(StructuredOpts):
    """Run options of ``local_cwd``."""

    log_dir: str | None = None
    """folder for the logs, which torchx then never removes by itself; default: below $TORCHX_HOME/local"""

    prepend_cwd: bool = False
    """look for programs in the current directory first, before those in PATH"""

    auto_set_cuda_visible_devices: bool = False
    """share the GPUs out: sets CUDA_VISIBLE_DEVICES of each replica according to the GPUs that its role asks for"""

    cancel_grace_s: int = 10
    """seconds between SIGTERM and SIGKILL when processes of a job are ended"""


class _LocalAppDef(LocalJob):
    """A job that this process has submitted, or asked for."""

    def __init__(self, id: str, log_dir: str, folder: str = "", roles: list[Any] | None = None) -> None:
        super().__init__(folder or log_dir, roles)
        self.id = id
        self.log_dir = log_dir

    @property
    def app_state(self) -> AppState:
        """The job's state now."""
        described = self.describe()
        return described.state if described else AppState.UNKNOWN


class LocalScheduler(Scheduler[Mapping[str, CfgVal]]):
    """Runs jobs on this machine.

    Args:
        session_name: groups the jobs.
        image_provider_class: makes files of a role's image out of the run options.
        cache_size: how many jobs this object remembers; all others are looked up.
        extra_paths: folders to look for programs in, before those in ``PATH``.
    """

    capabilities = CAPABILITIES
    wait_hint = 0.05

    def __init__(
        self,
        session_name: str,
        image_provider_class: Callable[[LocalOpts], ImageProvider],
        cache_size: int = 100,
        extra_paths: list[str] | None = None,
    ) -> None:
        super().__init__("local", session_name)
        if cache_size < 1:
            raise SpecError(f"`cache_size` is `{cache_size}`", hint="it must be 1 or more")
        self._image_provider_class = image_provider_class
        self._cache_size = cache_size
        self._extra_paths = list(extra_paths or ())
        self._apps: dict[AppId, _LocalAppDef] = {}
        self._jobs = LocalJobs(session_name)

    def _run_opts(self) -> runopts:
        return Opts.as_runopts()

    def _validate(self, app: AppDef, scheduler: str, cfg: LocalOpts) -> None:
        """Anything may run here: a role that does not say what it needs, too."""

    # -- submission ------------------------------------------------------------------------------

    def _submit_dryrun(self, app: AppDef, cfg: LocalOpts) -> AppDryRunInfo[PopenRequest]:
        return AppDryRunInfo(self._to_popen_request(app, cfg), str)

    def _to_popen_request(self, app: AppDef, cfg: LocalOpts) -> PopenRequest:
        opts = Opts.from_cfg(cfg)
        if opts.cancel_grace_s < 0:
            raise ConfigError(
                f"`cancel_grace_s` is `{opts.cancel_grace_s}`", hint="it is a number of seconds: 0 or more"
            )
        provider = self._image_provider_class(cfg)
        app_id = make_unique(FILE_NAME.make(app.name))
        base = os.path.abspath(os.path.expanduser(opts.log_dir)) if opts.log_dir else torchx_home("local")
        logs = os.path.join(base, folder_name(self.session_name), app_id)
        search = [*([os.getcwd()] if opts.prepend_cwd else []), *self._extra_paths]
        path = _program_path() if search else ""
        params: dict[str, list[ReplicaParam]] = {role.name: [] for role in app.roles}
        log_dirs: dict[str, list[str]] = {role.name: [] for role in app.roles}
        roots: dict[str, str] = {}

        def img_root(role: Any) -> str:
            roots[role.name] = provider.fetch_role(role)
            return roots[role.name]

        for replica in replicas(app, app_id, rank0_env=ENV_RANK0_HOST, img_root=img_root):
            role = replica.role
            folder = replica_folder(logs, role.name, replica.k)
            env = role.env
            env.setdefault(ENV_ERROR_FILE, f"{folder}/{ERROR_FILE}")
            env.setdefault(ENV_RANK0_HOST, "localhost")
            if search:
                env["PATH"] = os.pathsep.join([*search, env.get("PATH") or path])
            params[role.name].append(
                provider.get_replica_param(
                    roots[role.name],
                    role,
                    f"{folder}/{STDOUT_LOG}",
                    f"{folder}/{STDERR_LOG}",
                    f"{folder}/{COMBINED_LOG}",
                )
            )
            log_dirs[role.name].append(folder)
        if opts.auto_set_cuda_visible_devices:
            self.auto_set_CUDA_VISIBLE_DEVICES(params, app, opts)
        rules = {r.name: RoleRules(r.max_retries, r.retry_policy.value, r.min_replicas) for r in app.roles}
        return PopenRequest(app_id, logs, params, log_dirs, rules, float(opts.cancel_grace_s))

    def auto_set_CUDA_VISIBLE_DEVICES(self, role_params: dict[str, list[ReplicaParam]], app: AppDef, cfg: Opts) -> None:
        """Give each replica GPUs of its own, as many as its role asks for. A role that sets the variable keeps it.

        With fewer GPUs than are asked for nothing is set, and it is warned of.
        """
        from torchx.schedulers.local.resources import share_gpus

        if cfg.auto_set_cuda_visible_devices:
            share_gpus(role_params, app)

    def schedule(self, dryrun_info: AppDryRunInfo[PopenRequest]) -> str:
        """Hand the job to its supervisor; returns once that has taken it.

        Raises:
            SpecError: a program, a script or a working directory does not exist.
            BackendError: the job could not be started.
        """
        from torchx.supervisor.client import LauncherError, shared

        request = dryrun_info.request
        app = dryrun_info._app
        env = self._base_environment(request)
        roles = replica_requests(request, env)
        if app is not None:
            check_scripts(request, app)
        ours = request.log_dir.startswith(torchx_home("local") + os.sep)
        if not ours:
            _make_log_dir(request.log_dir)
        if app is not None:
            from torchx.schedulers.local.resources import warn_of_shortage

            warn_of_shortage(app)
        folder = self._jobs.create(request.app_id)
        logs = folder if ours else request.log_dir
        if logs != request.log_dir:
            move_logs(roles, request.log_dir, logs)
        facts = self._facts(request, logs)
        try:
            shared.start()  # gets ready while we write
            shared.submit(
                {
                    "job": folder,
                    "facts": facts,
                    "env": env,
                    "grace_s": request.cancel_grace_s,
                    "roles": roles,
                    "retention": self._jobs.retention_due(folder),
                },
                lambda: write_request(folder, app, facts, getattr(dryrun_info, "_record", None)),
            )
        except (LauncherError, OSError) as e:
            discard(folder)
            raise BackendError(f"job `{request.app_id}` could not be started: {e}") from e
        self._remember(request.app_id, _LocalAppDef(request.app_id, logs, folder, app.roles if app else None))
        return request.app_id

    @staticmethod
    def _base_environment(request: PopenRequest) -> dict[str, str]:
        env = dict(os.environ)
        env["PATH"] = _program_path()
        if sum(map(len, request.role_params.values())) > 1:
            env[ENV_RANK0_PORT] = str(_free_port())
        return env

    def _facts(self, request: PopenRequest, logs: str) -> dict[str, str]:
        """What the job's state file says for good."""
        from torchx.supervisor.proctree import boot_id, pid_namespace

        first = next((p[0] for p in request.role_params.values() if p), None)
        handle = first.env.get("TORCHX_JOB_ID") if first else None
        return {
            "app_id": request.app_id,
            "name": request.app_id.rpartition("-")[0],
            "session": self.session_name,
            "handle": handle or f"{SCHEME}://{self.session_name}/{request.app_id}",
            "logs": logs,
            "host": os.uname().nodename,
            "boot": boot_id(),
            "pidns": pid_namespace(),
        }

    def run_local_job(
        self,
        args: list[str],
        env: dict[str, str],
        stdout: io.FileIO | None,
        stderr: io.FileIO | None,
        cwd: str | None = None,
    ) -> subprocess.Popen[bytes]:
        """Run one program right here, without a supervisor, in a session of its own."""
        return start_process(args, env, stdout=stdout, stderr=stderr, cwd=cwd)

    # -- what became of it -----------------------------------------------------------------------

    def describe(self, app_id: str) -> DescribeAppResponse | None:
        job = self._known(app_id)
        described = job.describe() if job else None
        if described is None:
            self._apps.pop(app_id, None)
        return described

    def still_there(self, app_id: str) -> Callable[[], bool] | None:
        job = self._apps.get(app_id)
        return None if job is None else job.still_there()

    def exists(self, app_id: str) -> bool:
        return self._find(app_id) is not None

    def list(self, cfg: LocalOpts | None = None) -> _Jobs:  # noqa: ARG002  # the contract's signature
        """All local jobs of this user, of every session."""
        found = []
        for folder in self._jobs.all():
            try:
                job = LocalJob(folder).state()
            except BackendError:
                continue  # one damaged job must not hide the others
            if job is not None:
                facts = job.facts
                found.append(
                    ListAppResponse(
                        app_id=facts.get("app_id", ""),
                        state=AppState[job.state],
                        app_handle=facts.get("handle", NONE),
                        name=facts.get("name", ""),
                    )
                )
        return found

    def wait_for_end(self, app_id: str, timeout_s: float) -> None:
        from torchx.supervisor.reader import wait_for_end

        job = self._known(app_id)
        if job is None or wait_for_end(job.folder, timeout_s):
            return
        state = job.state()
        if state is not None and not state.ended:
            super().wait_for_end(app_id, timeout_s)  # it runs on another machine

    def log_replicas(self, app_id: str) -> _Replicas | None:
        job = self._find(app_id)
        state = job.state() if job else None
        return None if state is None else [(role, k) for role, count in state.roles for k in range(count)]

    def open_logs(self, app_id: str, replicas: Sequence[tuple[str, int]], query: LogQuery) -> Sequence[Iterable[str]]:
        job = self._find(app_id)
        if job is None:
            raise NotFoundError(f"there is no local job `{app_id}`", hint="`torchx list` shows the jobs")
        logs = [open_log(self, app_id, job.replica_folder(role, k), query) for role, k in replicas]
        if query.regex is None:
            return logs
        from torchx.schedulers.local.log_matches import MatchingLines

        return [MatchingLines(log, query.regex.search) for log in logs]

    # -- the end ---------------------------------------------------------------------------------

    def _cancel_existing(self, app_id: str) -> None:
        from torchx.supervisor.reader import ask_to_cancel

        job = self._find(app_id)
        state = job.state() if job else None
        if job is None or state is None or state.ended or ask_to_cancel(job.folder):
            return
        state = job.state()
        if state is not None and not state.ended:
            raise BackendError(
                f"job `{app_id}` runs on host `{state.facts.get('host')}`, out of reach of this one",
                hint="cancel it there",
            )

    def _delete_existing(self, app_id: str) -> None:
        """End the job if it runs, and remove its files; files of others in its folders stay."""
        from torchx.schedulers.local.jobs import delete

        job = self._find(app_id)
        if job is not None:
            delete(job)
        self._apps.pop(app_id, None)

    def close(self) -> None:
        """Forget the jobs; they go on."""
        self._apps.clear()

    def _find(self, app_id: str) -> _LocalAppDef | None:
        job = self._known(app_id)
        if job is not None and job.state() is None:
            self._apps.pop(app_id, None)
            return None
        return job

    def _known(self, app_id: str) -> _LocalAppDef | None:
        """The job, without a look at it: it may have been deleted by others."""
        job = self._apps.get(app_id)
        if job is None:
            folder = self._jobs.find(app_id)
            if folder is None:
                return None
            job = _LocalAppDef(app_id, folder)
            self._remember(app_id, job)
        return job

    def _remember(self, app_id: str, job: _LocalAppDef) -> None:
        if app_id not in self._apps:
            while len(self._apps) >= self._cache_size:
                del self._apps[next(iter(self._apps))]
            self._apps[app_id] = job


def create_scheduler(
    session_name: str,
    cache_size: int = 100,
    extra_paths: list[str] | None = None,
    image_provider_class: Callable[[LocalOpts], ImageProvider] = CWDImageProvider,
    **kwargs: Any,  # noqa: ARG001  # parameters meant for other schedulers
) -> LocalScheduler:
    """The factory of ``local_cwd``."""
    return LocalScheduler(session_name, image_provider_class, cache_size=cache_size, extra_paths=extra_paths)


def _make_log_dir(path: str) -> None:
    try:
        os.makedirs(path, exist_ok=True)
    except OSError as e:
        raise ConfigError(
            f"the logs cannot be kept in `{path}`: {e.strerror}", hint="choose another `log_dir`, or leave it away"
        ) from e


def _program_path() -> str:
    from torchx.schedulers.local.path import program_path

    return program_path(os.environ)


def _free_port() -> int:
    import socket

    with socket.socket() as s:
        s.bind(("localhost", 0))
        port: int = s.getsockname()[1]
        return port
