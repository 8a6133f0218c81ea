"""The answers of LSF's query commands as values: bjobs, bhosts, the job report. Any text can be read."""

from __future__ import annotations

import posixpath
import re
import time
from collections.abc import Iterable, Mapping

from torchx.util.records import dataclass

# https://www.ibm.com/docs/en/SSWRJV_10.1.0/lsf_command_ref/bjobs.o.1.html : only the last may have the delimiter in it
FIELDS = (
    *("jobid", "jobindex", "stat", "job_group", "job_name", "exec_host", "exit_code"),
    *("submit_time", "start_time", "finish_time", "output_file", "exit_reason", "pend_reason"),
)
DELIMITER = "|"


def custom_format(fields: Iterable[str]) -> str:
    """For ``bjobs -o``."""
    return f"{' '.join(fields)} delimiter='{DELIMITER}'"


FORMAT = custom_format(FIELDS)


@dataclass(frozen=True)
class Row:
    """One job of LSF, which is one replica of ours. Fields that LSF leaves open (``-``) are empty.

    Attributes:
        jobid: as LSF's commands take it: of an element of an array with its index, ``7[3]``.
        app_id: the id of our job, from the name of the LSF job; empty of one that is not ours.
        role: number of the role.
        k: number of the replica.
        name: of the LSF job; see :func:`job_name`.
        hosts: where it runs, without the number of slots.
        started, ended: Unix times, of the minute; None when LSF does not say.
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
    submitted: float | None = None
    started: float | None = None
    ended: float | None = None

    @property
    def folder(self) -> str:
        """The folder of our job: its report is in a folder of it. Empty when LSF does not say."""
        return posixpath.dirname(posixpath.dirname(self.output_file))


def job_name(app_id: str, role_index: int, role: str, k: int) -> str:
    """The name of a replica's LSF job: what people see in ``bjobs``, and what :func:`rows` reads back.

    >>> job_name("train-x1", 0, "trainer", 3)
    'train-x1.0-trainer.3'
    """
    shown = re.sub(r"[^A-Za-z0-9_]+", "-", role)[:40]
    return f"{app_id}.{role_index}-{shown}.{k}"


def rows(text: str, *, now: float | None = None) -> list[Row]:
    """The jobs in the answer of ``bjobs -o FORMAT``; those of others, and lines that are not jobs, are left out.

    Of several jobs of one name the last counts: the others are what an interrupted submission left.

    Args:
        now: Unix time; years, which LSF does not tell, are guessed from it.
    """
    found: dict[tuple[str, int], tuple[int, Row]] = {}
    for values in cells(text):
        # Some sites show the index with the id (LSB_BJOBS_DISPLAY_ENH); the table of bjobs has it behind the name.
        number, inner = _indexed(values.get("jobid", ""))
        shown, outer = _indexed(values.get("job_name", ""))
        parts = name_parts(shown)
        if parts is None or values.get("job_group") != group_of(parts[0]) or not whole(number):
            continue
        index = whole(values.get("jobindex", "")) or inner or outer
        place = {"jobid": f"{number}[{index}]" if index else number, "job_name": shown}
        k = int(parts[2]) + max(index - 1, 0)  # an array is called by its first task, and its indices begin with 1
        row = row_of({**values, **place}, now, app_id=parts[0], role=int(parts[1]), k=k)
        known = found.get((shown, index))
        if known is None or whole(number) > known[0]:
            found[shown, index] = (whole(number), row)
    return [row for _, row in found.values()]


def whole(text: str) -> int:
    """A number as LSF writes them; 0 for any other text.

    >>> whole("7"), whole("-"), whole("9" * 5000)
    (7, 0, 0)
    """
    return int(text) if text.isdecimal() and len(text) < 19 else 0


def _indexed(text: str) -> tuple[str, int]:
    """A word and the index in brackets behind it; 0 where there is none.

    >>> _indexed("train[3]"), _indexed("train")
    (('train', 3), ('train', 0))
    """
    found = re.fullmatch(r"(.*)\[(\d{1,9})\]", text)
    return (found[1], int(found[2])) if found else (text, 0)


def cells(text: str) -> list[dict[str, str]]:
    """Field to value, for each job in the answer of ``bjobs -o``; what is not a line of the table is left out."""
    lines = text.splitlines()
    head = next((i for i, line in enumerate(lines) if line.startswith(f"JOBID{DELIMITER}")), None)
    if head is None:
        return []
    names = lines[head].lower().split(DELIMITER)
    every = (line.split(DELIMITER, len(names) - 1) for line in lines[head + 1 :])
    return [
        {name: "" if value.strip() == "-" else value.strip() for name, value in zip(names, values, strict=True)}
        for values in every
        if len(values) == len(names)
    ]


def was_let_go(found: Iterable[Row]) -> bool:
    """Whether the submission of these replicas is complete: the first, and all arrays of a sweep, are on hold until
    the others are there.
    """
    held = (row for row in found if row.role == row.k == 0 or "[" in row.jobid)
    return any(row.stat != "PSUSP" and (row.stat != "EXIT" or bool(row.hosts)) for row in held)


_NAME = re.compile(r"(?P<app>[A-Za-z][A-Za-z0-9_-]*)\.(?P<role>\d{1,6})-[^.]*\.(?P<k>\d{1,9})")


def name_parts(name: str) -> tuple[str, str, str] | None:
    """App id, number of the role and of the replica in the name of an LSF job; None when it is not one of ours.

    >>> name_parts("train-x1.0-trainer.3"), name_parts("make all")
    (('train-x1', '0', '3'), None)
    """
    found = _NAME.fullmatch(name)
    return (found["app"], found["role"], found["k"]) if found else None


def row_of(values: Mapping[str, str], now: float | None = None, *, app_id: str = "", role: int = 0, k: int = 0) -> Row:
    """A line of the table; other arguments are the attributes of the row."""
    return Row(
        jobid=values["jobid"],
        stat=values.get("stat", ""),
        app_id=app_id,
        role=role,
        k=k,
        name=values.get("job_name", ""),
        hosts=tuple(h.rpartition("*")[2] for h in values.get("exec_host", "").split(":") if h),
        exit_code=values.get("exit_code", ""),
        exit_reason=values.get("exit_reason", ""),
        pend_reason=values.get("pend_reason", ""),
        output_file=values.get("output_file", ""),
        submitted=moment(values.get("submit_time", ""), now),
        started=moment(values.get("start_time", ""), now),
        ended=moment(values.get("finish_time", ""), now),
    )


def group_of(app_id: str) -> str:
    """The LSF job group of a job.

    At the top of the tree, for the owner of a group may control the jobs of everybody below it: a common parent would
    belong to whoever used torchx first.
    https://www.ibm.com/docs/en/spectrum-lsf/10.1.0?topic=jobs-job-groups
    """
    return f"/torchx_{app_id}"


_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_MOMENT = re.compile(r"(?:\w{3} )?(\w{3}) +(\d{1,2}) (\d{1,2}):(\d{2})(?::(\d{2}))?(?: (\d{4}))?(?: [ELX])?")


def moment(text: str, now: float | None = None) -> float | None:
    """A time of LSF's as Unix time: ``Nov 21 20:57``, with weekday, seconds and year where a site shows them.

    Without the year it is the last such day, or one of the next two weeks. A mark behind it (``L``: by the limit) says
    that it has not come yet: such a time is None.

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


