"""Puts submissions on record: the intent before, the answer after, and what git says once it has said it."""

from __future__ import annotations

from torchx.errors import TransientError
from torchx.specs.api import make_app_handle

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from torchx.schedulers.api import Scheduler
    from torchx.specs.api import AppDryRunInfo, AppState, AppStatus
    from torchx.util.git import Probe

    Find = Callable[[str, str], Scheduler[Any]]

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
        self._seen: dict[str, tuple[AppState, str]] = {}

    def submit(self, info: AppDryRunInfo[Any], scheduler: str, backend: Scheduler[Any]) -> str:
        """Submits what was dried; returns the app handle.

        Raises:
            Exception: whatever the scheduler raises. No run is on record then, unless there may be a job all the same:
                that is settled when runs are listed.
        """
        from torchx.runner.submission import new_run, reason
        from torchx.runs import default_registry
        from torchx.specs.images import reported_image_digests, reported_workspace_hashes
        from torchx.util import git

        self.settle()
        registry = default_registry()
        source = git.probe()
        run = new_run(info, scheduler, self._session, source.known)
        run.submission = backend.submission_token(info)
        run_id = registry.begin(run)
        try:
            app_id = backend.schedule(info)
        except TransientError:
            registry.unanswered(run_id)  # the job may be there: the intent stays until its scheduler has been asked
            raise
        except Exception as e:
            registry.abandoned(run_id, reason(e))
            raise
        handle = make_app_handle(scheduler, self._session, app_id)
        digests, hashes = reported_image_digests(info), reported_workspace_hashes(info)
        registry.submitted(run_id, handle, image_digests=digests, workspace_hashes=hashes)
        if not source.done:
            self._sources.append((run_id, source))
        return handle

    def saw(self, handle: str, status: AppStatus) -> None:
        """Writes down how a job is, where that is news to this Runner: who waits for one asks again and again."""
        from torchx.runs import default_registry

        if self._seen.get(handle) == (status.state, status.msg):
            return
        default_registry().saw(handle, status.state, msg=status.msg, ended_at=status.ended_at)
        if status.is_terminal():
            self._seen.pop(handle, None)
        else:
            self._seen[handle] = (status.state, status.msg)

    def settle_intents(self, find: Find, timeout_s: float = 10.0) -> None:
        """Decides what became of submissions of anybody's of which the answer was not heard; see :mod:`.intents`.

        Args:
            find: the scheduler of a name and a session.
            timeout_s: how long all schedulers together may take to answer.
        """
        from torchx.runs import default_registry

        if default_registry().intents():
            from torchx.runner.intents import settle_intents

            settle_intents(default_registry(), find, timeout_s)

    def settle(self) -> None:
        """Writes down what git has found out by now."""
        sources, self._sources = self._sources, []
        if sources:
            from torchx.runs import default_registry

            for run_id, source in sources:
                state = source.result(GIT_TIMEOUT_S)
                default_registry().amend(run_id, git_commit=state.commit, git_dirty=state.dirty)
