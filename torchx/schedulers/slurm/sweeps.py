"""Sweeps on Slurm: job arrays in chunks that the cluster takes, whose script and values lie in one folder."""

from __future__ import annotations

import copy
import posixpath
import re
from collections.abc import Callable, Container, Sequence
from typing import TYPE_CHECKING

from torchx.errors import CommandError, NotSupportedError
from torchx.schedulers.api import DescribeAppResponse
from torchx.schedulers.batch.folders import JobFolder, LogPaths, ends_of, folder_name
from torchx.schedulers.batch.logs import BatchLog, check_query
from torchx.schedulers.failures import Evidence, signal_name
from torchx.schedulers.kit.commands import Completed
from torchx.schedulers.kit.logs import LogQuery
from torchx.schedulers.kit.secrets import split
from torchx.schedulers.kit.shell import quote, read_script
from torchx.schedulers.kit.tasks import check_numbers, describe_sweep, describe_task, shell_words, values_line
from torchx.schedulers.slurm.client import NO_SUCH_JOB
from torchx.schedulers.slurm.reasons import app_state
from torchx.schedulers.slurm.request import (
    APP_ID,
    RDZV_ID,
    SAMPLER_FILE,
    SlurmBatchRequest,
    SlurmReplicaRequest,
    choice_of_folder,
    directive,
    group_options,
)
from torchx.settings import ENV_JOB_ID
from torchx.specs.api import AppDef, AppState, is_terminal
from torchx.specs.tasks import TaskList, TaskTable, fill_in
from torchx.util.records import dataclass, replace

if TYPE_CHECKING:
    from torchx.schedulers.batch.base import Submission
    from torchx.schedulers.kit.facts import ReplicaFacts
    from torchx.schedulers.kit.files import Files

    Run = Callable[[list[str]], Completed]

PREFIX = "sweep-"
"""How the app id of a sweep begins; the id of its first array follows."""

SCRIPT_FILE = "array.sh"
JOB_SCRIPT = "job.sh"
VALUES_FILE = "values"
CHUNKS_FILE = "chunks"
_CANCELLED, _SKIPPED, _ENDS = "cancelled", "skipped", "ends."
_WHOLE = [
    'mkdir -p "tasks/$k" && ln -sfn ../../job.json ../../metrics.py "tasks/$k" && cd "tasks/$k" || exit 78',
    'export v_task="$app_id/$k" "${!v_@}"',
    "exec bash ../../job.sh",
]
_NUMBER = "@TORCHX_TASK@"
_WHICH = "\ue001task\ue001"
_LATE = {APP_ID: "app_id", RDZV_ID: "SLURM_JOB_ID", _NUMBER: "k"}
_USUAL_MOST = 1001  # tasks of an array, where the cluster does not say
_NO_ROOM = re.compile(r"job submit limit|SubmitJobsPer|MaxSubmitJob|GrpSubmit|job array specification", re.IGNORECASE)
_ELEMENT = re.compile(r"(\d+)_(?:(\d+)|\[([^\]%]*)(?:%\d+)?\])$")


@dataclass(kw_only=True)
class Arrays:
    """What is put into the job's folder beside its definition, and the first array.

    Attributes:
        tasks: their values.
        size: of an array at most.
    """

    tasks: TaskList
    size: int

    def submission(self, made: Submission, request: SlurmBatchRequest) -> Submission:
        """The first array, in place of the job that the request is otherwise."""
        replica = next(iter(request.replicas.values()))
        count = min(self.size, len(self.tasks.points))
        folder = made.folder
        width = f"%{self.tasks.max_parallel}" if self.tasks.max_parallel else ""
        output = f"{folder.replace('%', '%%')}/{folder_name(replica.role)}/0+%a.log"
        argv = [*request.cmd, f"--chdir={folder}", f"--output={output}", f"--array=0-{count - 1}{width}"]
        files = {
            **{name: text for name, text in made.files.items() if name == SAMPLER_FILE},
            SCRIPT_FILE: render(request, replica, self.tasks, self.size),
            VALUES_FILE: "".join(values_line(point) for point in self.tasks.points),
            f"{folder_name(replica.role)}/.logs": "",  # the folder: Slurm itself makes none
        }
        if is_whole(request):
            files[JOB_SCRIPT] = render_whole(request, self.tasks)
        return replace(made, argv=[*argv, f"{folder}/{SCRIPT_FILE}", "0"], files=files)


