"""The :class:`Runner`, which submits jobs to schedulers and manages them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torchx.runner.capsule.verbs import Reruns
from torchx.runner.doctor.verbs import Checks
from torchx.runner.foreign.verbs import Explains
from torchx.runner.ground.trackers import get_configured_trackers
from torchx.runner.inside.verbs import Enters
from torchx.runner.jobs.base import DEFAULT_SESSION
from torchx.runner.watching.wait import WaitTimeoutError
from torchx.specs.api import NONE
from torchx.util.reexports import reexports
from torchx.util.session import TORCHX_INTERNAL_SESSION_ID

if TYPE_CHECKING:
    from torchx.schedulers import SchedulerFactory
    from torchx.specs.api import AppDef
    from torchx.tracker.api import ENV_TORCHX_JOB_ID, ENV_TORCHX_PARENT_RUN_ID, ENV_TORCHX_TRACKERS

reexports(__name__)

__all__ = [
    "ENV_TORCHX_JOB_ID",
    "ENV_TORCHX_PARENT_RUN_ID",
    "ENV_TORCHX_TRACKERS",
    "NONE",
    "TORCHX_INTERNAL_SESSION_ID",
    "Runner",
    "WaitTimeoutError",
    "get_configured_trackers",
    "get_runner",
]


class Runner(Enters, Reruns, Checks, Explains):
    """Submits jobs to schedulers, and describes, waits for, cancels and deletes them.

    A method that takes an app handle also takes an app id, an unambiguous prefix of the app id of a run on record, or
    ``@last`` for the newest run.

    Args:
        name: session name, which is part of the handles of this Runner's jobs.
        scheduler_factories: factory of each scheduler, by name; None: all installed schedulers.
        component_defaults: default arguments as text, by component and argument; None: those of the sections
            ``[component:NAME]`` of the config files.
        scheduler_params: keyword arguments for the factories.

    >>> from torchx.specs import AppDef, Role
    >>> app = AppDef("hello", [Role("echo", image="/tmp", entrypoint="echo", args=["hello"])])
    >>> with Runner("docs") as runner:
    ...     info = runner.dryrun(app, "local_cwd")
    >>> info._app.roles[0].env["TORCHX_JOB_ID"]
    'local_cwd://docs/${app_id}'
    """

    def __init__(
        self,
        name: str = "",
        scheduler_factories: dict[str, SchedulerFactory] | None = None,
        component_defaults: dict[str, dict[str, str]] | None = None,
        scheduler_params: dict[str, object] | None = None,
    ) -> None:
        super().__init__(name, scheduler_factories, dict(scheduler_params or {}))
        self._component_defaults = component_defaults
        self._apps: dict[str, AppDef] = {}  # for subclasses, which store the apps they launched here

    def __enter__(self) -> Runner:
        return self


def get_runner(
    name: str | None = None, component_defaults: dict[str, dict[str, str]] | None = None, **scheduler_params: Any
) -> Runner:
    """Return a Runner with all installed schedulers.

    Args:
        name: session name, which is part of the handles of this Runner's jobs; None: ``torchx``.
        component_defaults: default arguments as text, by component and argument; None: those of the sections
            ``[component:NAME]`` of the config files.
        scheduler_params: keyword arguments for the schedulers.

    >>> with get_runner("docs") as runner:
    ...     runner
    Runner(name='docs')
    """
    return Runner(name or DEFAULT_SESSION, None, component_defaults, scheduler_params)
