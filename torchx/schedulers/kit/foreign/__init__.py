"""Views of a backend that contain only the jobs that torchx did not launch.

The handles of such jobs have the session ``foreign``: ``slurm://foreign/4711``. A view reports their states, causes and
logs. It does not change them, unless :meth:`ForeignJobs.forced` allows it.
"""

from __future__ import annotations

import copy
from abc import abstractmethod
from typing import TYPE_CHECKING, Any, NoReturn

from torchx.errors import NotSupportedError
from torchx.schedulers.kit.views import View
from torchx.specs.handles import FOREIGN
from torchx.util.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from typing_extensions import Self

    from torchx.schedulers.api import ListAppResponse, Scheduler
    from torchx.specs.api import CfgVal


@dataclass(frozen=True)
class Named:
    """A job that was looked up by its native name.

    Attributes:
        app_id: its id in the view, or in the backend if ``ours``.
        ours: whether torchx launched it.
    """

    app_id: str
    ours: bool = False


def forced(backend: Scheduler[Any]) -> Scheduler[Any]:
    """Return a view that can cancel and delete jobs. A backend that is not a view is returned unchanged."""
    return backend.forced() if isinstance(backend, ForeignJobs) else backend


class ForeignJobs(View):
    """Base class of these views. Each system has a subclass."""

    _force = False
    hears_all = False  # a backend selects the changes that it reports by torchx's labels

    @abstractmethod
    def find(self, reference: str) -> Named | None:
        """Find a job by any kind of name or id that is common on this system; None if there is no such job."""

    @abstractmethod
    def about(self, app_id: str) -> dict[str, str]:
        """Properties of the job besides its state: ``name``, ``user``, ``command``, ..."""

    def forced(self) -> Self:
        """Return a copy of this view that can cancel and delete jobs."""
        twin = copy.copy(self)
        twin._force = True
        return twin

    def cancel(self, app_id: str) -> None:
        """Cancel the job, if the view is :meth:`forced`."""
        self._refuse_unless_forced(app_id)
        super().cancel(app_id)

    def delete(self, app_id: str) -> None:
        """Delete the job, if the view is :meth:`forced`."""
        self._refuse_unless_forced(app_id)
        super().delete(app_id)

    def _refuse_unless_forced(self, app_id: str) -> None:
        if not self._force:
            raise NotSupportedError(
                f"torchx did not launch `{app_id}` and does not end it",
                hint="`--force` ends it anyway; `torchx adopt --undo JOB` removes it from the run registry",
            )

    def list(self, cfg: Mapping[str, CfgVal] | None = None) -> list[ListAppResponse]:  # noqa: ARG002  # the contract's
        """Return an empty list: the tools of the system list its jobs."""
        return []

    def submit_dryrun(self, *_: object) -> NoReturn:
        """Not supported: views do not submit jobs."""
        raise NotSupportedError(f"`{FOREIGN}` is the session of jobs that torchx did not launch")

    def simulate(self, app_id: str, *_: object) -> NoReturn:
        """Not supported."""
        raise NotSupportedError(f"torchx did not launch `{app_id}`: faults cannot be simulated in it")

    def enter(self, app_id: str, role: str, k: int, argv: Sequence[str], tty: object = None) -> NoReturn:  # noqa: ARG002
        """Not supported."""
        raise NotSupportedError(
            f"torchx did not launch `{app_id}` and cannot start processes in it",
            hint="use `docker exec`, `kubectl exec` or `srun --overlap --jobid=ID`",
        )