def check(request: SlurmBatchRequest, app: AppDef | None) -> None:
    """Refuses a job that cannot be the task of an array.

    Raises:
        NotSupportedError: says why.
    """
    if request.retry or any(role.max_retries for role in (app.roles if app is not None else ())):
        raise NotSupportedError("the tasks of job arrays are not started again")
    replicas = request.replicas.values()
    if len({str(replica.sbatch_opts) for replica in replicas}) > 1:
        raise NotSupportedError("the roles need different nodes, and those of a job array are all alike")
    if hidden := [name for replica in replicas for name in split(replica.env)[1]]:
        raise NotSupportedError(f"job arrays on Slurm take no secrets: {', '.join(f'`{name}`' for name in hidden)}")


def is_whole(request: SlurmBatchRequest) -> bool:
    """Whether each task is what a job is otherwise, with steps and a folder of its own: replicas, or containers."""
    return len(request.replicas) > 1 or any(replica.container for replica in request.replicas.values())


def render_whole(request: SlurmBatchRequest, tasks: TaskList) -> str:
    """The script of a job, for a task whose values are in the variables ``v_0`` and so on."""
    # Each stands within single quotes: no word with such a character is plain.
    marks = {name: f"\ue001{i}\ue001" for i, name in enumerate(tasks.names)}
    made = copy.deepcopy(request)
    for replica in made.replicas.values():
        fill_in(replica, marks)
        if ENV_JOB_ID in replica.env:  # the job's own id is that of an element of an array, which nobody asks for
            replica.env[ENV_JOB_ID] = replica.env[ENV_JOB_ID].replace(APP_ID, _WHICH)
    script = made.materialize()
    for name, mark in ("task", _WHICH), *enumerate(marks.values()):
        script = script.replace(mark, f"'\"${{v_{name}}}\"'")
    return script


def render(request: SlurmBatchRequest, replica: SlurmReplicaRequest, tasks: TaskList, size: int) -> str:
    """The script of all arrays of a sweep."""
    head, program = read_script(__file__, SCRIPT_FILE).split("# @JOB@\n")
    lines = [
        "#!/bin/bash",
        directive({"job-name": request.name, "open-mode": "append"}),
        directive(group_options(request, [*request.replicas.values()])),
        "# Written by torchx. The working directory of the batch job is its folder.",
        head.strip(),
        f"count={len(tasks.points)} size={size} width={tasks.max_parallel or ''}",
        f"name={quote(request.name)} role={quote(folder_name(replica.role))}",
        f"every={f'{request.sample_s:g}' if request.sample_s and not is_whole(request) else ''}",
        "task() {",
        *(f"  {line}" for line in (_WHOLE if is_whole(request) else _program(request, replica, tasks))),
        "}",
        program.strip(),
    ]
    return "\n".join(lines) + "\n"


def _program(request: SlurmBatchRequest, replica: SlurmReplicaRequest, tasks: TaskList) -> list[str]:
    """What becomes of a task that is one process, which needs no step."""
    words, env = (replica.entrypoint, *replica.args), split(replica.env)[0]
    if ENV_JOB_ID in env:
        env = {**env, ENV_JOB_ID: f"{env[ENV_JOB_ID]}/{_NUMBER}"}
    assignments, words_of_task = shell_words(tasks.names, env, words, _LATE)
    return [*assignments, *choice_of_folder(replica, request.cwd), f"set -- {' '.join(words_of_task)}", 'run "$@"']


def most_tasks(run: Run) -> int:
    """How many tasks an array may have on this cluster."""
    found = re.search(r"MaxArraySize\s*=\s*(\d+)", run(["scontrol", "show", "config"]).stdout)
    return max(int(found[1]), 1) if found else _USUAL_MOST


def is_over_limit(error: CommandError) -> bool:
    """Whether an array was refused because the user may not have so many jobs, or it may not have so many tasks."""
    return bool(_NO_ROOM.search(str(error)))


# -- what became of them --------------------------------------------------------------------------------------


