"""``torchx sweep``: launch a component once for each set of values, as one job."""

from __future__ import annotations

import argparse
import csv
import io
import itertools
import re
import sys
from collections.abc import Sequence
from typing import Any

from torchx.cli import spec_page
from torchx.cli.argparse_util import Row
from torchx.cli.cmd_run import CmdRun, call_runner
from torchx.cli.failures import UsageError, note
from torchx.cli.questions import asking_for_hours
from torchx.cli.render import document
from torchx.cli.run_args import TorchXRunArgs
from torchx.errors import SpecError
from torchx.runner import Runner, get_runner
from torchx.runner.show.json_output import handle_fields
from torchx.runner.sweeps.sweeps import check_job, submit
from torchx.specs import AppDryRunInfo
from torchx.specs.images import NamesOnly
from torchx.specs.tasks import NAME, TaskList
from torchx.util.records import replace
from torchx.util.term import is_tty

MAX_TASKS = 100_000
_EXAMPLE = "for example `--grid lr=1e-4,3e-4 --grid seed=0..99`"
_VALUE = r'(?:^|,)(?:"((?:[^"]|"")*)"(?=,|$)|([^,]*))'
_RANGE = r"(-?\d{1,18})\.\.(-?\d{1,18})(?:\.\.(\d{1,18}))?"
_HELP = """\
Runs a task for each point of the grid, or each row of the file. `{name}` in the arguments is replaced by a value:

  torchx sweep --grid lr=1e-4,3e-4 --grid seed=0..99 train.py --lr {lr} --seed {seed}
  torchx sweep --from params.csv --max-parallel 8 utils.python --script train.py -- --lr {lr}
  torchx sweep --retry-failed @last

Names are the columns of the .csv, or the keys of the .jsonl. Write `{{name}}` for the literal text `{name}`, and quote
values with commas: `--grid 'shape="8,8","16,16"'`. Options of torchx go before the component.
The command returns at once. A task is a job like any other: `torchx status SWEEP`, `torchx log SWEEP/17`,
`torchx cancel SWEEP` or `SWEEP/17`. A failed task does not end the others.
If the scheduler has no job arrays, or they cannot run these tasks, each task is a separate job; on a cluster, this
machine then submits them as limits permit."""


_POINTS: tuple[Row, ...] = (
    ("--grid", "NAME=V,V,...", "values, or a range such as 0..99; several are combined", {"action": "append"}),
    ("--from", "FILE", "rows of values, .csv or .jsonl", {"dest": "file"}),
    ("--max-parallel", "N", "run at most N tasks at a time", {"type": int}),
    ("--pack", "N", "run N tasks, one after another, in each element of a job array", {"type": int}),
    ("--max-tasks", "N", f"reject a sweep of more tasks (default {MAX_TASKS:,})", {"type": int}),
    ("--retry-failed", "SWEEP", "launch the failed, cancelled and lost tasks of a sweep again; give no component"),
)


class CmdSweep(CmdRun):
    def add_arguments(self, subparser: argparse.ArgumentParser) -> None:
        subparser.epilog = _HELP
        subparser.usage = "torchx sweep [options] COMPONENT|SCRIPT.py|-- PROGRAM [arguments with {name}]"
        self.declare(subparser, _POINTS)

    def go(self, runner: Runner, run_args: TorchXRunArgs, args: argparse.Namespace) -> None:
        tasks = _tasks(args)
        runner.check_sweep(tasks, run_args.scheduler)
        if run_args.dryrun or getattr(args, "manifest", False):
            with NamesOnly():
                info = call_runner(runner, "dryrun", run_args, sweep=True)
            _show(runner, info, tasks, args)
        else:
            _submit(runner, call_runner(runner, "dryrun", run_args, sweep=True), tasks, args)

    def _run(self, args: argparse.Namespace) -> None:
        if hasattr(args, "retry_failed"):
            _retry(args)
        else:
            super()._run(args)


def _show(runner: Runner, info: AppDryRunInfo[Any], tasks: TaskList, args: argparse.Namespace) -> None:
    try:
        check_job(info._app, tasks)
        as_json = getattr(args, "json", False)
        given = {name: getattr(args, name, False) for name in ("full", "manifest")}
        spec_page.show_dryrun(info, as_json=as_json, **given)
        note(f"{len(tasks.points):,} tasks; the first: {tasks.text(0)}; the last: {tasks.text(-1)}")
    finally:
        runner.discard(info)


