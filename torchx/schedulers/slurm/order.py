"""Roles that wait for others: what the script of a job knows of their order, and their addresses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchx.errors import NotSupportedError
from torchx.schedulers.batch import order
from torchx.schedulers.batch.order import first_port
from torchx.specs.order import order_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torchx.specs.api import AppDef
    from torchx.specs.order import Addresses


def addresses_of(app: AppDef, per_node: int) -> tuple[Addresses | None, dict[str, str]]:
    """Return the addresses of a job's roles as placeholders, and the shell variables that replace them on the nodes.

    Up to ``per_node`` consecutive replicas of a role share a host, so they count their ports from that in ``port_map``.
    """
    if not order_of(app):
        return None, {}
    return order.addresses(app, "host[$i]", "rank0", lambda role, k, name: role.port_map[name] + k % per_node)


def part(app: AppDef, per_node: int, places: Mapping[str, str]) -> str:
    """Return the part of the script for a job with an order.

    Args:
        places: the folder in which each role runs; missing: a folder within its container.

    Raises:
        NotSupportedError: a probe looks for a file in a container.
    """
    orders = order_of(app)
    for name, its in orders.items():
        if its.probe == "file" and name not in places:
            raise NotSupportedError(
                f"role `{name}` is ready by a file, which Slurm does not see in containers", hint="use tcp, http or log"
            )
    ports, listed = [], []
    for role in app.roles:
        named, first = role.port_map.get(orders[role.name].port), first_port(role)
        for k in range(role.num_replicas):
            ports.append(orders[role.name].port if named is None else str(named + k % per_node))
            listed.append("" if first is None else f":{first + k % per_node}")
    more = {
        "where": [places.get(role.name, "") for role in app.roles],
        "restarts_after": [str(int(order.restarts_after)) for order in orders.values()],
        "port": ports,
        "listed": listed,
    }
    return order.part(__file__, orders, more)
