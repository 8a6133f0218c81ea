"""Decides the next step for a job's containers: applies the rules of `torchx.supervisor.gang` to the engine's list.

The decisions are pure: earlier ones are recorded in the containers' marks, so the same list always yields the same
step. The watcher carries it out, and ``status`` shows its outcome whether or not a watcher has acted yet.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from torchx.schedulers.docker.containers import Container, Job, Mark
from torchx.specs.api import AppDef, AppState, is_terminal
from torchx.supervisor.gang import GIVE_UP, GO_ON, RESTART_APPLICATION, Gang, RoleRules
from torchx.supervisor.order import Order
from torchx.util.records import dataclass, field

TYPE_CHECKING = False
if TYPE_CHECKING:
    from torchx.supervisor.layout import OrderRequest

LABEL_RULES = "torchx.pytorch.org/rules"
"""On each container, :class:`Rules` as JSON."""

CANCEL_GRACE_S = 10
"""Default seconds between SIGTERM and SIGKILL."""

REPLICA = "REPLICA"
_OPTIONAL = ("policy", "timeout", "watchdog", "idle", "plain", "order")
_AS_GANG = {AppState.FAILED: "FAILED", AppState.SUCCEEDED: "SUCCEEDED", AppState.CANCELLED: "CANCELLED"}


@dataclass
class Rules:
    """How failures of a job are handled.

    Attributes:
        retries: role -> max retries and retry policy. With ``REPLICA`` the engine restarts the container.
        grace_s: seconds between SIGTERM and SIGKILL.
        place: where the job's watcher runs, see `watchers.place`; empty: it has none.
        policy: retry policy by cause, see :class:`torchx.specs.wishes.retries.RetryRules`; empty: none.
        timeout: time limit of an attempt, such as ``2h``; empty: none.
        watchdog: permitted silence and the action after it, such as ``10m:cancel``; empty: none.
        idle: time without use, and the action after it; empty: not watched. See :mod:`torchx.specs.wishes.idle`.
        plain: not empty: work of processors is a first step.
        order: what roles wait for and which end the job, as JSON: :class:`torchx.supervisor.layout.OrderRequest` by
            role; empty: they start at once.
    """

    retries: Mapping[str, tuple[int, str]] = field(default_factory=dict)
    grace_s: int = CANCEL_GRACE_S
    place: str = ""
    policy: str = ""
    timeout: str = ""
    watchdog: str = ""
    idle: str = ""
    plain: str = ""
    order: str = ""

    def to_json(self) -> str:
        """Return the label's value."""
        required = {"retries": self.retries, "grace_s": self.grace_s, "place": self.place}
        optional = {key: value for key in _OPTIONAL if (value := getattr(self, key))}
        return json.dumps({**required, **optional}, separators=(",", ":"))


def rules_for(app: AppDef, grace_s: int, place: str, **wishes: str) -> Rules:
    """Return the rules of a job. Restarts that affect a single container are left to the engine.

    Args:
        place: where its watcher would run; empty: it cannot have one, and the engine restarts each container by itself.
        wishes: ``policy`` (which replaces ``max_retries``) and the optional fields after it of :class:`Rules`.
    """
    if wishes.get("policy"):
        return Rules({role.name: (0, REPLICA) for role in app.roles}, grace_s, place, **wishes)
    replicas = sum(role.num_replicas for role in app.roles)
    retries = {}
    for role in app.roles:
        together = {"APPLICATION": replicas, "ROLE": role.num_replicas}.get(role.retry_policy.name, 1)
        policy = role.retry_policy.name if together > 1 and place else REPLICA
        if wishes.get("order") and policy == REPLICA and (role.num_replicas == 1 or role.restarts_after):
            policy = "ROLE"  # so that the watcher knows of each restart
        retries[role.name] = (max(role.max_retries, 0), policy)
    return Rules(retries, grace_s, place if replicas > 1 or any(wishes.values()) else "", **wishes)


def rules_of(job: Job) -> Rules:
    """Return the rules in the label of the job's containers; the defaults if there is no valid label."""
    try:
        label = json.loads(job.labelled(LABEL_RULES))
        retries = {str(role): (int(most), str(policy)) for role, (most, policy) in label["retries"].items()}
        optional = (str(label.get(key) or "") for key in _OPTIONAL)
        return Rules(retries, max(int(label["grace_s"]), 0), str(label["place"]), *optional)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return Rules()


