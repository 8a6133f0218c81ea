"""Jobs and their containers, parsed from the engine's container list.

One call of ``GET /containers/json``, filtered by label, covers any number of replicas. ``Status`` has the exit code:
https://docs.docker.com/reference/api/engine/version/v1.41/#tag/Container/operation/ContainerList
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from torchx.errors import NotFoundError
from torchx.schedulers.docker.plain_http import EngineHttp
from torchx.schedulers.docker.reasons import container_state
from torchx.specs.api import AppState, Role, is_terminal
from torchx.util.foreign import reading
from torchx.util.records import dataclass, field

LABEL_VERSION = "torchx.pytorch.org/version"
LABEL_APP_ID = "torchx.pytorch.org/app-id"
LABEL_APP_NAME = "torchx.pytorch.org/app-name"
LABEL_SESSION = "torchx.pytorch.org/session"
LABEL_ROLE_NAME = "torchx.pytorch.org/role-name"
LABEL_REPLICA_ID = "torchx.pytorch.org/replica-id"
LABEL_SIZES = "torchx.pytorch.org/roles"
"""On each container: ``[[role, replicas, min replicas], ...]``, so that a removed container is noticed."""
LABEL_ROLE = "torchx.pytorch.org/role"
"""On replica 0 of each role: the role as JSON, with secrets masked."""

_STATUS = re.compile(r"(?:Exited|Restarting|Dead) \((-?\d+)\)")
_NAME = re.compile(
    r"(.*?)(?:\.app(\d+))?(?:\.role(\d+))?(?:\.along(\d+))?(?:\.ready(\d+))?"
    r"(\.due)?(\.ended)?(\.late)?(\.silent)?(\.final)?(\.cancelled)?",
    re.DOTALL,
)


@dataclass
class Mark:
    """Marks at the end of a container's name, which record what torchx has done with the container.

    Labels of a container are immutable, but it can be renamed, and the name survives a restart of the engine. So the
    state of a job needs no file outside the engine, and a new watcher continues where a killed one stopped::

        APP_ID-ROLE-K[.appN][.roleM][.alongK][.readyT][.due][.ended][.late][.silent][.final][.cancelled]

    Attributes:
        app, role: how often it was restarted with the application, and with its role.
        along: how often roles had been restarted that restart its role, when it was started.
        ready: Unix time at which its probe succeeded; 0: it has not.
        due: a restart is decided, but has not happened yet; or its first start, because it waits for other roles.
        ended: (retry policy) stopped because another replica failed; the policy has not been evaluated yet.
        late: stopped at the job's time limit; with ``silent``: it was silent for longer than its watchdog allows.
        final: (retry policy) the job is not retried.
        cancelled: stopped by torchx; its exit code has no meaning.
    """

    app: int = 0
    role: int = 0
    along: int = 0
    ready: int = 0
    due: bool = False
    ended: bool = False
    late: bool = False
    silent: bool = False
    final: bool = False
    cancelled: bool = False


def split_name(name: str) -> tuple[str, Mark]:
    """Split a container's name into its original name and its marks.

    >>> split_name("app-1-trainer-0.role2.due") == ("app-1-trainer-0", Mark(role=2, due=True))
    True
    """
    found = _NAME.fullmatch(name)
    if found is None:
        return name, Mark()
    app, role, along, ready = (int(number or 0) for number in found.groups()[1:5])
    return found[1], Mark(app, role, along, ready, *map(bool, found.groups()[5:]))


def join_name(base: str, mark: Mark) -> str:
    """Return the name of a container with marks.

    >>> join_name("app-1-trainer-0", Mark(app=1, cancelled=True))
    'app-1-trainer-0.app1.cancelled'
    """
    parts = [base, *(f"{word}{n}" for word in ("app", "role", "along", "ready") if (n := getattr(mark, word)))]
    parts += [word for word in ("due", "ended", "late", "silent", "final", "cancelled") if getattr(mark, word)]
    return ".".join(parts)


@dataclass
class Container:
    """One replica's container, as the engine lists it.

    Attributes:
        name: its original name, without marks.
        raw: the engine's word for its state.
        exit_code: of the last process; None while the first one runs, or if not known.
        created: Unix time.
        address: its published ports as ``host:port``, comma separated.
    """

    id: str
    name: str
    role: str
    k: int
    raw: str
    state: AppState
    exit_code: int | None
    created: float
    labels: Mapping[str, str]
    address: str = ""
    mark: Mark = field(default_factory=Mark)


def parse_container(summary: Mapping[str, Any]) -> Container | None:
    """Parse one entry of the engine's list; None for a container that does not belong to a torchx job."""
    labels = summary.get("Labels") or {}
    app_id, role, k = (labels.get(label) or "" for label in (LABEL_APP_ID, LABEL_ROLE_NAME, LABEL_REPLICA_ID))
    if not app_id or not role or not (k.isascii() and k.isdigit()):
        return None
    return read_container(summary, role, int(k))


