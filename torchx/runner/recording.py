"""Puts submissions on record: the intent before, the answer after, and what git says once it has said it."""

from __future__ import annotations

from torchx.errors import TransientError
from torchx.specs.api import make_app_handle

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from torchx.schedulers.api import Scheduler
    from torchx.specs.api import AppDryRunInfo
    from torchx.util.git import Probe

GIT_TIMEOUT_S = 0.1
"""How long git is waited for, beyond the time that the submission takes anyway."""


class Recorder:
    """The submissions of one Runner.

    Args:
        session: the Runner's name.
    """

    def __init__(self, session: str) -> None:
        self._session = session
        self._sources: list[tuple[int, Probe]] = []

    def submit(self, info: AppDryRunInfo[Any], scheduler: str, backend: Scheduler[Any]) -> str:
        """Submits what was dried; returns the app handle.

        Raises:
            Exception: whatever the scheduler raises. No run is on record then, unless there may be a job all the same:
                that is settled when runs are listed.
        """
        from torchx.runner.submission import new_run, reason
        from torchx.runs import default_registry
        from torchx.specs.images import reported_image_digests
        from torchx.util import git

        self.settle()
        registry = default_registry()
        source = git.probe()
        run_id = registry.begin(new_run(info, scheduler, self._session, source.known))
        try:
            app_id = backend.schedule(info)
        except TransientError:
            raise  # the answer may be lost, and the job not: the intent stays until its scheduler has been asked
        except Exception as e:
            registry.abandoned(run_id, reason(e))
            raise
        handle = make_app_handle(scheduler, self._session, app_id)
        registry.submitted(run_id, handle, image_digests=reported_image_digests(info))
        if not source.done:
            self._sources.append((run_id, source))
        return handle

    def settle(self) -> None:
        """Writes down what git has found out by now."""
        sources, self._sources = self._sources, []
        if sources:
            from torchx.runs import default_registry

            for run_id, source in sources:
                state = source.result(GIT_TIMEOUT_S)
                default_registry().amend(run_id, git_commit=state.commit, git_dirty=state.dirty)
