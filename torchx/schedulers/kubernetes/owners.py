"""The objects that own the pods of a job: their status, by kind.

The objects are plain dicts as the API returns them, from any version of Kubernetes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from torchx.schedulers.kubernetes import names, reasons
from torchx.schedulers.kubernetes.names import JOB, JOBSET, KUBEFLOW, PYTORCH, VOLCANO, Object
from torchx.specs.api import AppState, is_terminal
from torchx.util.records import dataclass, field, replace


@dataclass
class JobObjects:
    """The objects of one job in the cluster.

    Attributes:
        kind: kind of the owners, a key of :data:`names.OWNERS`.
        version: resource version of the list of owners, at which a watch starts.
        failed: a role has failed.
    """

    kind: str
    owners: list[Object] = field(default_factory=list)
    pods: list[Object] = field(default_factory=list)
    version: str = ""
    failed: bool = False

    def newest(self, back: int = 0) -> JobObjects:
        """Return the last attempt, or the one ``back`` before it, of a job with separate Jobs for attempts;
        else all of it.
        """
        last = max(map(number_of, self.owners), default=0)
        if not last:
            return self
        owners, pods = ([i for i in items if number_of(i) == last - back] for items in (self.owners, self.pods))
        return JobObjects(self.kind, owners, pods, self.version, self.failed)

    def read(self) -> list[Owner]:
        """Its owners, parsed."""
        return [read_owner(self.kind, item) for item in self.owners]

    def needs_pods(self) -> bool:
        """Whether the owners alone do not determine the state."""
        owners = self.read()
        if all(owner.state is AppState.PENDING for owner in owners):  # such as Jobs that wait in a queue
            return self.kind == VOLCANO and self.in_order()  # it counts pods that wait for others as pending
        aborted = (self.kind == VOLCANO or self.in_order()) and any(owner.aborted for owner in owners)
        return aborted or is_elastic(self.owners) or not all(owner.over for owner in owners)

    def in_order(self) -> bool:
        """Whether roles wait for others, or one ends the job."""
        return _mentions(self.owners, r'"after": \["|"ends_job": true')

    def going(self) -> list[Object]:
        """Return the owners that have not ended."""
        return [item for item in self.owners if not read_owner(self.kind, item).over]


def number_of(item: Object) -> int:
    """Return number of the attempt that an object belongs to, from 1; 0 if the cluster alone restarts the job."""
    return int(names.labels_of(item).get(names.LABEL_ATTEMPT) or 0)


def is_sweep(owner: Object) -> bool:
    """Whether a Job runs the tasks of a sweep."""
    parallel = names.annotations_of(owner).get(names.ANNOTATION_SWEEP, "")
    return parallel.isdecimal() and "completions" in (owner.get("spec") or {})


@dataclass(frozen=True, kw_only=True)
class Owner:
    """The status of an object that owns pods.

    Attributes:
        role_index: index of the role whose pods it owns; None if it owns those of all roles.
        replica: number of the replica whose pod it owns; None if it owns those of all replicas.
        state: None if it depends on the pods.
        reason: a sentence without full stop; may be empty.
        kind: class of the cause, if the reason determines it.
        cancelled: a user cancelled it.
        replaces: it may create new pods after one has ended.
        restarts: how many times it has restarted its pods.
        spare: number of pods that may fail before it fails; None for no limit.
        failing: it has failed, and waits for its last pods to end.
        native: the cluster's name of its state.
        wants: number of pods that should exist now.
        ended: replica -> final state, even if its pod no longer exists.
    """

    role_index: int | None = None
    replica: int | None = None
    state: AppState | None = None
    reason: str = ""
    kind: str = ""
    cancelled: bool = False
    replaces: bool = True
    restarts: int = 0
    spare: int | None = None
    failing: bool = False
    native: str = ""
    wants: int = 0
    ended: Mapping[int, AppState] = field(default_factory=dict)

    @property
    def over(self) -> bool:
        """Whether it has ended."""
        return self.state is not None and is_terminal(self.state)

    @property
    def aborted(self) -> bool:
        """Whether it was stopped, but not by a user of torchx: its pods show whether one of them had failed."""
        return self.state is AppState.CANCELLED and not self.cancelled


# -- owners -------------------------------------------------------------------------------------------------


def read_owner(kind: str, item: Object) -> Owner:
    """Parse an owner of a kind in :data:`names.OWNERS`."""
    annotations = names.annotations_of(item)
    cancelled = names.ANNOTATION_CANCELLED in annotations
    if kind == VOLCANO:
        return _read_volcano(item, cancelled=cancelled)
    if kind in (names.APPWRAPPER, names.OLD_APPWRAPPER):
        return _read_appwrapper(item, cancelled=cancelled)
    owner = _READERS[kind](item)
    conditions = {
        c.get("type"): c for c in (item.get("status") or {}).get("conditions") or () if c.get("status") == "True"
    }
    for name, state in reasons.CONDITIONS.items():
        if name in conditions:
            reason, message = (str(conditions[name].get(key) or "") for key in ("reason", "message"))
            kind_of_cause, why = reasons.why_failed(reason, message) if state is AppState.FAILED else ("", "")
            return replace(owner, state=state, reason=why, kind=kind_of_cause, native=name, wants=0)
    spec = item.get("spec") or {}
    if cancelled or names.ANNOTATION_STOPPED in annotations:
        # a queue may have resumed it since the annotation was set
        held = is_suspended(spec) or spec.get("parallelism") == 0
        return replace(owner, state=AppState.CANCELLED if held else None, cancelled=cancelled, wants=0)
    if is_suspended(spec):
        queue = names.labels_of(item).get(names.LABEL_QUEUE)
        waits = f"it waits in the queue `{queue}`" if queue else "it is suspended"
        return replace(owner, state=AppState.PENDING, reason=waits, wants=0)
    return replace(owner, failing=reasons.FAILURE_TARGET in conditions)


def is_suspended(spec: Object) -> bool:
    """Whether the ``spec`` of an owner suspends it; Training Operator has the field in ``runPolicy``."""
    return bool(spec.get("suspend") or (spec.get("runPolicy") or {}).get("suspend"))


def _read_job(item: Object) -> Owner:
    spec, status = item.get("spec") or {}, item.get("status") or {}
    labels = names.labels_of(item)
    limit = spec.get("backoffLimitPerIndex")
    ended = _ended_indexes(status)
    done = int(status.get("succeeded") or 0) + sum(state is AppState.FAILED for state in ended.values())
    return Owner(
        role_index=_index(labels.get(names.LABEL_ROLE_INDEX)),
        replica=_index(labels.get(names.LABEL_REPLICA_ID)),
        spare=int(spec.get("backoffLimit") or 0) if limit is None and "backoffLimit" in spec else None,
        wants=max(int(spec.get("parallelism") or 0) - done, 0),
        ended=ended,
    )


def _read_jobset(item: Object) -> Owner:
    spec, status = item.get("spec") or {}, item.get("status") or {}
    jobs = spec.get("replicatedJobs") or ()
    inner = [((job.get("template") or {}).get("spec") or {}) for job in jobs]
    again = int((spec.get("failurePolicy") or {}).get("maxRestarts") or 0) - int(status.get("restarts") or 0)
    lone = again <= 0 and bool(inner) and all(s.get("backoffLimit") == 0 for s in inner)
    done = sum(int(job.get("succeeded") or 0) for job in status.get("replicatedJobsStatus") or ())
    return Owner(
        restarts=int(status.get("restarts") or 0),
        spare=0 if lone else None,
        wants=0 if done else sum(int(s.get("parallelism") or 0) for s in inner),
    )


def _read_trainjob(item: Object) -> Owner:
    spec, status = item.get("spec") or {}, item.get("status") or {}
    done = any(int(job.get("succeeded") or 0) for job in status.get("jobsStatus") or ())
    return Owner(wants=0 if done else int((spec.get("trainer") or {}).get("numNodes") or 0))


def _read_pytorchjob(item: Object) -> Owner:
    wanted = (item.get("spec") or {}).get("pytorchReplicaSpecs") or {}
    there = (item.get("status") or {}).get("replicaStatuses") or {}
    ended = sum(int(one.get(how) or 0) for one in there.values() for how in ("succeeded", "failed"))
    return Owner(wants=max(sum(int(one.get("replicas") or 0) for one in wanted.values()) - ended, 0), replaces=False)


_READERS = {JOB: _read_job, JOBSET: _read_jobset, KUBEFLOW: _read_trainjob, PYTORCH: _read_pytorchjob}


def _ended_indexes(status: Object) -> dict[int, AppState]:
    """Return final states by replica, from ``completedIndexes`` and ``failedIndexes`` of an Indexed Job,
    such as ``0,3-5``.
    """
    found = {}
    for name, state in (("completedIndexes", AppState.SUCCEEDED), ("failedIndexes", AppState.FAILED)):
        for piece in str(status.get(name) or "").split(","):
            first, _, last = piece.partition("-")
            if first.isdigit() and (last or first).isdigit():
                found.update(dict.fromkeys(range(int(first), int(last or first) + 1), state))
    return found


def _read_volcano(item: Object, *, cancelled: bool) -> Owner:
    status, spec = item.get("status") or {}, item.get("spec") or {}
    found = status.get("state") or {}
    phase = str(found.get("phase") or "")
    if not found:
        return Owner(state=AppState.PENDING, reason="Volcano has not processed it yet: is it installed?")
    state = reasons.VOLCANO_PHASES.get(phase, AppState.UNKNOWN)
    if state is AppState.CANCELLED and not cancelled and int(status.get("failed") or 0):
        state = AppState.FAILED  # aborted by its policy after a pod failed
    said = str(found.get("message") or found.get("reason") or "")
    if state is AppState.UNKNOWN:
        said = f"its phase is `{phase}`{': ' + said if said else ''}"
    retries = int(status.get("retryCount") or 0)
    again = phase == "Restarting" or int(spec.get("maxRetry") or 0) > retries
    return Owner(
        state=state, reason=said, cancelled=cancelled, restarts=retries, spare=None if again else 0, native=phase
    )


def _read_appwrapper(item: Object, *, cancelled: bool) -> Owner:
    status = item.get("status") or {}
    word, state = appwrapper_state(item)
    kind, said = _why_appwrapper(status, state)
    if state is AppState.UNKNOWN:
        said = f"its state is `{word}`{': ' + said if said else ''}"
    elif state is AppState.SUBMITTED:
        said = said or "MCAD has not processed it yet: is it installed?"
    retries = int(status.get("retries") or 0)
    if cancelled and not is_terminal(state) and (item.get("spec") or {}).get("suspend"):
        return Owner(state=AppState.CANCELLED, cancelled=True, restarts=retries)
    return Owner(
        state=None if state is AppState.RUNNING else state,  # while it runs, its pods are more precise
        reason=said,
        kind=kind,
        cancelled=cancelled,
        restarts=retries,
        replaces=_appwrapper_retries(item) > retries,
        native=word,
    )


def _why_appwrapper(status: Object, state: AppState) -> tuple[str, str]:
    """Return the class and the sentence of the last condition that is True and speaks for the state."""
    known = reasons.APPWRAPPER_SPEAKS.get(state, ())
    for condition in reversed(status.get("conditions") or ()):
        if condition.get("status") == "True" and (condition.get("type") in known or state is AppState.UNKNOWN):
            reason, message = (str(condition.get(key) or "") for key in ("reason", "message"))
            if state is AppState.FAILED and reason in reasons.WHY_FAILED:
                return reasons.why_failed(reason, message)
            return "", message or reason
    return "", ""


def appwrapper_state(wrapper: Object) -> tuple[str, AppState]:
    """MCAD's name for the state of an AppWrapper of either version, and our state."""
    status = wrapper.get("status") or {}
    if not status:
        return "", AppState.SUBMITTED
    word = str(status.get("phase") or status.get("state") or "")
    old = wrapper.get("apiVersion") == names.V1BETA1
    table = reasons.APPWRAPPER_STATES if old else {**reasons.APPWRAPPER_STATES, **reasons.APPWRAPPER_PHASES}
    return word, table.get(word, AppState.UNKNOWN)


def _appwrapper_retries(wrapper: Object) -> int:
    """How many times MCAD recreates the pods of an AppWrapper of either version."""
    if wrapper.get("apiVersion") == names.V1BETA1:
        scheduling = (wrapper.get("spec") or {}).get("schedulingSpec") or {}
        return int((scheduling.get("requeuing") or {}).get("maxNumRequeuings") or 0)
    return int(names.annotations_of(wrapper).get(names.RETRY_LIMIT) or 0)


def is_elastic(owners: Iterable[Object]) -> bool:
    """Whether a role has ``min_replicas``. Does not parse the whole definition."""
    return _mentions(owners, r'"min_replicas": \d')


def _mentions(owners: Iterable[Object], pattern: str) -> bool:
    """Whether the definition of a job, as text, contains a pattern."""
    texts = (str(names.annotations_of(item).get(names.ANNOTATION_APP)) for item in owners)
    return any(re.search(pattern, text) for text in texts)


def _index(text: object) -> int | None:
    return int(text) if isinstance(text, str) and text.isdigit() else None
