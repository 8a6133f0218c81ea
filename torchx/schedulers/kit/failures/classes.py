"""Classifies a failure: one of :data:`CLASSES`, and the line that decided it.

Two rules prevent that a user's bug is taken for a failure that a retry would fix. Messages of the *system* (Slurm, the
kubelet, the engine) are trusted. Of the *program's* output, only exceptions raised by libraries count:
an exception raised by the user's own code is an ``error``, whatever its text. What is known is in :mod:`.rows`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from torchx.schedulers.kit.failures.row import EXCEPTION, LINE, SYSTEM, WITHIN, Row
from torchx.schedulers.kit.failures.signatures import CLASSES, first, in_lines, note, note_all, rows
from torchx.schedulers.kit.failures.tracebacks import Link, find_traces, read_exception
from torchx.specs.failures import Failure

__all__ = ["CLASSES", "classify", "is_aftermath", "is_wrapper"]

_VAGUE = ("", "unknown", "lost", "cancelled")
_BY_SIGNAL = {
    "SIGTERM": "cancelled",
    "SIGINT": "cancelled",
    "SIGHUP": "cancelled",
    "SIGQUIT": "cancelled",
    "SIGKILL": "unknown",
    "SIGXCPU": "timeout",
}


def classify(failure: Failure, said: str = "") -> tuple[str, str]:
    """Return the class of a failure, by the program's output and by what the system ``said`` about the end of the
    process.

    The second value is the line that decided it; empty if the exit code or nothing did.

    >>> from torchx.specs.failures import Failure
    >>> classify(Failure("ValueError: NCCL is not preempted", 1))
    ('error', 'ValueError: NCCL is not preempted')
    >>> classify(Failure(signal="SIGKILL"), "slurmstepd: error: Detected 1 oom_kill event in StepId=12.0.")
    ('oom', 'slurmstepd: error: Detected 1 oom_kill event in StepId=12.0.')
    """
    lines = said.splitlines()
    note_all(SYSTEM, lines)
    note_all(EXCEPTION, [str(link) for link in _links(failure)])
    for row, at in in_lines(SYSTEM, lines) if said else ():
        # the rest of a job is cancelled after one replica has failed by itself; SageMaker quotes the program
        by_itself = row.kind == "cancelled" and (failure.kind or _by_program(failure)[0]) not in _VAGUE
        quoted = row.kind != "error" and lines[at].startswith("AlgorithmError")
        note(row, lines[at], decided=not (by_itself or quoted))
        if not (by_itself or quoted):
            return row.kind, lines[at].strip()
    if failure.kind:
        return failure.kind, failure.evidence
    kind, line, row_ = _by_program(failure)
    if row_ is not None:
        note(row_, line if row_.where == LINE else next(str(k) for k in _links(failure) if row_.search(str(k))))
    return ("unknown", said.strip().partition("\n")[0]) if kind == "lost" and said.strip() else (kind, line)


def is_aftermath(failure: Failure) -> bool:
    """Whether a replica seems to have failed only because of another one: it lost its peer, or was asked to end.

    >>> from torchx.specs.failures import Failure
    >>> is_aftermath(Failure("RuntimeError: Connection closed by peer [n1]:4")), is_aftermath(Failure("KeyError: 1"))
    (True, False)
    """
    if failure.signal == "SIGTERM":
        return True
    links = _links(failure)
    if any(map(_has_lost_peer, links)):
        return all(_has_lost_peer(link) or _of_link(link)[0] == "network" for link in links)
    row = _by_program(failure)[2]
    return row is not None and row.aftermath


def is_wrapper(link: Link) -> bool:
    """Whether an exception only reports that another process failed, whose own output is above."""
    row = first(EXCEPTION, str(link))
    return row is not None and not row.kind and (not row.aftermath or "Child" in row.text)


def is_vague(links: Sequence[Link]) -> bool:
    """Return whether exceptions say that something failed, and not what."""
    return all(is_wrapper(link) or _of_link(link)[0] == "unknown" for link in links)


def _has_lost_peer(link: Link) -> bool:
    return any(row.aftermath and not row.kind and row.search(str(link)) for row in rows(EXCEPTION))


def _by_program(failure: Failure) -> tuple[str, str, Row | None]:
    links = _links(failure)
    if not links or is_vague(links):
        for line in failure.message.splitlines():
            if row := first(LINE, line):
                return row.kind, line, row
    for link in links:
        kind, row = _of_link(link)
        if kind:
            return kind, _line(str(link), row), row
    if links and all(map(is_wrapper, links)):
        said = str(links[0])
        row = next((row for row in rows(EXCEPTION) if row.kind and row.search(said)), None)
        kind = row.kind if row is not None else _BY_SIGNAL.get(failure.signal, "error")
        return kind, _first(said), row
    if links:
        return "error", _first(str(links[0])), None
    if failure.signal:
        return _BY_SIGNAL.get(failure.signal, "error"), "", None
    if failure.exit_code is None:
        return ("error", _first(failure.message), None) if failure.message else ("lost", "", None)
    return "error", _first(failure.message), None


def _links(failure: Failure) -> Sequence[Link]:
    """Return the exceptions of the failure, the original one first; without frames if there is no traceback."""
    traces = find_traces(failure.traceback.splitlines())
    if traces:
        return traces[-1].links
    link = read_exception(failure.message)
    return (link,) if link is not None else ()


def _of_link(link: Link) -> tuple[str, Row | None]:
    """Return the class of one exception, and the row that says so; empty if it is not decisive."""
    if _is_users(link):
        return "error", None
    said = str(link)
    row = first(EXCEPTION, said)
    if row is None or not row.kind:
        within = first(WITHIN, said)
        if within is not None:
            return ("network", within) if "torch/distributed/" in link.file else ("", None)
        return ("error", None) if row is None or row.aftermath else ("", None)
    # the name of a built-in exception says nothing of a text that another library's Python code wrote
    foreign = row.kind == "network" and "." not in link.name and _is_raised(link) and "/torch/" not in link.file
    return ("error", None) if foreign else (row.kind, row)


def _is_users(link: Link) -> bool:
    """Whether the user's own code raised it."""
    library = "site-packages/" in link.file or "dist-packages/" in link.file or "/lib/python3" in link.file
    return not library and _is_raised(link)


def _is_raised(link: Link) -> bool:
    """Whether a ``raise`` or ``assert`` statement raised it, not C++ code."""
    return re.match(r"(?:raise|assert)\b", link.code) is not None


def _line(said: str, row: Row | None) -> str:
    """Return the decisive line of a message."""
    if row is not None and "\n" in said:
        known = [row, *(r for r in (*rows(LINE), *rows(EXCEPTION)) if r.kind == row.kind)]
        for line in said.splitlines():
            if any(r.search(line) for r in known):
                return line
    return _first(said)


def _first(text: str) -> str:
    return text.strip().partition("\n")[0]
