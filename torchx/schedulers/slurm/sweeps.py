"""Sweeps on Slurm: job arrays of a size that the cluster accepts, with their script and values in one folder.

The app id is ``sweep-`` and the id of the first array; ``array.sh`` says how later arrays are submitted. A task of
several replicas, or in containers, runs the script of a job in its own folder ``tasks/17/``: it is the job ``4711_17``.
"""

from __future__ import annotations

import copy
import posixpath
import re
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from torchx.errors import NotSupportedError
from torchx.schedulers.api import DescribeAppResponse
from torchx.schedulers.batch.folders import JobFolder, LogPaths, ends_of, folder_name
from torchx.schedulers.batch.inherit import RULES
from torchx.schedulers.batch.logs import BatchLog, check_query
from torchx.schedulers.kit.commands import Completed
from torchx.schedulers.kit.facts import ReplicaFacts
from torchx.schedulers.kit.failures import Evidence, signal_name
from torchx.schedulers.kit.logs import LogQuery
from torchx.schedulers.kit.secrets import split
from torchx.schedulers.kit.shell import quote, read_script
from torchx.schedulers.kit.tasks import check_numbers, describe_sweep, describe_task, shell_words, values_line
from torchx.schedulers.slurm.client import NO_SUCH_JOB
from torchx.schedulers.slurm.events import SWEEP_PREFIX
from torchx.schedulers.slurm.reasons import app_state
from torchx.schedulers.slurm.request import (
    APP_ID,
    RDZV_ID,
    SAMPLER_FILE,
    SCRIPT_FILE,
    SlurmBatchRequest,
    SlurmReplicaRequest,
    choice_of_folder,
    directive,
    group_options,
)
from torchx.settings import ENV_JOB_ID
from torchx.specs.api import AppDef, AppState, is_terminal
from torchx.specs.handles import JobId
from torchx.specs.tasks import TaskList, TaskTable, fill_in
from torchx.specs.wishes.scripts import is_script
from torchx.util.records import dataclass, replace

if TYPE_CHECKING:
    from torchx.schedulers.batch.base import Submission
    from torchx.schedulers.batch.sites import Run

ARRAY_FILE = "array.sh"
VALUES_FILE = "values"
CHUNKS_FILE = "chunks"
_CANCELLED, _SKIPPED, _ENDS = "cancelled", "skipped.", "ends."
_TERMINATED = 143  # exit code that array.sh records for a task that got SIGTERM
_WHOLE = [
    'mkdir -p "tasks/$k" && ln -sfn ../../job.json ../../metrics.py "tasks/$k" && cd "tasks/$k" || exit 78',
    'export v_task="$app_id/$k" "${!v_@}"',
    "exec bash ../../job.sh",
]
_NUMBER = "@TORCHX_TASK@"
_WHICH = "\ue001task\ue001"
_LATE = {APP_ID: "app_id", RDZV_ID: "SLURM_JOB_ID", _NUMBER: "k"}
_DEFAULT_MAX = 1001  # Slurm's default for MaxArraySize
NO_ROOM = re.compile(r"job submit limit|SubmitJobsPer|MaxSubmitJob|GrpSubmit|job array specification", re.IGNORECASE)
"""Matches rejections of an array because of a limit on the user's jobs or on the array's size."""

_ELEMENT = re.compile(r"(\d+)_(?:(\d+)|\[([^\]%]*)(?:%\d+)?\])$")


