"""What became of a job: states, and the status of an app, its roles and their replicas."""

from __future__ import annotations

from torchx.errors import EXIT_GONE, EXIT_JOB_FAILED, TorchXError
from torchx.specs.states import NONE, RESET, YELLOW_BOLD, AppState, ReplicaState, is_started, is_terminal
from torchx.util.records import dataclass, field

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from torchx.specs.retries import Attempt
    from torchx.specs.tasks import TaskTable
else:
    Attempt = TaskTable = object  # `typing.get_type_hints` finds the name, and nobody pays for the import

__all__ = [
    "NONE",
    "RESET",
    "YELLOW_BOLD",
    "AppState",
    "AppStatus",
    "AppStatusError",
    "ReplicaState",
    "ReplicaStatus",
    "RoleStatus",
    "is_started",
    "is_terminal",
]


@dataclass
class ReplicaStatus:
    """The status of one replica.

    Args:
        id: index within the role, from 0.
        state: its state.
        role: name of the role.
        hostname: where it runs; empty when not known.
        structured_error_msg: why it failed, as JSON; see :mod:`torchx.specs.failures`.
        hostaddr: address of the host.
        started_at, ended_at: Unix times of its last process, seconds; None when not known.
        memory_peak, memory_limit: the most bytes that it used, and may use; None when not known, or nobody has looked.
    """

    _brief_repr = True

    id: int
    state: AppState
    role: str
    hostname: str
    structured_error_msg: str = NONE
    hostaddr: str | None = None
    started_at: float | None = None
    ended_at: float | None = None
    memory_peak: int | None = None
    memory_limit: int | None = None


@dataclass
class RoleStatus:
    """The status of all replicas of a role."""

    _brief_repr = True

    role: str
    replicas: list[ReplicaStatus]

    def to_json(self) -> dict[str, Any]:
        """JSON types: ``{"role": str, "replicas": [...]}``; states of replicas as numbers."""
        return {
            "role": self.role,
            "replicas": [
                {
                    "id": r.id,
                    "state": int(r.state),
                    "role": r.role,
                    "hostname": r.hostname,
                    "structured_error_msg": r.structured_error_msg,
                    "hostaddr": r.hostaddr or r.hostname,
                }
                for r in self.replicas
            ],
        }


@dataclass
class AppStatus:
    """The status of a job.

    Args:
        state: of the whole job.
        num_restarts: how often it was started again.
        msg: what the scheduler says about it.
        structured_error_msg: why it failed, as JSON; see :mod:`torchx.specs.failures`.
        ui_url: where people can look at it.
        roles: the replicas, by role.
        started_at: Unix time of its start, where the scheduler says so.
        ended_at: Unix time of its end, where the scheduler says so.
        created_at: Unix time of its submission, where it is known without looking into the record of runs.
        as_of: Unix time at which the job was seen in this state, where its scheduler cannot be queried now; None: now.
        error: why its scheduler could not be queried.
        attempts: those that have ended, of a job with a retry policy.
        hang: what its watchdog saw when it was silent last: for how long, and what the ranks were doing.
        tasks: of a sweep, what became of each of its tasks.
        gone: its scheduler no longer has the job, and nobody saw its end; ``msg`` has the last state that was seen.

    >>> AppStatus(AppState.SUCCEEDED).is_terminal()
    True
    """

    _brief_repr = True

    state: AppState
    num_restarts: int = 0
    msg: str = ""
    structured_error_msg: str = NONE
    ui_url: str | None = None
    roles: list[RoleStatus] = field(default_factory=list)
    started_at: float | None = None
    ended_at: float | None = None
    created_at: float | None = None
    as_of: float | None = None
    error: TorchXError | None = None
    gone: bool = False
    attempts: list[Attempt] = field(default_factory=list)
    hang: str = ""
    tasks: TaskTable | None = None

    def is_terminal(self) -> bool:
        """Whether the job is over."""
        return is_terminal(self.state)

    def raise_for_status(self) -> None:
        """Raises an error unless the job succeeded.

        Raises:
            AppStatusError: the state is anything but SUCCEEDED.
        """
        if self.state != AppState.SUCCEEDED:
            raise AppStatusError(self)

    def to_json(self, filter_roles: list[str] | None = None) -> dict[str, Any]:
        """JSON types; the state of the job by name, of the replicas as numbers.

        ``{"state": "FAILED", "num_restarts": 0, "roles": [{"role": "trainer", "replicas": [{"id": 0, "state": 5,
        "role": "trainer", "hostname": "", "structured_error_msg": "<NONE>", "hostaddr": ""}]}], "msg": "",
        "structured_error_msg": "<NONE>", "url": null}``

        Args:
            filter_roles: only these roles; None: all.
        """
        return {
            "state": str(self.state),
            "num_restarts": self.num_restarts,
            "roles": [role.to_json() for role in self._roles(filter_roles)],
            "msg": self.msg,
            "structured_error_msg": self.structured_error_msg,
            "url": self.ui_url,
        }

    def format(self, filter_roles: list[str] | None = None, *, color: bool = False) -> str:
        """One readable page: the state, the cause of a failure, the replicas of each role by state.

        Args:
            filter_roles: only these roles; None: all.
            color: with terminal colours.
        """
        from torchx.specs.status_page import render_status

        return render_status(self, self._roles(filter_roles), color=color)

    def __str__(self) -> str:
        return self.format()

    def _repr_html_(self) -> str:
        from torchx.specs.html_pages import status_html

        return status_html(self)

    def _repr_pretty_(self, printer: Any, _: bool) -> None:
        printer.text(self.format())  # what IPython shows as text

    def _roles(self, names: list[str] | None) -> list[RoleStatus]:
        return [role for role in self.roles if names is None or role.role in names]


class AppStatusError(TorchXError):
    """A job that should have succeeded did not.

    Args:
        status: how it ended; also the attribute ``status``.
    """

    exit_code = EXIT_JOB_FAILED

    def __init__(self, status: AppStatus, *args: object) -> None:
        reason = f": {status.msg}" if status.msg else ""
        said = " ".join(str(arg) for arg in args)
        super().__init__(f"{said + ': ' if said else ''}the job did not succeed, it is {status.state}{reason}")
        self.status = status
        if status.gone:
            self.exit_code = EXIT_GONE
