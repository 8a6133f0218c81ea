"""The addresses of a local job's replicas, with ports that do not clash."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchx.specs.order import Addresses

if TYPE_CHECKING:
    from torchx.specs.api import AppDef


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
