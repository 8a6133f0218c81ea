"""The table of schedulers: built-in rows, and plugins of the entry-point group ``torchx.schedulers``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from torchx.errors import BackendError, MissingDependencyError, TorchXError
from torchx.plugins import Registry, load_group
from torchx.specs.handles import UnknownSchedulerException
from torchx.util.reexports import reexports

reexports(__name__)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torchx.schedulers.api import Scheduler

__all__ = [
    "DEFAULT_SCHEDULER_MODULES",
    "Scheduler",
    "SchedulerFactory",
    "get_default_scheduler_name",
    "get_scheduler_factories",
    "load_group",
]


class SchedulerFactory(Protocol):
    """Creates a scheduler: ``factory(session_name, **scheduler_params)``."""

    def __call__(self, session_name: str, **kwargs: object) -> Scheduler[Any]: ...


DEFAULT_SCHEDULER_MODULES: dict[str, str] = {
    "local_cwd": "torchx.schedulers.local_scheduler",
    "local_docker": "torchx.schedulers.docker_scheduler",
    "slurm": "torchx.schedulers.slurm_scheduler",
    "kubernetes": "torchx.schedulers.kubernetes_scheduler",
    "kubernetes_mcad": "torchx.schedulers.kubernetes_mcad_scheduler",
    "aws_batch": "torchx.schedulers.aws_batch_scheduler",
    "aws_sagemaker": "torchx.schedulers.aws_sagemaker_scheduler",
    "lsf": "torchx.schedulers.lsf_scheduler",
}
"""Name -> module with ``create_scheduler``."""


def get_scheduler_factories(
    group: str = "torchx.schedulers", skip_defaults: bool = False
) -> dict[str, SchedulerFactory]:
    """Name -> factory of every scheduler, the default one first. A plugin may replace a built-in.

    A factory imports its scheduler's module when it is called. A plugin that cannot be loaded raises ``PluginError``
    at that point and does not affect other schedulers.
    """
    defaults = {} if skip_defaults else DEFAULT_SCHEDULER_MODULES
    rows = {name: f"{module}:create_scheduler" for name, module in defaults.items()}
    registry: Registry[SchedulerFactory] = Registry(group, rows)
    return {name: _deferred(registry, name) for name in registry.names()}


def get_default_scheduler_name() -> str:
    """Return the scheduler that ``torchx run`` uses unless the user names one."""
    return next(iter(DEFAULT_SCHEDULER_MODULES))


def make_scheduler(
    name: str, session: str, factories: Mapping[str, SchedulerFactory], /, **params: object
) -> Scheduler[Any]:
    """Create the scheduler of that name, for the jobs of a session.

    Raises:
        UnknownSchedulerException: there is no factory of that name.
        TorchXError: the scheduler cannot be loaded or created; the message names it.
    """
    if name not in factories:
        raise UnknownSchedulerException(name, factories)
    try:
        return factories[name](session, **params)
    except TorchXError:
        raise
    except ImportError as e:
        raise MissingDependencyError(
            f"scheduler `{name}` cannot be loaded: {e}", hint="install what it needs, or repair the plugin"
        ) from e
    except Exception as e:
        raise BackendError(f"scheduler `{name}` cannot be set up: {type(e).__name__}: {e}") from e


def _deferred(registry: Registry[SchedulerFactory], name: str) -> SchedulerFactory:
    """Return a factory that imports its scheduler when it is called."""

    def create(session_name: str, **kwargs: object) -> Scheduler[Any]:
        return registry.get(name)(session_name, **kwargs)

    return create
