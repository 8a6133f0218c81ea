"""What is to be done about the containers of a job: the rules of `torchx.supervisor.gang`, over the engine's list.

Pure decisions. What was decided before is in the containers' marks, so that the same list always gives the same answer:
the watcher acts on it, and ``status`` shows it, whether or not a watcher has come to it yet.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from torchx.schedulers.docker.container_names import Mark
from torchx.schedulers.docker.containers import Container, Job
from torchx.specs.api import AppDef, AppState, is_terminal
from torchx.supervisor.gang import GIVE_UP, GO_ON, RESTART_APPLICATION, Gang, RoleRules
from torchx.util.records import dataclass, field

LABEL_RULES = "torchx.pytorch.org/rules"
"""On each container, :class:`Rules` as JSON."""

CANCEL_GRACE_S = 10
"""Between SIGTERM and SIGKILL, unless the job says otherwise."""

REPLICA = "REPLICA"
_MORE = ("policy", "timeout", "watchdog")
_AS_GANG = {AppState.FAILED: "FAILED", AppState.SUCCEEDED: "SUCCEEDED", AppState.CANCELLED: "CANCELLED"}


@dataclass
class Rules:
    """How failures of a job are dealt with.

    Attributes:
        retries: role -> how often, and by which policy. With ``REPLICA`` it is the engine that starts again.
        grace_s: seconds between SIGTERM and SIGKILL.
        place: where the job's watcher runs, see `watchers.place`; empty where it has none.
        policy: on retries by cause, see :class:`torchx.specs.retries.RetryRules`; empty: there is none.
        timeout: how long an attempt may run, such as ``2h``; empty: for ever.
        watchdog: after which silence it is looked into, and what is done then, such as ``10m:cancel``; empty: nothing.
    """

    retries: Mapping[str, tuple[int, str]] = field(default_factory=dict)
    grace_s: int = CANCEL_GRACE_S
    place: str = ""
    policy: str = ""
    timeout: str = ""
    watchdog: str = ""

    def to_json(self) -> str:
        """The label's value."""
        said = {"retries": self.retries, "grace_s": self.grace_s, "place": self.place}
        more = {key: value for key in _MORE if (value := getattr(self, key))}
        return json.dumps({**said, **more}, separators=(",", ":"))


def rules_for(app: AppDef, grace_s: int, place: str, **wishes: str) -> Rules:
    """The rules of a job. What concerns one container alone is left to the engine.

    Args:
        place: where its watcher would run; empty where it can have none, and the engine starts each by itself.
        wishes: ``policy``, with which nothing is counted here, ``timeout`` and ``watchdog`` of :class:`Rules`.
    """
    if wishes.get("policy"):
        return Rules({role.name: (0, REPLICA) for role in app.roles}, grace_s, place, **wishes)
    everybody = sum(role.num_replicas for role in app.roles)
    retries = {}
    for role in app.roles:
        together = {"APPLICATION": everybody, "ROLE": role.num_replicas}.get(role.retry_policy.name, 1)
        policy = role.retry_policy.name if together > 1 and place else REPLICA
        retries[role.name] = (max(role.max_retries, 0), policy)
    return Rules(retries, grace_s, place if everybody > 1 or any(wishes.values()) else "", **wishes)


def rules_of(job: Job) -> Rules:
    """The rules on the job's containers; none where it was submitted without."""
    try:
        said = json.loads(job.labelled(LABEL_RULES))
        retries = {str(role): (int(most), str(policy)) for role, (most, policy) in said["retries"].items()}
        more = (str(said.get(key) or "") for key in _MORE)
        return Rules(retries, max(int(said["grace_s"]), 0), str(said["place"]), *more)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return Rules()


@dataclass
class Step:
    """What is to be done now.

    Attributes:
        stop: end these, and mark them as cancelled.
        again: start these again, together, once all of them have ended.
        app: how often the application has been started again then.
        roles: how often each role.
        end: end these, because another one has failed, or the job ran too long.
        ask: the job has failed, and its policy says whether it is started again.
    """

    stop: list[Container] = field(default_factory=list)
    again: list[Container] = field(default_factory=list)
    app: int = 0
    roles: dict[str, int] = field(default_factory=dict)
    end: list[Container] = field(default_factory=list)
    ask: bool = False

    def __bool__(self) -> bool:
        return bool(self.stop or self.again or self.end or self.ask)

    def mark(self, container: Container, *, due: bool) -> Mark:
        """The mark of one of ``again``."""
        return Mark(self.app, self.roles.get(container.role, 0), due=due)


