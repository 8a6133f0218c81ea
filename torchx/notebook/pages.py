"""What a notebook shows of statuses and jobs: HTML that any theme can carry, and that no value can break out of."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from torchx.specs import AppStatus, RoleStatus

_COLORS = {
    "SUCCEEDED": "#1a7f37",
    "FAILED": "#cf222e",
    "RUNNING": "#0969da",
    "PENDING": "#6e7781",
    "SUBMITTED": "#6e7781",
    "CANCELLED": "#9a6700",
}
_ELSE = "#57606a"
_BADGE = "display:inline-block;padding:0 .6em;border-radius:1em;color:#fff;font-size:85%;background:"
_BOX = "border:1px solid #8884;border-radius:6px;padding:.6em .9em;margin:.2em 0;max-width:72em"
_CELL = "text-align:left;padding:.1em 1.2em .1em 0;vertical-align:top"
_PRE = "white-space:pre-wrap;margin:.4em 0 0;padding:.5em;border-left:3px solid #cf222e;font-size:90%"

_STATUS = ("torchx.specs.status", "AppStatus")
_NONE = ("", "<NONE>")
_TRACEBACK_LINES = 12


def register(shell: Any) -> None:
    """Teaches the shell to show a status, without importing its class before somebody has one."""
    formatters = shell.display_formatter.formatters
    formatters["text/html"].for_type_by_name(*_STATUS, status_html)
    formatters["text/plain"].for_type_by_name(*_STATUS, _status_text)


def unregister(shell: Any) -> None:
    """Statuses look as they did before."""
    formatters = shell.display_formatter.formatters
    for kind in ("text/html", "text/plain"):
        formatters[kind].deferred_printers.pop(_STATUS, None)
        for known in [c for c in formatters[kind].type_printers if (c.__module__, c.__name__) == _STATUS]:
            formatters[kind].pop(known)


def status_html(status: AppStatus, handle: str = "") -> str:
    """A status as a card: the state, the cause of a failure, and a line for each role.

    >>> from torchx.specs import AppState, AppStatus
    >>> "SUCCEEDED" in status_html(AppStatus(AppState.SUCCEEDED), "local_cwd://torchx/x")
    True
    """
    from torchx.specs.failures import parse_failure

    parts = list(_facts(status))
    state = str(status.state)
    failure = None if state == "SUCCEEDED" else parse_failure(status.structured_error_msg)
    said = status.msg if status.msg not in _NONE else failure.summary() if failure else ""
    if said:
        parts.append(f'<div style="margin-top:.4em">{_text(said)}</div>')
    if failure is not None:
        trace = "\n".join(failure.traceback.strip("\n").splitlines()[-_TRACEBACK_LINES:])
        parts += [f'<pre style="{_PRE}">{_text(trace)}</pre>'] if trace else []
    parts += [_roles_table(status.roles)] if status.roles else []
    return _card(state, handle, "".join(parts))


def card(state: str, title: str, text: str) -> str:
    """A card with a state, a title and a line of text."""
    return _card(state, title, f"<div>{_text(text)}</div>")


def _card(state: str, title: str, inner_html: str) -> str:
    badge = f'<span style="{_BADGE}{_COLORS.get(state, _ELSE)}">{_text(state)}</span>'
    code = f" <code>{_text(title)}</code>" if title else ""
    return f'<div style="{_BOX}"><div>{badge}{code}</div>{inner_html}</div>'


def _facts(status: AppStatus) -> Iterator[str]:
    from torchx.cli.render import duration, local_time

    times = []
    begun = status.created_at or status.started_at
    if begun is not None:
        times.append(f"launched {local_time(begun)}")
        times += [f"took {duration(status.ended_at - begun)}"] if status.ended_at and status.is_terminal() else []
    if status.num_restarts > 0:
        times.append(f"restarted {status.num_restarts} times")
    if times:
        yield f'<div style="opacity:.75">{_text(" · ".join(times))}</div>'
    url = status.ui_url or ""
    if url.startswith(("http://", "https://")):  # nothing else that a scheduler says becomes a link
        yield f'<div><a href="{_text(url)}" target="_blank" rel="noopener noreferrer">{_text(url)}</a></div>'


def _roles_table(roles: list[RoleStatus]) -> str:
    head = "".join(f'<th style="{_CELL}">{name}</th>' for name in ("role", "replicas", "where"))
    rows = "".join(_row(role) for role in roles)
    return f'<table style="margin-top:.4em;border:none"><tr>{head}</tr>{rows}</table>'


def _row(role: RoleStatus) -> str:
    counts: dict[str, int] = {}
    for replica in role.replicas:
        counts[str(replica.state)] = counts.get(str(replica.state), 0) + 1
    states = ", ".join(f"{n} {state}" for state, n in sorted(counts.items(), key=lambda item: -item[1]))
    hosts = list(dict.fromkeys(r.hostname for r in role.replicas if r.hostname))
    where = ", ".join(hosts[:3]) + (f" and {len(hosts) - 3} more" if len(hosts) > 3 else "")
    return "<tr>" + "".join(f'<td style="{_CELL}">{_text(t)}</td>' for t in (role.role, states, where)) + "</tr>"


def _status_text(status: AppStatus, printer: Any, _cycle: bool) -> None:
    printer.text(status.format())


def _text(value: str) -> str:
    import html

    # Control characters would be invisible at best; html.escape takes care of quotes, too.
    return html.escape("".join(c if c.isprintable() or c in "\n\t" else "?" for c in value))
