"""The whole status of a job as text, secrets masked, as whoever polls writes it down for all who watch."""

from __future__ import annotations

import json
from typing import Any

from torchx.specs.api import NONE, AppState, AppStatus, ReplicaStatus, RoleStatus
from torchx.specs.retries import read_attempts, to_line
from torchx.util.records import replace
from torchx.util.secrets import mask_text

MOST_REPLICAS = 2000
"""A status of more replicas is not kept: each change of one would write all of them."""

_PLAIN = ("num_restarts", "msg", "structured_error_msg", "ui_url", "started_at", "ended_at", "created_at")
_REPLICA = ("id", "hostname", "structured_error_msg", "hostaddr", "started_at", "ended_at")


def to_text(status: AppStatus) -> str | None:
    """The status as a line of JSON; None of one that is not kept: of a sweep, and of very many replicas.

    >>> from_text(to_text(AppStatus(AppState.RUNNING, msg="x")))
    AppStatus(state=RUNNING (3), msg='x')
    """
    if status.tasks is not None or sum(len(role.replicas) for role in status.roles) > MOST_REPLICAS:
        return None
    roles = [[role.role, [_row(replica) for replica in role.replicas]] for role in status.roles]
    data: dict[str, Any] = {name: getattr(status, name) for name in _PLAIN}
    data.update(msg=mask_text(status.msg), structured_error_msg=_masked(status.structured_error_msg))
    attempts = [to_line(replace(attempt, cause=mask_text(attempt.cause))) for attempt in status.attempts]
    return json.dumps({**data, "state": status.state.name, "roles": roles, "attempts": attempts}, separators=(",", ":"))


def from_text(text: str) -> AppStatus | None:
    """What :func:`to_text` wrote; None when it is something else.

    >>> from_text("{}") is None
    True
    """
    try:
        data = json.loads(text)
        status = AppStatus(AppState[data["state"]], **{name: data[name] for name in _PLAIN})
        status.roles = [RoleStatus(role, [_replica(role, row) for row in rows]) for role, rows in data["roles"]]
        status.attempts = read_attempts(data["attempts"])
    except (ValueError, KeyError, TypeError):
        return None
    return status


def _masked(text: str) -> str:
    """Why something failed, a JSON document, each string in it masked for itself; text of another kind as a whole."""

    def masked(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: masked(item) for key, item in value.items()}
        if isinstance(value, list):
            return [masked(item) for item in value]
        return mask_text(value) if isinstance(value, str) else value

    if text == NONE:
        return text
    try:
        return json.dumps(masked(json.loads(text)))
    except ValueError:
        return mask_text(text)


def _row(replica: ReplicaStatus) -> list[Any]:
    why = _masked(replica.structured_error_msg)
    return [
        replica.state.name,
        *(why if name == "structured_error_msg" else getattr(replica, name) for name in _REPLICA),
    ]


def _replica(role: str, row: list[Any]) -> ReplicaStatus:
    return ReplicaStatus(role=role, state=AppState[row[0]], **dict(zip(_REPLICA, row[1:], strict=True)))
