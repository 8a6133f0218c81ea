"""What became of an app on Kubernetes, out of the objects that own its pods, and the pods.

Everything is taken from answers of the API as they are (plain dicts), whatever version of Kubernetes they come from.
"""

from __future__ import annotations

from collections.abc import Iterable

from torchx.schedulers.api import DescribeAppResponse
from torchx.schedulers.kit.verdict import fold
from torchx.schedulers.kubernetes import appwrapper
from torchx.schedulers.kubernetes import pods as names
from torchx.schedulers.kubernetes.kinds import (
    ANNOTATION_APP,
    APPWRAPPER,
    JOB,
    JOBSET,
    LABEL_QUEUE,
    OLD_APPWRAPPER,
    VOLCANO,
)
from torchx.schedulers.kubernetes.pod_states import PodView, unix_time
from torchx.specs.api import NONE, AppDef, AppState, ReplicaStatus, RoleStatus, is_terminal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from dataclasses import dataclass, field
    from typing import Any

    _Object = dict[str, Any]
else:
    from torchx.util.records import dataclass, field

ANNOTATION_CANCELLED = "torchx.pytorch.org/cancelled"
"""Set when a person cancelled the job: a suspended Job may also be one that waits in a queue."""

# https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/job-v1/#JobStatus
JOB_CONDITIONS = {"Failed": AppState.FAILED, "Complete": AppState.SUCCEEDED}
FAILURE_TARGET = "FailureTarget"
"""Condition of a Job, since 1.31 before ``Failed``, which it has when its last pod has ended."""
# https://jobset.sigs.k8s.io/docs/reference/jobset.v1alpha2/
JOBSET_CONDITIONS = {"Failed": AppState.FAILED, "Completed": AppState.SUCCEEDED}
# https://volcano.sh/en/docs/vcjob/#status
VOLCANO_PHASES = {
    "Pending": AppState.PENDING,
    "Running": AppState.RUNNING,
    "Restarting": AppState.RUNNING,
    "Completing": AppState.RUNNING,
    "Completed": AppState.SUCCEEDED,
    "Failed": AppState.FAILED,
    "Aborting": AppState.RUNNING,
    "Aborted": AppState.CANCELLED,
    "Terminating": AppState.RUNNING,
    "Terminated": AppState.CANCELLED,
}

WHY_FAILED = {
    "BackoffLimitExceeded": "more pods failed than may be retried",
    "DeadlineExceeded": "it ran longer than its deadline",
    "PodFailurePolicy": "its policy on failed pods ended it",
    "FailedIndexes": "some of its replicas failed",
    "MaxFailedIndexesExceeded": "more of its replicas failed than it can do without",
    "FailedJobs": "one of its jobs failed",
    "ReachedMaxRestarts": "it was restarted as often as it may be",
}
"""Reason of the condition ``Failed`` -> a sentence."""


@dataclass(frozen=True)
class OwnerView:
    """What an object that owns pods says of itself.

    Attributes:
        state: None when it depends on the pods.
        replaces: it has not ended, and makes new pods for those that failed.
        why: a sentence without full stop; empty when there is nothing to say.
        failing: it has given up, and waits for its last pods to end.
        ended: replica -> how it ended, whether or not its pod is still there.
    """

    role_index: int | None
    state: AppState | None
    why: str = ""
    restarts: int = 0
    replaces: bool = False
    failing: bool = False
    ended: Mapping[int, AppState] = field(default_factory=dict)


def read_owner(kind: str, item: _Object) -> OwnerView:
    """A Job, a JobSet or a Volcano job, read."""
    metadata, status = item.get("metadata") or {}, item.get("status") or {}
    cancelled = ANNOTATION_CANCELLED in (metadata.get("annotations") or {})
    role = (metadata.get("labels") or {}).get(names.LABEL_ROLE_INDEX)
    index = int(role) if kind == JOB and role is not None and role.isdigit() else None
    if kind == VOLCANO:
        return _read_volcano(item, index)
    if kind in (APPWRAPPER, OLD_APPWRAPPER):
        return _read_appwrapper(item, cancelled=cancelled)
    restarts = int(status.get("restarts") or 0)
    ended = _ended_indexes(status) if kind == JOB else {}
    table = JOBSET_CONDITIONS if kind == JOBSET else JOB_CONDITIONS
    conditions = {c.get("type"): c for c in status.get("conditions") or () if c.get("status") == "True"}
    for name, state in table.items():
        if name in conditions:
            why = _ended(conditions[name]) if state is AppState.FAILED else ""
            return OwnerView(index, state, why, restarts, ended=ended)
    if cancelled:
        return OwnerView(index, AppState.CANCELLED, "", restarts, ended=ended)
    if (item.get("spec") or {}).get("suspend"):
        queue = (metadata.get("labels") or {}).get(LABEL_QUEUE)
        why = f"it waits in the queue `{queue}`" if queue else "it is suspended"
        return OwnerView(index, AppState.PENDING, why, restarts, ended=ended)
    failing = FAILURE_TARGET in conditions
    return OwnerView(index, None, "", restarts, replaces=not failing, failing=failing, ended=ended)


