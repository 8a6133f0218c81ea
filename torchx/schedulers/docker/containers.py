"""A job out of its containers: what the engine's list says of each, folded to the job's status.

One call, ``GET /containers/json`` with a filter on labels, answers for any number of replicas; its ``Status`` has the
exit code: https://docs.docker.com/reference/api/engine/version/v1.41/#tag/Container/operation/ContainerList
"""

from __future__ import annotations

import re
import time

from torchx.errors import NotFoundError
from torchx.schedulers.api import NONE, DescribeAppResponse, ListAppResponse
from torchx.schedulers.docker import marks
from torchx.schedulers.docker.gangs import needs_warden, next_step, rules_of, waves
from torchx.schedulers.docker.marks import Mark
from torchx.schedulers.kit.verdict import fold
from torchx.specs.api import AppState, ReplicaStatus, Role, RoleStatus, is_terminal
from torchx.specs.failures import Failure

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from dataclasses import dataclass, field
    from typing import Any
else:
    from torchx.util.records import dataclass, field

LABEL_VERSION = "torchx.pytorch.org/version"
LABEL_APP_ID = "torchx.pytorch.org/app-id"
LABEL_APP_NAME = "torchx.pytorch.org/app-name"
LABEL_SESSION = "torchx.pytorch.org/session"
LABEL_ROLE_NAME = "torchx.pytorch.org/role-name"
LABEL_REPLICA_ID = "torchx.pytorch.org/replica-id"
LABEL_SIZES = "torchx.pytorch.org/roles"
"""On each container: ``[[role, replicas, least replicas], ...]``, so that a container that was removed is missed."""
LABEL_ROLE = "torchx.pytorch.org/role"
"""On replica 0 of each role: the role as JSON, secrets masked."""

CONTAINER_STATE: dict[str, AppState] = {
    "created": AppState.SUBMITTED,
    "restarting": AppState.PENDING,
    "running": AppState.RUNNING,
    "paused": AppState.PENDING,
    "removing": AppState.PENDING,
    "dead": AppState.FAILED,
}
"""The engine's states, less ``exited``, where the exit code decides.
https://docs.docker.com/reference/api/engine/version/v1.41/#tag/Container/operation/ContainerInspect"""

_PODMAN_STATE: dict[str, AppState] = {
    "configured": AppState.SUBMITTED,
    "initialized": AppState.SUBMITTED,
    "stopping": AppState.RUNNING,
}
"""https://github.com/containers/podman/blob/main/libpod/define/containerstate.go"""

_EXITED = ("exited", "stopped")
_STATUS = re.compile(r"(?:Exited|Restarting|Dead) \((-?\d+)\)")
_CUT_SHORT_S = 600.0
_SIGNALS = 128


def container_state(raw: str, exit_code: int | None = None) -> AppState:
    """Our state for the engine's.

    >>> container_state("running"), container_state("exited", 1), container_state("?")
    (RUNNING (3), FAILED (5), UNKNOWN (7))
    """
    if raw in _EXITED:
        if exit_code is None:
            return AppState.UNKNOWN
        return AppState.FAILED if exit_code else AppState.SUCCEEDED
    return CONTAINER_STATE.get(raw) or _PODMAN_STATE.get(raw) or AppState.UNKNOWN


@dataclass
class Container:
    """One replica's container, as the engine lists it.

    Attributes:
        name: that it was made with.
        exit_code: of the last process; None while the first runs, or when it is not known.
        created: Unix time.
        mark: what torchx has done with it since.
        address: where its published ports are reached, ``host:port``, comma separated.
    """

    id: str
    name: str
    role: str
    k: int
    raw: str
    state: AppState
    exit_code: int | None
    created: float
    image: str
    labels: Mapping[str, str]
    address: str = ""
    mark: Mark = field(default_factory=Mark)


def parse_container(summary: Mapping[str, Any]) -> Container | None:
    """One entry of the engine's list; None for a container that is not a replica of a job of ours."""
    labels = summary.get("Labels") or {}
    app_id, role, k = (labels.get(label) or "" for label in (LABEL_APP_ID, LABEL_ROLE_NAME, LABEL_REPLICA_ID))
    if not app_id or not role or not (k.isascii() and k.isdigit()):
        return None
    found = _STATUS.match(str(summary.get("Status") or ""))
    exit_code = int(found[1]) if found else None
    raw = str(summary.get("State") or "").lower()
    name, mark = marks.split(next(iter(summary.get("Names") or ()), "").lstrip("/"))
    state = container_state(raw, exit_code)
    if is_terminal(state) or state is AppState.SUBMITTED:
        state = AppState.CANCELLED if mark.cancelled else AppState.PENDING if mark.due else state
    return Container(
        id=str(summary.get("Id") or ""),
        name=name,
        role=role,
        k=int(k),
        raw=raw,
        state=state,
        exit_code=exit_code,
        created=_seconds(summary.get("Created")),
        image=str(summary.get("ImageID") or ""),
        labels=labels,
        address=published(summary.get("Ports") or ()),
        mark=mark,
    )


