"""What all verbs of the Runner stand on: its schedulers, their run options, and which of them answers for a job."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

from torchx import config
from torchx.config.files import ConfigFiles
from torchx.runner.events import log_event
from torchx.runner.ground.backends import Backends, is_near
from torchx.runner.ground.registry import close_registry, read_run, run_registry
from torchx.specs.api import UnknownAppException, parse_app_handle

if TYPE_CHECKING:
    from torchx.runs import Run
    from torchx.schedulers import SchedulerFactory
    from torchx.schedulers.api import Scheduler
    from torchx.specs.api import CfgVal, runopts

    _Strings = list[str]
DEFAULT_SESSION = "torchx"


class RunnerBase:
    """The schedulers of a :class:`torchx.runner.api.Runner`; each mixin of verbs is built on it."""

    def __init__(
        self, name: str, scheduler_factories: dict[str, SchedulerFactory] | None, scheduler_params: dict[str, object]
    ) -> None:
        self._name = DEFAULT_SESSION if name is None else name
        self._backends = Backends(scheduler_factories, scheduler_params)
        self._checked_config = False
        self._at_close: list[Callable[[], None]] = []  # of what the mixins hold

    def name(self) -> str:
        """Return the session name, which is part of the handles of this Runner's jobs."""
        return self._name

    def scheduler_backends(self) -> _Strings:
        """Return the names of the installed schedulers, the default scheduler first."""
        return [*self._backends.factories()]

    def scheduler_run_opts(self, scheduler: str) -> runopts:
        """Return the run options of a scheduler.

        Raises:
            UnknownSchedulerException: the scheduler is not installed.
        """
        return self._scheduler(scheduler).run_opts()

    def cfg_from_str(self, scheduler: str, *cfg_literal: str) -> Mapping[str, CfgVal]:
        """Parse run options in the syntax of the command line: ``name=value,list=x;y``.

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

    def resolve(self, reference: str) -> str:
        """Resolve a short reference to an app handle; see :meth:`torchx.runner.watching.verbs.Watches.resolve`."""
        raise NotImplementedError

    def recorded(self, app_handle: str) -> Run | None:
        """Return the job's entry in the run registry: sources of its run options, code version, times; or None."""
        return read_run(self.resolve(app_handle))

    def is_near(self, app_handle: str) -> bool:
        """Whether the job's scheduler runs on this machine, so that a query costs next to nothing."""
        return is_near(self._locate(app_handle)[1])

    def close(self) -> None:
        """Close the schedulers and the run registry. Jobs keep running."""
        for end in self._at_close:
            end()
        self._backends.close()
        close_registry()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}(name={self._name!r})"

    def _scheduler(self, scheduler: str, session: str | None = None) -> Scheduler[Any]:
        """Return the scheduler of that name, for jobs of the given session (by default this Runner's)."""
        return self._backends.get(scheduler, session or self._name)

    def _locate(self, reference: str, event: log_event | None = None) -> tuple[str, Scheduler[Any], str]:
        """Resolve a reference to the job's handle, its scheduler, and the app id to query that scheduler with."""
        handle = reference if "://" in reference else self.resolve(reference)
        scheduler, session, app_id = parse_app_handle(handle)
        backend = self._scheduler(scheduler, session)
        if "/" in app_id or app_id.startswith("sweep-"):
            from torchx.runner.jobs.lookup import resolve_backend

            backend, app_id = resolve_backend(backend, app_id)
        if event is not None:
            event.name_job(handle)
        return handle, backend, app_id

    def _locate_known(self, reference: str, event: Any, *, force: bool = False) -> tuple[str, Scheduler[Any], str]:
        """Like :meth:`_locate`, but raises UnknownAppException for a job that is neither on record nor exists."""
        handle, backend, app_id = self._locate(reference, event)
        if force:
            from torchx.schedulers.kit.foreign import forced

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
