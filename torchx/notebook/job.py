"""The job as a notebook object."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torchx.errors import NotFoundError, TorchXError
from torchx.render import html_pages as pages
from torchx.runner import Runner, get_runner
from torchx.specs import AppStatus


class Job:
    """A launched job: ``job = %torchx run ...``. A notebook displays its current status.

    Args:
        handle: the handle, or another reference, such as the app id or ``@last``.
    """

    def __init__(self, handle: str) -> None:
        self.handle = shared_runner().resolve(handle)

    @property
    def app_id(self) -> str:
        """The id of the job on its scheduler."""
        return self.handle.rpartition("/")[2]

    def status(self) -> AppStatus | None:
        """Return the status; see :meth:`torchx.runner.Runner.status`."""
        return shared_runner().status(self.handle)

    def wait(self, timeout: float | None = None) -> AppStatus | None:
        """Wait until the job has ended, for at most ``timeout`` seconds. Interrupting the cell does not end the job.

        Raises:
            WaitTimeoutError: the job has not ended in time; a ``TimeoutError``.
        """
        return shared_runner().wait(self.handle, timeout=timeout)

    def log_lines(self, role: str = "", k: int = 0, *, follow: bool = False) -> Iterable[str]:
        """Return the log lines of a replica.

        Args:
            role: the role; optional if the job has only one.
            k: the number of the replica.
            follow: wait for further lines until the replica ends.

        Raises:
            NotFoundError: no role is named, and the job has several or none.
        """
        return shared_runner().log_lines(self.handle, role or self._only_role(), k, should_tail=follow)

    def cancel(self) -> None:
        """Cancel the job; its logs stay."""
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
        except TorchXError as e:  # the scheduler cannot be asked; still show the handle
            problem = f"its status is not known: {e}"
        else:
            if status is not None:
                text = f"{self.handle}\n{status.format()}"
                return {"text/plain": text, "text/html": pages.status_html(status, self.handle)}
            problem = "its scheduler does not know the job"
        return {"text/plain": f"{self.handle}\n{problem}", "text/html": pages.card("UNKNOWN", self.handle, problem)}


def shared_runner() -> Runner:
    global _shared
    if _shared is None:
        _shared = get_runner()
    return _shared


_shared: Runner | None = None