def report_end(report: str) -> tuple[str, str] | None:
    """Exit code and termination reason in the report that LSF appends to ``-o`` files; None when there is none in it.

    https://www.ibm.com/docs/en/SSWRJV_10.1.0/lsf_command_ref/bsub.o.1.html

    >>> report_end("TERM_OWNER: job killed by owner.\\nExited with exit code 130.\\n")
    ('130', 'TERM_OWNER: job killed by owner')
    """
    if "\nSuccessfully completed." in f"\n{report}":
        return "0", ""
    ended = re.search(r"^Exited(?: with exit code (\d+))?", report, re.MULTILINE)
    reason = re.search(r"^(TERM_[A-Z_]+: .*?)\.?$", report, re.MULTILINE)
    if ended is None and reason is None:
        return None
    return (ended[1] or "" if ended else ""), (reason[1] if reason else "")


def free_host(bhosts: str, slots: int) -> str | None:
    """The first host in the answer of ``bhosts`` that is ``ok`` and has so many free slots; None when there is none."""
    for line in bhosts.splitlines():
        words = line.split()
        if len(words) < 5 or words[1] != "ok":
            continue
        most, jobs = words[3], words[4]
        if most == "-" or (most.isdecimal() and jobs.isdecimal() and whole(most) - whole(jobs) >= slots):
            return words[0]
    return None
