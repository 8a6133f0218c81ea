"""Facts of jobs whose roles have an order: which replicas are ready, and whether a role will never be."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from torchx.schedulers.kit.commands import last_line
from torchx.schedulers.kit.facts import JobFacts, RoleFacts
from torchx.schedulers.kit.order import ended, is_ready, late, orders_of
from torchx.schedulers.kubernetes.names import WAITER
from torchx.schedulers.kubernetes.pods.facts import Pod
from torchx.schedulers.kubernetes.pods.order import ends_late
from torchx.specs.api import AppState
from torchx.specs.order import RoleOrder
from torchx.util.records import replace

_Left = Callable[[Pod], tuple[str, str]]
_NOTICED_S = 60
"""After this time, the pods that wait for a role have noticed that it is ready, unless it has ended before."""
_ENDED = (AppState.SUCCEEDED, AppState.FAILED)
_BEGUN = (AppState.RUNNING, *_ENDED)
_SLACK_S = 2
"""Times of the API are in whole seconds."""


def in_order(facts: JobFacts, pods: Sequence[Pod], left: _Left) -> JobFacts:
    """Return the facts of a job as the order of its roles has them; unchanged if there is none.

    ``left`` returns what the last probe of a pod saw, and the end of its log.
    """
    orders = orders_of(facts)
    if not orders:
        return facts
    of = {role.name: [pod for pod in pods if pod.role_index == i] for i, role in enumerate(facts.roles)}
    roles = [_with_order(role, orders[role.name], of[role.name]) for role in facts.roles]
    state = facts.state
    over = any(role.ends_job and (role.state or state) in _ENDED for role in roles)
    roles = [
        _stopped(role) if role.state is AppState.CANCELLED or (over and not role.ends_job) else role for role in roles
    ]
    if state is AppState.PENDING and any(pod.facts.state is AppState.RUNNING for pod in pods):
        state = None  # Volcano's view, which counts pods that run
    name, said = ("", "") if facts.cancelled else next(_troubles(facts, roles, orders, of, left), ("", ""))
    if not said:
        return replace(facts, roles=roles, state=state)
    if state is AppState.CANCELLED:  # torchx has stopped it for this reason
        state = AppState.FAILED
    roles = [_failed(role, orders[name], of[name]) if role.name == name else role for role in roles]
    return replace(facts, roles=roles, state=state, kind="timeout", reason=said)


def is_decided(facts: JobFacts) -> bool:
    """Whether a role has ended with which a job in order ends, so that nothing is to run on."""
    ended = (role for role in facts.roles if role.state is AppState.FAILED or role.ends_job)
    return bool(orders_of(facts)) and any(role.state in (AppState.FAILED, AppState.SUCCEEDED) for role in ended)


def _with_order(role: RoleFacts, order: RoleOrder, pods: Sequence[Pod]) -> RoleFacts:
    ready = {pod.facts.replica: min(pod.ready, pod.facts.ended or pod.ready) for pod in pods if order.probe}
    began = {pod.facts.replica: pod.began for pod in pods}
    replicas = [
        replace(r, ready=ready.get(r.replica, 0.0), started=began.get(r.replica, 0.0) if order.after else r.started)
        for r in role.replicas
    ]
    return replace(role, replicas=replicas, ends_job=order.ends_job)


def _stopped(role: RoleFacts) -> RoleFacts:
    """Return a role whose pods are gone, are being deleted, or never were, because another one has ended the job."""
    replicas = []
    for r in role.replicas:
        unknown = r.state is AppState.FAILED and not (r.ended or r.reason)
        stopped = r.state is AppState.PENDING or unknown
        replicas.append(replace(r, state=AppState.CANCELLED, stopped=True) if stopped else r)
    return replace(role, replicas=replicas)


def _failed(role: RoleFacts, order: RoleOrder, pods: Sequence[Pod]) -> RoleFacts:
    """Return a role that was not ready in time, whose late pods were ended."""
    late_ones = {pod.facts.replica: pod.facts.state for pod in pods if order.probe and _is_late(pod, order)}
    replicas = [replace(r, state=AppState.CANCELLED) if r.replica in late_ones else r for r in role.replicas]
    # a Job does not replace a pod whose program ended with 0
    over = _succeeded(role) or AppState.SUCCEEDED in late_ones.values() or (late_ones and not role.restarts)
    return replace(role, replicas=replicas, state=AppState.FAILED if over else role.state)


def _succeeded(role: RoleFacts) -> bool:
    return all(r.state is AppState.SUCCEEDED for r in role.replicas)


def _troubles(
    facts: JobFacts,
    roles: Sequence[RoleFacts],
    orders: Mapping[str, RoleOrder],
    of: Mapping[str, Sequence[Pod]],
    left: _Left,
) -> Iterator[tuple[str, str]]:
    """Yield the names of roles that were or will not be ready in time, each with a sentence."""
    within = {role.name: role.ready.within if role.ready else "" for role in facts.definition}
    for role, definition in zip(roles, facts.definition, strict=True):
        name, order = role.name, orders[role.name]
        for pod in of[name]:
            if order.probe and ends_late(definition, order) and _is_late(pod, order):
                seen, said = left(pod)
                yield name, late(name, order, within[name], seen, last_line(said, ""))
        after = [other for other in roles if name in orders[other.name].after]
        unseen = not any(r.state in _BEGUN for other in after for r in other.replicas)
        if after and of[name] and _succeeded(role) and unseen:
            if not is_ready(role, order):
                yield name, ended(name, order, next((last_line(left(pod)[1], "") for pod in of[name]), ""))
            elif (
                any(of[other.name] for other in after)
                and time.time() - max(r.ended for r in role.replicas) > _NOTICED_S
            ):
                yield name, f"role {name} ended before those after it saw that it was ready"
    for pod in (pod for pods in of.values() for pod in pods):
        if pod.init and pod.container == WAITER and pod.left in orders:
            yield pod.left, late(pod.left, orders[pod.left], within[pod.left])


def _is_late(pod: Pod, order: RoleOrder) -> bool:
    """Whether the node has ended a pod because it was not ready in time, whatever the exit code of its program."""
    facts = pod.facts
    over = facts.state in _ENDED and not (pod.init or facts.kind or facts.stopped)
    return over and not pod.ready and facts.ended - pod.began > order.within_s - _SLACK_S
