"""Parses torchrun's stderr: the failure report at the end, and the worker that wrote each line."""

from __future__ import annotations

import re
from collections.abc import Sequence

from torchx.util.records import dataclass

_TITLE = "ChildFailedError:"
_FIELD = re.compile(r"  (time|host|rank|exitcode|error_file|traceback) *: ?(.*)")
_RANK = re.compile(r"(\d+) \(local_rank: (\d+)\)")
# torchrun prefixes lines with `[trainer1]:` or `[1]:` (the role's name and the local rank), torch with `[rank3]: `.
_OF_LOCAL = re.compile(r"\[(?!rank\d)([^\[\]:]{0,60}?)(\d+)\]:")
_OF_RANK = re.compile(r"\[rank(\d+)\]: ?")


@dataclass(frozen=True)
class Worker:
    """A failed worker in torchrun's report.

    Attributes:
        rank: in the whole job.
        local_rank: on this node.
        code: exit code; ``-n`` for signal n.
        host: where torchrun ran.
        error: the error recorded by the worker, usually a traceback; empty if it recorded none.
    """

    rank: int
    local_rank: int
    code: int
    host: str
    error: str


@dataclass(frozen=True)
class Report:
    """torchrun's failure report.

    Attributes:
        start: index of its first line.
        workers: the failed workers; the root cause according to torchrun first.
    """

    start: int
    workers: tuple[Worker, ...]


def read_report(lines: Sequence[str]) -> Report | None:
    """Return the last report in these lines; None if there is none."""
    start = next((i for i in range(len(lines) - 1, -1, -1) if lines[i].rstrip().endswith(_TITLE)), None)
    if start is None:
        return None
    root: list[Worker] = []
    others: list[Worker] = []
    into = others
    fields: dict[str, str] = {}
    last = ""
    for line in [*lines[start + 1 :], "[]:"]:
        if re.match(r"\[\d*\]:$|-{10,}$|={10,}$|Root Cause ", line):
            worker = _worker(fields)
            if worker is not None:
                into.append(worker)
            fields, last = {}, ""
            into = root if line.startswith("Root Cause") else into
        elif found := _FIELD.match(line):
            last = found[1]
            fields[last] = found[2]
        elif last == "traceback":
            fields[last] += "\n" + line.removeprefix("  ")
    return Report(start, tuple(root + others)) if root or others else None


def streams(lines: Sequence[str], report: Report | None) -> dict[int | str | None, list[str]]:
    """Map global ranks, or other writers, to their lines without prefixes, and None to lines without prefix.

    Without a report, only torch's ``[rank3]: `` counts as a prefix, since any program may write ``[3]: x``.
    """
    known = {w.local_rank: w.rank for w in report.workers} if report else {}
    found: dict[int | str | None, list[str]] = {}
    for line in lines:
        rank: int | str | None = getattr(line, "writer", None) if report is None else None
        rest = line
        if report is not None and (tee := _OF_LOCAL.match(line)):
            local = int(tee[2])
            rank, rest = known.get(local, local), line[tee.end() :]
            rest = rest[1:] if rest.startswith(" [rank") else rest
        if own := _OF_RANK.match(rest):
            rank, rest = int(own[1]), rest[own.end() :]
        found.setdefault(rank, []).append(rest)
    return found


def _worker(fields: dict[str, str]) -> Worker | None:
    rank = _RANK.match(fields.get("rank", ""))
    code = re.match(r"-?\d+", fields.get("exitcode", ""))
    if rank is None or code is None:
        return None
    error = fields.get("traceback", "")
    recorded = fields.get("error_file", "<N/A>").strip() != "<N/A>"
    return Worker(int(rank[1]), int(rank[2]), int(code[0]), fields.get("host", "").strip(), error if recorded else "")