class Sweep:
    """One sweep, as its folder and Slurm say.

    Args:
        app_id: ``sweep-`` and the id of its first array.
        run: runs a command of Slurm's.

    Attributes:
        count: of its tasks; 0 when the folder is gone.
        chunks: first task, number of tasks and id of each array.
    """

    def __init__(self, app_id: str, folder: JobFolder, run: Run) -> None:
        self.app_id, self.folder = app_id, folder
        self._files: Files = folder.files
        self._run = run
        found = re.search(r"^count=(\d+) size=(\d+) width=(\d*)$", self._read(SCRIPT_FILE), re.MULTILINE)
        self.count, self._size, self._width = (int(word or 0) for word in found.groups()) if found else (0, 0, 0)
        self.chunks = self._chunks()

    def look(self) -> TaskTable | None:
        """What became of the tasks, by one question to Slurm, or none once all have noted their ends; None when the
        folder is gone.

        Tasks that ended without a word, for they were killed, cost a second one.
        """
        count = self.count
        if not count:
            return None
        ends, active = self._ends(), {}
        if len(ends) < count:
            active, ends = self._active(), self._ends()  # in this order: what ends after the question is in the notes
        stopped = self._stopped()
        submitted = sum(n for _, n, _ in self.chunks)
        silent = not all(k in ends or k in active or k in stopped for k in range(submitted))
        known = self._accounted() if silent else {}  # killed, or their notes are not visible here yet
        states = [AppState.PENDING] * count
        table = TaskTable(states=states, exit_codes=[None] * count, ended=[0.0] * count, max_parallel=self._width)
        for k in range(count):
            if k in ends:
                code, table.ended[k] = ends[k]
                table.exit_codes[k] = code if code <= 128 else 128 - code
                failed = AppState.CANCELLED if code > 128 and k in stopped else AppState.FAILED
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
        """Whether every task has noted its end."""
        notes = [self._read(name) for name in self._files.names(self.folder.path) if name.startswith(_ENDS)]
        # a task that was started again may have noted two
        return 0 < self.count <= sum(text.count("\n") for text in notes) and len(self._ends()) >= self.count

    def more(self, table: TaskTable) -> None:
        """Has the arrays submitted that are still to come, where the last task of those before did not do so."""
        submitted = sum(n for _, n, _ in self.chunks)
        is_due = submitted < len(table.states) and not self._is_cancelled()
        if is_due and (submitted == 0 or is_terminal(table.states[submitted - 1])):
            self.submit_more()

    def submit_more(self) -> None:
        """Has as many arrays submitted as the cluster takes."""
        self._run(["bash", posixpath.join(self.folder.path, SCRIPT_FILE), "more", self.app_id.removeprefix(PREFIX)])

    def begin(self) -> None:
        """Notes the first array down, and submits the others."""
        ((first, count, job_id),) = self.chunks
        self._write(CHUNKS_FILE, b"%d %d %s\n" % (first, count, job_id.encode()))
        if count < self.count:
            self.submit_more()

    def cancel(self) -> None:
        """No array is submitted any more, and those that are there are ended."""
        self._write(_CANCELLED, b"")
        self._run(["scancel", *(job_id for _, _, job_id in self._chunks())])

    def cancel_task(self, k: int) -> None:
        """Ends one task, or has it not begin."""
        self._write(_SKIPPED, self._read(_SKIPPED).encode() + b"%d\n" % k)
        self.chunks = self._chunks()
        if element := self.element(k):
            self._run(["scancel", element])

    def job_ids(self, app_id: str) -> list[str]:
        """What Slurm calls the sweep, or one of its tasks, for a job that waits for it.

        Raises:
            NotSupportedError: some of it has not been submitted yet.
        """
        task = app_id.partition("/")[2]
        if task.isdigit():
            check_numbers(self.app_id, [int(task)], self.count)
            ids = [self.element(int(task))]
        else:
            ids = [job_id for _, _, job_id in self.chunks]
            ids += [""] if sum(n for _, n, _ in self.chunks) < self.count else []
        if not all(ids):
            raise NotSupportedError(
                f"tasks of `{app_id}` have not been submitted to Slurm yet, so that no job can wait for them",
                hint=f"wait here: `torchx wait {self.app_id} && torchx run ...`",
            )
        return ids

    def is_whole(self) -> bool:
        """Whether each task is a whole job with a folder of its own, not one process."""
        return None not in self._files.sizes([posixpath.join(self.folder.path, JOB_SCRIPT)]).values()

    def task_folder(self, k: int) -> JobFolder:
        """The folder of a task that is a whole job."""
        return JobFolder(self._files, posixpath.join(self.folder.path, "tasks", str(k)))

    def element(self, k: int) -> str:
        """What Slurm calls a task; empty where it has not been submitted."""
        first, job_id = self._array_of(k)
        return f"{job_id}_{k - first}" if job_id else ""

    def log_path(self, role: str, k: int) -> LogPaths:
        """Where a task writes, both streams."""
        first, _ = self._array_of(k)
        return LogPaths(posixpath.join(self.folder.path, folder_name(role), f"{first}+{k - first}.log"))

    def _array_of(self, k: int) -> tuple[int, str]:
        """First task and id of the array that a task is in; no id where there is none yet."""
        return next(((first, job_id) for first, n, job_id in self.chunks if first <= k < first + n), (0, ""))

    def _read(self, name: str) -> str:
        return (self._files.read(posixpath.join(self.folder.path, name)) or b"").decode("utf-8", "replace")

    def _write(self, name: str, data: bytes) -> None:
        self._files.write(posixpath.join(self.folder.path, name), data)

    def _chunks(self) -> list[tuple[int, int, str]]:
        lines = [line.split() for line in self._read(CHUNKS_FILE).splitlines()]
        found = [(int(w[0]), int(w[1]), w[2]) for w in lines if len(w) == 3 and all(map(str.isdigit, w))]
        return found or [(0, min(self.count, self._size), self.app_id.removeprefix(PREFIX))]

    def _is_cancelled(self) -> bool:
        return None not in self._files.sizes([posixpath.join(self.folder.path, _CANCELLED)]).values()

    def _stopped(self) -> Container[int]:
        """The tasks that somebody wants ended."""
        words = self._read(_SKIPPED).split()
        return range(self.count) if self._is_cancelled() else {int(word) for word in words if word.isdigit()}

    def _ends(self) -> dict[int, tuple[int, float]]:
        """Exit code and time of each task that has noted its end."""
        found: dict[int, tuple[int, float]] = {}
        for name in self._files.names(self.folder.path):
            if name.startswith(_ENDS):
                for words in map(str.split, self._read(name).splitlines()):
                    if len(words) == 3 and all(map(str.isdigit, words)):
                        found[int(words[0])] = (int(words[1]), float(words[2]))
        return found

    def _active(self) -> dict[int, AppState]:
        ids = ",".join(job_id for _, _, job_id in self.chunks)
        done = self._run(["squeue", "--noheader", f"--jobs={ids}", "--format=%i|%T"])
        if done.returncode and NO_SUCH_JOB.search(done.stderr):
            return {}
        return self._by_number(done.check().stdout)

    def _by_number(self, text: str) -> dict[int, AppState]:
        """The states of tasks, out of lines ``7_3|RUNNING`` and ``7_[4-9,12%2]|PENDING``."""
        begins = {job_id: first for first, _, job_id in self.chunks}
        found: dict[int, AppState] = {}
        for line in text.splitlines():
            name, _, state = line.partition("|")
            match = _ELEMENT.match(name.strip())
            if match is None or match[1] not in begins:
                continue
            native = state.split("|")[0].split()[0] if state.strip() else ""
            state_of = AppState.RUNNING if native == "COMPLETING" else app_state(native)
            for low, high in _ranges(match[2] or match[3]):
                found.update(dict.fromkeys(range(begins[match[1]] + low, begins[match[1]] + high + 1), state_of))
        return found

    def _accounted(self) -> dict[int, AppState]:
        ids = ",".join(job_id for _, _, job_id in self.chunks)
        fields = ["--noheader", "--parsable2", "--delimiter=|", "--format=JobID,State"]
        found = self._by_number(self._run(["sacct", "--allocations", *fields, f"--jobs={ids}"]).stdout)
        late = self._run(["squeue", "--noheader", "--states=all", "--array", f"--jobs={ids}", "--format=%i|%T"])
        return {**found, **self._by_number(late.stdout)}

    # -- answers -----------------------------------------------------------------------------------------

    def describe(self) -> DescribeAppResponse | None:
        """The answer for the sweep; arrays that are due are submitted on the way."""
        table = self.look()
        if table is None:
            return None
        self.more(table)
        answer = describe_sweep(self.app_id, table)
        answer.roles = self.folder.roles()
        return answer

    def describe_some(self, table: TaskTable, numbers: Sequence[int]) -> list[DescribeAppResponse]:
        """The answers for some tasks, each with its cause."""
        from torchx.schedulers.kit.facts import ReplicaFacts

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
        return ends_of(self._files, [self.log_path(r.role, r.replica).stdout for r in replicas])

    def open_log(self, role: str, k: int, query: LogQuery, is_over: Callable[[], bool]) -> BatchLog:
        """The lines of one task that the query wants."""
        check_query(query)
        return BatchLog(self._files, self.log_path(role, k), query, is_over)


def _ranges(text: str) -> list[tuple[int, int]]:
    """The numbers in ``4-9,12``; steps, ``0-8:4``, are written out by Slurm as it goes on.

    >>> _ranges("4-9,12")
    [(4, 9), (12, 12)]
    """
    return [(int(low), int(high or low)) for low, high in re.findall(r"(\d+)(?:-(\d+))?(?:,|$)", text)]


def id_of(job_id: str, folder: JobFolder, run: Run) -> str:
    """The app id of a job whose submission nobody heard the answer of; of a sweep, the others are submitted now."""
    paths = [posixpath.join(folder.path, name) for name in (VALUES_FILE, CHUNKS_FILE)]
    values, chunks = folder.files.sizes(paths).values()
    if values is None:
        return job_id
    if chunks is None:
        Sweep(f"{PREFIX}{job_id}", folder, run).begin()
    return f"{PREFIX}{job_id}"