@dataclass
class Step:
    """The next step for a job.

    Attributes:
        stop: mark these containers as cancelled, and stop them.
        again: restart these together, once all of them have ended.
        app: restarts of the application, including this one.
        roles: restarts of each role, including this one.
        along: restarts of the roles that restart each role.
        end: stop these, because another one has failed, or the job reached its time limit.
        ask: the job has failed: evaluate its retry policy.
    """

    stop: list[Container] = field(default_factory=list)
    again: list[Container] = field(default_factory=list)
    app: int = 0
    roles: dict[str, int] = field(default_factory=dict)
    along: dict[str, int] = field(default_factory=dict)
    end: list[Container] = field(default_factory=list)
    ask: bool = False

    def __bool__(self) -> bool:
        return bool(self.stop or self.again or self.end or self.ask)

    def mark(self, container: Container, *, due: bool) -> Mark:
        """Return the mark of one of ``again``."""
        return Mark(self.app, self.roles.get(container.role, 0), self.along.get(container.role, 0), due=due)


def next_step(job: Job) -> Step:
    """Apply the rules, in this order: wait for a submission to complete; stop what runs of a cancelled job; complete
    a restart that has begun; handle failures.
    """
    if any(c.state is AppState.SUBMITTED for c in job.containers):
        return Step()
    live = [c for c in job.containers if not is_terminal(c.state)]
    if any(c.mark.cancelled for c in job.containers):
        return Step(stop=live)
    members: dict[str, list[Container]] = {name: [] for name, _, _ in job.sizes()}
    for container in job.containers:
        members.setdefault(container.role, []).append(container)
    app = max((c.mark.app for c in job.containers), default=0)
    roles = {name: max((c.mark.role for c in found), default=0) for name, found in members.items()}
    if again := _startable(job, _due(job, app, roles)):
        return Step(again=again, app=app, roles=roles, along=along_of(job, roles))
    if any(c.mark.late for c in job.containers):
        final = any(c.mark.final for c in job.containers) or not rules_of(job).policy or not is_complete(job)
        return Step(end=live) if live else Step(ask=not final)
    return _by_policy(job, _consequences(job, members, app, roles, live)) or _at_its_end(job, live)


def _by_policy(job: Job, step: Step) -> Step:
    """Evaluate the retry policy, if there is one, before a failed job is given up."""
    if not is_complete(job) or any(c.mark.final for c in job.containers) or not rules_of(job).policy:
        return step
    failed = any(c.state is AppState.FAILED for c in job.containers)
    if step.stop:
        return Step(end=step.stop)
    lost = failed and all(is_terminal(c.state) for c in job.containers) and not _has_succeeded(job)
    return Step(ask=True) if lost else step


def is_complete(job: Job) -> bool:
    """Whether all containers exist: one that was removed cannot be restarted."""
    return len(job.containers) == sum(count for _, count, _ in job.sizes())


def _has_succeeded(job: Job) -> bool:
    """Whether enough replicas of each role have: all, or ``min_replicas`` of an elastic role."""
    for name, count, least in job.sizes():
        succeeded = sum(c.role == name and c.state is AppState.SUCCEEDED for c in job.containers)
        if succeeded < (count if least is None else least):
            return False
    return True


def another_attempt(job: Job) -> Step:
    """Return the step that restarts all containers of a job that has ended."""
    app = max(c.mark.app for c in job.containers)
    roles = {c.role: c.mark.role for c in job.containers}
    return Step(again=list(job.containers), app=app + 1, roles=roles, along=along_of(job, roles))


def _consequences(
    job: Job, members: Mapping[str, list[Container]], app: int, roles: dict[str, int], live: list[Container]
) -> Step:
    sizes = job.sizes()
    rules = rules_of(job).retries
    # With REPLICA the engine has retried already.
    retries = {role: (0 if policy == REPLICA else most, policy) for role, (most, policy) in rules.items()}
    gang = Gang([RoleRules(*retries.get(name, (0, REPLICA)), least) for name, _, least in sizes])
    gang.application_restarts = app
    gang.role_restarts = [roles[name] for name, _, _ in sizes]
    decisions = set()
    for index, (name, count, least) in enumerate(sizes):
        states = ["FAILED"] * count  # a removed container counts as failed
        for container in members[name]:
            if container.k < count:
                states[container.k] = _AS_GANG.get(container.state, "RUNNING")
        if "FAILED" not in states or RESTART_APPLICATION in decisions:
            continue
        decision = gang.failed(index, states.index("FAILED"), states)
        decisions.add(decision)
        short = len(members[name]) < (count if least is None else least)
        if decision == GIVE_UP or (decision != GO_ON and short):
            return Step(stop=live)
    roles = {name: done for (name, _, _), done in zip(sizes, gang.role_restarts, strict=True)}
    again = _startable(job, _due(job, gang.application_restarts, roles))
    return Step(again=again, app=gang.application_restarts, roles=roles, along=along_of(job, roles))


