"""Parsers of what LSF prints about jobs: by bjobs, and its report. They accept any text."""

from __future__ import annotations

import posixpath
import re
import time
from collections.abc import Iterable, Mapping

from torchx.util.records import dataclass
from torchx.util.strings import parse_size

# https://www.ibm.com/docs/en/SSWRJV_10.1.0/lsf_command_ref/bjobs.o.1.html
FIELDS = (
    *("jobid", "jobindex", "stat", "job_group", "job_name", "exec_host", "exit_code"),
    *("start_time", "finish_time", "run_time", "max_mem", "cpu_used"),
    *("output_file", "exit_reason", "pend_reason"),
)
DELIMITER = "\x1f"
"""Not a character that people write: without ``-J`` the name of a job is its command, such as ``a | b``."""
ENDS = ("EXIT", "DONE")
"""LSF's states of jobs that have ended, or were requeued a moment ago."""
_REQUEUED = "TERM_REQUEUE_"
_USR2 = "140"  # LSF sends SIGUSR2 at the run limit


def custom_format(fields: Iterable[str]) -> str:
    """Return the value for ``bjobs -o``."""
    return f"{' '.join(fields)} delimiter='{DELIMITER}'"


FORMAT = custom_format(FIELDS)


@dataclass(frozen=True)
class Row:
    """One LSF job, which is one replica. Fields that LSF reports as ``-`` are empty.

    Attributes:
        jobid: as LSF's commands accept it: with the index for an element of an array, ``7[3]``.
        app_id: id of the torchx job, from the name of the LSF job; empty for foreign jobs.
        role: number of the role.
        k: number of the replica.
        name: of the LSF job; see :func:`job_name`.
        hosts: its hosts, without the number of slots.
        started, ended: Unix times, to the minute; None if unknown.
        run_s: seconds that it has run.
        memory: peak in bytes; 0 if unknown.
        cpu_s: seconds of processors that it has used; None if unknown.
    """

    jobid: str
    stat: str
    app_id: str = ""
    role: int = 0
    k: int = 0
    name: str = ""
    hosts: tuple[str, ...] = ()
    exit_code: str = ""
    exit_reason: str = ""
    pend_reason: str = ""
    output_file: str = ""
    started: float | None = None
    ended: float | None = None
    run_s: int = 0
    memory: int = 0
    cpu_s: float | None = None

    @property
    def folder(self) -> str:
        """The folder of the torchx job, derived from the path of the report. Empty if LSF does not report it."""
        return posixpath.dirname(posixpath.dirname(self.output_file))


def job_name(app_id: str, role_index: int, role: str, k: int) -> str:
    """Return the name of a replica's LSF job, as shown by ``bjobs`` and parsed by :func:`rows`.

    >>> job_name("train-x1", 0, "trainer", 3)
    'train-x1.0-trainer.3'
    """
    shown = re.sub(r"[^A-Za-z0-9_]+", "-", role)[:40]
    return f"{app_id}.{role_index}-{shown}.{k}"


def rows(text: str, *, now: float | None = None) -> list[Row]:
    """Return the jobs in the output of ``bjobs -o FORMAT``; foreign jobs and other lines are left out.

    Of several jobs with one name the newest counts: the others remain from an interrupted submission. The year, which
    LSF omits, is inferred from ``now``.
    """
    found: dict[tuple[str, int], tuple[int, Row]] = {}
    for values in cells(text):
        # Some sites show the index with the id (LSB_BJOBS_DISPLAY_ENH); by default it follows the name.
        number, inner = _indexed(values.get("jobid", ""))
        shown, outer = _indexed(values.get("job_name", ""))
        parts = name_parts(shown)
        if parts is None or values.get("job_group") != group_of(parts[0]) or not whole(number):
            continue
        index = whole(values.get("jobindex", "")) or inner or outer
        place = {"jobid": f"{number}[{index}]" if index else number, "job_name": shown}
        k = int(parts[2]) + max(index - 1, 0)  # an array is named after its first task, and indices start at 1
        row = row_of({**values, **place}, now, app_id=parts[0], role=int(parts[1]), k=k)
        known = found.get((shown, index))
        if known is None or whole(number) > known[0]:
            found[shown, index] = (whole(number), row)
    return [row for _, row in found.values()]


