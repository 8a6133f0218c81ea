"""Roles in order: what their nodes run, ``order_node.py``, and what it has written into the log of the main node."""

from __future__ import annotations

import base64
import itertools
import json
import zlib
from collections.abc import Callable, Mapping
from typing import Any

from torchx.errors import NotSupportedError
from torchx.schedulers.aws.batch.pieces import Chain
from torchx.schedulers.kit.facts import JobFacts, ReplicaFacts
from torchx.schedulers.kit.order import order_requests, orders_of
from torchx.schedulers.kit.shell import read_script
from torchx.specs.api import AppDef, AppState, Role
from torchx.specs.order import Addresses, hosts_variable, order_of
from torchx.specs.ready import Ready
from torchx.supervisor.probes import to_python
from torchx.util.notices import logger
from torchx.util.records import replace

Orders = list[dict[str, Any]]  # the roles of a job with an order, for its nodes; empty if it has none

STOPPED, UNREADY = 86, 87
"""Exit codes: the program was ended with the job, or never started; of the main node alone: a role was not ready."""
_DECODE = "sys.argv[1:3]=[zlib.decompress(base64.b85decode(t)).decode() for t in sys.argv[1:3]];exec(sys.argv[1])"
_HEAD = ["python3", "-c", f"import base64,sys,zlib;{_DECODE}"]
_STATES: dict[int | None, AppState] = {0: AppState.SUCCEEDED, STOPPED: AppState.CANCELLED, UNREADY: AppState.CANCELLED}


def orders_for(app: AppDef, chain: Chain | None) -> Orders:
    """Return the order of a job. Raises NotSupportedError for what Batch cannot do."""
    orders = order_of(app)
    if not orders:
        return []
    if chain or any(order.restarts_after for order in orders.values()):
        raise NotSupportedError("Batch restarts roles in order together", hint="omit `restarts_after` and `--total`")
    logger("torchx").warning("roles in order: their images need `python3`, 3.8 or newer")
    found: Orders = []
    for role, asked in zip(app.roles, order_requests(app, Addresses(app, lambda *_: "")).values(), strict=True):
        own: dict[str, Any] = {**asked, "name": role.name, "replicas": role.num_replicas, "port_map": role.port_map}
        own.update(first=sum(one["replicas"] for one in found), variable=hosts_variable(role.name))
        own.update(ports=own["ports"][:1], user=vars(role.ready) if role.ready else None)
        found.append({**own, "what": to_python(own["what"]) if own["probe"] == "log" else own["what"]})
    return found


def wrap(words: list[str], orders: Orders, index: int) -> list[str]:
    """Return the command of the nodes of a role, by its number; they replace the macros of addresses and replicas."""
    text, cut, rest = read_script(__file__, "order_node.py").partition("\nclass Job")
    text += cut + rest if index == 0 else rest[rest.index("\nif __name__") :]
    both = (zlib.compress(one.encode(), 9) for one in (text, json.dumps(orders)))
    return [*_HEAD, *(base64.b85encode(one).decode() for one in both), *words]


def unwrap(words: list[str]) -> tuple[list[str], Orders]:
    """Return the words of a program, and the order of its job."""
    ours = words[: len(_HEAD)] == _HEAD and len(words) > len(_HEAD) + 1
    return (words[len(_HEAD) + 2 :], json.loads(zlib.decompress(base64.b85decode(words[4])))) if ours else (words, [])


def with_order(role: Role, orders: Orders) -> Role:
    """Return a role as it was submitted, with its order."""
    for own in (own for own in orders if own["name"] == role.name):
        role.ready = Ready(**own["user"]) if own["user"] else None
        role.after, role.ends_job, role.port_map = own["after"], own["ends_job"], own["port_map"]
    return role


def in_order(facts: JobFacts, read: Callable[[], Mapping[str, float] | None]) -> JobFacts:
    """Return the facts of a job with what its main node has written, and when; ``read`` returns None if it cannot."""
    if not orders_of(facts):
        return facts
    known = read()
    said, main = known or {}, facts.replicas()[0]
    codes = (text[8:] for text in said if text.startswith("ended 0 ") and text[8:].isdigit())
    own = None if facts.cancelled else next(map(int, codes), main.exit_code)  # that of its container is the job's

    def seen(index: int, r: ReplicaFacts) -> ReplicaFacts:
        began, ready = said.get(f"began {index}", 0.0), said.get(f"ready {index}", 0.0)
        waits = r.state is AppState.RUNNING and known is not None and not began
        state = _STATES.get(own if r is main else r.exit_code or None, AppState.PENDING if waits else r.state)
        code, stopped = (None, True) if state is AppState.CANCELLED else (r.exit_code, r.stopped)
        return replace(r, state=state, stopped=stopped, exit_code=code, started=began or r.started, ready=ready)

    numbers, goes_on = itertools.count(), facts.state if facts.state is AppState.RUNNING else None
    replicas = [[seen(next(numbers), r) for r in role.replicas] for role in facts.roles]
    roles = [replace(role, state=goes_on, replicas=its) for role, its in zip(facts.roles, replicas, strict=True)]
    kind, _, why = next((text for text in said if text.startswith(("lost ", "unready "))), "").partition(" ")
    if not facts.cancelled and (kind == "unready" or main.exit_code == UNREADY):
        return replace(facts, roles=roles, kind="timeout", reason=why or "a role was not ready in time")
    return replace(facts, roles=roles, reason=facts.reason if facts.cancelled else why or facts.reason)
