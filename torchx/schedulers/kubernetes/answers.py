"""Facts of a job, from the objects that own its pods, and the pods.

The objects are plain dicts as the API returns them, from any version of Kubernetes.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from torchx.errors import SpecError
from torchx.schedulers.kit.facts import JobFacts, ReplicaFacts, RoleFacts
from torchx.schedulers.kubernetes import names, reasons
from torchx.schedulers.kubernetes.job_retries import attempts_of, recorded
from torchx.schedulers.kubernetes.names import JOB, JOBSET, KUBEFLOW, PYTORCH, VOLCANO, Object
from torchx.schedulers.kubernetes.pods.facts import Pod, kill_in_s, read_pods, unix_time
from torchx.schedulers.kubernetes.request import role_names
from torchx.specs.api import AppDef, AppState, is_terminal
from torchx.specs.images import set_image_digest
from torchx.specs.serialize import appdef_from_dict
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
        aborted = self.kind == VOLCANO and any(owner.aborted for owner in self.read())
        return aborted or is_elastic(self.owners) or bool(self.going())

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


# -- facts --------------------------------------------------------------------------------------------------


def facts_of(
    app_id: str,
    found: JobObjects,
    pods: Sequence[Pod] | None = None,
    *,
    missing: str = "",
    begun: bool = False,
    ended: Callable[[str], AppState | None] = lambda name: None,  # noqa: ARG005
) -> JobFacts:
    """State, replicas and definition of a job.

    ``pods`` are those of ``found``, if they are parsed already; ``missing`` is why pods are not created, if known;
    ``begun``: it had pods, which the owners may not say.
    ``ended`` returns the final state of a deleted Job by its name; None if unknown.
    """
    found = found.newest()
    app = definition(found.owners)
    pods = read_pods(found.pods) if pods is None else pods
    owners = found.read()
    if found.kind == VOLCANO and any(pod.facts.state is AppState.FAILED for pod in pods):
        # current releases do not count failed pods in the status of a job that their policy aborted
        owners = [replace(o, state=AppState.FAILED) if o.aborted else o for o in owners]
    if found.kind == JOB and app is not None and owners:
        owners += _removed(app, found.owners, owners, ended)
    roles = [
        _role(
            role,
            [owner for owner in owners if owner.role_index in (i, None)],
            [pod for pod in pods if pod.role_index == i],
            missing if pods else "",
        )
        for i, role in enumerate(_roles(app, pods))
    ]
    _note_images(app, pods)
    number = max(map(number_of, found.owners), default=0)
    if number:
        attempts = recorded(found.owners)
    else:
        attempts = attempts_of(app, found.pods, over=all(owner.over for owner in owners))
    whole = next((owner for owner in owners if owner.role_index is None), None)
    created = [unix_time((item.get("metadata") or {}).get("creationTimestamp")) for item in found.owners]
    return JobFacts(
        app_id=app_id,
        roles=roles,
        state=whole.state if whole else None,
        native=next((owner.native for owner in owners if owner.native), ""),
        reason=_reason(owners, roles, pods, missing, begun=begun or _has_run(found)),
        kind=next((owner.kind for owner in owners if owner.kind), ""),
        cancelled=any(owner.cancelled for owner in owners),
        kill_in_s=kill_in_s(found.pods, time.time()),
        restarts=max((owner.restarts for owner in owners), default=0)
        + sum(pod.restarts for pod in pods)
        + max(number - 1, 0),
        attempts=attempts,
        started=min((p.facts.started for p in pods if p.facts.started), default=min(created, default=0.0)) or None,
        ended=_ended_at(found.owners, pods),
        definition=list(app.roles) if app else [],
        metadata=dict(app.metadata) if app else {},
    )


def _removed(
    app: AppDef, items: Sequence[Object], there: Sequence[Owner], ended: Callable[[str], AppState | None]
) -> Iterator[Owner]:
    """Owners for deleted Jobs while those of other roles exist: a TTL deletes each Job separately after its end."""
    app_id = names.labels_of(items[0]).get(names.LABEL_UNIQUE_NAME)
    known = {(owner.role_index, owner.replica) for owner in there}
    single = any(replica is not None for _, replica in known)  # before 1.22 each replica has a Job
    for i, (role, name) in enumerate(zip(app.roles, role_names(app), strict=True)):
        for k in range(role.num_replicas) if single else [None]:
            if (i, k) not in known:
                state = ended(f"{app_id}-{name}" if k is None else f"{app_id}-{name}-{k}") or AppState.UNKNOWN
                yield Owner(role_index=i, replica=k, state=state, replaces=False)


def definition(owners: Iterable[Object]) -> AppDef | None:
    """Return the AppDef in the annotation of an owner; None if there is none or it cannot be parsed."""
    for item in owners:
        text = names.annotations_of(item).get(names.ANNOTATION_APP)
        if text:
            try:
                return appdef_from_dict(json.loads(text))
            except (ValueError, RecursionError, SpecError):
                return None
    return None


def is_elastic(owners: Iterable[Object]) -> bool:
    """Whether a role has ``min_replicas``. Does not parse the whole definition."""
    texts = (str(names.annotations_of(item).get(names.ANNOTATION_APP)) for item in owners)
    return any(re.search(r'"min_replicas": \d', text) for text in texts)


def has_failed(found: JobObjects) -> bool:
    """Whether an owner has failed."""
    return any(owner.state is AppState.FAILED for owner in found.read())


def lacks_pods(found: JobObjects) -> bool:
    """Whether fewer pods exist than their owners want; events have the reason."""
    owners = found.read()
    wanted = sum(owner.wants for owner in owners)
    # `wants` of a Job excludes the pods that have succeeded; that of a JobSet includes them.
    ended = ("Failed",) if found.kind in (JOBSET, KUBEFLOW) else ("Failed", "Succeeded")
    alive = sum((pod.get("status") or {}).get("phase") not in ended for pod in found.pods)
    return not all(owner.over for owner in owners) and (wanted > alive or not found.pods)


def _roles(app: AppDef | None, pods: Sequence[Pod]) -> list[tuple[str, int, int | None]]:
    """Name, number of replicas and minimum number of replicas of each role."""
    if app is not None:
        return [(role.name, role.num_replicas, role.min_replicas) for role in app.roles]
    counts: dict[int, int] = {}
    called = {pod.role_index: pod.role for pod in pods if pod.role}
    for pod in pods:
        counts[pod.role_index] = max(pod.facts.replica + 1, counts.get(pod.role_index, 0))
    return [(called.get(i, f"role-{i}"), counts.get(i, 0), None) for i in range(max(counts, default=-1) + 1)]


def _role(role: tuple[str, int, int | None], owners: Sequence[Owner], pods: Sequence[Pod], missing: str) -> RoleFacts:
    name, count, least = role
    there = {pod.facts.replica: replace(pod.facts, role=name) for pod in pods}
    replicas = [there.get(k) or _without_pod(name, k, owners, missing) for k in range(count)]
    state = _state_of_role([owner for owner in owners if owner.role_index is not None])
    going = [owner for owner in owners if owner.replaces and not owner.over]
    given_up = any(owner.state is AppState.FAILED for owner in owners) or any(_gives_up(o, pods) for o in going)
    restarts = bool(going) and not given_up
    return RoleFacts(
        name=name,
        replicas=replicas,
        min_replicas=least,
        state=None if least is not None and state is AppState.FAILED and going else state,
        restarts=restarts,
        ending=bool(going) and not restarts,
    )


def _gives_up(owner: Owner, pods: Iterable[Pod]) -> bool:
    """Whether an owner that has not ended will create no more pods."""
    failures = sum(pod.failures for pod in pods if owner.replica in (None, pod.facts.replica))
    spent = owner.spare is not None and failures > owner.spare
    return owner.failing or spent or AppState.FAILED in owner.ended.values()


def _without_pod(role: str, replica: int, owners: Sequence[Owner], missing: str) -> ReplicaFacts:
    """Facts of a replica without a pod: not created yet, or deleted, in which case its Job may have its state."""
    own = [owner for owner in owners if owner.replica in (None, replica)]
    state = next((owner.ended[replica] for owner in own if replica in owner.ended), None)
    state = state or next((owner.state for owner in own if owner.replica is not None and owner.state), None)
    gone = any(owner.state is AppState.CANCELLED for owner in own)
    removed = next((owner.state for owner in own if not owner.replaces and owner.role_index is not None), None)
    state = state or removed or (AppState.CANCELLED if gone else AppState.PENDING)
    waits = missing if state is AppState.PENDING else ""
    return ReplicaFacts(role=role, replica=replica, state=state, reason=waits, stopped=gone)


def _state_of_role(owners: Sequence[Owner]) -> AppState | None:
    """Return the state of a role from its owners; before Kubernetes 1.22 each replica has one."""
    states = {owner.state for owner in owners}
    if len(states) == 1:
        return states.pop()
    if None in states:
        return None
    return next((state for state in (AppState.FAILED, AppState.CANCELLED) if state in states), None)


def _has_run(found: JobObjects) -> bool:
    """Whether owners have counted pods that ended, or restarts."""
    for item in found.owners:
        status = item.get("status") or {}
        parts = [part for name in _PARTS for part in status.get(name) or ()]
        parts += (status.get("replicaStatuses") or {}).values()  # of a PyTorchJob
        if any(part.get(name) for part in (status, *parts) for name in _COUNTERS):
            return True
    return False


_COUNTERS = ("failed", "succeeded", "terminating", "restarts", "retryCount", "retries")
_PARTS = ("replicatedJobsStatus", "jobsStatus")
"""Fields in the status of a JobSet or a TrainJob, with the counters of its Jobs."""


def _reason(
    owners: Sequence[Owner], roles: Sequence[RoleFacts], pods: Sequence[Pod], missing: str, *, begun: bool
) -> str:
    failed = any(r.state is AppState.FAILED for role in roles for r in role.replicas)
    said = []
    for owner in owners:
        word = owner.reason.rpartition("(")[2].rstrip(")")
        if owner.reason and not (failed and word in reasons.ONLY_PODS_FAILED):
            said.append(owner.reason)
    if pods or any(owner.over for owner in owners):
        return "; ".join(dict.fromkeys(filter(None, (*said, "" if pods else missing))))
    if missing:
        return missing
    if not roles:
        return "the cluster has neither its pods nor its final state"
    waits = "its pods are gone, and are not created again yet" if begun else "its pods are not created yet"
    return "; ".join(dict.fromkeys(said)) or waits


def _note_images(app: AppDef | None, pods: Iterable[Pod]) -> None:
    """Copy the image digests of the pods into the roles, for `describe`."""
    used = {pod.role_index: pod.image for pod in pods if pod.image}
    for i, role in enumerate(app.roles if app else ()):
        if i in used:
            set_image_digest(role, used[i])


def _ended_at(owners: Iterable[Object], pods: Iterable[Pod]) -> float | None:
    times = [pod.facts.ended for pod in pods if pod.facts.ended]
    for item in owners:
        status = item.get("status") or {}
        times.append(unix_time(status.get("completionTime")))
        times += [unix_time(c.get("lastTransitionTime")) for c in status.get("conditions") or ()]
    return max(times, default=0.0) or None


def _index(text: object) -> int | None:
    return int(text) if isinstance(text, str) and text.isdigit() else None