def whole(text: str) -> int:
    """Return a number as LSF prints it; 0 for other text.

    >>> whole("7"), whole("-"), whole("9" * 5000)
    (7, 0, 0)
    """
    return int(text) if text.isdecimal() and len(text) < 19 else 0


def _indexed(text: str) -> tuple[str, int]:
    """Return a word and the index in brackets after it, or 0.

    >>> _indexed("train[3]"), _indexed("train")
    (('train', 3), ('train', 0))
    """
    found = re.fullmatch(r"(.*)\[(\d{1,9})\]", text)
    return (found[1], int(found[2])) if found else (text, 0)


def cells(text: str) -> list[dict[str, str]]:
    """Field to value for each job in the output of ``bjobs -o``; other lines are left out. The header shows the
    delimiter.
    """
    lines = text.split("\n")
    head = next((i for i, line in enumerate(lines) if re.match(r"JOBID[^\w\s]|JOBID\x1f", line)), None)
    if head is None:
        return []
    delimiter = lines[head][len("JOBID")]
    names = lines[head].lower().strip().split(delimiter)
    every = (line.split(delimiter, len(names) - 1) for line in lines[head + 1 :])
    return [
        {name: "" if value.strip() == "-" else value.strip() for name, value in zip(names, values, strict=True)}
        for values in every
        if len(values) == len(names)
    ]


def was_released(found: Iterable[Row]) -> bool:
    """Whether the submission of these replicas is complete: the first one, or each array, is on hold until then."""
    held = (row for row in found if row.role == row.k == 0 or "[" in row.jobid)
    return any(row.stat != "PSUSP" and (row.stat != "EXIT" or bool(row.hosts)) for row in held)


_NAME = re.compile(r"(?P<app>[A-Za-z][A-Za-z0-9_-]*)\.(?P<role>\d{1,6})-[^.]*\.(?P<k>\d{1,9})")


def name_parts(name: str) -> tuple[str, str, str] | None:
    """App id, role number and replica number in the name of an LSF job; None for foreign names.

    >>> name_parts("train-x1.0-trainer.3"), name_parts("make all")
    (('train-x1', '0', '3'), None)
    """
    found = _NAME.fullmatch(name)
    return (found["app"], found["role"], found["k"]) if found else None


def row_of(values: Mapping[str, str], now: float | None = None, *, app_id: str = "", role: int = 0, k: int = 0) -> Row:
    """Return a row of the table; the other arguments are attributes of :class:`Row`."""
    stat, code, reason = values.get("stat", ""), values.get("exit_code", ""), values.get("exit_reason", "")
    pending, finish = values.get("pend_reason", ""), values.get("finish_time", "")
    if stat in ENDS and reason.startswith(_REQUEUED):
        stat, code, reason, pending, finish = "PEND", "", "", f"Requeue the job for the next run ({reason});", ""
    if stat == "EXIT" and code == _USR2 and not reason:
        reason = "TERM_RUNLIMIT"
    started, ended = moment(values.get("start_time", ""), now), moment(finish, now)
    run_s, cpu = whole(values.get("run_time", "").partition(" ")[0]), values.get("cpu_used", "").partition(" ")[0]
    return Row(
        jobid=values["jobid"],
        stat=stat,
        app_id=app_id,
        role=role,
        k=k,
        name=values.get("job_name", ""),
        hosts=tuple(h.rpartition("*")[2] for h in values.get("exec_host", "").split(":") if h),
        exit_code=code,
        exit_reason=reason,
        pend_reason=pending,
        output_file=values.get("output_file", ""),
        run_s=run_s,
        memory=parse_size(values.get("max_mem", "")),
        cpu_s=float(cpu) if re.fullmatch(r"\d{1,15}(\.\d{1,9})?", cpu) else None,
        **_times(started, ended, run_s, running=stat == "RUN", now=now),
    )