@dataclass(kw_only=True)
class Arrays:
    """The job arrays of a sweep, with at most ``size`` tasks in each."""

    tasks: TaskList
    size: int

    def submission(self, made: Submission, request: SlurmBatchRequest) -> Submission:
        """Return the submission of the first array instead of the single job, with the files for all arrays."""
        replica = next(iter(request.replicas.values()))
        count = min(self.size, -(-len(self.tasks.points) // self.tasks.pack))
        folder = made.folder
        width = f"%{self.tasks.max_parallel}" if self.tasks.max_parallel else ""
        output = f"{posixpath.join(folder, folder_name(replica.role)).replace('%', '%%')}/0+%a.log"
        argv = [*request.cmd, f"--chdir={folder}", f"--output={output}", f"--array=0-{count - 1}{width}"]
        files = {
            **{name: text for name, text in made.files.items() if name == SAMPLER_FILE},
            ARRAY_FILE: render(request, replica, self.tasks, self.size, made.without),
            VALUES_FILE: "".join(values_line(point) for point in self.tasks.points),
            f"{folder_name(replica.role)}/.logs": "",  # creates the folder, which Slurm does not
        }
        if is_whole(request):
            files[SCRIPT_FILE] = render_whole(request, self.tasks)
        return replace(made, argv=[*argv, f"{folder}/{ARRAY_FILE}", "0"], files=files)


def check(request: SlurmBatchRequest, app: AppDef | None) -> None:
    """Raise NotSupportedError for a job that cannot be the task of an array."""
    if app is not None and is_script(app.roles):
        raise NotSupportedError("a batch script of your own is not the task of a job array")
    if request.inside[0]:
        raise NotSupportedError("job arrays do not run within an allocation")
    if request.spares:
        raise NotSupportedError("the tasks of job arrays have no spare nodes")
    if request.retry or request.max_retries:
        raise NotSupportedError("the tasks of job arrays are not started again")
    if request.is_watched:
        raise NotSupportedError("the tasks of job arrays are not watched", hint="omit `--watchdog` and `--idle`")
    if request.order and not is_whole(request):
        raise NotSupportedError("a task with one replica has no `ready` or `ends_job`", hint="omit them")
    replicas = request.replicas.values()
    if len({str(replica.sbatch_opts) for replica in replicas}) > 1:
        raise NotSupportedError("the roles need different nodes, but all tasks of a job array get the same kind")
    if hidden := [name for replica in replicas for name in split(replica.env)[1]]:
        raise NotSupportedError(f"job arrays on Slurm take no secrets: {', '.join(f'`{name}`' for name in hidden)}")


def is_whole(request: SlurmBatchRequest) -> bool:
    """Whether each task is a complete job with steps and a folder of its own, because it has replicas or containers."""
    return len(request.replicas) > 1 or any(replica.container for replica in request.replicas.values())


def render_whole(request: SlurmBatchRequest, tasks: TaskList) -> str:
    """Return the script of a job for a task, with its values in the variables ``v_0`` and so on."""
    # `quote` puts words with this character in single quotes.
    marks = {name: f"\ue001{i}\ue001" for i, name in enumerate(tasks.names)}
    made = copy.deepcopy(request)
    for replica in made.replicas.values():
        fill_in(replica, marks)
        if ENV_JOB_ID in replica.env:  # use the id of the task, not of the array element
            replica.env[ENV_JOB_ID] = replica.env[ENV_JOB_ID].replace(APP_ID, _WHICH)
    script = made.materialize()
    for name, mark in ("task", _WHICH), *enumerate(marks.values()):
        script = script.replace(mark, f"'\"${{v_{name}}}\"'")
    return script


def render(
    request: SlurmBatchRequest, replica: SlurmReplicaRequest, tasks: TaskList, size: int, hidden: Iterable[str] = ()
) -> str:
    """Return the script of all arrays of a sweep; ``hidden``: variables that ``sbatch`` does not get."""
    head, program = read_script(__file__, ARRAY_FILE).split("# @JOB@\n")
    lines = [
        "#!/bin/bash",
        directive({"job-name": request.name, "open-mode": "append"}),
        directive(group_options(request, [*request.replicas.values()])),
        "# Written by torchx. The working directory of the batch job is its folder.",
        head.strip(),
        f"count={-(-len(tasks.points) // tasks.pack)} size={size} width={tasks.max_parallel or ''}",
        f"tasks={len(tasks.points)} pack={tasks.pack}",
        f"name={quote(request.name)} role={quote(folder_name(replica.role))}",
        f"every={f'{request.sample_s:g}' if request.sample_s and not is_whole(request) else ''}",
        f"kept={quote(' '.join(RULES['slurm'].kept))} hidden={quote(' '.join(hidden))}",
        "task() {",
        *(f"  {line}" for line in (_WHOLE if is_whole(request) else _program(request, replica, tasks))),
        "}",
        program.strip(),
    ]
    return "\n".join(lines) + "\n"


def _program(request: SlurmBatchRequest, replica: SlurmReplicaRequest, tasks: TaskList) -> list[str]:
    """Shell lines that run a single-process task, which needs no step."""
    words, env = (replica.entrypoint, *replica.args), split(replica.env)[0]
    if ENV_JOB_ID in env:
        env = {**env, ENV_JOB_ID: f"{env[ENV_JOB_ID]}/{_NUMBER}"}
    assignments, words_of_task = shell_words(tasks.names, env, words, _LATE)
    return [*assignments, choice_of_folder(replica, request.cwd), f"set -- {' '.join(words_of_task)}", 'run "$@"']


def most_tasks(run: Run) -> int:
    """Return the maximum number of tasks in an array on this cluster."""
    found = re.search(r"MaxArraySize\s*=\s*(\d+)", run(["scontrol", "show", "config"]).stdout)
    return max(int(found[1]), 1) if found else _DEFAULT_MAX


# -- what became of them --------------------------------------------------------------------------------------


class Sweep:
    """One sweep, from its folder and Slurm; ``app_id`` is ``sweep-`` and the id of its first array.

    Attributes:
        count: number of tasks; 0 if the folder is gone.
        pack: number of tasks that each element of an array runs.
        chunks: first element, number of elements and id of each array.
    """

    def __init__(self, app_id: str, folder: JobFolder, run: Run) -> None:
        self.app_id, self.folder = app_id, folder
        self._run = run
        script = self.folder.text(ARRAY_FILE)
        found = re.search(r"^count=(\d+) size=(\d+) width=(\d*)$", script, re.MULTILINE)
        self._elements, self._size, self._width = (int(word or 0) for word in found.groups()) if found else (0, 0, 0)
        packed = re.search(r"^tasks=(\d+) pack=(\d+)$", script, re.MULTILINE)  # not by an earlier version
        self.count, self.pack = (int(packed[1]), int(packed[2])) if packed else (self._elements, 1)
        self.chunks = self._chunks()

    def look(self) -> TaskTable | None:
        """Return the states of the tasks; None if the folder is gone.

        It takes one query, or none after all tasks have recorded their ends by themselves. Tasks without such a record,
        because they were killed, take further queries.
        """
        count = self.count
        if not count:
            return None
        ends, active, stopped = self._ends(), {}, self._stopped()
        if not self._is_certain(ends, stopped):
            elements, ends = self._active(), self._ends()  # in this order: a task may end in between
            active = self._tasks_of(elements, ends, stopped)
        submitted = min(sum(n for _, n, _ in self.chunks) * self.pack, count)
        silent = not all(k in ends or k in active or k in stopped for k in range(submitted))
        # killed, or their records are not visible here yet
        known = self._tasks_of(self._accounted(), {}, ()) if silent else {}
        states = [AppState.PENDING] * count
        table = TaskTable(states=states, exit_codes=[None] * count, ended=[0.0] * count, max_parallel=self._width)
        for k in range(count):
            if k in ends and not (k in active and ends[k][0] == _TERMINATED):
                code, table.ended[k] = ends[k]
                table.exit_codes[k] = code if code <= 128 else 128 - code
                failed = AppState.CANCELLED if code == _TERMINATED and k in stopped else AppState.FAILED
                states[k] = AppState.SUCCEEDED if code == 0 else failed
            elif k in active:
                states[k] = active[k]
            elif k in stopped:
                states[k] = AppState.CANCELLED
            elif k < submitted:
                seen = known.get(k, AppState.UNKNOWN)
                states[k] = seen if is_terminal(seen) else AppState.UNKNOWN
                table.exit_codes[k] = 0 if seen is AppState.SUCCEEDED else None
        return table

    def is_over(self) -> bool:
        """Whether every task has recorded its end."""
        notes = [self.folder.text(name) for name in self.folder.files.names(self.folder.path) if name.startswith(_ENDS)]
        # count tasks, not lines: a restarted task may have recorded two ends
        if not 0 < self.count <= sum(text.count("\n") for text in notes):
            return False
        return self._is_certain(self._ends(), self._stopped())

    def _is_certain(self, ends: Mapping[int, tuple[int, float]], stopped: Container[int]) -> bool:
        """Whether all tasks have ended for good: Slurm may start one again that it has terminated."""
        certain = (k for k, (code, _) in ends.items() if code != _TERMINATED or k in stopped)
        return sum(1 for _ in certain) >= self.count

    def more(self, table: TaskTable) -> None:
        """Submit the remaining arrays if the last task of the previous one did not do so."""
        submitted = sum(n for _, n, _ in self.chunks) * self.pack
        is_due = submitted < len(table.states) and not self._has(_CANCELLED)
        if is_due and (submitted == 0 or is_terminal(table.states[submitted - 1])):
            self.submit_more()

    def submit_more(self) -> None:
        """Submit as many arrays as the cluster accepts."""
        self._run(["bash", self.folder.file(ARRAY_FILE), "more", self.app_id.removeprefix(SWEEP_PREFIX)])
        self.chunks = self._chunks()

    def cancel(self) -> Completed:
        """Stop the submission of arrays; return the answer of the command that cancels the others."""
        self._write(_CANCELLED, b"")
        return self._run(["scancel", *(job_id for _, _, job_id in self._chunks())])

    def cancel_task(self, k: int) -> Completed | None:
        """Keep a task from starting; return the answer of the command that cancels it if it was submitted."""
        self._write(f"{_SKIPPED}{k}", b"")
        if self.pack > 1:  # its element sees the file, and goes on with the next task
            return None
        self.chunks = self._chunks()
        element = self.element(k)
        return self._run(["scancel", element]) if element else None

    def job_ids(self, app_id: str) -> list[str]:
        """Slurm's ids of the sweep or its task, for dependencies; raises NotSupportedError if it has none yet."""
        task = JobId.of(app_id).task
        last = self.count - 1 if task is None else task
        check_numbers(self.app_id, [last], self.count)
        if not self.element(last):
            self.submit_more()
        ids = [self.element(last)] if task is not None or not self.element(last) else [i for _, _, i in self.chunks]
        if not all(ids):
            raise NotSupportedError(
                f"tasks of `{app_id}` have not been submitted to Slurm yet, so no job can depend on them",
                hint=f"wait here: `torchx wait {self.app_id} && torchx run ...`",
            )
        return ids

    def is_whole(self) -> bool:
        """Whether each task is a complete job with a folder of its own."""
        return self._has(SCRIPT_FILE)

    def task_folder(self, k: int) -> JobFolder:
        """Return the folder of a task that is a complete job."""
        return JobFolder(self.folder.files, posixpath.join(self.folder.path, "tasks", str(k)))

    def element(self, k: int) -> str:
        """Slurm's id of a task; empty if it has not been submitted."""
        first, job_id = self._array_of(k // self.pack)
        return f"{job_id}_{k // self.pack - first}" if job_id else ""

    def log_path(self, role: str, k: int) -> LogPaths:
        """Return the file for both streams of a task."""
        element, at = divmod(k, self.pack)
        first, _ = self._array_of(element)
        name = f"{first}+{element - first}.log" if self.pack == 1 else f"{first}+{element - first}.{at}.log"
        return LogPaths(posixpath.join(self.folder.path, folder_name(role), name))

    def _array_of(self, element: int) -> tuple[int, str]:
        """First element and id of the array that contains an element; the id is empty if there is none yet."""
        return next(((first, job_id) for first, n, job_id in self.chunks if first <= element < first + n), (0, ""))

    def _tasks_of(
        self, elements: Mapping[int, AppState], ends: Mapping[int, tuple[int, float]], stopped: Container[int]
    ) -> dict[int, AppState]:
        """Return the states of the tasks of these elements; those that have ended in a running element are left out."""
        if self.pack == 1:
            return {**elements}
        found: dict[int, AppState] = {}
        for element, state in elements.items():
            busy = False  # with an earlier task: they run one after another
            for k in range(element * self.pack, min((element + 1) * self.pack, self.count)):
                if k in ends and (ends[k][0] != _TERMINATED or k in stopped):
                    continue
                if k in stopped and (busy or state is AppState.PENDING):
                    continue  # it will not start
                found[k] = AppState.PENDING if busy else state
                busy = state is AppState.RUNNING
        return found

    def _write(self, name: str, data: bytes) -> None:
        self.folder.files.write(self.folder.file(name), data)

    def _chunks(self) -> list[tuple[int, int, str]]:
        lines = [line.split() for line in self.folder.text(CHUNKS_FILE).splitlines()]
        found = [(int(w[0]), int(w[1]), w[2]) for w in lines if len(w) == 3 and all(map(str.isdigit, w))]
        return found or [(0, min(self._elements, self._size), self.app_id.removeprefix(SWEEP_PREFIX))]

    def _has(self, name: str) -> bool:
        return None not in self.folder.files.sizes([self.folder.file(name)]).values()

    def _stopped(self) -> Container[int]:
        """Return the tasks that were cancelled."""
        names = self.folder.files.names(self.folder.path)
        words = (name.removeprefix(_SKIPPED) for name in names if name.startswith(_SKIPPED))
        return range(self.count) if _CANCELLED in names else {int(word) for word in words if word.isdecimal()}

    def _ends(self) -> dict[int, tuple[int, float]]:
        """Exit code and time of each task that has recorded its end; of one that was started again, the last."""
        found: dict[int, tuple[int, float]] = {}
        for name in self.folder.files.names(self.folder.path):
            if name.startswith(_ENDS):
                for words in map(str.split, self.folder.text(name).splitlines()):
                    if len(words) == 3 and all(map(str.isdigit, words)):
                        k, code, at = int(words[0]), int(words[1]), float(words[2])
                        if k not in found or at >= found[k][1]:
                            found[k] = (code, at)
        return found

    def _active(self) -> dict[int, AppState]:
        ids = ",".join(job_id for _, _, job_id in self.chunks)
        whole = ["env", "SLURM_BITSTR_LEN=0"]  # otherwise Slurm truncates long lists of waiting tasks
        done = self._run([*whole, "squeue", "--noheader", f"--jobs={ids}", "--format=%i|%T"])
        if done.returncode and NO_SUCH_JOB.search(done.stderr):
            return {}
        return self._by_number(done.check().stdout)

    def _by_number(self, text: str) -> dict[int, AppState]:
        """Return the states of tasks, from lines ``7_3|RUNNING`` and ``7_[4-9,12%2]|PENDING``."""
        begins = {job_id: first for first, _, job_id in self.chunks}
        found: dict[int, AppState] = {}
        for line in text.splitlines():
            name, _, state = line.partition("|")
            match = _ELEMENT.match(name.strip())
            if match is None or match[1] not in begins:
                continue
            known = app_state(state.partition("|")[0])
            for low, high in _ranges(match[2] or match[3]):
                found.update(dict.fromkeys(range(begins[match[1]] + low, begins[match[1]] + high + 1), known))
        return found

    def _accounted(self) -> dict[int, AppState]:
        ids = ",".join(job_id for _, _, job_id in self.chunks)
        fields = ["--noheader", "--parsable2", "--delimiter=|", "--format=JobID,State"]
        found = self._by_number(self._run(["sacct", "--allocations", *fields, f"--jobs={ids}"]).stdout)
        late = self._run(["squeue", "--noheader", "--states=all", "--array", f"--jobs={ids}", "--format=%i|%T"])
        return {**found, **self._by_number(late.stdout)}

    # -- answers -----------------------------------------------------------------------------------------

    def describe(self) -> DescribeAppResponse | None:
        """Return the answer for the sweep. Submits arrays that are due."""
        table = self.look()
        if table is None:
            return None
        self.more(table)
        answer = describe_sweep(self.app_id, table)
        answer.roles = self.folder.roles()
        return answer

    def describe_some(self, table: TaskTable, numbers: Sequence[int]) -> list[DescribeAppResponse]:
        """Return the answers for some tasks, with their causes."""
        check_numbers(self.app_id, numbers, len(table.states))
        role = next((role.name for role in self.folder.roles()), "")
        answers = []
        for k in numbers:
            code = table.exit_codes[k]
            signal = signal_name(-code) if code is not None and code < 0 else ""
            facts = ReplicaFacts(
                role=role,
                replica=k,
                state=table.states[k],
                exit_code=None if signal else code,
                signal=signal,
                ended=table.ended[k],
                stopped=table.states[k] is AppState.CANCELLED,
            )
            answers.append(describe_task(f"{self.app_id}/{k}", facts, self._look))
        return answers

    def _look(self, replicas: Sequence[ReplicaFacts]) -> list[Evidence]:
        return ends_of(self.folder.files, [self.log_path(r.role, r.replica).stdout for r in replicas])

    def open_log(self, role: str, k: int, query: LogQuery, is_over: Callable[[], bool]) -> BatchLog:
        """Return the lines of one task that a query selects."""
        check_query(query)
        return BatchLog(self.folder.files, self.log_path(role, k), query, is_over)


def _ranges(text: str) -> list[tuple[int, int]]:
    """Return the numbers in ``4-9,12``. Slurm lists the elements of stepped ranges such as ``0-8:4`` individually.

    >>> _ranges("4-9,12")
    [(4, 9), (12, 12)]
    """
    return [(int(low), int(high or low)) for low, high in re.findall(r"(\d+)(?:-(\d+))?(?:,|$)", text)]


def id_of(job_id: str, folder: JobFolder) -> str:
    """Return the app id of a job, or of a sweep, whose submission was not answered."""
    (values,) = folder.files.sizes([folder.file(VALUES_FILE)]).values()
    return job_id if values is None else f"{SWEEP_PREFIX}{job_id}"
