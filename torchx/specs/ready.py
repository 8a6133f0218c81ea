"""When a role is ready for those that wait for it, and whether the roles of a job have an order."""

from __future__ import annotations

from torchx.util.records import dataclass

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from torchx.specs.api import AppDef, Role

PROBES = ("tcp", "http", "log", "file")
MARK = "${role."


@dataclass
class Ready:
    """When a replica is ready: one of four probes succeeds once. A replica without one is ready when it has started.

    Args:
        tcp: a port accepts connections: a name in the role's ``port_map``, or a number.
        http: a GET of this path is answered with status 200 to 399: ``/health`` at the port ``http`` of ``port_map``,
            else its first; ``metrics:/up`` or ``9000:/up`` at another.
        log: this regular expression matches a line of the replica's output, in the syntax of ``grep -E``, with the
            classes ``\\d``, ``\\s``, ``\\w``.
        file: this file exists, relative to the working directory of the replica.
        within: how long after its start the role may take, such as ``5m``; then the job fails with class ``timeout``.
        at_least: how many replicas must be ready; None: ``min_replicas`` of the role, else all.

    >>> Ready(http="/health", within="2m")
    Ready(http='/health', within='2m')
    """

    _brief_repr = True

    tcp: str | int = ""
    http: str = ""
    log: str = ""
    file: str = ""
    within: str = "5m"
    at_least: int | None = None


def has_order(app: AppDef) -> bool:
    """Whether roles wait, are probed, end the job, or use the addresses of others.

    >>> from torchx.specs import AppDef, Role
    >>> has_order(AppDef("a", [Role("r", "img")])), has_order(AppDef("a", [Role("r", "img", ends_job=True)]))
    (False, True)
    """
    for role in app.roles:
        if role.after or role.ready or role.ends_job or role.restarts_after:
            return True
        texts = "".join((role.entrypoint, *role.args, *role.env.values()))
        if role.metadata or role.mounts:
            texts += repr((role.metadata, [vars(mount) for mount in role.mounts]))
        if MARK in texts and next(macros_in(role), None) is not None:
            return True
    return False


def macros_in(role: Role) -> Iterator[str]:
    """Yield the macros of addresses in a role, ``server.port.http``."""
    values: list[object] = [role.entrypoint, *role.args, *role.env.values(), role.metadata, *map(vars, role.mounts)]
    while values:
        value = values.pop()
        if isinstance(value, str):
            before, *rest = value.split(MARK)
            for piece in rest:
                if "}" in piece and (len(before) - len(before.rstrip("$"))) % 2 == 0:  # `$${` is an escape
                    yield piece.partition("}")[0]
                before = piece
        elif isinstance(value, dict):
            values += value.values()
        elif isinstance(value, (list, tuple)):
            values += value
