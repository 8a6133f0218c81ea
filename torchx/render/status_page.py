"""The text that ``torchx status`` prints: the state, the cause of a failure, the replicas of each role by state."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING

from torchx.specs.failures import Failure, parse_failure
from torchx.specs.states import AppState, is_terminal, state_text
from torchx.util.datetime import duration
from torchx.util.strings import size_text
from torchx.util.term import printable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torchx.specs.status import AppStatus, ReplicaStatus, RoleStatus

_MAX_FULL_ROLE = 8  # larger roles list only the replicas in one of the states below
_MAX_LISTED = 10
_TRACEBACK_LINES = 8
_CAUSE_CHARS = 100
_ALWAYS_LISTED = (AppState.FAILED, AppState.CANCELLED, AppState.UNKNOWN)


def render_status(status: AppStatus, roles: list[RoleStatus], *, color: bool = False) -> str:
    """Render a status with the given roles as text."""
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
        label = "idle:    " if "idle for " in status.hang else "silent:  "
        lines += _labelled(label, printable(status.hang))
    for label, text in () if status.pace is None else status.pace.lines():
        lines += _labelled(f"{label}:".ljust(9), text)
    lines += _attempts(status)
    if status.ui_url:
        lines.append(_place(status.ui_url))
    lines += _used(status) if status.usage else ()
    lines += _most_memory(roles) if failure is None or failure.kind != "oom" else ()
    if roles:
        lines.append("roles:")
        for role in roles:
            culprit = failure.replica if failure is not None and failure.role == role.role else None
            lines += [f"  {line}" for line in _render_role(role, color=color, culprit=culprit)]
    return "\n".join(lines)


def _used(status: AppStatus) -> Iterator[str]:
    """Yield for each role what it used of what it asked for, and what would do."""
    from torchx.specs.fit import enough_of

    for usage in status.usage:
        if text := str(usage):
            options = " ".join(f"--{name} {value}" for name, value in enough_of(status, usage).items())
            label = f"{printable(usage.role)}: " if len(status.usage) > 1 else ""
            yield f"used:     {label}{text}{f'; `{options}` would do' if options else ''}"


def total_used(status: AppStatus) -> str:
    """Return how much of its total a chain of pieces has used; empty if it is none."""
    attempts = status.attempts
    if not attempts or not attempts[-1].total:
        return ""
    from torchx.specs.wishes.retries import seconds_of_attempts

    spans = seconds_of_attempts(attempts, status.roles, status.ended_at or time.time())
    pieces = "1 piece" if len(spans) == 1 else f"{len(spans):,} pieces"
    return f"{duration(sum(spans))} of {duration(attempts[-1].total)} used by {pieces}"


def _attempts(status: AppStatus) -> Iterator[str]:
    """Yield the last attempts: end time, duration, failure class and cause, and what the next attempt changed."""
    attempts = status.attempts
    if text := total_used(status):
        yield f"total:    {text}"
    if attempts:
        yield "attempts:"
    if len(attempts) > _MAX_LISTED:
        yield f"  ... {len(attempts) - _MAX_LISTED} before"
    first = max(len(attempts) - _MAX_LISTED, 0)
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
    """Yield the last lines of the traceback, without those that the cause repeats."""
    trace = printable(failure.traceback.strip("\n"), lines=True).splitlines()
    while trace and " ".join(trace[-1].split()) in cause:
        trace.pop()
    if len(trace) > _TRACEBACK_LINES:
        yield f"            | ... {len(trace) - _TRACEBACK_LINES} lines above"
    for line in trace[-_TRACEBACK_LINES:]:
        yield f"            | {line.rstrip()}"


def _render_role(role: RoleStatus, *, color: bool, culprit: int | None) -> Iterator[str]:
    """Render a role; the cause above already describes the failure of replica ``culprit``."""
    counts = Counter(replica.state for replica in role.replicas).most_common()
    states = ", ".join(f"{n} {state_text(state, color=color)}" for state, n in counts) or "no replicas yet"
    order = printable(role.order())
    yield f"{printable(role.role)}: {states}{f'; {order}' if order else ''}"
    many = len(role.replicas) > _MAX_FULL_ROLE
    listed = [r for r in role.replicas if not many or r.state in _ALWAYS_LISTED]
    if many and len(listed) == len(role.replicas):
        listed = [r for r in listed if parse_failure(r.structured_error_msg)]  # all failed: only those with a reason
    for replica in listed[: _MAX_LISTED if many else len(listed)]:
        with_reason = replica.id != culprit and replica.state != AppState.SUCCEEDED
        yield f"  {_render_replica(replica, color=color, with_reason=with_reason)}"
    if many and len(listed) > _MAX_LISTED:
        yield f"  ... and {len(listed) - _MAX_LISTED} more"


def _render_replica(replica: ReplicaStatus, *, color: bool, with_reason: bool) -> str:
    said = parse_failure(replica.structured_error_msg)
    failure = said if with_reason else None
    full = said is not None and said.kind == "oom"
    state = state_text(replica.state, color=color, text=f"{replica.state!s:<9}")
    why = printable(failure.summary()) if failure else ""
    why = f"restarted after: {why}" if why and not is_terminal(replica.state) else why
    parts = [f"[{replica.id}]", state, printable(_host(replica)), _memory(replica, full=full), why]
    return " ".join(part for part in parts if part).rstrip()


def _memory(replica: ReplicaStatus, *, full: bool = False) -> str:
    """``peak memory 3.2 GiB of 16 GiB``; empty if unknown."""
    if replica.memory_peak is None:
        return ""
    limit = f" of {size_text(replica.memory_limit)}" if replica.memory_limit else ""
    return f"{'memory in the last sample' if full else 'peak memory'} {size_text(replica.memory_peak)}{limit}"


def _place(url: str) -> str:
    """Return the line of a job's page, or of its folder of logs.

    >>> _place("https://ui/1"), _place("file:///my%20logs")
    ('ui:       https://ui/1', 'logs:     /my logs')
    """
    if not url.startswith("file://"):
        return f"ui:       {printable(url)}"
    folder = url.removeprefix("file://")
    if "%" in folder:
        from urllib.parse import unquote

        folder = unquote(folder)
    return f"logs:     {printable(folder)}"


def _most_memory(roles: list[RoleStatus]) -> Iterator[str]:
    """Yield the replica closest to its memory limit, if there are several."""
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
