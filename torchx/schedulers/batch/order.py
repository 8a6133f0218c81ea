"""Scripts of jobs whose roles wait for others."""

from __future__ import annotations

from collections.abc import Callable

from torchx.schedulers.kit.shell import quote, read_script
from torchx.specs.api import AppDef, Role
from torchx.specs.order import Addresses, RoleOrder

_HOOK = "# @ORDER@ "


def with_hooks(program: str, wanted: bool) -> str:
    """Return a job's program with the lines for jobs with an order, or without them."""
    if wanted:
        return program.replace(_HOOK, "")
    return "\n".join(line for line in program.split("\n") if not line.lstrip().startswith(_HOOK))


def addresses(
    app: AppDef, own: str, first: str, port: Callable[[Role, int, str], int | str]
) -> tuple[Addresses, dict[str, str]]:
    """Return the addresses of a job's roles as placeholders, and the shell variables that replace them.

    Args:
        own: variable with the host of the replica itself.
        first: array with the hosts of the first replicas, by number of the role; ``hosts`` has the lists.
        port: see :class:`Addresses`.
    """
    number = {role.name: index for index, role in enumerate(app.roles)}
    late = {"@TORCHX_OWN_HOST@": own}
    for index in number.values():
        late.update({f"@TORCHX_HOST_{index}@": f"{first}[{index}]", f"@TORCHX_HOSTS_{index}@": f"hosts[{index}]"})

    def host(role: Role, k: int) -> str:
        return "@TORCHX_OWN_HOST@" if k else f"@TORCHX_HOST_{number[role.name]}@"

    return Addresses(app, host, port, lambda role: f"@TORCHX_HOSTS_{number[role.name]}@"), late


def part(module: str, orders: dict[str, RoleOrder], more: dict[str, list[str]]) -> str:
    """Return the part of the script for a job with an order: arrays of its roles, and ``order.sh`` beside a module.

    Args:
        module: ``__file__`` of the module.
        orders: of all roles.
        more: further arrays.
    """
    number = {name: str(index) for index, name in enumerate(orders)}
    roles = [*orders.values()]
    arrays = {
        "after": [" ".join(number[other] for other in order.after) for order in roles],
        "probes": [order.probe for order in roles],
        "what": [order.what for order in roles],
        "within": [str(order.within_s) for order in roles],
        "least_ready": [str(order.at_least) for order in roles],
        "ends_job": [str(int(order.ends_job)) for order in roles],
        **more,
    }
    lines = [f"{name}=({' '.join(map(quote, values))})" for name, values in arrays.items()]
    texts = read_script(__file__, "probe.sh"), read_script(module, "order.sh")
    return "\n".join([*lines, *map(str.strip, texts)])


def first_port(role: Role) -> int | None:
    """Return the port in lists of a role's addresses; None: it has none."""
    return next(iter(role.port_map.values()), None)
