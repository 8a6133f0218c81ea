"""HTML for notebooks: job definitions, statuses and lists. All values are escaped; the colours suit any theme."""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from torchx.specs.failures import parse_failure
from torchx.util.datetime import ago, duration, local_time
from torchx.util.secrets import mask_args
from torchx.util.shlex import join
from torchx.util.term import printable

if TYPE_CHECKING:
    from torchx.specs.api import AppDef, AppStatus, RoleStatus

_COLORS = {
    "SUCCEEDED": "#1a7f37",
    "FAILED": "#cf222e",
    "RUNNING": "#0969da",
    "PENDING": "#6e7781",
    "SUBMITTED": "#6e7781",
    "CANCELLED": "#9a6700",
}
_OTHER_COLOR = "#57606a"
_BADGE = "display:inline-block;padding:0 .6em;border-radius:1em;color:#fff;font-size:85%;background:"
_BOX = "border:1px solid #8884;border-radius:6px;padding:.6em .9em;margin:.2em 0;max-width:72em"
_CELL = "text-align:left;padding:.1em 1.2em .1em 0;vertical-align:top"
_PRE = "white-space:pre-wrap;margin:.4em 0 0;padding:.5em;border-left:3px solid #cf222e;font-size:90%"

_NONE = ("", "<NONE>")
_TRACEBACK_LINES = 12


def status_html(status: AppStatus, handle: str = "") -> str:
    """Render a status as a card: the state, the cause of a failure, and a row for each role.

    >>> from torchx.specs import AppState, AppStatus
    >>> "SUCCEEDED" in status_html(AppStatus(AppState.SUCCEEDED), "local_cwd://torchx/x")
    True
    """
    parts = list(_facts(status))
    state = str(status.state)
    failure = None if state == "SUCCEEDED" else parse_failure(status.structured_error_msg)
    message = status.msg if status.msg not in _NONE else failure.summary() if failure else ""
    if message:
        parts.append(f'<div style="margin-top:.4em">{_text(message)}</div>')
    if failure is not None:
        trace = "\n".join(failure.traceback.strip("\n").splitlines()[-_TRACEBACK_LINES:])
        parts += [f'<pre style="{_PRE}">{_text(trace)}</pre>'] if trace else []
    parts += [_table(("role", "replicas", "where"), [_row(role) for role in status.roles])] if status.roles else []
    return _card(state, handle, "".join(parts))


def app_html(app: AppDef) -> str:
    """Render a job definition as a table of its roles, with secrets masked.

    >>> from torchx.specs import AppDef, Role
    >>> "python -m train" in app_html(AppDef("a", [Role("r", "img", entrypoint="python", args=["-m", "train"])]))
    True
    """
    rows = []
    for role in app.roles:
        needs = [(role.resource.cpu, "cpu"), (role.resource.gpu, "gpu"), (role.resource.memMB, "MiB")]
        resource = ", ".join(f"{count} {unit}" for count, unit in needs if count > 0)
        command = join(mask_args([role.entrypoint, *map(str, role.args)]))
        rows.append((role.name, str(role.num_replicas), command, role.image, resource))
    title = f"<div><b>{_text(app.name)}</b></div>"
    return f'<div style="{_BOX}">{title}{_table(("role", "replicas", "command", "image", "resource"), rows)}</div>'


def jobs_html(jobs: Iterable[Any]) -> str:
    """Render runs of the run registry, or jobs of a scheduler, as a table."""
    rows = []
    for job in jobs:
        begun, ended = getattr(job, "created_at", None), getattr(job, "ended_at", None)
        handle = getattr(job, "app_handle", "") or getattr(job, "handle", "")
        took = duration(ended - begun) if begun and ended else ""
        rows.append((handle, job.name, str(job.state), ago(begun) if begun else "", took))
    return f'<div style="{_BOX}">{_table(("job", "name", "state", "launched", "took"), rows)}</div>'


def card(state: str, title: str, text: str) -> str:
    """Render a card with a state, a title and a line of text."""
    return _card(state, title, f"<div>{_text(text)}</div>")


def _card(state: str, title: str, inner_html: str) -> str:
    badge = f'<span style="{_BADGE}{_COLORS.get(state, _OTHER_COLOR)}">{_text(state)}</span>'
    code = f" <code>{_text(title)}</code>" if title else ""
    return f'<div style="{_BOX}"><div>{badge}{code}</div>{inner_html}</div>'


def _facts(status: AppStatus) -> Iterator[str]:
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
    if url.startswith(("http://", "https://")):  # other schemes, such as `javascript:`, must not become links
        yield f'<div><a href="{_text(url)}" target="_blank" rel="noopener noreferrer">{_text(url)}</a></div>'


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    names = "".join(f'<th style="{_CELL}">{name}</th>' for name in head)
    lines = "".join(
        "<tr>" + "".join(f'<td style="{_CELL}">{_cell(text)}</td>' for text in row) + "</tr>" for row in rows
    )
    return f'<table style="margin-top:.4em;border:none"><tr>{names}</tr>{lines}</table>'


def _cell(text: str) -> str:
    return f'<span style="{_BADGE}{_COLORS[text]}">{text}</span>' if text in _COLORS else _text(text)


def _row(role: RoleStatus) -> tuple[str, str, str]:
    counts = Counter(str(replica.state) for replica in role.replicas)
    states = ", ".join(f"{n} {state}" for state, n in counts.most_common())
    hosts = list(dict.fromkeys(r.hostname for r in role.replicas if r.hostname))
    where = ", ".join(hosts[:3]) + (f" and {len(hosts) - 3} more" if len(hosts) > 3 else "")
    return role.role, f"{states}; {role.order()}" if role.order() else states, where


def _text(value: str) -> str:
    return html.escape(printable(value, lines=True))
