"""What the verbs in :mod:`torchx.runner.verbs` use of the Runner, for type checkers: nothing of it is imported."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from torchx.config import Setting
    from torchx.config.files import ConfigFiles
    from torchx.runner.backends import Backends
    from torchx.runner.events import log_event
    from torchx.runner.record import Recorder
    from torchx.runs import Run
    from torchx.schedulers.api import Scheduler
    from torchx.specs.api import AppDef, AppDryRunInfo, AppStatus, CfgVal, Workspace


class RunnerParts:
    """The Runner's own methods; see :class:`torchx.runner.api.Runner`."""

    if TYPE_CHECKING:
        _backends: Backends
        _recorder: Recorder

        def _scheduler(self, scheduler: str, session: str | None = None) -> Scheduler[Any]: ...

        def _find(self, reference: str) -> tuple[str, Scheduler[Any], str]: ...

        def log_replicas(self, app_handle: str) -> list[tuple[str, int]]: ...

        def _known(self, reference: str, event: Any, *, force: bool = False) -> tuple[str, Scheduler[Any], str]: ...

        def _settings(
            self, scheduler: str, cfg: Mapping[str, CfgVal] | None, files: ConfigFiles | None = None
        ) -> dict[str, Setting]: ...

        def cfg_from_str(self, scheduler: str, *cfg_literal: str) -> Mapping[str, CfgVal]: ...

        def resolve(self, reference: str) -> str: ...

        def cancel(self, app_handle: str, *, force: bool = False) -> None: ...

        def scheduler_backends(self) -> list[str]: ...

        def recorded(self, app_handle: str) -> Run | None: ...

        def status(self, app_handle: str) -> AppStatus | None: ...

        def dryrun(
            self,
            app: AppDef,
            scheduler: str,
            cfg: Mapping[str, CfgVal] | None = None,
            workspace: Workspace | str | None = None,
            parent_run_id: str | None = None,
        ) -> AppDryRunInfo[Any]: ...

        def discard(self, dryrun_info: AppDryRunInfo[Any]) -> None: ...

        def _schedule_or_discard(self, info: AppDryRunInfo[Any], event: log_event) -> str: ...
