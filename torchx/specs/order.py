"""The order of a job's roles: which waits for which, when one is ready, whose end ends the job, and their addresses.

``Role.after`` names the roles that must be ready before this one starts, ``Role.ready`` says when its own replicas are,
and with ``Role.ends_job`` the job ends when this role has ended.
"""

from __future__ import annotations

from torchx.errors import SpecError
from torchx.specs.ready import MARK, PROBES, Ready, has_order, macros_in
from torchx.util.records import dataclass
from torchx.util.strings import did_you_mean, nearest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from torchx.specs.api import AppDef, Role

_SHOWN = 8  # of addresses, in a hint
_LONGEST = 64 << 10
"""Characters of the longest list of hosts in a variable: Linux passes at most 128 KiB in one."""

_KINDS: dict[str, type | tuple[type, ...]]
_KINDS = {"after": (list, tuple), "ready": Ready, "ends_job": bool, "restarts_after": bool}
_CLASSES = {"d": "[0-9]", "s": "[[:space:]]", "w": "[[:alnum:]_]", "D": "[^0-9]", "S": "[^[:space:]]"}


@dataclass(frozen=True)
class RoleOrder:
    """The order of one role, checked and in the form that backends use.

    Attributes:
        after: names of the roles that must be ready before it starts.
        probe: one of :data:`PROBES`; empty: a replica is ready when it has started.
        port: of the probes ``tcp`` and ``http``, by its name in ``port_map`` or as a number.
        what: the path of ``http``, the file, or the regular expression in the syntax of ``grep -E``.
        within_s: seconds from its start in which the role must be ready.
        at_least: how many replicas must be ready.
        ends_job: the job ends when all its replicas have ended, with its state.
        restarts_after: a restart of the role restarts those that are after it, if they have started.
    """

    after: tuple[str, ...] = ()
    probe: str = ""
    port: str = ""
    what: str = ""
    within_s: int = 300
    at_least: int = 1
    ends_job: bool = False
    restarts_after: bool = False

    def __str__(self) -> str:
        """Return the probe as a person would write it; empty without one."""
        return {"tcp": f"tcp {self.port}", "http": f"GET :{self.port}{self.what}"}.get(
            self.probe, f"{self.probe} `{self.what}`" if self.probe else ""
        )


def order_of(app: AppDef) -> dict[str, RoleOrder]:
    """Return the order of each role by its name; empty if the job has none.

    Raises:
        SpecError: a role or port is unknown, roles wait for each other in a circle, or a probe is invalid.

    >>> from torchx.specs import AppDef, Ready, Role
    >>> server = Role("server", "img", port_map={"http": 8000}, ready=Ready(http="/health"))
    >>> found = order_of(AppDef("a", [server, Role("trainer", "img", after=["server"])]))
    >>> str(found["server"]), found["trainer"].after
    ('GET :http/health', ('server',))
    """
    if not has_order(app):
        return {}
    found = {role.name: _order(role, app) for role in app.roles}
    _check_circles(found)
    names: dict[str, str] = {}
    for role in app.roles:
        other = names.setdefault(hosts_variable(role.name), role.name)
        if other != role.name:
            raise SpecError(
                f"roles `{other}` and `{role.name}` share the variable `{hosts_variable(role.name)}`",
                hint="rename one of them",
            )
        _check_macros(role, app)
    return found


def hosts_variable(role: str) -> str:
    """Return the name of the variable with the addresses of a role.

    >>> hosts_variable("reward-model")
    'TORCHX_HOSTS_REWARD_MODEL'
    """
    return "TORCHX_HOSTS_" + "".join(c if c.isascii() and c.isalnum() else "_" for c in role).upper()


