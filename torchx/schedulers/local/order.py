"""The addresses of a local job's replicas, with ports that do not clash: neither within the job nor with other jobs.

Ports that a job was given are on record in one file, for as long as the job runs: a server may need minutes until it
listens, and until then nothing else shows that its port is taken.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from torchx.settings import make_private, torchx_home
from torchx.specs.order import Addresses
from torchx.supervisor.layout import private
from torchx.supervisor.statefile import has_supervisor

if TYPE_CHECKING:
    from torchx.specs.api import AppDef

_SUBMISSION_S = 60.0  # between a dryrun and the start of its job


def addresses_of(app: AppDef, host: str, folder: str) -> Addresses:
    """Return the addresses of a job's replicas on one host, each with its own ports. ``folder``: that of the job."""
    wishes = {
        (role.name, k, name): wish
        for role in app.roles
        for k in range(role.num_replicas)
        for name, wish in role.port_map.items()
    }
    ports = dict(zip(wishes, claim([*wishes.values()], folder), strict=True)) if wishes else {}
    return Addresses(app, lambda *_: host, lambda role, k, name: ports[role.name, k, name])


def claim(wishes: list[int], folder: str) -> list[int]:
    """Return a free port for each wish, that one if it is free, and record them as those of a job."""
    import fcntl
    import json

    try:
        make_private(torchx_home())
        with open(torchx_home("ports.json"), "a+", encoding="utf-8", opener=private) as f:
            fcntl.flock(f, fcntl.LOCK_EX)
            f.seek(0)
            known = _still_claimed(f.read())
            ports = _free_ports(wishes, {port for port, _, _ in known})
            f.truncate(0)
            json.dump([*known, *((port, folder, time.time()) for port in ports)], f)
            return ports
    except OSError:  # a home that is not writable: without the ports of jobs whose servers do not listen yet
        return _free_ports(wishes, set())


def _still_claimed(text: str) -> list[tuple[int, str, float]]:
    import json

    try:
        found = [(int(port), str(folder), float(at)) for port, folder, at in json.loads(text or "[]")]
    except (ValueError, TypeError):
        return []
    return [one for one in found if has_supervisor(one[1]) or 0 <= time.time() - one[2] < _SUBMISSION_S]


def _free_ports(wishes: list[int], taken: set[int]) -> list[int]:
    found: list[int] = []
    for wish in wishes:
        numbers = (_bound(number) for number in (wish, *[0] * 100))
        found.append(next((n for n in numbers if n and n not in taken and n not in found), wish))
    return found


def _bound(number: int) -> int:
    """Return a port on which nothing listens: this one, or any for 0; 0 if something does."""
    import socket

    with socket.socket() as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            s.bind(("", number))
        except (OSError, OverflowError):  # or it is privileged
            return 0
        port: int = s.getsockname()[1]
        return port
