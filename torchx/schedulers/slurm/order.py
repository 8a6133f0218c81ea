"""Roles that wait for others: what the script of a job knows of their order, and their addresses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchx.errors import NotSupportedError
from torchx.schedulers.batch import attempts
from torchx.schedulers.kit.shell import quote, read_script
from torchx.specs.order import Addresses, order_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torchx.specs.api import AppDef, Role

_HOOK = "# @ORDER@ "


def addresses_of(app: AppDef, per_node: int) -> tuple[Addresses | None, dict[str, str]]:
    """Return the addresses of a job's roles as placeholders, and the shell variables that replace them on the nodes.

    Up to ``per_node`` consecutive replicas of a role share a host, so they count their ports from that in ``port_map``.
    """
    if not order_of(app):
        return None, {}
    number = {role.name: str(index) for index, role in enumerate(app.roles)}
    own = "@TORCHX_OWN_HOST@"
    late = {own: "host[$i]"}
    for index in number.values():
        late.update({f"@TORCHX_HOST_{index}@": f"rank0[{index}]", f"@TORCHX_HOSTS_{index}@": f"hosts[{index}]"})

    def host(role: Role, k: int) -> str:
        return own if k else f"@TORCHX_HOST_{number[role.name]}@"

    def port(role: Role, k: int, name: str) -> int:
        return role.port_map[name] + k % per_node

    return Addresses(app, host, port, lambda role: f"@TORCHX_HOSTS_{number[role.name]}@"), late


def part(app: AppDef, per_node: int, places: Mapping[str, str]) -> str:
    """Return the part of the script for a job with an order.

    Args:
        places: the folder in which each role runs; missing: a folder within its container.

    Raises:
        NotSupportedError: a probe looks for a file in a container.
    """
    orders = order_of(app)
    for name, order in orders.items():
        if order.probe == "file" and name not in places:
            raise NotSupportedError(
                f"role `{name}` is ready by a file, which Slurm does not see in containers", hint="use tcp, http or log"
            )
    number = {role.name: str(index) for index, role in enumerate(app.roles)}
    ports, listed = [], []
    for role in app.roles:
        order = orders[role.name]
        first = next(iter(role.port_map.values()), None)
        for k in range(role.num_replicas):
            known = role.port_map.get(order.port)
            ports.append(order.port if known is None else str(known + k % per_node))
            listed.append("" if first is None else f":{first + k % per_node}")
    roles = [*orders.values()]
    arrays = {
        "after": [" ".join(number[other] for other in order.after) for order in roles],
        "probes": [order.probe for order in roles],
        "what": [order.what for order in roles],
        "where": [places.get(role.name, "") for role in app.roles],
        "within": [str(order.within_s) for order in roles],
        "least_ready": [str(order.at_least) for order in roles],
        "ends_job": [str(int(order.ends_job)) for order in roles],
        "restarts_after": [str(int(order.restarts_after)) for order in roles],
        "port": ports,
        "listed": listed,
    }
    lines = [f"{name}=({' '.join(map(quote, values))})" for name, values in arrays.items()]
    texts = read_script(attempts.__file__, "probe.sh"), read_script(__file__, "order.sh")
    return "\n".join([*lines, *map(str.strip, texts)])


def with_hooks(program: str, wanted: bool) -> str:
    """Return the job's program with the lines for jobs with an order, or without them."""
    lines = program.split("\n")
    if not wanted:
        return "\n".join(line for line in lines if not line.lstrip().startswith(_HOOK))
    return program.replace(_HOOK, "")