class Addresses:
    """The addresses of a job's replicas, for macros and variables; backends give the hosts.

    Args:
        host: returns the host of replica ``k`` of a role, as others reach it.
        port: returns the port of a replica that ``port_map`` names; None: that in ``port_map``.
        hosts: returns all addresses of a role, ``h1:8000,h2:8000``; None: from ``host`` and ``port``.

    >>> from torchx.specs import AppDef, Role
    >>> server = Role("server", "img", num_replicas=2, port_map={"http": 8000})
    >>> both = Addresses(AppDef("a", [server]), lambda role, k: f"node{k}")
    >>> both.environment()
    {'TORCHX_HOSTS_SERVER': 'node0:8000,node1:8000'}
    >>> both.macros(server, 1)["role.server.host"]
    'node1'
    """

    def __init__(
        self,
        app: AppDef,
        host: Callable[[Role, int], str],
        port: Callable[[Role, int, str], int | str] | None = None,
        hosts: Callable[[Role], str] | None = None,
    ) -> None:
        self._roles = app.roles
        self._host = host
        self._port = port or (lambda role, _, name: role.port_map[name])
        self._hosts = hosts or self._list
        self._shared: dict[str, str] = {}
        for role in app.roles:
            self._shared.update(self._of(role, 0))
            self._shared[f"role.{role.name}.hosts"] = self._hosts(role)

    def macros(self, role: Role, k: int) -> dict[str, str]:
        """Return the values of the macros in replica ``k`` of a role: of its own role, its own host and ports."""
        return {**self._shared, **self._of(role, k)}

    def environment(self) -> dict[str, str]:
        """Return the variables with the addresses of each role, without lists too long for a variable."""
        known = {hosts_variable(role.name): self._shared[f"role.{role.name}.hosts"] for role in self._roles}
        return {name: hosts for name, hosts in known.items() if len(hosts) <= _LONGEST}

    def _of(self, role: Role, k: int) -> dict[str, str]:
        ports = {f"role.{role.name}.port.{name}": str(self._port(role, k, name)) for name in role.port_map}
        return {f"role.{role.name}.host": self._host(role, k), **ports}

    def _list(self, role: Role) -> str:
        name = next(iter(role.port_map), None)
        ends = [f":{self._port(role, k, name)}" if name else "" for k in range(role.num_replicas)]
        return ",".join(f"{self._host(role, k)}{end}" for k, end in enumerate(ends))


def _order(role: Role, app: AppDef) -> RoleOrder:
    _check_fields(role)
    others = [other.name for other in app.roles if other is not role]
    for other in role.after:
        if other not in others:
            why = "which is itself" if other == role.name else "which the job does not have"
            hint = did_you_mean(str(other), others) or f"other roles: {', '.join(others) or 'there is none'}"
            raise SpecError(f"role `{role.name}` waits for role `{other}`, {why}", hint=hint)
    least = role.num_replicas if role.min_replicas is None else role.min_replicas
    after = tuple(dict.fromkeys(role.after))
    plain = RoleOrder(after, at_least=least, ends_job=role.ends_job, restarts_after=role.restarts_after)
    return plain if role.ready is None else _probe(role, role.ready, plain)


def _check_fields(role: Role) -> None:
    for name, kinds in _KINDS.items():
        value = getattr(role, name)
        if value and not isinstance(value, kinds):
            hint = "for example `after=['server']`, `ready=Ready(http='/health')`, `ends_job=True`"
            raise SpecError(f"role `{role.name}` has `{name}={value!r}`", hint=hint)
    for name, port in role.port_map.items():
        if port.__class__ is not int or not 1 <= port <= 65535:
            raise SpecError(f"role `{role.name}` has the port `{name}={port!r}`", hint="a number, 1 to 65535")
    for name in (*PROBES, "within") if role.ready else ():
        value = getattr(role.ready, name)
        if not isinstance(value, (str, int) if name == "tcp" else str):
            raise SpecError(f"role `{role.name}` has `{name}={value!r}` in its `ready`", hint="write it as a string")


