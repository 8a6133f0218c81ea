"""What bjobs and bhist print: the default table, ``-o`` with its delimiter, ``-json``, and the folded lines of ``-l``."""

from __future__ import annotations

import json
import re
import sys
import time
from typing import Any

# https://www.ibm.com/docs/en/spectrum-lsf/10.1.0?topic=options-o : aliases of fields, and recommended widths
_ALIASES = {"id": "jobid", "name": "job_name", "group": "job_group", "description": "job_description", "proj": "proj_name",
            "project": "proj_name", "app": "application", "reason": "pend_reason", "ofile": "output_file",
            "efile": "error_file", "cmd": "command", "u": "user", "q": "queue"}  # fmt: skip
_WIDTHS = {"jobid": 7, "stat": 5, "user": 7, "queue": 10, "from_host": 11, "exec_host": 11, "job_name": 10, "exit_code": 10,
           "exit_reason": 50, "pend_reason": 11, "job_group": 10, "start_time": 15, "submit_time": 15, "finish_time": 16}  # fmt: skip


def when(at: float) -> str:
    """A time as bjobs shows it: without the year, and of the minute."""
    return time.strftime("%b %e %H:%M", time.localtime(at)) if at else ""


def show_jobs(rows: list[dict[str, Any]], missing: list[str], options: dict[str, str]) -> int:
    """Prints the answer of bjobs; its exit code."""
    if "-json" in options and "-o" not in options:
        print("bjobs: You cannot use the -json option when the -o option is not specified", file=sys.stderr)
        return 255
    if "-json" in options:
        _show_json(rows, missing, options["-o"])
        return 255 if missing and not rows else 0
    if rows and "-o" in options:
        _show_custom(rows, options)
    elif rows:
        _show_table(rows, header="-noheader" not in options)
        for row in rows if "-p" in options else []:
            print(f" {row['pend_reason']}")
    sys.stdout.flush()
    for job in missing:
        print(f"Job <{job}> is not found", file=sys.stderr)
    if not rows and not missing:
        print(_nothing(options), file=sys.stderr)
    return 255 if missing and not rows else 0


def _nothing(options: dict[str, str]) -> str:
    if "-g" in options:
        return f"Job group <{options['-g']}>: No matching job found" if "-a" in options else "No unfinished job found"
    return "No job found" if "-a" in options else "No unfinished job found"


def _fields(spec: str) -> tuple[list[tuple[str, int | None]], str | None]:
    """The fields of ``-o``, each with its width when one is given; and the delimiter."""
    found = re.search(r"delimiter=(?:'(.)'|\"(.)\"|(\S))", spec)
    delimiter = next((g for g in found.groups() if g), None) if found else None
    fields: list[tuple[str, int | None]] = []
    for word in (spec[: found.start()] if found else spec).split():
        name, colon, width = word.lower().partition(":")
        name = _ALIASES.get(name, name)
        digits = width.lstrip("-").partition(":")[0]
        fields.append((name, int(digits) if digits else _WIDTHS.get(name, 15) if colon else None))
    return fields, delimiter


def _value(row: dict[str, Any], name: str) -> str:
    if name not in row:
        print(f"bjobs: {name}: unknown field", file=sys.stderr)
        sys.exit(255)
    value = row[name]
    if name == "finish_time":
        return when(value) + (row["finish_mark"] if value else "")
    return when(value) if name.endswith("_time") and name != "run_time" else str(value)


def _show_json(rows: list[dict[str, Any]], missing: list[str], spec: str) -> None:
    fields, _ = _fields(spec)
    records: list[dict[str, str]] = [{n.upper(): _value(r, n) for n, _ in fields} for r in rows]
    records += [{"JOBID": job, "ERROR": f"Job <{job}> is not found"} for job in missing]
    print(json.dumps({"COMMAND": "bjobs", "JOBS": len(records), "RECORDS": records}, indent=2))


def _show_custom(rows: list[dict[str, Any]], options: dict[str, str]) -> None:
    fields, delimiter = _fields(options["-o"])
    lines = [] if "-noheader" in options else [[n.upper() for n, _ in fields]]
    lines += [[_value(row, n) or "-" for n, _ in fields] for row in rows]
    for line in lines:
        if delimiter:
            print(delimiter.join(line))
        else:
            print(" ".join(_cut(text, n, w) for text, (n, w) in zip(line, fields, strict=True)).rstrip())


def _cut(text: str, name: str, width: int | None) -> str:
    if width is None:
        return text.ljust(_WIDTHS.get(name, 15))
    if len(text) > width:
        return f"*{text[-width + 1 :]}" if name == "job_name" else text[:width]
    return text.ljust(width)


def _show_table(rows: list[dict[str, Any]], *, header: bool) -> None:
    if header:
        print("JOBID   USER    STAT  QUEUE      FROM_HOST   EXEC_HOST   JOB_NAME   SUBMIT_TIME")
    for r in rows:
        hosts, name = r["exec_host"].split(":"), r["job_name"]
        name = f"*{name[-9:]}" if len(name) > 10 else name
        print(
            f"{r['jobid']:7} {r['user'][:7]:7} {r['stat']:5} {r['queue'][:10]:10} {r['from_host'][:11]:11} "
            f"{hosts[0][:11]:11} {name:10} {when(r['submit_time'])}"
        )


def show_history(answer: dict[str, Any], ids: list[str]) -> int:
    """``bhist -l``: the header and the events of each job, folded at column 80 with 21 blanks before the rest."""
    rows = {str(r["id"]): r for r in answer["rows"]}
    try:
        with open(answer["history"]) as file:
            for line in file:
                row = json.loads(line)
                rows.setdefault(str(row["id"]), row)
    except FileNotFoundError:
        pass
    chosen = [rows[i] for i in ids if i in rows] if ids else list(rows.values())
    for missing in (i for i in ids if i not in rows):
        print(f"No matching job found: {missing}", file=sys.stderr)
    for row in chosen:
        _fold(row["header"])
        for at, text in row["events"]:
            _fold(f"{time.strftime('%a %b %e %H:%M:%S', time.localtime(at))}: {text};")
        print(f"\nSummary of time in seconds spent in various states by  {time.strftime('%b %e %H:%M:%S')}")
        print("  PEND     RUN      TOTAL")
        print("  " + "".join(f"{s:<9.0f}" for s in (*row["seconds"], sum(row["seconds"]))))
        print("-" * 78)
    return 0 if chosen else 255


def _fold(text: str) -> None:
    print(text[:80])
    rest = text[80:]
    while rest:
        print(" " * 21 + rest[:59])
        rest = rest[59:]
