"""The Runner's verbs about many runs, and those that look into one: a line or two here, a room of its own behind each.

Nothing is imported at the top: a verb imports its room when it is called.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from torchx.runner.record import Recorder
    from torchx.runs import Run, RunQuery, RunRegistry
    from torchx.schedulers.api import Scheduler


class RunnerVerbs:
    """What :class:`torchx.runner.api.Runner` can do beyond submitting a job and looking at it."""

    if TYPE_CHECKING:  # what the Runner has
        _recorder: Recorder

        def _scheduler(self, scheduler: str, session: str | None = None) -> Scheduler[Any]: ...

        def _find(self, reference: str) -> tuple[str, Scheduler[Any], str]: ...

        def _known(self, reference: str, event: Any) -> tuple[str, Scheduler[Any], str]: ...

    def runs(self, query: RunQuery | None = None, *, refresh: bool = True, timeout_s: float = 10.0) -> list[Run]:
        """The runs on record, of all schedulers, newest first.

        Args:
            refresh: ask the schedulers for those that were not seen to end. One that does not answer leaves the last
                state, and says so in ``note``.
            timeout_s: how long all schedulers together may take.
        """
        from torchx.runner import answers, listing
        from torchx.runs import RunQuery

        query = RunQuery() if query is None else query
        if not refresh:
            return answers.Jobs(run_registry().list(query))
        self._recorder.settle_intents(self._scheduler, timeout_s)
        return answers.Jobs(listing.runs(run_registry(), query, self._scheduler, timeout_s))


def run_registry() -> RunRegistry:
    """The registry of this user's runs. The status of a job by its handle does without."""
    from torchx.runs import default_registry

    return default_registry()