def _probe(role: Role, ready: Ready, plain: RoleOrder) -> RoleOrder:
    from torchx.specs.wishes.timeouts import parse_timeout
    from torchx.util.records import replace

    given = [name for name in PROBES if getattr(ready, name)]
    if len(given) != 1:
        hint = f"give one of {', '.join(PROBES)}: `Ready(tcp='http')`"
        raise SpecError(f"role `{role.name}` has {len(given)} probes in its `ready`", hint=hint)
    least = plain.at_least if ready.at_least is None else ready.at_least
    if least.__class__ is not int or not 1 <= least <= role.num_replicas:
        raise SpecError(
            f"role `{role.name}` is ready with `at_least={least!r}` of its {role.num_replicas} replicas",
            hint=f"1 to {role.num_replicas}",
        )
    probe, what, port = given[0], str(getattr(ready, given[0])), ""
    if probe == "tcp":
        port, what = what, ""
    elif probe == "http":
        named, slash, path = what.partition("/")
        if not slash or (named.endswith(":") and path.startswith("/")):
            hint = "the path of plain HTTP: `/health`, or `metrics:/up` at the port `metrics`"
            raise SpecError(f"role `{role.name}` is ready by a GET of `{what}`", hint=hint)
        port, what = named.removesuffix(":") or _default_port(role), f"/{path}"
    elif probe == "log":
        what = _extended(what, role.name)
    if probe in ("tcp", "http"):
        _check_port(role, port)
    if any(ord(c) < 32 or ord(c) == 127 for c in what) or (probe == "http" and " " in what):
        raise SpecError(f"role `{role.name}` is ready by `{what!r}`", hint="omit spaces and control characters")
    within_s = parse_timeout(ready.within, f"role `{role.name}`: within")
    return replace(plain, probe=probe, port=port, what=what, within_s=within_s, at_least=least)


def _default_port(role: Role) -> str:
    return "http" if "http" in role.port_map else next(iter(role.port_map), "")


def _check_port(role: Role, port: str) -> None:
    if port in role.port_map or (port.isascii() and port.isdecimal() and 1 <= int(port) <= 65535):
        return
    known = ", ".join(role.port_map) or "it has none"
    which = f"the port `{port}`" if port else "a port, and has none"
    raise SpecError(f"role `{role.name}` is ready at {which}", hint=f"a number, or a name in its `port_map`: {known}")


def _extended(pattern: str, role: str) -> str:
    """Return a pattern for ``grep -E``; raises SpecError for one that only Python, or nothing, understands."""
    import re

    from torchx.supervisor.probes import to_python

    extended = re.sub(r"(\\\\)|\\([dswDS])", lambda m: m[1] or _CLASSES[m[2]], pattern)
    hint = "use what `grep -E` knows, and \\d, \\s, \\w"
    odd = re.search(r"\(\?|[*+?}][+?]|\\[A-Za-z0-9]", re.sub(r"\\\\|\\[dswDS]", "", pattern))
    try:
        re.compile(to_python(extended))
    except re.error as e:
        raise SpecError(
            f"role `{role}` is ready by the log `{pattern}`, which is not a valid regular expression: {e}", hint=hint
        ) from None
    if odd:
        raise SpecError(f"role `{role}` is ready by the log `{pattern}`, and `{odd[0]}` is not understood", hint=hint)
    return extended


def _check_circles(orders: dict[str, RoleOrder]) -> None:
    left = {name: set(order.after) for name, order in orders.items()}
    while left:
        free = {name for name, after in left.items() if not after & left.keys()}
        if not free:
            walk = [next(iter(left))]
            while walk[-1] not in walk[:-1]:
                walk.append(next(name for name in orders[walk[-1]].after if name in left))
            circle = walk[walk.index(walk[-1]) :]
            raise SpecError(
                f"roles wait for each other in a circle: {', '.join(circle[:-1])}",
                hint=f"omit one of them: `{circle[0]}` is after `{circle[1]}`",
            )
        left = {name: after for name, after in left.items() if name not in free}


def _check_macros(role: Role, app: AppDef) -> None:
    known = {}
    for other in app.roles:
        known.update(dict.fromkeys(f"{other.name}.{what}" for what in ("host", "hosts")))
        known.update(dict.fromkeys(f"{other.name}.port.{name}" for name in other.port_map))
    for macro in macros_in(role):
        if macro not in known:
            near = nearest(macro, known)
            shown = ", ".join(f"{MARK}{name}}}" for name in [*known][:_SHOWN])
            raise SpecError(
                f"role `{role.name}` has `{MARK}{macro}}}`, which is not an address within the job",
                hint=f"did you mean `{MARK}{near}}}`?" if near else f"it has {shown}{', ...' * (len(known) > _SHOWN)}",
            )
