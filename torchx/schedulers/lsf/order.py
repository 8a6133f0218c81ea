"""Roles that wait for others: what the script of the replicas knows of their order, and the marks that they leave."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence

from torchx.errors import NotSupportedError
from torchx.schedulers.batch import order
from torchx.schedulers.batch.folders import folder_name
from torchx.schedulers.batch.order import first_port
from torchx.schedulers.kit.facts import ReplicaFacts
from torchx.schedulers.kit.order import unready
from torchx.schedulers.lsf.options import Opts, in_docker
from torchx.schedulers.lsf.parse import whole
from torchx.specs.api import AppDef, AppState, RetryPolicy, Role
from torchx.specs.order import Addresses, RoleOrder, order_of
from torchx.util.records import dataclass, field, replace

Position = tuple[int, int]

ORDER_FOLDER = "order"
LATE_FILE = "late"
FINISHED_FILE = "finished"
_WAITS = "waits until all replicas have a host"


def order_for(app: AppDef, opts: Opts) -> dict[str, RoleOrder]:
    """Return the order of a job's roles; empty if it has none. Raises NotSupportedError for what LSF cannot do."""
    orders = order_of(app)
    for name, its in orders.items():
        if its.restarts_after:
            raise NotSupportedError(
                f"role `{name}` has `restarts_after`: on LSF a restart of a role leaves the others alone",
                hint="omit it, or use the retry policy APPLICATION",
            )
        if in_docker(opts) and its.probe == "file":
            raise NotSupportedError(
                f"role `{name}` is ready by a file, which LSF does not see in containers", hint="use tcp, http or log"
            )
    if orders and in_docker(opts) and not opts.host_network:
        raise NotSupportedError(
            "roles that wait for each other need the network of their hosts", hint="`-cfg host_network=true`"
        )
    return orders


def addresses_of(app: AppDef) -> tuple[Addresses, dict[str, str]]:
    """Return the addresses as placeholders, and the shell variables that replace them.

    Replicas of a role that share a host count their ports from that in ``port_map``; replica 0 is always the first.
    """
    found, late = order.addresses(
        app, "own", "first", lambda role, k, name: f"@TORCHX_PORT_{role.port_map[name]}@" if k else role.port_map[name]
    )
    ports = {port for role in app.roles for port in role.port_map.values()}
    return found, {**late, **{f"@TORCHX_PORT_{port}@": f"port_{port}" for port in sorted(ports)}}


def part(app: AppDef, orders: dict[str, RoleOrder], *, retry: bool) -> str:
    """Return the part of the replicas' script for a job with an order; ``retry``: attempts are those of the job."""
    ports, moves = [], []
    for role in app.roles:
        named = role.port_map.get(orders[role.name].port)
        ports.append(orders[role.name].port or "0" if named is None else str(named))
        moves.append("0" if named is None else "1")
    alone = [not retry and role.retry_policy is not RetryPolicy.APPLICATION for role in app.roles]
    more = {
        "members": [str(role.num_replicas) for role in app.roles],
        "gang": [str(role.min_replicas or role.num_replicas) for role in app.roles],
        "listed": ["" if (port := first_port(role)) is None else str(port) for role in app.roles],
        "probe_port": ports,
        "moves": moves,
    }
    folders = [f"/{folder_name(role.name)}" if own else "" for role, own in zip(app.roles, alone, strict=True)]
    return order.part(__file__, orders, {**more, "scopes": folders})


@dataclass(frozen=True, kw_only=True)
class Marks:
    """What replicas have recorded.

    Attributes:
        began: when programs of replicas were started.
        ready: when the probes of replicas succeeded.
        late: why the job was ended of which a role was not ready; empty if it was not.
        finished: number of the role that has ended the job; None: none has.
    """

    began: Mapping[Position, float] = field(default_factory=dict)
    ready: Mapping[Position, float] = field(default_factory=dict)
    late: str = ""
    finished: int | None = None

    @property
    def is_over(self) -> bool:
        """Whether the job was ended, other than by a failure or from outside."""
        return bool(self.late) or self.finished is not None

    def on(self, one: ReplicaFacts, position: Position, after: bool) -> ReplicaFacts:
        """Return a replica that LSF runs as waiting, if its program has not started."""
        if one.state is AppState.RUNNING and position not in self.began:
            return replace(one, state=AppState.PENDING, reason="" if after else _WAITS)
        known = one.state in (AppState.RUNNING, AppState.SUCCEEDED)
        if self.finished == position[0] and one.state is AppState.RUNNING:  # LSF's answers lag
            return replace(one, state=AppState.SUCCEEDED)
        ready = self.ready.get(position, 0.0) if known else 0.0
        ended = one.state in (AppState.FAILED, AppState.CANCELLED)
        if self.late and ended:  # with the job
            return replace(one, state=AppState.CANCELLED, stopped=True, exit_code=None)
        return replace(one, ready=ready, started=self.began.get(position, one.started))


def mark_files(roles: Sequence[Role]) -> list[str]:
    """Return the files with the marks of a job with these roles, within its folder."""
    positions = [(index, k) for index, role in enumerate(roles) for k in range(role.num_replicas)]
    marks = [f"{ORDER_FOLDER}/{kind}.{index}.{k}" for index, k in positions for kind in ("began", "ready")]
    return [LATE_FILE, FINISHED_FILE, *marks]


def read_marks(roles: Sequence[Role], texts: Mapping[str, str]) -> Marks:
    """Return the marks in these files."""
    found: dict[str, dict[Position, float]] = {"began": {}, "ready": {}}
    for path, text in texts.items():
        if not text:
            continue
        kind, *numbers = posixpath.basename(path).split(".")
        if kind in found:
            found[kind][whole(numbers[0]), whole(numbers[1])] = float(whole(text.split()[-1]))
    words, _, said = texts.get(LATE_FILE, "").strip("\n").partition("\t")
    numbers = words.split(" ", 3)
    late = ""
    if len(numbers) == 4 and (index := whole(numbers[0])) < len(roles):
        late = unready(roles, roles[index].name, early=numbers[2] == "early", seen=numbers[3], said=said)
    finished = whole(ended) if (ended := texts.get(FINISHED_FILE, "").strip()) else None
    return Marks(began=found["began"], ready=found["ready"], late=late, finished=finished)
