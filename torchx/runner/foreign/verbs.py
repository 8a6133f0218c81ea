"""The Runner's verbs for jobs that torchx did not launch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torchx.runner.watching.handling import Handles

if TYPE_CHECKING:
    from torchx.runner.foreign.explain import Explained


class Explains(Handles):
    """Explains, adopts and disowns jobs of others."""

    def why(self, reference: str, scheduler: str | None = None, *, lines: int = 20) -> Explained:
        """Explains the state of any job, also of one that torchx did not launch.

        Arguments and errors are those of :func:`torchx.runner.foreign.explain.why`.
        """

        from torchx.runner.foreign import explain

        return explain.why(self, reference, scheduler, lines=lines)

    def adopt(self, reference: str, scheduler: str | None = None, **given: Any) -> str:
        """Record a job that torchx did not launch and return its handle; see :mod:`.explain`."""

        from torchx.runner.foreign import explain

        return explain.adopt(self, reference, scheduler, **given)

    def disown(self, app_handle: str) -> str:
        """Remove an adopted job from the run registry and return its handle. The job itself is not changed.

        Raises:
            SpecError: torchx launched the job.
        """

        from torchx.runner.foreign import explain

        return explain.disown(self.resolve(app_handle))
