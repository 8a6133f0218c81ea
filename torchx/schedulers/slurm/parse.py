"""Parses the output of ``squeue`` and ``sacct``, whose plain formats are the same in all releases.

Parsers return records or raise ParseError. Records of foreign jobs look the same.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from torchx.errors import ParseError
from torchx.schedulers.slurm.reasons import app_state, base_state
from torchx.specs.api import is_terminal
from torchx.util.records import dataclass, replace
from torchx.util.strings import parse_size

SEPARATOR = "\x1f"  # never part of a name
_PUT_BACK = ("PREEMPTED", "NODE_FAIL", "REQUEUED")

# https://slurm.schedmd.com/squeue.html, --Format. Fields with text of the user come last.
SQUEUE_FIELDS = (
    *("JobArrayID", "State", "Reason", "SubmitTime", "StartTime", "EndTime", "RestartCnt", "exit_code", "NodeList"),
    *("UserName", "WorkDir", "Name"),
)
# https://slurm.schedmd.com/sacct.html, --format.
SACCT_FIELDS = (
    *("JobID", "State", "Reason", "Submit", "Start", "End", "ExitCode", "NodeList", "MaxRSS", "ReqMem"),
    *("User", "WorkDir", "JobName"),
)


@dataclass(kw_only=True)
class JobRecord:
    """One job, one component of a heterogeneous job, or one step in Slurm's records.

    Attributes:
        job_id: as people write it: ``7``, ``10_3`` in an array; for a component the leader's.
        component: its number; 0 for other jobs.
        step: ``batch``, ``0``, ...; empty for the job itself.
        state: Slurm's base state.
        completing: some of its processes are still ending.
        submitted, started, ended: Unix times; while the job is pending, ``started`` is Slurm's estimate.
        exit_code: of the batch script; None if a signal ended it, or if it is unknown.
        signal: number of that signal, or 0.
        max_rss: maximum resident memory of a step, bytes.
        folder: the working directory.
        user: its owner.
        cancelled_by: the id of the user who cancelled it, in accounting.
        kill_at: Unix time when the processes that are left of a cancelled job are killed; None if unknown.
    """

    job_id: str
    component: int = 0
    step: str = ""
    state: str = ""
    completing: bool = False
    reason: str = ""
    name: str = ""
    folder: str = ""
    nodes: str = ""
    submitted: float | None = None
    started: float | None = None
    ended: float | None = None
    restarts: int = 0
    exit_code: int | None = None
    signal: int = 0
    max_rss: int = 0
    user: str = ""
    cancelled_by: str = ""
    kill_at: float | None = None


def parse_squeue(text: str, seen: Mapping[str, JobRecord] | None = None) -> list[JobRecord]:
    """Parse the output of ``squeue`` with :data:`SQUEUE_FIELDS`. Raises ParseError if a line has too few fields.

    The records of lines that were ``seen`` before are reused: most of thousands of pending jobs do not change.
    """
    known = seen or {}
    return [known.get(line) or _of_row(_row(line, SQUEUE_FIELDS, "squeue", text)) for line in lines_of(text)]


def name_of(uid: str) -> str:
    """Return the name of a user id; empty if this machine does not know it.

    >>> name_of("0"), name_of("")
    ('root', '')
    """
    import pwd

    try:
        return pwd.getpwuid(int(uid)).pw_name
    except (KeyError, ValueError, OverflowError):
        return ""


def lines_of(text: str) -> list[str]:
    """Return the lines of an answer, one per record; what the wrapper of a site prints around them is left out."""
    lines = [line for line in text.split("\n") if line.strip()]
    return [line for line in lines if SEPARATOR in line] or lines


def parse_sacct(text: str) -> list[JobRecord]:
    """Parse the output of ``sacct`` with :data:`SACCT_FIELDS`, including steps. Errors as :func:`parse_squeue`."""
    return [_of_row(_row(line, SACCT_FIELDS, "sacct", text)) for line in lines_of(text)]


def _of_row(row: Mapping[str, str]) -> JobRecord:
    """Return a record from either command: some fields have two names."""

    def cell(*names: str) -> str:
        return next((row[name] for name in names if name in row), "")

    job_id, component, step = split_id(cell("JobArrayID", "JobID"))
    code, signal = _exit_of_text(cell("exit_code", "ExitCode"))
    nodes = row["NodeList"]
    return JobRecord(
        job_id=job_id,
        component=component,
        step=step,
        state=base_state(row["State"]),
        completing=base_state(row["State"]) == "COMPLETING",
        reason=row["Reason"],
        name=cell("Name", "JobName"),
        folder=row["WorkDir"],
        nodes="" if nodes in ("None assigned", "(null)", "N/A") else nodes,
        submitted=_moment(cell("SubmitTime", "Submit")),
        started=_moment(cell("StartTime", "Start")),
        ended=_moment(cell("EndTime", "End")),
        restarts=_whole(cell("RestartCnt")),
        exit_code=code,
        signal=signal,
        max_rss=parse_size(cell("MaxRSS")),
        user=cell("UserName", "User"),
        cancelled_by=row["State"].partition("CANCELLED by ")[2],
    )


def settled(records: Sequence[JobRecord], accounted: Sequence[JobRecord]) -> list[JobRecord]:
    """Components of a ``COMPLETING`` job, with their final states from accounting.

    A component that Slurm requeues has an end in accounting, too, but is not over: it has a restart count, and no end
    time.

    >>> ending = JobRecord(job_id="7", state="COMPLETING", completing=True, folder="/f")
    >>> (one,) = settled([ending], [JobRecord(job_id="7", state="CANCELLED")])
    >>> one.state, one.completing, one.folder
    ('CANCELLED', True, '/f')
    >>> (one,) = settled([replace(ending, restarts=1)], [JobRecord(job_id="7", state="PREEMPTED")])
    >>> one.state
    'COMPLETING'
    """
    ends = {record.component: record for record in accounted if is_terminal(app_state(record.state))}
    found = []
    for record in records:
        end = ends.get(record.component) if record.state == "COMPLETING" else None
        if end is not None and end.state in _PUT_BACK and record.restarts and not record.ended:
            end = None
        ended = record if end is None else replace(record, state=end.state, exit_code=end.exit_code, signal=end.signal)
        found.append(ended if end is None or not end.ended else replace(ended, ended=end.ended))
    return found


_ID = re.compile(r"(\d+(?:_(?:\d+|\[[^\]]*\]))?)(?:\+(\d+))?(?:\.([^\s+]+))?(?:\+(\d+))?")


def split_id(text: str) -> tuple[str, int, str]:
    """Job id, component number and step name.

    >>> split_id("7"), split_id("7+1.batch"), split_id("10_3"), split_id("10_[1-5%2]")
    (('7', 0, ''), ('7', 1, 'batch'), ('10_3', 0, ''), ('10', 0, ''))
    """
    found = _ID.fullmatch(text.strip())
    if found is None:
        return text.strip(), 0, ""
    return found[1].partition("_[")[0], int(found[2] or 0), found[3] or ""


def _row(line: str, fields: tuple[str, ...], command: str, text: str) -> dict[str, str]:
    # The last field may end with a separator, and a name may contain some.
    whole = line.removesuffix(SEPARATOR) if line.count(SEPARATOR) >= len(fields) else line
    row = whole.split(SEPARATOR, len(fields) - 1)
    if len(row) != len(fields):
        raise ParseError(f"a line of `{command}` cannot be read: `{line}`", text=text)
    return {field: cell.strip() for field, cell in zip(fields, row, strict=True)}


def _exit_of_text(text: str) -> tuple[int | None, int]:
    """Exit code and signal: ``3:0``, or in older releases the status of ``wait``, ``768``."""
    code, colon, signal = text.partition(":")
    status = _whole(code)
    exit_code, number = (status, _whole(signal)) if colon else (status >> 8, status & 0x7F)
    return (None if number else exit_code), number


def _moment(text: str) -> float | None:
    """Unix time, which the commands print because of ``SLURM_TIME_FORMAT``."""
    try:
        seconds = float(text)
    except ValueError:
        return None
    return seconds if 0 < seconds < 1e12 else None


def _whole(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 12 else 0
