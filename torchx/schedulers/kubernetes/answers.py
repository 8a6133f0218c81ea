"""Facts of a job, from the objects that own its pods, and the pods."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence

from torchx.errors import SpecError
from torchx.schedulers.kit.facts import JobFacts, ReplicaFacts, RoleFacts
from torchx.schedulers.kubernetes import names, reasons
from torchx.schedulers.kubernetes.in_order import in_order
from torchx.schedulers.kubernetes.job_retries import attempts_of, recorded
from torchx.schedulers.kubernetes.names import JOB, JOBSET, KUBEFLOW, VOLCANO, Object
from torchx.schedulers.kubernetes.owners import JobObjects, Owner, number_of
from torchx.schedulers.kubernetes.pods.facts import Pod, kill_in_s, read_pods, unix_time
from torchx.schedulers.kubernetes.request import role_names
from torchx.specs.api import AppDef, AppState
from torchx.specs.images import set_image_digest
from torchx.specs.serialize import appdef_from_dict
from torchx.util.records import replace


def facts_of(
    app_id: str,
    found: JobObjects,
    pods: Sequence[Pod] | None = None,
    *,
    missing: str = "",
    begun: bool = False,
    ended: Callable[[str], AppState | None] = lambda name: None,  # noqa: ARG005
    left: Callable[[Pod], tuple[str, str]] = lambda pod: ("", pod.left),
) -> JobFacts:
    """State, replicas and definition of a job.

    ``pods`` are those of ``found``, if they are parsed already; ``missing`` is why pods are not created, if known;
    ``begun``: it had pods, which the owners may not say.
    ``ended`` returns the final state of a deleted Job by its name; None if unknown. ``left``: see :func:`in_order`.
    """
    found = found.newest()
    app = definition(found.owners)
    pods = read_pods(found.pods) if pods is None else pods
    owners = found.read()
    if found.kind == VOLCANO and any(pod.facts.state is AppState.FAILED for pod in pods):
        # current releases do not count failed pods in the status of a job that their policy aborted
        owners = [replace(o, state=AppState.FAILED) if o.aborted else o for o in owners]
    number = max(map(number_of, found.owners), default=0)
    if found.kind == JOB and app is not None and owners and number < 2:  # a later attempt is being created
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
    over = all(owner.over for owner in owners)
    attempts = recorded(found.owners) if number else attempts_of(app, found.pods, over=over)
    whole = next((owner for owner in owners if owner.role_index is None), None)
    created = [unix_time((item.get("metadata") or {}).get("creationTimestamp")) for item in found.owners]
    facts = JobFacts(
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
    return in_order(facts, pods, left)


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
