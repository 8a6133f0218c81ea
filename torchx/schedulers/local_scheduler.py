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

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torchx.errors import SpecError
from torchx.schedulers.api import NONE
from torchx.schedulers.kit.caps import COMMON
from torchx.schedulers.local.jobs import LocalAppDef
from torchx.schedulers.local.options import Opts
from torchx.schedulers.local.sweep_jobs import SpecialJobs
from torchx.specs.api import AppDef, AppDryRunInfo, CfgVal, Resource
from torchx.supervisor.layout import COMBINED_LOG, STDERR_LOG, STDOUT_LOG
from torchx.util.records import replace
from torchx.util.reexports import reexports

if TYPE_CHECKING:
    import io
    import subprocess

    from torchx.schedulers.kit.export import Export
    from torchx.schedulers.kit.findings import Check
    from torchx.schedulers.kit.nodes import Pool
    from torchx.schedulers.local.images import CWDImageProvider, ImageProvider, LocalDirectoryImageProvider
    from torchx.schedulers.local.logs import LogIterator
    from torchx.schedulers.local.processes import PopenProtocol, SignalException
    from torchx.schedulers.local.request import ENV_CUDA_VISIBLE_DEVICES, PopenRequest, ReplicaParam

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

_LocalAppDef = LocalAppDef  # NeMo-Run makes it

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
    idle=True,
    order=("tcp", "http", "log", "file"),
)


class LocalScheduler(SpecialJobs):
    """Runs jobs on this machine.

    Args:
        session_name: groups the jobs.
        image_provider_class: creates an :class:`ImageProvider` from the run options; None: :class:`CWDImageProvider`.
        cache_size: how many jobs this object caches.
        extra_paths: folders to search for programs before ``PATH``.
    """

    options = Opts
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
            request.idle = texts.get("idle", "")
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
        self._remember(request.app_id, LocalAppDef(request.app_id, "", folder, app.roles if app else None))
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


def create_scheduler(
    session_name: str,
    cache_size: int = 100,
    extra_paths: list[str] | None = None,
    image_provider_class: Callable[[LocalOpts], ImageProvider] | None = None,
    **kwargs: Any,  # noqa: ARG001  # parameters meant for other schedulers
) -> LocalScheduler:
    """Return the factory of ``local_cwd``."""
    return LocalScheduler(session_name, image_provider_class, cache_size=cache_size, extra_paths=extra_paths)
