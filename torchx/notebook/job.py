"""A job as a value of a notebook."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torchx.errors import NotFoundError, TorchXError
from torchx.runner import Runner, get_runner
from torchx.specs import AppStatus
from torchx.specs import html_pages as pages


class Job:
    """A job that was launched: ``job = %torchx run ...``.

    As the last value of a cell it shows what has become of it until then.

    Args:
        handle: of the job, or anything else that finds it: its app id, ``@last``.
    """

    def __init__(self, handle: str) -> None:
        self.handle = shared_runner().resolve(handle)

    @property
    def app_id(self) -> str:
        """The job's name at its scheduler."""
        return self.handle.rpartition("/")[2]

    def status(self) -> AppStatus | None:
        """How it is; see :meth:`torchx.runner.Runner.status`."""
        return shared_runner().status(self.handle)

    def wait(self, timeout: float | None = None) -> AppStatus | None:
        """Waits for its end, ``timeout`` seconds at most; interrupting the cell ends the waiting, and not the job.

        Raises:
            WaitTimeoutError: it has not ended in time; it is a ``TimeoutError``.
        """
        return shared_runner().wait(self.handle, timeout=timeout)

    def log_lines(self, role: str = "", k: int = 0, *, follow: bool = False) -> Iterable[str]:
        """What a replica wrote, line by line.

        Args:
            role: of the replica; may be left out in a job with one role.
            k: number of the replica.
            follow: until the replica ends.

        Raises:
            NotFoundError: there are several roles, or none, and none is named.
        """
        return shared_runner().log_lines(self.handle, role or self._only_role(), k, should_tail=follow)

    def cancel(self) -> None:
        """Ends it; its logs stay."""
        shared_runner().cancel(self.handle)

    def _only_role(self) -> str:
        app = shared_runner().describe(self.handle)
        roles = [role.name for role in app.roles] if app else []
        if len(roles) != 1:
            raise NotFoundError(f"`{self.handle}` has {len(roles)} roles", hint=f"one of: {', '.join(roles)}")
        return roles[0]

    def __repr__(self) -> str:
        return f"Job({self.handle!r})"

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:  # noqa: ARG002  # IPython's
        try:
            status = self.status()
        except TorchXError as e:  # the scheduler cannot be asked: no reason not to show whose status was asked for
            said = f"its status is not known: {e}"
        else:
            if status is not None:
                text = f"{self.handle}\n{status.format()}"
                return {"text/plain": text, "text/html": pages.status_html(status, self.handle)}
            said = "its scheduler knows nothing of it"
        return {"text/plain": f"{self.handle}\n{said}", "text/html": pages.card("UNKNOWN", self.handle, said)}


def shared_runner() -> Runner:
    """The one of this notebook."""
    global _shared
    if _shared is None:
        _shared = get_runner()
    return _shared


_shared: Runner | None = None
