"""What a backend reports of a job: facts, from which :mod:`torchx.schedulers.kit.verdict` alone draws conclusions.

A backend's ``answers.py`` makes these out of native answers, and decides nothing: which replica is to blame, how states
fold and what is said of it is the verdict's business. Facts are cheap to make; what costs a look into files or logs
(:class:`~torchx.schedulers.failures.reader.Evidence`) is asked for later, of a few replicas, through a :class:`Look`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from torchx.specs.api import AppState, Role
from torchx.util.records import dataclass, field

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torchx.schedulers.failures.reader import Evidence
    from torchx.specs.retries import Attempt

    class Look(Protocol):
        """Reads what failed replicas left behind: one answer for each, in order, in as few questions as possible."""

        def __call__(self, replicas: Sequence[ReplicaFacts], /) -> Sequence[Evidence]: ...


@dataclass(frozen=True, kw_only=True)
class ReplicaFacts:
    """What is known of one replica.

    Attributes:
        role: name of its role.
        replica: its number within the role, from 0.
        state: the backend's word for the state of this replica alone, translated by its table.
        native: that word.
        exit_code: of its last process; None when a signal ended it, or it is not known.
        signal: name of the signal that ended it, such as ``SIGKILL``; empty when none did.
        host: where it runs or ran; empty when not known.
        address: of the host.
        started, ended: Unix times of its last process, seconds; 0 when not known.
        reason: why it waits, or why it ended, in the backend's own terms as a sentence without full stop.
        kind: class of the cause where the reason decides it, see :data:`torchx.schedulers.failures.classes.CLASSES`.
        stuck: it waits for something that does not come by itself.
        stopped: it did not end by itself: it was ended because of others, or with the whole job.
        before: why the process or pod that it replaces had failed.
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


@dataclass(frozen=True, kw_only=True)
class RoleFacts:
    """What is known of one role.

    Attributes:
        replicas: all of them, in order.
        min_replicas: an elastic role goes on while so many run or have succeeded; None: it needs all of them.
        state: what the object that owns the replicas says of all of them; None: it depends on the replicas.
        reason: why, as a sentence without full stop.
        restarts: its owner starts replicas anew as long as it goes on: a failed one does not end the role.
        ending: its owner has given up, and waits for the last replicas to end.
    """

    name: str
    replicas: Sequence[ReplicaFacts]
    min_replicas: int | None = None
    state: AppState | None = None
    reason: str = ""
    restarts: bool = False
    ending: bool = False


@dataclass(frozen=True, kw_only=True)
class JobFacts:
    """What is known of a job.

    Attributes:
        app_id: as in its handle.
        roles: in the order of the AppDef.
        state: what the scheduler says of the whole job; None: it depends on its roles.
        native: the scheduler's word for it.
        reason: why it waits, or why it ended, as a sentence without full stop.
        kind: class of the cause where the reason decides it, see :data:`torchx.schedulers.failures.classes.CLASSES`.
        cancelled: somebody asked for its end.
        unattended: nobody ends the other replicas when one has failed: the job has failed then, though others may run
            on, unless ``state`` says otherwise.
        restarts: how often it, or a part of it, was started again; -1 when not known.
        attempts: those that have ended, of a job with a retry policy.
        started, ended: Unix times, seconds; None when not known.
        hang: what the watchdog of the job saw when it was silent last, as a sentence without full stop; empty: nothing.
        notes: what else a reader should know, each a sentence without full stop.
        tell_hosts: hosts are told apart by their names; where all replicas share one machine they are not worth a word.
        definition: the roles as they were submitted; empty when they are not on record.
        metadata: of the AppDef.
        ui_url: where a person looks at the job.
    """

    app_id: str
    roles: Sequence[RoleFacts]
    state: AppState | None = None
    native: str = ""
    reason: str = ""
    kind: str = ""
    cancelled: bool = False
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
        """All replicas, in the order of roles and numbers.

        >>> one = ReplicaFacts(role="w", replica=0, state=AppState.RUNNING)
        >>> len(JobFacts(app_id="a", roles=[RoleFacts(name="w", replicas=[one])]).replicas())
        1
        """
        return [replica for role in self.roles for replica in role.replicas]
