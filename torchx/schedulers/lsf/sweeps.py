"""Sweeps on LSF: job arrays as large as the site allows, submitted all or none; a task is a replica of one job.

https://www.ibm.com/docs/en/spectrum-lsf/10.1.0?topic=administration-job-arrays
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from torchx.errors import NotSupportedError
from torchx.schedulers.api import DescribeAppResponse
from torchx.schedulers.batch.folders import JobFolder, folder_name, read_whole
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
from torchx.schedulers.lsf.replicas import READ_ONLY
from torchx.schedulers.lsf.rows import group_of, job_name
from torchx.settings import ENV_JOB_ID
from torchx.specs.api import AppDef, AppState, Role, is_terminal
from torchx.specs.tasks import TaskList, TaskTable
from torchx.util.records import dataclass

if TYPE_CHECKING:
    from torchx.schedulers.kit.commands import Completed
    from torchx.schedulers.kit.facts import JobFacts, Look
SWEEP_FILE = "sweep"
"""In the folder of a sweep: how many tasks run at the same time, and how many an array has."""
VALUES_FILE = "values"
_ENDS = "ends."
_USUAL_MOST = 1000  # tasks of an array, where the site does not say
_TASK = "@TORCHX_TASK@"


def check(app: AppDef | None, cfg: Opts) -> None:
    """Refuses a job that cannot be the task of an array.

    Raises:
        NotSupportedError: says why.
    """
    role = only_role(app, "lsf", timeout=True)
    if in_docker(cfg):
        raise NotSupportedError("the tasks of job arrays on LSF do not run in containers")
    if hidden := split(role.env)[1]:
        raise NotSupportedError(f"job arrays on LSF take no secrets: {', '.join(f'`{name}`' for name in hidden)}")
    if fixed := READ_ONLY.intersection(role.env):
        raise NotSupportedError(f"bash lets nobody set `{min(fixed)}`")


def most_tasks(run: Callable[[list[str]], Completed]) -> int:
    """How many tasks an array may have on this cluster, and the highest index that one may have."""
    found = re.search(r"MAX_JOB_ARRAY_SIZE\s*=\s*(\d+)", run(["bparams", "-l"]).stdout)
    return max(int(found[1]), 1) if found else _USUAL_MOST


@dataclass(kw_only=True)
class Arrays:
    """What a job is submitted as.

    Attributes:
        tasks: their values.
        size: of an array at most.
    """

    tasks: TaskList
    size: int

    def files(self) -> dict[str, str]:
        """What is put into the job's folder beside the scripts."""
        values = "".join(map(values_line, self.tasks.points))
        return {VALUES_FILE: values, SWEEP_FILE: f"{self.tasks.max_parallel} {self.size}\n"}

    def bsubs(self, app_id: str, role: Role, cfg: Opts) -> list[str]:
        """The lines that submit the arrays: several are on hold, and with a limit each waits for the one before."""
        from torchx.schedulers.lsf.request import get_bsub

        count, width = len(self.tasks.points), self.tasks.max_parallel
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
        """What every element of every array runs, with the numbers of the role and of the array's first task.

        Args:
            role: macros replaced.
        """
        env = dict(role.env)
        if ENV_JOB_ID in env:
            env[ENV_JOB_ID] = f"{env[ENV_JOB_ID]}/{_TASK}"
        assignments, words = shell_words(self.tasks.names, env, [role.entrypoint, *role.args], {_TASK: "k"})
        lines = [
            "#!/bin/bash",
            f"# The tasks of torchx job {app_id}.",
            f"app={quote(app_id)} group={quote(group_of(app_id))} own_network= python=",
            read_script(__file__, "replica.sh").strip(),
            read_script(__file__, "task.sh").strip(),
            f"role=0 k=$(($2 + LSB_JOBINDEX - 1)); folder={quote(folder_name(role.name))}/$k",
            f"cwd={quote(role.image)}" if posixpath.isabs(role.image) else "cwd=$PWD",
            "torchx_program() {",
            "torchx_values",
            *assignments,
            f"exec -- {' '.join(words)}",
            "}",
            "torchx_run",
        ]
        return "\n".join(lines) + "\n"


# -- what became of them --------------------------------------------------------------------------------------


def size_of(note: str) -> tuple[int, int]:
    """Tasks at the same time, and tasks of an array, out of :data:`SWEEP_FILE`; zeros where there is none.

    >>> size_of("2 1000"), size_of("")
    ((2, 1000), (0, 0))
    """
    words = note.split()
    return (int(words[0]), int(words[1])) if len(words) == 2 and all(map(str.isdecimal, words)) else (0, 0)


def report_name(k: int, size: int) -> str:
    """The name of LSF's report on a task.

    >>> report_name(1002, 1000)
    '0.1000.3'
    """
    return f"0.{k - k % size}.{k % size + 1}"


def ends_of(folder: JobFolder) -> dict[tuple[int, int], Exit]:
    """How the tasks ended that wrote it down, by the numbers of role and task."""
    paths = [posixpath.join(folder.path, n) for n in folder.files.names(folder.path) if n.startswith(_ENDS)]
    found = {}
    for data in read_whole(folder.files, paths).values():
        for line in data.decode("utf-8", "replace").splitlines():
            k, _, rest = line.partition(" ")
            if k.isdecimal() and (left := Exit.parse(rest)) is not None:
                found[0, int(k)] = left
    return found


def describe(facts: JobFacts, width: int) -> DescribeAppResponse:
    """The answer for the sweep, its replicas as tasks. Of one whose host is silent, LSF has the last word yet."""
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
    """The answers for some tasks, each with its cause."""
    replicas = facts.replicas()
    check_numbers(facts.app_id, numbers, len(replicas))
    return [describe_task(f"{facts.app_id}/{k}", replicas[k], look) for k in numbers]