def _ended_indexes(status: _Object) -> dict[int, AppState]:
    """Which replicas of an Indexed Job have ended, as ``completedIndexes`` and ``failedIndexes`` have it: ``0,3-5``."""
    found = {}
    for name, state in (("completedIndexes", AppState.SUCCEEDED), ("failedIndexes", AppState.FAILED)):
        for piece in str(status.get(name) or "").split(","):
            first, _, last = piece.partition("-")
            if first.isdigit() and (last or first).isdigit():
                found.update(dict.fromkeys(range(int(first), int(last or first) + 1), state))
    return found


def _read_volcano(item: _Object, index: int | None) -> OwnerView:
    status = item.get("status") or {}
    found = status.get("state") or {}
    phase = found.get("phase")
    if not found:
        return OwnerView(index, AppState.PENDING, "Volcano has not looked at it yet: is it installed?")
    state = VOLCANO_PHASES.get(str(phase), AppState.UNKNOWN)
    said = str(found.get("message") or found.get("reason") or "")
    if state is AppState.UNKNOWN:
        said = f"its phase is `{phase}`{': ' + said if said else ''}"
    return OwnerView(index, state, said, int(status.get("retryCount") or 0))


def _read_appwrapper(item: _Object, *, cancelled: bool) -> OwnerView:
    status = item.get("status") or {}
    word, state = appwrapper.state_of(item)
    last: _Object = next((c for c in reversed(status.get("conditions") or ()) if c.get("message")), {})
    said = str(last.get("message") or "")
    if state is AppState.UNKNOWN:
        said = f"its state is `{word}`{': ' + said if said else ''}"
    elif state is AppState.SUBMITTED:
        said = said or "MCAD has not looked at it yet: is it installed?"
    if cancelled and not is_terminal(state):
        return OwnerView(None, AppState.CANCELLED, "", int(status.get("retries") or 0))
    # While it runs, its pods know better.
    open_state = None if state is AppState.RUNNING else state
    replaces = state is AppState.RUNNING and appwrapper.retries_of(item) > int(status.get("retries") or 0)
    return OwnerView(None, open_state, said, int(status.get("retries") or 0), replaces=replaces)


def _ended(condition: _Object) -> str:
    reason, message = str(condition.get("reason") or ""), str(condition.get("message") or "")
    known = WHY_FAILED.get(reason)
    return f"{known} ({reason})" if known else f"{reason}: {message}".strip(": ")


def describe(
    app_id: str, kind: str, owners: list[_Object], pods: list[PodView], *, waits: str = ""
) -> DescribeAppResponse:
    """State, replicas and definition of an app.

    Args:
        app_id: as a handle has it.
        kind: of the owners.
        owners: all of them.
        pods: of all roles.
        waits: why no pods are made, when somebody has asked.
    """
    app = definition(owners)
    views = [read_owner(kind, item) for item in owners]
    roles = _roles(app, pods)
    statuses = [_role_status(i, name, count, pods, views) for i, (name, count, _) in enumerate(roles)]
    state = _state(views, roles, statuses)
    _end_replicas(state, statuses)
    _note_images(app, pods)
    failed = next((p for p in sorted(pods, key=lambda p: p.ended) if p.failure), None)
    times = [unix_time((item.get("metadata") or {}).get("creationTimestamp")) for item in owners]
    ended = _ended_at(owners, pods) if is_terminal(state) else None
    return DescribeAppResponse(
        app_id=app_id,
        state=state,
        num_restarts=max((v.restarts for v in views), default=0) + sum(p.restarts for p in pods),
        msg=_message(state, views, roles, pods, waits) or NONE,
        structured_error_msg=failed.failure.to_structured_msg() if failed and failed.failure else NONE,
        metadata=dict(app.metadata) if app else {},
        roles_statuses=statuses,
        roles=list(app.roles) if app else [],
        started_at=min((p.started for p in pods if p.started), default=min(times, default=0.0)) or None,
        ended_at=ended,
    )


def _end_replicas(state: AppState, statuses: list[RoleStatus]) -> None:
    """What has no pod any more, of a job that has ended, has ended too."""
    if not is_terminal(state):
        return
    # Those that had not failed when another did were taken down with it.
    rest = AppState.SUCCEEDED if state is AppState.SUCCEEDED else AppState.CANCELLED
    for replica in [replica for status in statuses for replica in status.replicas]:
        replica.state = replica.state if is_terminal(replica.state) else rest


def _note_images(app: AppDef | None, pods: list[PodView]) -> None:
    """Puts the digests that the nodes used into the roles, where `describe` reads them."""
    from torchx.specs.images import set_image_digest

    used = {pod.role_index: pod.image for pod in pods if pod.image}
    for i, role in enumerate(app.roles if app else ()):
        if i in used:
            set_image_digest(role, used[i])