def read_container(summary: Mapping[str, Any], role: str, k: int) -> Container:
    """Parse one entry of the engine's list as replica ``k`` of a role."""
    found = _STATUS.match(str(summary.get("Status") or ""))
    exit_code = int(found[1]) if found else None
    raw = str(summary.get("State") or "").lower()
    labels = summary.get("Labels") or {}
    name, mark = next(iter(summary.get("Names") or ()), "").lstrip("/"), Mark()
    if LABEL_APP_ID in labels:  # others have no marks
        name, mark = split_name(name)
    state = container_state(raw, exit_code)
    if is_terminal(state) or state is AppState.SUBMITTED:
        stopped = mark.cancelled or ((mark.ended or mark.late) and not mark.due)
        state = AppState.CANCELLED if stopped else AppState.PENDING if mark.due else state
    return Container(
        id=str(summary.get("Id") or ""),
        name=name,
        role=role,
        k=k,
        raw=raw,
        state=state,
        exit_code=exit_code,
        created=_seconds(summary.get("Created")),
        labels=labels,
        address=published(summary.get("Ports") or ()),
        mark=mark,
    )


def published(ports: Iterable[Mapping[str, Any]]) -> str:
    """Addresses of a container's published ports on the engine's machine, each with its port if there are several.

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
        """Return the value of a label, from the first container that has it; empty if none has."""
        return next((c.labels[label] for c in self.containers if c.labels.get(label)), "")

    def find(self, role: str, k: int) -> Container | None:
        """Return the container of a replica; None if it does not exist."""
        return next((c for c in self.containers if (c.role, c.k) == (role, k)), None)

    def first(self) -> Container:
        """Return the container that was created first; it holds the files of the job as a whole."""
        return min(self.containers, key=lambda c: (c.created, c.role, c.k))

    def need(self, role: str, k: int) -> Container:
        """Return the container of a replica; NotFoundError if it does not exist, or was removed."""
        found = self.find(role, k)
        if found is None:
            sizes = {name: count for name, count, _ in self.sizes()}
            gone = 0 <= k < sizes.get(role, 0)
            what = "was removed, and its log with it" if gone else "does not exist"
            known = ", ".join(f"`{name}` (0 to {count - 1})" for name, count in sizes.items())
            raise NotFoundError(f"replica {role}/{k} of `{self.app_id}` {what}", hint=f"its roles: {known}")
        return found

    def sizes(self) -> list[tuple[str, int, int | None]]:
        """Name, replicas and min replicas of each role; derived from the containers if the label is missing."""
        try:
            return [(str(n), int(count), least) for n, count, least in json.loads(self.labelled(LABEL_SIZES))]
        except (ValueError, TypeError, RecursionError):
            names = dict.fromkeys(c.role for c in self.containers)
            return [(name, 1 + max(c.k for c in self.containers if c.role == name), None) for name in names]

    def roles(self) -> list[Role]:
        """Return the roles as they were submitted, secrets masked; only name and size if replica 0 was removed."""
        from torchx.specs.serialize import role_from_dict

        roles = []
        for name, count, least in self.sizes():
            first = self.find(name, 0)
            try:
                roles.append(role_from_dict(json.loads(first.labels[LABEL_ROLE] if first else "")))
            except (ValueError, KeyError, TypeError, RecursionError):
                roles.append(Role(name, image="", num_replicas=count, min_replicas=least))
        return roles


def list_jobs(engine: EngineHttp, label: str) -> dict[str, Job]:
    """List the jobs with a label, by app id."""
    filters = json.dumps({"label": [label]})
    return jobs_of(engine.get("/containers/json", {"all": 1, "filters": filters}))


def jobs_of(summaries: Iterable[Mapping[str, Any]]) -> dict[str, Job]:
    """Group the engine's list by app id, in its order: newest first."""
    jobs: dict[str, Job] = {}
    with reading("the engine's list of containers"):
        for container in filter(None, map(parse_container, summaries)):
            app_id = container.labels[LABEL_APP_ID]
            jobs.setdefault(app_id, Job(app_id)).containers.append(container)
    return jobs


def _seconds(value: Any) -> float:
    return float(value) if isinstance(value, (int, float)) else 0.0