def published(ports: Iterable[Mapping[str, Any]]) -> str:
    """Where ports of a container are reached from the engine's machine; which is which, where there are several.

    >>> published([{"IP": "127.0.0.1", "PublicPort": 32768, "PrivatePort": 80}, {"PrivatePort": 81}])
    '127.0.0.1:32768'
    """
    found = {
        p.get("PrivatePort"): f"{p.get('IP') or '127.0.0.1'}:{p['PublicPort']}" for p in ports if p.get("PublicPort")
    }
    if len(found) == 1:
        return next(iter(found.values()))
    return ", ".join(f"{address} for {port}" for port, address in sorted(found.items(), key=str))


@dataclass
class Job:
    """The containers of one job."""

    app_id: str
    containers: list[Container] = field(default_factory=list)

    def labelled(self, label: str) -> str:
        """The label's value on whichever container has it; empty when none has."""
        return next((c.labels[label] for c in self.containers if c.labels.get(label)), "")

    def find(self, role: str, k: int) -> Container | None:
        """The container of a replica; None when there is none (any more)."""
        return next((c for c in self.containers if (c.role, c.k) == (role, k)), None)

    def need(self, role: str, k: int) -> Container:
        """The container of a replica.

        Raises:
            NotFoundError: there is none, or none any more.
        """
        found = self.find(role, k)
        if found is None:
            sizes = {name: count for name, count, _ in self.sizes()}
            gone = 0 <= k < sizes.get(role, 0)
            what = "was removed, and its log with it" if gone else "does not exist"
            known = ", ".join(f"`{name}` (0 to {count - 1})" for name, count in sizes.items())
            raise NotFoundError(f"replica {role}/{k} of `{self.app_id}` {what}", hint=f"its roles: {known}")
        return found

    def sizes(self) -> list[tuple[str, int, int | None]]:
        """Name, replicas and least replicas of each role; as the containers have it where no label says it."""
        import json

        try:
            return [(str(n), int(count), least) for n, count, least in json.loads(self.labelled(LABEL_SIZES))]
        except (ValueError, TypeError):
            names = dict.fromkeys(c.role for c in self.containers)
            return [(name, 1 + max(c.k for c in self.containers if c.role == name), None) for name in names]

    def roles(self) -> list[Role]:
        """The roles as they were submitted, secrets masked; as much as is known where replica 0 was removed."""
        import json

        from torchx.specs.serialize import role_from_dict

        roles = []
        for name, count, least in self.sizes():
            first = self.find(name, 0)
            try:
                roles.append(role_from_dict(json.loads(first.labels[LABEL_ROLE] if first else "")))
            except (ValueError, KeyError, TypeError):
                roles.append(Role(name, image="", num_replicas=count, min_replicas=least))
        return roles


def jobs_of(summaries: Iterable[Mapping[str, Any]]) -> dict[str, Job]:
    """The jobs in the engine's list, by app id, newest first as the engine lists them."""
    jobs: dict[str, Job] = {}
    for summary in summaries:
        container = parse_container(summary)
        if container is not None:
            app_id = container.labels[LABEL_APP_ID]
            jobs.setdefault(app_id, Job(app_id)).containers.append(container)
    return jobs


@dataclass
class Explanation:
    """What more is known of a job that has ended than the engine's list says.

    Attributes:
        failed: the replica that failed first.
        failure: why it did.
        restarts: how often the engine has started replicas again by itself; -1 when not known.
        ended_at: Unix time.
    """

    failed: Container | None = None
    failure: Failure | None = None
    restarts: int = -1
    ended_at: float | None = None