def _times(
    started: float | None, ended: float | None, run_s: int, *, running: bool, now: float | None
) -> dict[str, float | None]:
    """Compute start and end from the minutes in which they are, and from the seconds that the job has run.

    >>> _times(1200.0, 1260.0, 20, running=False, now=None)
    {'started': 1240.0, 'ended': 1260.0}
    """
    if started is not None and run_s:
        if ended is not None:
            ended = min(max(started + run_s, ended), ended + 59)
        if ended is not None or running:
            at = (time.time() if now is None else now) if ended is None else ended
            started = min(max(at - run_s, started), started + 59)
    return {"started": started, "ended": ended}


def group_of(app_id: str) -> str:
    """Return the LSF job group of a job.

    It is at the top level, because the owner of a group may control all jobs below it: a common parent would belong to
    the first user of torchx. https://www.ibm.com/docs/en/spectrum-lsf/10.1.0?topic=jobs-job-groups
    """
    return f"/torchx_{app_id}"


_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_MOMENT = re.compile(r"(?:\w{3} )?(\w{3}) +(\d{1,2}) (\d{1,2}):(\d{2})(?::(\d{2}))?(?: (\d{4}))?(?: [ELX])?")


def moment(text: str, now: float | None = None) -> float | None:
    """Return a time in LSF's format as Unix time: ``Nov 21 20:57``; some sites add weekday, seconds and year.

    Without a year it is the most recent such date up to two weeks ahead. A time with a mark (``L``: estimated from the
    limit) is in the future, and returned as None.

    >>> moment("Nov 21 20:57 L") is None, moment("-") is None
    (True, True)
    """
    found = _MOMENT.fullmatch(text.strip())
    if found is None or text.rstrip()[-2:] in (" E", " L", " X") or found[1].lower() not in _MONTHS:
        return None
    month, day, hour, minute, second = _MONTHS.index(found[1].lower()) + 1, *(int(found[i] or 0) for i in (2, 3, 4, 5))
    now = time.time() if now is None else now
    years = [int(found[6])] if found[6] else [time.localtime(now).tm_year + 1 - i for i in range(2 + 7)]
    for year in years:
        try:
            at = time.mktime((year, month, day, hour, minute, second, 0, 0, -1))
        except (OverflowError, ValueError):
            return None
        if time.localtime(at).tm_mday == day and at <= now + 14 * 86400:  # 29 February is not in every year
            return at
    return None


NO_JOB_FILE = re.compile(r"^Cannot open your job file.*", re.MULTILINE)
"""Matches LSF's report about a job whose script it had lost."""


def report_end(report: str) -> tuple[str, str] | None:
    """Exit code and termination reason in the report that LSF appends to ``-o`` files; None if there is none.

    https://www.ibm.com/docs/en/SSWRJV_10.1.0/lsf_command_ref/bsub.o.1.html

    >>> report_end("TERM_OWNER: job killed by owner.\\nExited with exit code 130.\\n")
    ('130', 'TERM_OWNER: job killed by owner')
    """
    if "\nSuccessfully completed." in f"\n{report}":
        return "0", ""
    if unread := NO_JOB_FILE.search(report):
        return "127", f"LSF said: {unread[0].rstrip()}"
    ended = re.search(r"^Exited(?: with exit code (\d+))?", report, re.MULTILINE)
    reason = re.search(r"^(TERM_[A-Z_]+: .*?)\.?$", report, re.MULTILINE)
    if ended is None and reason is None:
        return None
    return (ended[1] or "" if ended else ""), (reason[1] if reason else "")
