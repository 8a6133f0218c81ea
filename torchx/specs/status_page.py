"""The page that ``torchx status`` shows: the state, the cause of a failure, the replicas of each role by state."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from torchx.specs.failures import Failure, parse_failure
from torchx.specs.states import AppState, state_text
from torchx.util.datetime import duration
from torchx.util.strings import size_text
from torchx.util.term import printable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torchx.specs.retries import Attempt
    from torchx.specs.status import AppStatus, ReplicaStatus, RoleStatus

# A role of up to so many replicas is shown in full; of a larger one, only replicas that stand out are.
_SHOWN_IN_FULL = 8
_SHOWN_OF_MANY = 10
_TRACEBACK_LINES = 8
_CAUSE_CHARS = 100
# Replicas in these states stand out among many.
_STANDS_OUT = (AppState.FAILED, AppState.CANCELLED, AppState.UNKNOWN)


def render_status(status: AppStatus, roles: list[RoleStatus], *, color: bool = False) -> str:
    """The page.

    Args:
        status: of the job.
        roles: those of its roles that are shown; the cause of a failure is looked for in them.
        color: with terminal colours.
    """
    msg = "" if status.msg == "<NONE>" else printable(status.msg, lines=True)
    failure = None if status.state == AppState.SUCCEEDED else parse_failure(status.structured_error_msg)
    lines = [f"state:    {state_text(status.state, color=color)}"]
    if failure is not None:
        cause = msg or printable(failure.summary())
        lines += _labelled("cause:   ", cause)
        lines += _traceback(failure, cause)
    elif msg:
        lines += _labelled("message: ", msg)
    if status.num_restarts > 0 and not status.attempts:
        lines.append(f"restarts: {status.num_restarts}")
    if status.hang and status.hang[:40] not in msg:
        lines += _labelled("silent:  ", printable(status.hang))
    lines += _attempts(status.attempts)
    if status.ui_url:
        lines.append(f"ui:       {printable(status.ui_url)}")
    lines += _most_memory(roles)
    if roles:
        lines.append("roles:")
        for role in roles:
            above = failure.replica if failure is not None and failure.role == role.role else None
            lines += [f"  {line}" for line in _render_role(role, color=color, above=above)]
    return "\n".join(lines)


def _attempts(attempts: list[Attempt]) -> Iterator[str]:
    """The last attempts: when each ended, after how long, the class of its end, why, and what was changed after it."""
    if attempts:
        yield "attempts:"
    if len(attempts) > _SHOWN_OF_MANY:
        yield f"  ... {len(attempts) - _SHOWN_OF_MANY} before"
    first = max(len(attempts) - _SHOWN_OF_MANY, 0)
    for number, one in enumerate(attempts[first:], first + 1):
        when = time.strftime("%b %d %H:%M:%S", time.localtime(one.ended))
        changed = [
            *([f"avoiding {', '.join(one.avoid)}"] if one.avoid else []),
            *([f"memory x{one.memory:g}"] if one.memory != 1 else []),
        ]
        then = "; ".join([one.why, *changed]) if one.again else f"not retried ({one.why})"
        cause = printable(" ".join(one.cause.split()))
        cause = f"{cause[:_CAUSE_CHARS]}..." if len(cause) > _CAUSE_CHARS + 3 else cause
        yield f"  {number}. {when} after {duration(one.ended - one.started)}  {one.kind}: {cause}"
        yield f"     -> {printable(then)}"


def _traceback(failure: Failure, cause: str) -> Iterator[str]:
    """The last lines of the traceback, less those that the cause has said."""
    trace = printable(failure.traceback.strip("\n"), lines=True).splitlines()
    while trace and " ".join(trace[-1].split()) in cause:
        trace.pop()
    if len(trace) > _TRACEBACK_LINES:
        yield f"            | ... {len(trace) - _TRACEBACK_LINES} lines above"
    for line in trace[-_TRACEBACK_LINES:]:
        yield f"            | {line.rstrip()}"


def _render_role(role: RoleStatus, *, color: bool, above: int | None) -> Iterator[str]:
    counts: dict[AppState, int] = {}
    for replica in role.replicas:
        counts[replica.state] = counts.get(replica.state, 0) + 1
    ordered = sorted(counts.items(), key=lambda item: -item[1])
    folded = ", ".join(f"{n} {state_text(state, color=color)}" for state, n in ordered) or "no replicas yet"
    yield f"{printable(role.role)}: {folded}"
    many = len(role.replicas) > _SHOWN_IN_FULL
    shown = [r for r in role.replicas if not many or r.state in _STANDS_OUT]
    if many and len(shown) == len(role.replicas):
        shown = [r for r in shown if parse_failure(r.structured_error_msg)]  # all failed: those that say why
    for replica in shown[: _SHOWN_OF_MANY if many else len(shown)]:
        yield f"  {_render_replica(replica, color=color, told=replica.id == above)}"
    if many and len(shown) > _SHOWN_OF_MANY:
        yield f"  ... and {len(shown) - _SHOWN_OF_MANY} more"


def _render_replica(replica: ReplicaStatus, *, color: bool, told: bool) -> str:
    silent = told or replica.state == AppState.SUCCEEDED
    failure = None if silent else parse_failure(replica.structured_error_msg)
    state = state_text(replica.state, color=color, text=f"{replica.state!s:<9}")
    why = printable(failure.summary()) if failure else ""
    parts = [f"[{replica.id}]", state, printable(_host(replica)), _memory(replica), why]
    return " ".join(part for part in parts if part).rstrip()


def _memory(replica: ReplicaStatus) -> str:
    """``peak memory 3.2 GiB of 16 GiB``; empty when nothing is known."""
    if replica.memory_peak is None:
        return ""
    limit = f" of {size_text(replica.memory_limit)}" if replica.memory_limit else ""
    return f"peak memory {size_text(replica.memory_peak)}{limit}"


def _most_memory(roles: list[RoleStatus]) -> Iterator[str]:
    """Who of several replicas came nearest to its limit."""
    known = [r for role in roles for r in role.replicas if r.memory_peak is not None]
    if len(known) > 1:
        most = max(known, key=lambda r: (r.memory_peak or 0) / (r.memory_limit or 1))
        yield f"memory:   {_memory(most).replace(' memory', '')} ({printable(most.role)}/{most.id})"


def _host(replica: ReplicaStatus) -> str:
    name, address = replica.hostname, replica.hostaddr
    return f"{name} ({address})" if name and address and name != address else name or address or ""


def _labelled(label: str, text: str) -> list[str]:
    first, *rest = text.strip().splitlines() or [""]
    return [f"{label} {first}", *(f"{' ' * len(label)} {line}" for line in rest)]