def describe(job: Job, told: Explanation | None = None, *, now: float | None = None) -> DescribeAppResponse:
    """The status of a job, from the list alone, or with an explanation.

    A replica whose container was removed counts as lost: its job can only fail, once nothing of it runs any more.

    Args:
        now: Unix time.
    """
    notes: dict[str, None] = {}
    statuses = _roles_statuses(job, time.time() if now is None else now, notes)
    least = {name: fewest for name, _, fewest in job.sizes()}
    state = fold(fold((r.state for r in role.replicas), min_replicas=least[role.role]) for role in statuses)
    told = told or Explanation(next(iter(failures(job.containers)), None))
    cause = []
    structured = NONE
    if state is AppState.FAILED and told.failed is not None:
        failure = told.failure or exit_failure(told.failed)
        structured = failure.to_structured_msg()
        cause = [f"{told.failed.role}/{told.failed.k}: {failure.summary()}"]
        for role in statuses:
            for replica in role.replicas:
                if (replica.role, replica.id) == (told.failed.role, told.failed.k):
                    replica.structured_error_msg = structured
    running = sum(c.state is AppState.RUNNING for c in job.containers)
    if running and is_terminal(state):
        them = "1 replica is" if running == 1 else f"{running} replicas are"
        notes[f"{them} still being ended" if needs_warden(job) else f"{them} still running: see `torchx cancel`"] = None
    return DescribeAppResponse(
        app_id=job.app_id,
        state=state,
        num_restarts=_restarts(job, told),
        msg="; ".join([*cause, *notes]) or NONE,
        structured_error_msg=structured,
        roles_statuses=statuses,
        roles=job.roles(),
        started_at=min(c.created for c in job.containers),
        ended_at=told.ended_at,
    )


def _roles_statuses(job: Job, now: float, notes: dict[str, None]) -> list[RoleStatus]:
    """The status of each replica; what is out of the ordinary goes to ``notes``."""
    present = {(c.role, c.k): c for c in job.containers}
    again = {c.id for c in next_step(job).again}
    waiting = any(c.state is AppState.SUBMITTED for c in job.containers)
    alive = any(not is_terminal(c.state) for c in job.containers)
    cut = waiting and now - max(c.created for c in job.containers) > _CUT_SHORT_S
    statuses = []
    for name, count, _ in job.sizes():
        replicas = []
        for k in range(count):
            seen = present.get((name, k))
            if seen is not None and not (cut and seen.state is AppState.SUBMITTED):
                replicas.append(_status(seen, again=seen.id in again))
            elif cut:
                notes["the submission was cut short: not all replicas were started"] = None
                replicas.append(ReplicaStatus(k, AppState.FAILED, name, seen.name if seen else ""))
            elif waiting:
                replicas.append(ReplicaStatus(k, AppState.SUBMITTED, name, ""))
            else:
                notes[f"{name}/{k}: its container was removed from the engine, how it ended is not known"] = None
                replicas.append(ReplicaStatus(k, AppState.UNKNOWN if alive else AppState.FAILED, name, ""))
        statuses.append(RoleStatus(name, replicas))
    return statuses


def listed(job: Job) -> ListAppResponse:
    """The job's line in a list."""
    answer = ListAppResponse(job.app_id, describe(job).state, name=job.labelled(LABEL_APP_NAME))
    session = job.labelled(LABEL_SESSION)
    if session:
        from torchx.specs.api import make_app_handle

        answer.app_handle = make_app_handle("local_docker", session, job.app_id)
    return answer


def failures(containers: Iterable[Container], ended: Mapping[str, float] | None = None) -> list[Container]:
    """The failed replicas; first the one that most likely explains the failure of the others.

    Args:
        ended: container id -> Unix time, where that is known. Else those come last that a signal has ended: they are
            often the victims.
    """
    known = ended or {}
    failed = [c for c in containers if c.state is AppState.FAILED]
    return sorted(failed, key=lambda c: (known.get(c.id, float("inf")), (c.exit_code or 0) > _SIGNALS, c.k))


def exit_failure(container: Container) -> Failure:
    """What the exit code alone says."""
    code = container.exit_code
    if code is None:
        return Failure("the engine lost it" if container.raw == "dead" else "how it ended is not known")
    return Failure(exit_code=code, signal=signal_name(code))


def signal_name(exit_code: int) -> str:
    """Name of the signal in an exit code, as the engine and shells report it: 128 and its number; else empty.

    >>> signal_name(137), signal_name(1)
    ('SIGKILL', '')
    """
    import signal

    try:
        return signal.Signals(exit_code - _SIGNALS).name if exit_code > _SIGNALS else ""
    except ValueError:
        return ""


def _status(seen: Container, *, again: bool) -> ReplicaStatus:
    state = AppState.PENDING if again and is_terminal(seen.state) else seen.state
    status = ReplicaStatus(seen.k, state, seen.role, seen.name, hostaddr=seen.address or None)
    if state is AppState.FAILED:
        status.structured_error_msg = exit_failure(seen).to_structured_msg()
    return status


def _restarts(job: Job, told: Explanation) -> int:
    """How often anything was started again, as far as that is known."""
    together = waves(job)
    by_engine = any(policy == "REPLICA" and most > 0 for most, policy in rules_of(job).retries.values())
    if told.restarts < 0:
        return together if together or not by_engine else -1
    return together + told.restarts


def _seconds(value: Any) -> float:
    return float(value) if isinstance(value, (int, float)) else 0.0
