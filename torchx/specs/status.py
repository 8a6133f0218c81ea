"""The status of an app, its roles and their replicas."""

from __future__ import annotations

from torchx.errors import EXIT_GONE, EXIT_JOB_FAILED, TorchXError
from torchx.specs.states import NONE, AppState, is_terminal
from torchx.util.records import dataclass, field

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from torchx.specs.fit import RoleUsage
    from torchx.specs.pace import JobPace
    from torchx.specs.tasks import TaskTable
    from torchx.specs.wishes.retries import Attempt
else:
    # lets typing.get_type_hints() resolve the names without importing their modules
    Attempt = JobPace = RoleUsage = TaskTable = object

_BEGUN = (AppState.RUNNING, AppState.SUCCEEDED, AppState.FAILED)


@dataclass
class ReplicaStatus:
    """The status of one replica.

    Args:
        id: index within the role, from 0.
        state: state of the replica.
        role: name of the role.
        hostname: name of its host; empty if unknown.
        structured_error_msg: why it failed, as JSON; see :mod:`torchx.specs.failures`.
        hostaddr: address of the host.
        started_at, ended_at: Unix times in seconds of its last process; None if unknown.
        memory_peak, memory_limit: peak memory usage and memory limit in bytes; None if unknown or not queried.
        ready_at: Unix time at which its probe succeeded; None: it has not, or there is none. That of its end: it was
            ready, and it is not known since when.
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
    ready_at: float | None = None


@dataclass
class RoleStatus:
    """The status of all replicas of a role.

    Args:
        after: the roles that it waits for.
        needs: how many of its replicas must be ready for others; 0: it has no probe.
        ends_job: the job ends when it has ended.
    """

    _brief_repr = True

    role: str
    replicas: list[ReplicaStatus]
    after: list[str] = field(default_factory=list)
    needs: int = 0
    ends_job: bool = False

    def ready(self) -> list[float]:
        """Return when its replicas became ready, Unix times in order."""
        return sorted(r.ready_at for r in self.replicas if r.ready_at is not None)

    def order(self) -> str:
        """Return its place in the order of roles, and whether it is ready; empty without an order.

        >>> up = ReplicaStatus(0, AppState.RUNNING, "server", "", started_at=5.0, ready_at=17.0)
        >>> RoleStatus("server", [up], needs=1, after=["data"]).order()
        'after data, ready (1 of 1) after 12 s'
        """
        from torchx.util.datetime import duration

        ready = self.ready()
        parts = [f"after {', '.join(self.after)}"] * bool(self.after)
        if self.needs:
            began = min((r.started_at for r in self.replicas if r.started_at), default=0.0)
            known = began and not any(r.ready_at and r.ready_at == r.ended_at for r in self.replicas)
            when = f" after {duration(ready[self.needs - 1] - began)}" if len(ready) >= self.needs and known else ""
            begun = bool(ready) or any(r.started_at or r.state in _BEGUN for r in self.replicas)
            word = "ready" if ready else "not ready"
            parts += [f"{word} ({len(ready)} of {self.needs}){when}"] * begun
        return ", ".join([*parts, *["ends the job"] * self.ends_job])

    def to_json(self) -> dict[str, Any]:
        """Convert to JSON types: ``{"role": str, "replicas": [...]}``; states of replicas are numbers."""
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
        state: state of the whole job.
        num_restarts: number of restarts.
        msg: message of the scheduler.
        structured_error_msg: why the job failed, as JSON; see :mod:`torchx.specs.failures`.
        ui_url: web page of the job.
        roles: the replicas, by role.
        started_at: Unix time of the start, if the scheduler reports it.
        ended_at: Unix time of the end, if the scheduler reports it.
        created_at: Unix time of the submission, if known without reading the run registry.
        as_of: if the scheduler cannot be reached, the Unix time at which this state was observed; otherwise None.
        error: why the scheduler could not be queried.
        attempts: past attempts of a job with a retry policy.
        hang: report of the watchdog about the last hang: its length, and what the ranks were doing.
        tasks: the tasks of a sweep.
        pace: how far it is, if its ranks report steps and it was queried.
        usage: what each role used against what it asked for; empty if unknown or not queried.
        gone: the scheduler no longer has the job, and its end was not observed; ``msg`` has the last known state.

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
    pace: JobPace | None = None
    usage: list[RoleUsage] = field(default_factory=list)

    def is_terminal(self) -> bool:
        """Whether the state is final."""
        return is_terminal(self.state)

    def raise_for_status(self) -> None:
        """Raise an error unless the job succeeded.

        Raises:
            AppStatusError: the state is not SUCCEEDED.
        """
        if self.state != AppState.SUCCEEDED:
            raise AppStatusError(self)

    def to_json(self, filter_roles: list[str] | None = None) -> dict[str, Any]:
        """Convert to JSON types; the state of the job is a name, the states of replicas are numbers.

        ``{"state": "FAILED", "num_restarts": 0, "roles": [{"role": "trainer", "replicas": [{"id": 0, "state": 5,
        "role": "trainer", "hostname": "", "structured_error_msg": "<NONE>", "hostaddr": ""}]}], "msg": "",
        "structured_error_msg": "<NONE>", "url": null}``

        Args:
            filter_roles: include only these roles; None includes all.
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
        """Return readable text: the state, the cause of a failure, and the replicas of each role by state.

        Args:
            filter_roles: include only these roles; None includes all.
            color: use terminal colours.
        """
        from torchx.render.status_page import render_status

        return render_status(self, self._roles(filter_roles), color=color)

    def __str__(self) -> str:
        return self.format()

    def _repr_html_(self) -> str:
        from torchx.render.html_pages import status_html

        return status_html(self)

    def _repr_pretty_(self, printer: Any, _: bool) -> None:
        printer.text(self.format())  # called by IPython

    def _roles(self, names: list[str] | None) -> list[RoleStatus]:
        return [role for role in self.roles if names is None or role.role in names]


class AppStatusError(TorchXError):
    """A job did not succeed.

    Args:
        status: status of the job; also the attribute ``status``.
    """

    exit_code = EXIT_JOB_FAILED

    def __init__(self, status: AppStatus, *args: object) -> None:
        reason = f": {status.msg}" if status.msg else ""
        prefix = " ".join(str(arg) for arg in args)
        super().__init__(f"{prefix + ': ' if prefix else ''}the job did not succeed, it is {status.state}{reason}")
        self.status = status
        if status.gone:
            self.exit_code = EXIT_GONE
