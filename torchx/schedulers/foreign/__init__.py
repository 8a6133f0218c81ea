"""Jobs that torchx did not launch: what a view of a backend is that has them, and them alone.

Their handles have the session ``foreign``: ``slurm://foreign/4711``. A view answers all that is asked of a job that was
submitted by somebody else: state, cause, logs. It changes nothing, unless it is told to by :meth:`ForeignJobs.forced`.
"""

from __future__ import annotations

import copy
from abc import abstractmethod
from typing import TYPE_CHECKING, Any, NoReturn

from torchx.errors import NotSupportedError
from torchx.specs.handles import FOREIGN
from torchx.util.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from typing_extensions import Self

    from torchx.schedulers.api import ListAppResponse, Scheduler
    from torchx.specs.api import CfgVal

    _Base = Scheduler[Any]
else:
    _Base = object


@dataclass(frozen=True)
class Named:
    """A job that somebody named as the system's own tools do.

    Attributes:
        app_id: the id under which the view has it; or the backend, if it is ours.
        ours: torchx launched it.
    """

    app_id: str
    ours: bool = False


def forced(backend: Scheduler[Any]) -> Scheduler[Any]:
    """A view by which jobs can be cancelled and deleted; a backend that is none as it is."""
    return backend.forced() if isinstance(backend, ForeignJobs) else backend


class ForeignJobs(_Base):
    """What a view is besides its backend: see :meth:`of`. Subclasses say what is special of a system."""

    _force = False

    @classmethod
    def of(cls, backend: Scheduler[Any]) -> Self:
        """The view of a backend: what that one answers of its jobs, but where this class says otherwise.

        It shares the connections and the configuration of the backend.
        """
        both: type[Self] = type(cls.__name__, (cls, type(backend)), {"__doc__": cls.__doc__})
        view = both.__new__(both)
        view.__dict__.update(backend.__dict__)  # all of it declared: the class derives from the backend's
        return view

    @abstractmethod
    def find(self, reference: str) -> Named | None:
        """The job that a person means, in whatever way people name one on this system.

        Returns:
            None when there is none, or when nothing is called so on this system.
        """

    @abstractmethod
    def about(self, app_id: str) -> dict[str, str]:
        """What a person wants to know of the job besides its state: ``name``, ``user``, ``command``, ..."""

    def forced(self) -> Self:
        """A copy of this view by which jobs can be cancelled and deleted."""
        twin = copy.copy(self)
        twin._force = True
        return twin

    def cancel(self, app_id: str) -> None:
        """As of a scheduler, when it was forced."""
        self._refuse_unless_forced(app_id)
        super().cancel(app_id)

    def delete(self, app_id: str) -> None:
        """As of a scheduler, when it was forced."""
        self._refuse_unless_forced(app_id)
        super().delete(app_id)

    def _refuse_unless_forced(self, app_id: str) -> None:
        if not self._force:
            raise NotSupportedError(
                f"torchx did not launch `{app_id}`, and leaves it alone",
                hint="`--force` ends it all the same; `torchx adopt --undo JOB` takes it off the record",
            )

    def list(self, cfg: Mapping[str, CfgVal] | None = None) -> list[ListAppResponse]:  # noqa: ARG002  # the contract's
        """None: the tools of the system list them."""
        return []

    def submit_dryrun(self, *_: object) -> NoReturn:
        """Refused: nothing is submitted here."""
        raise NotSupportedError(f"`{FOREIGN}` is the session of jobs that torchx did not launch")

    def simulate(self, app_id: str, *_: object) -> NoReturn:
        """Refused."""
        raise NotSupportedError(f"torchx did not launch `{app_id}`: no fault is made to happen to it")

    def enter(self, app_id: str, role: str, k: int, argv: Sequence[str], tty: object = None) -> NoReturn:  # noqa: ARG002
        """Refused."""
        raise NotSupportedError(
            f"torchx did not launch `{app_id}`, and does not know how to enter it",
            hint="use `docker exec`, `kubectl exec`, `srun --overlap --jobid=ID`, whichever it is",
        )
