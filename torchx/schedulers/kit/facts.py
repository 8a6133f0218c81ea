"""The facts that a backend reports about a job. Only :mod:`torchx.schedulers.kit.verdict` draws conclusions from them.

A backend's ``answers.py`` translates native answers into facts. The verdict decides which replica is to blame, how
states combine, and what is reported. Facts must be cheap to collect. What needs files or logs to be read
(:class:`~.failures.reader.Evidence`) is fetched later, for a few replicas, through a :class:`Look`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from torchx.specs.api import AppState, Role
from torchx.util.records import dataclass, field

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torchx.schedulers.kit.failures.reader import Evidence
    from torchx.specs.failures import Failure
    from torchx.specs.wishes.retries import Attempt

    class Look(Protocol):
        """Reads what failed replicas left behind: one result for each, in order, in as few queries as possible."""

        def __call__(self, replicas: Sequence[ReplicaFacts], /) -> Sequence[Evidence]: ...


@dataclass(frozen=True, kw_only=True)
class ReplicaFacts:
    """The facts about one replica.

    Attributes:
        role: name of its role.
        replica: its number within the role, from 0.
        state: the backend's state of this replica alone, translated by the backend's table.
        native: the name of that state in the backend's own terms.
        exit_code: of its last process; None if a signal ended it or the exit code is unknown.
        signal: name of the signal that ended it, such as ``SIGKILL``; empty if none did.
        host: where it runs or ran; empty if unknown.
        address: of the host.
        started, ended: Unix times of its last process, seconds; 0 if unknown.
        reason: why it is waiting or why it ended, in the backend's terms, as a sentence without full stop.
        kind: class of the cause if the reason determines it, see :data:`.failures.classes.CLASSES`.
        stuck: it waits for something that needs somebody to act.
        stopped: it was ended because of other replicas or together with the whole job.
        before: why the process or pod that it replaces had failed.
        earlier: that failure, for the record, in case that nothing is left of the replica at its end.
        ready: Unix time at which the probe of its role succeeded, seconds; 0: not yet, or it has none. That of its end:
            it was ready, and it is not known since when.
    """

    role: str
    replica: int
    state: AppState
    native: str = ""
    exit_code: int | None = None
    signal: str = ""
    host: str = ""
    address: str | None = None
    started: float = 0.0
    ended: float = 0.0
    reason: str = ""
    kind: str = ""
    stuck: bool = False
    stopped: bool = False
    before: str = ""
    earlier: Failure | None = None
    ready: float = 0.0


@dataclass(frozen=True, kw_only=True)
class RoleFacts:
    """The facts about one role.

    Attributes:
        replicas: all of them, in order.
        min_replicas: an elastic role continues while this many replicas run or have succeeded; None: it needs all.
        state: the state reported by the object that owns the replicas; None: it follows from the replicas.
        reason: of that state, as a sentence without full stop.
        restarts: its owner restarts failed replicas, so that a failed replica does not end the role.
        ending: its owner has given up and is waiting for the last replicas to end.
        ends_job: the job ends when it has ended, with its state.
        after: the roles that it waits for.
        needs: how many of its replicas must be ready; 0: it has no probe.
    """

    name: str
    replicas: Sequence[ReplicaFacts]
    min_replicas: int | None = None
    state: AppState | None = None
    reason: str = ""
    restarts: bool = False
    ending: bool = False
    ends_job: bool = False
    after: Sequence[str] = ()
    needs: int = 0


@dataclass(frozen=True, kw_only=True)
class JobFacts:
    """The facts about a job.

    Attributes:
        app_id: as in its handle.
        roles: in the order of the AppDef.
        state: the state that the scheduler reports for the whole job; None: it follows from the roles.
        native: the name of that state in the scheduler's own terms.
        reason: why it is waiting or why it ended, as a sentence without full stop.
        kind: class of the cause if the reason determines it, see :data:`.failures.classes.CLASSES`.
        cancelled: its cancellation was requested.
        kill_in_s: seconds until what is left of a cancelled job is killed; None if unknown.
        unattended: nothing ends the other replicas when one has failed. The job counts as failed then although others
            may still run, unless ``state`` says otherwise.
        restarts: how many times it, or a part of it, was restarted; -1 if unknown.
        attempts: the attempts that have ended, if the job has a retry policy.
        started, ended: Unix times, seconds; None if unknown.
        hang: what the job's watchdog found when the job was last silent, as a sentence without full stop, or empty.
        notes: further sentences for the reader, each without full stop.
        tell_hosts: whether messages name hosts; False if all replicas share one machine.
        definition: the roles as submitted; empty if they were not recorded.
        metadata: of the AppDef.
        ui_url: page of the job in the backend's web interface.
    """

    app_id: str
    roles: Sequence[RoleFacts]
    state: AppState | None = None
    native: str = ""
    reason: str = ""
    kind: str = ""
    cancelled: bool = False
    kill_in_s: float | None = None
    unattended: bool = False
    restarts: int = -1
    attempts: Sequence[Attempt] = ()
    started: float | None = None
    ended: float | None = None
    notes: Sequence[str] = ()
    hang: str = ""
    tell_hosts: bool = True
    definition: Sequence[Role] = ()
    metadata: Mapping[str, str] = field(default_factory=dict)
    ui_url: str | None = None

    def replicas(self) -> list[ReplicaFacts]:
        """All replicas, in the order of roles and numbers."""
        return [replica for role in self.roles for replica in role.replicas]
