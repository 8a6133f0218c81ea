"""The order of a local job's roles, in the form of its supervisor, with ports that do not clash."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchx.schedulers.kit.order import ended, late
from torchx.specs.order import Addresses, order_of

if TYPE_CHECKING:
    from torchx.specs.api import AppDef, Role
    from torchx.supervisor.layout import OrderRequest


def addresses_of(app: AppDef, host: str) -> Addresses:
    """Return the addresses of a job's replicas: on one host, each with ports of its own."""
    taken: set[int] = set()
    ports = {
        (role.name, k, name): _free_port(wish, taken)
        for role in app.roles
        for k in range(role.num_replicas)
        for name, wish in role.port_map.items()
    }
    return Addresses(app, lambda *_: host, lambda role, k, name: ports[role.name, k, name])


def order_request(app: AppDef, addresses: Addresses) -> dict[str, OrderRequest]:
    """Return the order of each role for the supervisor."""
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


def _free_port(wish: int, taken: set[int]) -> int:
    """Return a port on which nothing listens and that is not in ``taken``, to which it is added."""
    import socket

    for number in (wish, *[0] * 100):
        with socket.socket() as s:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                s.bind(("", number))
            except (OSError, OverflowError):  # somebody listens there, or it is privileged
                continue
            port: int = s.getsockname()[1]
        if port not in taken:
            taken.add(port)
            return port
    return wish
