"""Sweeps on LSF: job arrays as large as the site allows, submitted all or none; each task is a replica of one job.

https://www.ibm.com/docs/en/spectrum-lsf/10.1.0?topic=administration-job-arrays
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from torchx.errors import NotSupportedError
from torchx.schedulers.api import DescribeAppResponse
from torchx.schedulers.batch.folders import JobFolder, folder_name, read_whole
from torchx.schedulers.batch.order import with_hooks
from torchx.schedulers.kit.secrets import split
from torchx.schedulers.kit.shell import quote, read_script
from torchx.schedulers.kit.tasks import (
    check_numbers,
    describe_sweep,
    describe_task,
    only_role,
    shell_words,
    values_line,
)
from torchx.schedulers.lsf.answers import Exit
from torchx.schedulers.lsf.options import Opts, in_docker
from torchx.schedulers.lsf.parse import ENDS, Row, group_of, job_name
from torchx.schedulers.lsf.reasons import app_state
from torchx.schedulers.lsf.replicas import READ_ONLY
from torchx.settings import ENV_JOB_ID
from torchx.specs.api import AppDef, AppState, Role, is_terminal
from torchx.specs.tasks import TaskList, TaskTable
from torchx.util.records import dataclass, replace

if TYPE_CHECKING:
    from torchx.schedulers.batch.sites import Run
    from torchx.schedulers.kit.facts import JobFacts, Look

SWEEP_FILE = "sweep"
"""File in the folder of a sweep: the limit of running tasks, the size of an array, and the tasks in an element."""
VALUES_FILE = "values"
SKIPPED = "skipped."
"""Begin of the names of files for tasks that were cancelled, of elements with several tasks."""
_ENDS = "ends."
_DEFAULT_MAX = 1000  # LSF's default for MAX_JOB_ARRAY_SIZE
_TASK = "@TORCHX_TASK@"
_CANCELLED = "TERM_OWNER: job killed by owner"


def check(app: AppDef | None, cfg: Opts) -> None:
    """Raise NotSupportedError for a job that cannot be the task of an array."""
    role = only_role(app, "lsf", timeout=True)
    if in_docker(cfg):
        raise NotSupportedError("the tasks of job arrays on LSF do not run in containers")
    if hidden := split(role.env)[1]:
        raise NotSupportedError(f"job arrays on LSF take no secrets: {', '.join(f'`{name}`' for name in hidden)}")
    if fixed := READ_ONLY.intersection(role.env):
        raise NotSupportedError(f"bash does not allow `{min(fixed)}` to be set")


def most_tasks(run: Run) -> int:
    """Return the maximum size of an array on this cluster, and its highest index."""
    found = re.search(r"MAX_JOB_ARRAY_SIZE\s*=\s*(\d+)", run(["bparams", "-l"]).stdout)
    return max(int(found[1]), 1) if found else _DEFAULT_MAX


@dataclass(kw_only=True)
class Arrays:
    """The job arrays of a sweep, with at most ``size`` elements in each."""

    tasks: TaskList
    size: int

    def files(self) -> dict[str, str]:
        """Files for the job's folder, beside the scripts."""
        values = "".join(map(values_line, self.tasks.points))
        pack = f" {self.tasks.pack}" if self.tasks.pack > 1 else ""
        return {VALUES_FILE: values, SWEEP_FILE: f"{self.tasks.max_parallel} {self.size}{pack}\n"}

    def bsubs(self, app_id: str, role: Role, cfg: Opts) -> list[str]:
        """Return the lines that submit the arrays.

        Several are on hold; with a limit each waits for the previous one.
        """
        from torchx.schedulers.lsf.request import get_bsub

        count, width = -(-len(self.tasks.points) // self.tasks.pack), self.tasks.max_parallel
        lines, before = [], ""
        for first in range(0, count, self.size):
            name = job_name(app_id, 0, role.name, first)
            elements = f"[1-{min(self.size, count - first)}]" + (f"%{width}" if width else "")
            after = f'ended("{before}")' if width and before else ""
            hold = name if count > self.size else ""
            lines.append(get_bsub(app_id, name, role, cfg, hold, "", after, elements=elements))
            before = name
        return lines

    def script(self, app_id: str, role: Role) -> str:
        """Return the script of all array elements; its arguments are the numbers of the role and the first element."""
        env = dict(role.env)
        if ENV_JOB_ID in env:
            env[ENV_JOB_ID] = f"{env[ENV_JOB_ID]}/{_TASK}"
        assignments, words = shell_words(self.tasks.names, env, [role.entrypoint, *role.args], {_TASK: "k"})
        name, pack = quote(folder_name(role.name)), self.tasks.pack
        one = f"role=0 k=$(($2 + LSB_JOBINDEX - 1)); folder={name}/$k"
        several = f"role=0 pack={pack} tasks={len(self.tasks.points)}"
        lines = [
            "#!/bin/bash",
            f"# The tasks of torchx job {app_id}.",
            f"app={quote(app_id)} group={quote(group_of(app_id))} own_network= python=",
            with_hooks(read_script(__file__, "replica.sh").strip(), False),
            read_script(__file__, "task.sh").strip(),
            *([read_script(__file__, "pack.sh").strip()] if pack > 1 else ()),
            several if pack > 1 else one,
            f"cwd={quote(role.image)}" if posixpath.isabs(role.image) else "cwd=$PWD",
            "torchx_task() {" if pack > 1 else "torchx_program() {",
            "torchx_values",
            *assignments,
            f"exec -- {' '.join(words)}",
            "}",
            f'torchx_element "$2" {name}' if pack > 1 else "torchx_run",
        ]
        return "\n".join(lines) + "\n"


# -- what became of them --------------------------------------------------------------------------------------


def size_of(note: str) -> tuple[int, int, int]:
    """Limit of running tasks, array size and tasks in an element from :data:`SWEEP_FILE`; no size if it is empty.

    >>> size_of("2 1000"), size_of("0 1000 4"), size_of("")
    ((2, 1000, 1), (0, 1000, 4), (0, 0, 1))
    """
    words = note.split()
    if len(words) not in (2, 3) or not all(map(str.isdecimal, words)):
        return 0, 0, 1
    return int(words[0]), int(words[1]), int(words[2]) if len(words) == 3 else 1


def report_name(k: int, size: int) -> str:
    """Return the name of LSF's report about an element.

    >>> report_name(1002, 1000)
    '0.1000.3'
    """
    return f"0.{k - k % size}.{k % size + 1}"


def ends_of(folder: JobFolder) -> dict[tuple[int, int], Exit]:
    """How tasks ended that recorded it, by the numbers of role and task."""
    paths = [folder.file(n) for n in folder.files.names(folder.path) if n.startswith(_ENDS)]
    found = {}
    for data in read_whole(folder.files, paths).values():
        for line in data.decode("utf-8", "replace").splitlines():
            k, _, rest = line.partition(" ")
            if k.isdecimal() and (left := Exit.parse(rest)) is not None:
                found[0, int(k)] = left
    return found


def tasks_of(
    rows: Sequence[Row], exits: Mapping[tuple[int, int], Exit], folder: JobFolder, roles: Sequence[Role], pack: int
) -> list[Row]:
    """Return the tasks of these elements, which run one after another, as rows of LSF."""
    names = folder.files.names(folder.path)
    stopped = {int(n.removeprefix(SKIPPED)) for n in names if re.fullmatch(rf"{re.escape(SKIPPED)}\d+", n)}
    count = sum(role.num_replicas for role in roles)
    found = []
    for row in rows:
        before = False  # another task of this element runs
        waits = app_state(row.stat) in (AppState.PENDING, AppState.UNKNOWN)
        for k in range(row.k * pack, min((row.k + 1) * pack, count)):
            left, task = exits.get((0, k)), replace(row, k=k)
            if left is not None and (not left.killed or k in stopped or row.stat in ENDS):
                reason = _CANCELLED if k in stopped else row.exit_reason if left.killed else ""
                code = str(left.code) if left.code else ""
                task = replace(task, stat="EXIT" if code else "DONE", exit_code=code, exit_reason=reason, ended=left.at)
            elif k in stopped and (before or waits or row.stat in ENDS):
                task = replace(task, stat="EXIT", exit_code="", exit_reason=_CANCELLED)
            elif before:
                task = replace(task, stat="PEND", hosts=(), pend_reason="", started=None)
            else:
                before = not waits and row.stat not in ENDS
            found.append(task)
    return found


def describe(facts: JobFacts, width: int) -> DescribeAppResponse:
    """Return the answer for the sweep, with its replicas as tasks. A task on an unresponsive host counts as running."""
    replicas = facts.replicas()
    table = TaskTable(
        states=[AppState.RUNNING if r.state is AppState.UNKNOWN else r.state for r in replicas],
        exit_codes=[0 if r.state is AppState.SUCCEEDED else r.exit_code for r in replicas],
        ended=[r.ended if is_terminal(r.state) else 0.0 for r in replicas],
        max_parallel=width,
    )
    answer = describe_sweep(facts.app_id, table)
    answer.roles = list(facts.definition)
    return answer


def describe_some(facts: JobFacts, numbers: Sequence[int], look: Look) -> list[DescribeAppResponse]:
    """Return the answers for some tasks, with their causes."""
    replicas = facts.replicas()
    check_numbers(facts.app_id, numbers, len(replicas))
    return [describe_task(f"{facts.app_id}/{k}", replicas[k], look) for k in numbers]