def next_step(job: Job) -> Step:
    """What the rules demand, in this order: a submission is waited for; nothing of a cancelled job goes on; replicas
    that are being started again are seen through; a role that has failed has its consequences.
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
    if again := _behind(job, app, roles):
        return Step(again=again, app=app, roles=roles)
    if any(c.mark.late for c in job.containers):
        final = any(c.mark.final for c in job.containers) or not rules_of(job).policy or not _is_whole(job)
        return Step(end=live) if live else Step(ask=not final)
    return _by_policy(job, _consequences(job, members, app, roles, live))


def _by_policy(job: Job, step: Step) -> Step:
    """Where a job with a policy is to be given up, or has ended by failures, its policy is asked first."""
    if not _is_whole(job) or any(c.mark.final for c in job.containers) or not rules_of(job).policy:
        return step
    failed = any(c.state is AppState.FAILED for c in job.containers)
    if step.stop:
        return Step(end=step.stop)
    lost = failed and all(is_terminal(c.state) for c in job.containers) and not _has_succeeded(job)
    return Step(ask=True) if lost else step


def _is_whole(job: Job) -> bool:
    """Whether it has all of its containers: one that was removed cannot be started again."""
    return len(job.containers) == sum(count for _, count, _ in job.sizes())


def _has_succeeded(job: Job) -> bool:
    """Whether enough of each role have; an elastic one can do without some."""
    for name, count, least in job.sizes():
        well = sum(c.role == name and c.state is AppState.SUCCEEDED for c in job.containers)
        if well < (count if least is None else least):
            return False
    return True


def another_attempt(job: Job) -> Step:
    """All of a job that has ended, once more."""
    app = max(c.mark.app for c in job.containers)
    return Step(again=list(job.containers), app=app + 1, roles={c.role: c.mark.role for c in job.containers})


def _consequences(
    job: Job, members: Mapping[str, list[Container]], app: int, roles: dict[str, int], live: list[Container]
) -> Step:
    sizes = job.sizes()
    retries = rules_of(job).retries
    gang = Gang([_role_rules(*retries.get(name, (0, REPLICA)), least) for name, _, least in sizes])
    gang.application_restarts = app
    gang.role_restarts = [roles[name] for name, _, _ in sizes]
    decisions = set()
    for index, (name, count, least) in enumerate(sizes):
        states = ["FAILED"] * count  # a container that was removed has failed
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
    again = _behind(job, gang.application_restarts, roles)
    return Step(again=again, app=gang.application_restarts, roles=roles)


def _role_rules(most: int, policy: str, least: int | None) -> RoleRules:
    return RoleRules(0 if policy == REPLICA else most, policy, least)  # the engine has done its part before


def _behind(job: Job, app: int, roles: Mapping[str, int]) -> list[Container]:
    return [c for c in job.containers if c.mark.due or c.mark.app < app or c.mark.role < roles.get(c.role, 0)]


def waves(job: Job) -> int:
    """How often replicas of a job were started again together."""
    roles: dict[str, int] = {}
    for container in job.containers:
        roles[container.role] = max(roles.get(container.role, 0), container.mark.role)
    return max((c.mark.app for c in job.containers), default=0) + sum(roles.values())


def goes_on(job: Job, container: Container) -> bool:
    """Whether a container runs, or is about to be started again."""
    step = next_step(job)
    undecided = step.ask or bool(step.end)
    return undecided or not is_terminal(container.state) or any(c.id == container.id for c in step.again)


def is_over(job: Job) -> bool:
    """Whether nothing of it runs, and nothing of it is to be done."""
    return not next_step(job) and all(is_terminal(c.state) for c in job.containers)


def ends(job: Job) -> bool:
    """Whether it has ended, or is to be ended."""
    step = next_step(job)
    return bool(step.stop or step.end or step.ask) or is_over(job)


def needs_watcher(job: Job) -> bool:
    """Whether somebody has to see to it that the rules are kept: it goes on, and somebody was to watch it."""
    return bool(rules_of(job).place) and not is_over(job)
