"""Roles in order, by the cluster itself: a startup probe says when a pod is ready, a Service of the role lists the
addresses of ready pods, and pods of later roles wait for these in an init container.

A pod whose startup probe succeeded once is ready until it ends; one that is late is ended by its node.
https://kubernetes.io/docs/concepts/workloads/pods/probes/
"""

from __future__ import annotations

from torchx.errors import NotSupportedError, SpecError
from torchx.schedulers.kit.shell import read_script
from torchx.schedulers.kubernetes import names
from torchx.schedulers.kubernetes.names import JOB, LABEL_ROLE_INDEX, LABEL_UNIQUE_NAME, VOLCANO, WAITER, Object
from torchx.schedulers.kubernetes.shipped_code import metadata_of_part
from torchx.specs.api import AppDef, RetryPolicy, Role
from torchx.specs.order import Addresses, RoleOrder, order_of
from torchx.specs.ready import has_order
from torchx.util.records import dataclass

PROBES = ("tcp", "http", "file")
_EVERY_S = 1
_PULL_S = 3600
"""How long the image of a role may take to be pulled: the waiter does not see when its containers start."""
_NEVER = 10_000_000
"""Probes that may fail if a late pod is not to be ended."""


@dataclass(frozen=True)
class JobOrder:
    """The order of a job of a kind; ``names`` are those of its roles in the names of objects."""

    kind: str
    app: AppDef
    app_id: str
    names: dict[str, str]
    orders: dict[str, RoleOrder]

    def host(self, role: str, k: int | str) -> str:
        """Return the name by which other pods reach a replica."""
        return names.host(self.kind, self.app_id, self.names[role], k)

    def macros(self, role: Role, replica_id: str) -> dict[str, str]:
        """Return the values of the macros with addresses, for a replica."""
        known = self._addresses().macros(role, 0)
        return {**known, f"role.{role.name}.host": self.host(role.name, replica_id)}

    def environment(self) -> dict[str, str]:
        """Return the variables with the addresses of the roles."""
        return self._addresses().environment()

    def _addresses(self) -> Addresses:
        return Addresses(self.app, lambda role, k: self.host(role.name, k))

    def add_to(self, pod: Object, main: Object, role: Role) -> None:
        """Add the probe of a role and the waiter before its program to the spec of a pod, which overlays have
        changed.
        """
        order = self.orders[role.name]
        if order.probe:
            main["startupProbe"] = _probe(role, order)
        if not order.after:
            return
        words = [word for name in order.after for word in self._awaited(name)]
        waiter: Object = {
            "name": WAITER,
            "command": ["sh", "-c", read_script(__file__, "wait.sh"), WAITER, *words],
            **{name: main[name] for name in ("image", "imagePullPolicy", "securityContext") if name in main},
            "resources": _cpu_and_memory(main["resources"]),
            "terminationMessagePolicy": "FallbackToLogsOnError",
        }
        pod["initContainers"] = [*(pod.get("initContainers") or ()), waiter]

    def _awaited(self, name: str) -> list[str]:
        role, order = next(role for role in self.app.roles if role.name == name), self.orders[name]
        seconds = order.within_s + (_PULL_S if ends_late(role, order) else 0)
        return [self._service(name), str(order.at_least), self.host(name, 0), str(seconds), name.replace("$", "$$")]

    def _service(self, role: str) -> str:
        return f"{self.app_id}-{self.names[role]}"

    def services(self, owner: Object) -> list[Object]:
        """Return a Service for each role that others wait for; ``owner`` is the metadata of the job's first object."""
        found = []
        for i, role in enumerate(self.app.roles):
            if any(role.name in order.after for order in self.orders.values()):
                metadata = metadata_of_part(self._service(role.name), owner)
                selector = {LABEL_UNIQUE_NAME: self.app_id, LABEL_ROLE_INDEX: str(i)}
                found.append(
                    {
                        "apiVersion": "v1",
                        "kind": "Service",
                        "metadata": metadata,
                        "spec": {"clusterIP": "None", "selector": selector},
                    }
                )
        return found

    def depends_on(self, role: Role) -> list[Object]:
        """Return the ``dependsOn`` of a role's part of a JobSet, which can wait for all pods of another part."""
        counts = {role.name: role.num_replicas for role in self.app.roles}
        return [
            {"name": self.names[name], "status": "Ready"}
            for name in self.orders[role.name].after
            if self.orders[name].at_least == counts[name]
        ]

    def sorted(self, parts: list[Object]) -> list[Object]:
        """Return the parts of a JobSet, each after those that it waits for."""
        done: list[Object] = []
        while len(done) < len(parts):
            known = {part["name"] for part in done}
            waits = ({one["name"] for one in part.get("dependsOn", ())} for part in parts)
            done += [p for p, of in zip(parts, waits, strict=True) if p["name"] not in known and of <= known]
        return done

    def ending(self) -> list[str]:
        """Return the names of the roles whose end is that of the job."""
        return [self.names[name] for name, order in self.orders.items() if order.ends_job]


def order_for(kind: str, app: AppDef, app_id: str, role_names: list[str]) -> JobOrder | None:
    """Return the order of a job, None if it has none; SpecError or NotSupportedError for what the kind cannot do."""
    if not has_order(app):
        return None
    if kind not in names.HOSTS:
        raise NotSupportedError(f"a {names.OWNERS[kind]} cannot start roles in order", hint="use `-cfg kind=jobset`")
    orders = order_of(app)
    for role in app.roles:
        order = orders[role.name]
        alone = kind == JOB or role.retry_policy is RetryPolicy.REPLICA or role.min_replicas is not None
        if order.restarts_after and alone:
            raise NotSupportedError(
                f"role `{role.name}`: its pods are replaced one by one, which cannot restart the roles after it",
                hint="use `-cfg kind=jobset` and the retry policy APPLICATION, which restart all pods",
            )
        if order.ends_job and kind == VOLCANO and role.num_replicas > 1:
            raise NotSupportedError(
                f"role `{role.name}` ends the job and has {role.num_replicas} replicas: Volcano would end it with the"
                " first of them",
                hint="use `-cfg kind=jobset` or `kind=job`",
            )
    return JobOrder(kind, app, app_id, dict(zip([r.name for r in app.roles], role_names, strict=True)), orders)


def ends_late(role: Role, order: RoleOrder) -> bool:
    """Whether a pod that is late is ended: the role cannot be ready, or run, without it."""
    least = role.num_replicas if role.min_replicas is None else role.min_replicas
    return order.at_least >= least


def _probe(role: Role, order: RoleOrder) -> Object:
    port = role.port_map.get(order.port) or order.port
    how: dict[str, Object] = {
        "tcp": {"tcpSocket": {"port": int(port or 0)}},
        "http": {"httpGet": {"path": order.what, "port": int(port or 0)}},
        "file": {"exec": {"command": ["sh", "-c", '[ -e "$0" ]', order.what]}},
    }
    if order.probe not in how:
        raise SpecError(f"role `{role.name}`: a pod cannot be probed by `{order.probe}`", hint=f"use {PROBES}")
    # the first probe is at the start
    most = order.within_s // _EVERY_S + 1 if ends_late(role, order) else _NEVER
    return {**how[order.probe], "periodSeconds": _EVERY_S, "timeoutSeconds": _EVERY_S, "failureThreshold": most}


def _cpu_and_memory(resources: Object) -> Object:
    return {
        of: {name: count for name, count in counts.items() if name in ("cpu", "memory")}
        for of, counts in resources.items()
        if of in ("limits", "requests")
    }