def _due(job: Job, app: int, roles: Mapping[str, int]) -> list[Container]:
    """Containers that have been restarted less often than their application, role, or the roles that restart it."""
    along = along_of(job, roles)
    running = {c.role for c in job.containers if not is_terminal(c.state)}
    behind = {c.id for c in job.containers if c.role in running and c.mark.along < along.get(c.role, 0)}
    return [
        c
        for c in job.containers
        if c.mark.due or c.mark.app < app or c.mark.role < roles.get(c.role, 0) or c.id in behind
    ]


# -- the order of roles ------------------------------------------------------------------------------------


def orders_of(job: Job) -> dict[str, OrderRequest]:
    """Return the order of the job's roles; empty if it has none."""
    names = {name for name, _, _ in job.sizes()}
    try:
        found: dict[str, OrderRequest] = json.loads(rules_of(job).order)
        known = found.keys() == names and all(names.issuperset(order["after"]) for order in found.values())
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return {}
    return found if known else {}


def order_of(job: Job) -> Order:
    """Return the rules by which roles start and end the job."""
    return Order([name for name, _, _ in job.sizes()], orders_of(job))


def states_of(job: Job) -> list[list[tuple[str, float]]]:
    """Return the states of replicas by role, for :class:`Order`."""
    found: dict[str, list[tuple[str, float]]] = {name: [] for name, _, _ in job.sizes()}
    for c in job.containers:
        found.setdefault(c.role, []).append(("PENDING" if c.mark.due else c.state.name, float(c.mark.ready)))
    return list(found.values())


def waiting(job: Job) -> set[str]:
    """Return the roles that may not start yet."""
    if not rules_of(job).order:
        return set()
    order, states = order_of(job), states_of(job)
    return {name for number, (name, _, _) in enumerate(job.sizes()) if not order.may_start(number, states)}


def along_of(job: Job, roles: Mapping[str, int]) -> dict[str, int]:
    """Return how often the roles that restart each role were restarted, by the restarts of each."""
    orders = orders_of(job)

    def along(name: str) -> int:
        before = [other for other in orders[name].get("after", ()) if orders[other].get("restarts_after")]
        return sum(roles.get(other, 0) + along(other) for other in before)

    return {name: along(name) for name in orders}


def _startable(job: Job, again: list[Container]) -> list[Container]:
    """Without those that only wait for other roles."""
    held = waiting(job) if again else set()
    return [c for c in again if not (c.role in held and c.mark.due and c.raw != "running")]


def _at_its_end(job: Job, live: list[Container]) -> Step:
    """End what runs when a role has ended that ends the job."""
    over = bool(rules_of(job).order) and order_of(job).decides(states_of(job)) is not None
    return Step(end=live) if over else Step()


def waves(job: Job) -> int:
    """How often replicas of a job were restarted together."""
    roles: dict[str, int] = {}
    for container in job.containers:
        roles[container.role] = max(roles.get(container.role, 0), container.mark.role)
    return max((c.mark.app for c in job.containers), default=0) + sum(roles.values())


def is_alive(job: Job, container: Container) -> bool:
    """Whether a container runs, or may be restarted."""
    step = next_step(job)
    undecided = step.ask or bool(step.end)
    return undecided or not is_terminal(container.state) or any(c.id == container.id for c in step.again)


def is_over(job: Job) -> bool:
    """Whether no container runs, and no step is left."""
    return not next_step(job) and all(is_terminal(c.state) for c in job.containers)


def ends(job: Job) -> bool:
    """Whether it has ended, or is being stopped."""
    step = next_step(job)
    return bool(step.stop or step.end or step.ask) or is_over(job)