def _tasks(args: argparse.Namespace) -> TaskList:
    width = getattr(args, "max_parallel", 0)
    if width < 1 and hasattr(args, "max_parallel"):
        raise UsageError(f"`--max-parallel {width}` lets no task run", hint="give 1 or more")
    given = vars(args)
    names, points = read_points(given.get("grid", []), given.get("file"), given.get("max_tasks", MAX_TASKS))
    return TaskList(names=names, points=points, max_parallel=width, pack=_pack(args, 1))


def _pack(args: argparse.Namespace, default: int) -> int:
    pack: int = getattr(args, "pack", default)
    if pack < 1:
        raise UsageError(f"`--pack {pack}` leaves no task in an element", hint="give 1 or more")
    return pack


def _retry(args: argparse.Namespace) -> None:
    for name in ("grid", "file", "component_name_and_args"):
        if getattr(args, name, None):
            raise UsageError("`--retry-failed` takes the component and its values from the sweep", hint="omit the rest")
    with get_runner() as runner:
        handle = runner.resolve(args.retry_failed)
        info, tasks = runner.retry_sweep(handle, max_parallel=getattr(args, "max_parallel", None))
        tasks = replace(tasks, pack=_pack(args, tasks.pack))
        _submit(runner, info, tasks, args)


def _submit(runner: Runner, info: AppDryRunInfo[Any], tasks: TaskList, args: argparse.Namespace) -> None:
    """Submit a sweep, and print its handle, alone on the last line of stdout, where programs read it."""
    with asking_for_hours(yes=getattr(args, "yes", False)):
        handle, count = submit(runner, info, tasks, typed=True), len(tasks.points)
    if getattr(args, "json", False):
        print(document({**handle_fields(handle), "tasks": count}))
        return
    if is_tty(sys.stderr):
        note(f"Launched {count:,} tasks · torchx status @last · torchx log @last/0")
    print(handle, flush=True)


# -- the points of a sweep, from --grid and --from -----------------------------------------------------------


def read_points(grids: Sequence[str], path: str | None, most: int) -> tuple[list[str], list[tuple[str, ...]]]:
    """Return the names and the values of each task: the product of the file's rows and the grid's points.

    A grid is ``name=value,value,...``; a value may be a range, ``0..99``, or in double quotes. The file ends in
    ``.csv`` or ``.jsonl``. No tasks, or more than ``most``, are a UsageError.

    >>> read_points(["lr=1e-4,3e-4", "seed=0..1"], None, 10)
    (['lr', 'seed'], [('1e-4', '0'), ('1e-4', '1'), ('3e-4', '0'), ('3e-4', '1')])
    """
    names, rows = _read_file(path) if path else ([], [()])
    columns = [_column(text, most) for text in grids]
    for name, _ in columns:
        if name in names:
            raise UsageError(f"`{name}` is given twice", hint="put all its values into one `--grid`")
        names.append(name)
    total = len(rows)
    for _, values in columns:
        total *= len(values)
    if not names or not total:
        raise UsageError("the sweep has no tasks", hint=f"{_EXAMPLE}, before what is to run")
    if total > most:
        raise _too_many(total, most)
    grid = list(itertools.product(*(values for _, values in columns)))
    return names, [(*row, *point) for row in rows for point in grid]


def _column(text: str, most: int) -> tuple[str, Sequence[str]]:
    name, equals, values = text.partition("=")
    if not equals:
        raise UsageError(f"`--grid {text}` has no `=`", hint=_EXAMPLE)
    if not re.fullmatch(NAME, name, re.ASCII):
        raise UsageError(f"`--grid {text}`: `{name}` is not a name", hint="a letter, then letters, digits, `_.-`")
    if not values:
        raise UsageError(f"`--grid {text}` has no values", hint=_EXAMPLE)
    found: list[str] = []
    for value, quoted in _split(values, text):
        span = None if quoted else re.fullmatch(_RANGE, value)
        found += _range(span, text, most) if span else [value]
    return name, found


def _split(values: str, text: str) -> list[tuple[str, bool]]:
    """Split values at commas outside double quotes; return each with whether it was quoted."""
    found = []
    for match in re.finditer(_VALUE, values):
        if (match[2] or "").startswith('"'):
            raise UsageError(f"`--grid {text}`: a quote is not closed", hint='write `""` for one within quotes')
        found.append((match[2], False) if match[1] is None else (match[1].replace('""', '"'), True))
    return found


