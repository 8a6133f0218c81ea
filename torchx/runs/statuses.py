"""Serializes whole statuses, with secrets masked: pollers record them for all watchers."""

from __future__ import annotations

import json
from typing import Any

from torchx.specs.api import NONE, AppState, AppStatus, ReplicaStatus, RoleStatus
from torchx.specs.wishes.retries import read_attempts, to_line
from torchx.util.foreign import loads
from torchx.util.records import replace
from torchx.util.secrets import mask_text, mask_value

MAX_REPLICAS = 2000
"""A status with more replicas is not recorded: each change of one replica would write all of them."""

_PLAIN = ("num_restarts", "msg", "structured_error_msg", "ui_url", "started_at", "ended_at", "created_at")
_REPLICA = ("id", "hostname", "structured_error_msg", "hostaddr", "started_at", "ended_at")


def to_text(status: AppStatus) -> str | None:
    """Return the status as a line of JSON; None if it is not recorded: that of a sweep, or with too many replicas.

    >>> from_text(to_text(AppStatus(AppState.RUNNING, msg="x")))
    AppStatus(state=RUNNING (3), msg='x')
    """
    if status.tasks is not None or sum(len(role.replicas) for role in status.roles) > MAX_REPLICAS:
        return None
    roles = [[role.role, [_row(replica) for replica in role.replicas]] for role in status.roles]
    data: dict[str, Any] = {name: getattr(status, name) for name in _PLAIN}
    data.update(msg=mask_text(status.msg), structured_error_msg=_masked(status.structured_error_msg))
    attempts = [to_line(replace(attempt, cause=mask_text(attempt.cause))) for attempt in status.attempts]
    orders = {role.role: _order(role) for role in status.roles if role.order()}
    if orders:  # older versions ignore it
        data["order"] = orders
    return json.dumps({**data, "state": status.state.name, "roles": roles, "attempts": attempts}, separators=(",", ":"))


def from_text(text: str) -> AppStatus | None:
    """Parse the output of :func:`to_text`; None if the text is anything else.

    >>> from_text("{}") is None
    True
    """
    try:
        data = loads(text)
        status = AppStatus(AppState[data["state"]], **{name: data[name] for name in _PLAIN})
        status.roles = [RoleStatus(role, [_replica(role, row) for row in rows]) for role, rows in data["roles"]]
        status.attempts = read_attempts(data["attempts"])
        for role in status.roles:
            if order := data.get("order", {}).get(role.role):
                role.after, role.needs, role.ends_job, ready = order
                role.replicas = [replace(r, ready_at=at) for r, at in zip(role.replicas, ready, strict=True)]
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    return status


def _masked(text: str) -> str:
    """Masks secrets in an error message: in each string of a JSON document, or in the whole of any other text."""
    if text == NONE:
        return text
    try:
        return json.dumps(mask_value("", loads(text)))
    except ValueError:
        return mask_text(text)


def _row(replica: ReplicaStatus) -> list[Any]:
    why = _masked(replica.structured_error_msg)
    return [
        replica.state.name,
        *(why if name == "structured_error_msg" else getattr(replica, name) for name in _REPLICA),
    ]


def _order(role: RoleStatus) -> list[Any]:
    return [role.after, role.needs, role.ends_job, [replica.ready_at for replica in role.replicas]]


def _replica(role: str, row: list[Any]) -> ReplicaStatus:
    return ReplicaStatus(role=role, state=AppState[row[0]], **dict(zip(_REPLICA, row[1:], strict=True)))
