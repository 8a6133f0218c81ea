"""Roles that wait for others: what they wait for, and why a job failed whose role was not ready in time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchx.specs.api import AppState
from torchx.specs.order import RoleOrder, order_of
from torchx.specs.ready import has_order
from torchx.supervisor.probes import sentence
from torchx.util.records import replace

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torchx.schedulers.kit.facts import JobFacts, RoleFacts
    from torchx.specs.api import AppDef, Role
    from torchx.specs.order import Addresses
    from torchx.supervisor.layout import OrderRequest

_NAMED = 3  # roles that one waits for
_WAITING = (AppState.PENDING, AppState.SUBMITTED)
_BEGUN = (AppState.RUNNING, AppState.SUCCEEDED)


def with_order(facts: JobFacts) -> JobFacts:
    """Return the facts with the reason why roles wait for others, by the definition of the job."""
    orders = orders_of(facts)
    if not orders or facts.state in _WAITING:  # the whole job waits, for another reason
        return facts
    found = {role.name: role for role in facts.roles}
    roles = []
    for role in facts.roles:
        order = orders.get(role.name, RoleOrder())
        waits = [why for name in order.after if (why := waits_for(found.get(name), orders[name], name))]
        more = [f"and {len(waits) - _NAMED} more"] if len(waits) > _NAMED else []
        why = "; ".join([*waits[:_NAMED], *more])
        waiting = [replace(r, reason=why) if r.state in _WAITING and not r.reason else r for r in role.replicas]
        needs = order.at_least if order.probe else 0
        known = replace(role, ends_job=order.ends_job, after=order.after, needs=needs)
        roles.append(replace(known, replicas=waiting) if why else known)
    return replace(facts, roles=roles)


def orders_of(facts: JobFacts) -> dict[str, RoleOrder]:
    """Return the order of each role, by the definition of the job; empty if it has none."""
    return _orders(facts.definition)


def _orders(roles: Sequence[Role]) -> dict[str, RoleOrder]:
    from torchx.errors import SpecError
    from torchx.specs.api import AppDef

    app: AppDef = AppDef("", [*roles])
    try:
        return order_of(app) if has_order(app) else {}
    except SpecError:  # of a record that another version wrote
        return {}


def is_ready(role: RoleFacts, order: RoleOrder) -> bool:
    """Whether the roles after this one may start."""
    return _count(role, order) >= order.at_least


def _count(role: RoleFacts, order: RoleOrder) -> int:
    return sum(bool(r.ready) if order.probe else r.state in _BEGUN for r in role.replicas)


def waits_for(role: RoleFacts | None, order: RoleOrder, name: str) -> str:
    """Return what those after a role wait for; empty if it is ready.

    >>> from torchx.schedulers.kit.facts import ReplicaFacts, RoleFacts
    >>> up = [ReplicaFacts(role="server", replica=k, state=AppState.RUNNING, ready=1.0 - k) for k in range(2)]
    >>> waits_for(RoleFacts(name="server", replicas=up), RoleOrder(probe="tcp", at_least=2), "server")
    'waits for server to be ready (1 of 2)'
    """
    if role is not None and is_ready(role, order):
        return ""
    how = f"be ready ({0 if role is None else _count(role, order)} of {order.at_least})" if order.probe else "start"
    return f"waits for {name} to {how}"


def late(name: str, order: RoleOrder, within: str, seen: str = "", said: str = "") -> str:
    """Return the sentence on a role that was not ready in time.

    Args:
        within: how long it was waited for, as its user wrote it.
        seen: what the last probe saw.
        said: last words of one of its replicas.

    >>> late("server", RoleOrder(probe="http", port="http", what="/health"), "5m", "status 503", "loading weights")
    'role server was not ready within 5m: GET :http/health: status 503; its last words: loading weights'
    """
    return sentence(f"role {name} was not ready within {within}: {order}", seen, said)


def ended(name: str, order: RoleOrder, said: str = "") -> str:
    """Return the sentence on a role that others wait for and that has ended before it was ready.

    >>> ended("server", RoleOrder(probe="tcp", port="http"))
    'role server ended before it was ready: tcp http'
    """
    how = f": {order}" if order.probe else ""
    return sentence(f"role {name} ended before it was ready{how}", said=said)


def unready(roles: Sequence[Role], name: str, *, early: bool, seen: str, said: str) -> str:
    """Return :func:`ended` (``early``) or :func:`late` on one of these roles."""
    role = next((role for role in roles if role.name == name), None)
    order = _orders(roles).get(name)
    if role is None or role.ready is None or order is None:
        return f"role {name} was not ready"
    return ended(name, order, said) if early else late(name, order, role.ready.within, seen, said)


def graph(app: AppDef) -> list[str]:
    """Return the order of the roles as lines of text, those that start first at the top; empty without an order.

    >>> from torchx.specs import AppDef, Ready, Role
    >>> server = Role("server", "img", ready=Ready(tcp="80"))
    >>> print(*graph(AppDef("a", [Role("driver", "img", after=["server"], ends_job=True), server])), sep="\\n")
    server   ready by tcp 80 within 5m
    driver   after server, ends the job
    """
    orders = order_of(app)
    depth: dict[str, int] = {}

    def level(name: str) -> int:
        if name not in depth:
            depth[name] = max((level(other) + 1 for other in orders[name].after), default=0)
        return depth[name]

    wide = max(map(len, orders), default=0)
    roles = {role.name: role for role in app.roles}
    return [f"{name:<{wide}}   {_words(orders[name], roles[name].ready)}" for name in sorted(orders, key=level)]


def order_requests(app: AppDef, addresses: Addresses) -> dict[str, OrderRequest]:
    """Return the order of each role, for the process that starts them."""
    asked: dict[str, OrderRequest] = {}
    roles = {role.name: role for role in app.roles}
    for name, order in order_of(app).items():
        role = roles[name]
        asked[name] = {
            "after": [*order.after],
            "probe": order.probe,
            "what": order.what,
            "ports": _probed(role, order.port, addresses) if order.port else [],
            "within_s": order.within_s,
            "at_least": order.at_least,
            "ends_job": order.ends_job,
            "restarts_after": order.restarts_after,
            "late": late(name, order, role.ready.within) if role.ready else "",
            "ended": ended(name, order),
        }
    return asked


def _probed(role: Role, port: str, addresses: Addresses) -> list[int]:
    """Return the port that is probed of each replica."""
    macro = f"role.{role.name}.port.{port}"
    return [int(addresses.macros(role, k).get(macro, port)) for k in range(role.num_replicas)]


def _words(order: RoleOrder, ready: object) -> str:
    many = f" ({order.at_least} replicas)" if order.at_least > 1 else ""
    parts = [
        f"after {', '.join(order.after)}" if order.after else "",
        f"ready by {order} within {getattr(ready, 'within', '')}{many}" if order.probe else "",
        "ends the job" if order.ends_job else "",
    ]
    return ", ".join(filter(None, parts)) or "starts at once"