def _range(span: re.Match[str], text: str, most: int) -> list[str]:
    first, last, step = int(span[1]), int(span[2]), int(span[3] or 1)
    if not step:
        raise UsageError(f"`--grid {text}`: the step of a range is 0")
    if last < first:
        raise UsageError(f"`--grid {text}`: the range `{span[0]}` is empty", hint="write the smaller number first")
    count = (last - first) // step + 1
    if count > most:
        raise _too_many(count, most)
    return [str(number) for number in range(first, last + 1, step)]


def _too_many(total: int, most: int) -> UsageError:
    return UsageError(
        f"the sweep would have {total:,} tasks, and at most {most:,} are submitted",
        hint=f"`--max-tasks {total}` raises the limit",
    )


# -- files ----------------------------------------------------------------------------------------------------


def _read_file(path: str) -> tuple[list[str], list[tuple[str, ...]]]:
    try:
        with open(path, encoding="utf-8-sig", newline="") as f:
            text = f.read()
    except (OSError, UnicodeDecodeError) as e:
        why = e.strerror if isinstance(e, OSError) else "it is not UTF-8"
        raise SpecError(f"`--from {path}` cannot be read: {why}", hint="its rows are the tasks, as CSV or JSONL") from e
    if path.endswith(".csv"):
        names, rows = _read_csv(path, text)
    elif path.endswith((".jsonl", ".ndjson")):
        names, rows = _read_jsonl(path, text)
    else:
        raise UsageError(f"`--from {path}`: unknown file format", hint="its name must end in .csv or .jsonl")
    if not rows:
        raise SpecError(f"`{path}` has no rows", hint="a row is a task")
    return names, rows


def _read_csv(path: str, text: str) -> tuple[list[str], list[tuple[str, ...]]]:
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    names: list[str] = []
    rows = []
    began = 0
    try:
        for row in reader:
            began = reader.line_num
            if not row:
                continue
            if not names:
                names = _checked_names([name.strip() for name in row], path, reader.line_num)
            elif len(row) != len(names):
                raise SpecError(
                    f"line {reader.line_num} of `{path}` has {len(row)} {'value' if len(row) == 1 else 'values'}, and"
                    f" its first line {len(names)} names",
                    hint="put a value with a comma into double quotes",
                )
            else:
                rows.append(tuple(row))
    except csv.Error as e:
        raise SpecError(
            f"the row that begins in line {began + 1} of `{path}` is not valid CSV: {e}",
            hint='a value in double quotes ends with one; write `""` for one within it',
        ) from e
    return names, rows


def _read_jsonl(path: str, text: str) -> tuple[list[str], list[tuple[str, ...]]]:
    import json

    names: list[str] = []
    rows = []
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        example = 'for example {"lr": 1e-4, "seed": 0}'
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as e:
            raise SpecError(f"line {number} of `{path}` is not valid JSON: {e}", hint=example) from e
        if not isinstance(row, dict):
            raise SpecError(f"line {number} of `{path}` is not an object", hint=example)
        names = names or _checked_names(list(row), path, number)
        if set(row) != set(names):
            name = sorted(set(row) ^ set(names))[0]
            raise SpecError(
                f"line {number} of `{path}`: `{name}` is not in all rows", hint="all rows need the same names"
            )
        rows.append(tuple(_text(row[name], number, path) for name in names))
    return names, rows


def _text(value: Any, number: int, path: str) -> str:
    """Format a JSON value for a command line."""
    import json

    if isinstance(value, str):
        return value
    if value is None:
        raise SpecError(f"line {number} of `{path}` has a value that is null", hint='write "" for an empty value')
    return json.dumps(value, ensure_ascii=False)


def _checked_names(names: list[str], path: str, number: int) -> list[str]:
    for name in names:
        if not re.fullmatch(NAME, name, re.ASCII):
            header = "the first line names the columns, with commas between them"
            raise SpecError(
                f"line {number} of `{path}`: `{name}` is not a name",
                hint=header if path.endswith(".csv") else "start it with a letter",
            )
        if names.count(name) > 1:
            raise SpecError(f"line {number} of `{path}`: duplicate name `{name}`", hint="a name is one column")
    return names