def definition(owners: Iterable[_Object]) -> AppDef | None:
    """The AppDef that the submission left on an owner; None when there is none that can be read."""
    import json

    from torchx.errors import SpecError
    from torchx.specs.serialize import appdef_from_dict

    for item in owners:
        text = ((item.get("metadata") or {}).get("annotations") or {}).get(ANNOTATION_APP)
        if text:
            try:
                return appdef_from_dict(json.loads(text))
            except (ValueError, SpecError):
                return None
    return None


def _roles(app: AppDef | None, pods: list[PodView]) -> list[tuple[str, int, int | None]]:
    """Name, number of replicas and least number of replicas of each role."""
    if app is not None:
        return [(role.name, role.num_replicas, role.min_replicas) for role in app.roles]
    last: dict[int, int] = {}
    for pod in pods:
        last[pod.role_index] = max(pod.replica + 1, last.get(pod.role_index, 0))
    return [(f"role-{i}", last.get(i, 0), None) for i in range(max(last, default=-1) + 1)]


def _role_status(index: int, name: str, count: int, pods: list[PodView], owners: list[OwnerView]) -> RoleStatus:
    there = {pod.replica: pod.status(name) for pod in pods if pod.role_index == index}
    # A pod that has ended goes with its node, or by hand; its Job still knows.
    known = {k: state for view in owners if view.role_index == index for k, state in view.ended.items()}
    gone = [ReplicaStatus(k, known.get(k, AppState.PENDING), name, "") for k in range(count)]
    return RoleStatus(name, [there.get(k) or gone[k] for k in range(count)])


def _state(views: list[OwnerView], roles: list[tuple[str, int, int | None]], statuses: list[RoleStatus]) -> AppState:
    """Each role's state is what its owners say, else what its pods say; the app's is folded from them."""
    whole = [v.state for v in views if v.role_index is None and v.state is not None]
    if whole:
        return fold(whole)
    states = []
    for i, (_, _, least) in enumerate(roles):
        mine = [v for v in views if v.role_index in (i, None)]
        states.append(_role_state(mine, [r.state for r in statuses[i].replicas], least))
    return fold(states)


def _role_state(owners: list[OwnerView], replicas: list[AppState], least: int | None) -> AppState:
    said = [v.state for v in owners if v.state is not None]
    ended = bool(said) and len(said) == len(owners)
    if least is None and AppState.FAILED in said:
        return AppState.FAILED
    if ended and least is None:
        return fold(said)
    state = fold(replicas, min_replicas=least)
    if ended:
        return state if is_terminal(state) else fold(said)
    # As long as its owner goes on, a pod that failed is replaced, or the others are being ended.
    return AppState.RUNNING if is_terminal(state) and any(v.replaces or v.failing for v in owners) else state


def _message(
    state: AppState,
    views: list[OwnerView],
    roles: list[tuple[str, int, int | None]],
    pods: list[PodView],
    waits: str,
) -> str:
    said = "; ".join(dict.fromkeys(v.why for v in views if v.why))
    if state is AppState.FAILED:
        first = next((p for p in sorted(pods, key=lambda p: p.ended) if p.state is AppState.FAILED), None)
        # That pods failed is what the pod says better.
        more = "" if first and "BackoffLimitExceeded" in said else said
        told = f"{_name(first, roles)} failed: {first.why}" if first else ""
        return "; ".join(text for text in (told, more) if text)
    if is_terminal(state):
        return said
    held = [p for p in pods if p.why and not is_terminal(p.state)]
    held.sort(key=lambda p: (not p.stuck, p.role_index, p.replica))
    if held:
        same = sum(p.why == held[0].why for p in held) - 1
        others = f" (and {same} more)" if same else ""
        more = f": {waits}" if held[0].starting and waits else ""
        again = f"; made again, for it failed: {held[0].before}" if held[0].before else ""
        return f"{_name(held[0], roles)}{others}: {held[0].why}{more}{again}"
    failed = next((p for p in pods if p.state is AppState.FAILED or p.before), None)
    if failed and any(v.failing and v.role_index in (failed.role_index, None) for v in views):
        return f"{_name(failed, roles)} failed: {failed.why or failed.before}; the others are being ended"
    if failed:
        return f"{_name(failed, roles)} failed, and is made again: {failed.before or failed.why}"
    if said or waits:
        return waits or said
    if state is AppState.UNKNOWN:
        return "the cluster shows neither its pods nor how it ended"
    return "its pods are not made yet" if not pods else ""


def _name(pod: PodView, roles: list[tuple[str, int, int | None]]) -> str:
    role = roles[pod.role_index][0] if pod.role_index < len(roles) else f"role-{pod.role_index}"
    return f"{role}/{pod.replica}"


def _ended_at(owners: list[_Object], pods: list[PodView]) -> float | None:
    times = [p.ended for p in pods if p.ended]
    for item in owners:
        status = item.get("status") or {}
        times.append(unix_time(status.get("completionTime")))
        times += [unix_time(c.get("lastTransitionTime")) for c in status.get("conditions") or ()]
    return max(times, default=0.0) or None
