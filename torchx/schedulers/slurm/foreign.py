"""Slurm jobs that torchx did not launch: facts about them, and their output files.

A job is one replica, ``job/0``, because its script runs once. An array has its tasks, such as ``task/3``; a
heterogeneous job has its components, such as ``component/1``.

``scontrol`` reports the files. For jobs that it no longer knows, they follow from the command line in accounting and
from the script, if that still exists.
"""

from __future__ import annotations

import functools
import posixpath
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from torchx.errors import SpecError
from torchx.schedulers.batch.folders import JobFolder
from torchx.schedulers.batch.foreign import ForeignAtSites, Outputs, task_facts
from torchx.schedulers.batch.queries import Known
from torchx.schedulers.batch.sites import Run, Site
from torchx.schedulers.kit.facts import JobFacts, ReplicaFacts, RoleFacts
from torchx.schedulers.kit.failures import Evidence, signal_name
from torchx.schedulers.kit.files import Files
from torchx.schedulers.kit.foreign import Named
from torchx.schedulers.slurm.answers import bare, explained, facts_of, pending_sentence
from torchx.schedulers.slurm.client import SlurmQueries
from torchx.schedulers.slurm.events import JobEvents
from torchx.schedulers.slurm.parse import SEPARATOR, JobRecord
from torchx.schedulers.slurm.reasons import ENDINGS, app_state
from torchx.schedulers.slurm.scripts.lines import directives, expand, read_options
from torchx.specs.api import AppState, is_terminal
from torchx.util.records import replace

_NO_OUTPUT = 53  # slurmstepd reports it as a signal when it cannot open the output files
_REFERENCE = re.compile(r"(\d+)(_\d+)?(?:\+\d+)?(?:\.\w+)?")

_Shown = dict[str, str]

JOB, TASK, COMPONENT = "job", "task", "component"
_OWN_LINE = ("Command", "WorkDir", "StdErr", "StdOut")
_ACCOUNTED = ("JobID", "JobIDRaw", "User", "NodeList", "SubmitLine", "WorkDir", "JobName")
_MAX_SCRIPT = 1 << 20

_NO_FILE = (
    "`salloc` and `srun` write to the terminal that started them; the output of a job that ended long ago is found"
    " only through accounting"
)


class ForeignSlurmJobs(ForeignAtSites):
    """The view of :class:`torchx.schedulers.slurm_scheduler.SlurmScheduler` on jobs of others."""

    if TYPE_CHECKING:  # methods of the scheduler

        def _slurm(self, site: Site) -> SlurmQueries: ...

    # -- which job it is -------------------------------------------------------------------------

    def find(self, reference: str) -> Named | None:
        found = _REFERENCE.fullmatch(reference.strip())
        if found is None:
            return None
        app_id = found[1] + (found[2] or "")
        site = self._site_of(self._defaults())
        records = self._slurm(site).jobs([app_id])
        tasks = _of_job(app_id, records)
        if not tasks and not records:
            return None
        app_id = app_id if tasks else next(iter(records))  # the id of a single task
        folder = next((r.folder for i in tasks for r in records[i] if r.folder), "")
        noted = self.folders(site).of(app_id)  # a user's own script runs in another folder
        return Named(app_id, ours=noted is not None or bool(folder and JobFolder(site.files, folder).is_ours()))

    def about(self, app_id: str) -> dict[str, str]:
        shown = next(iter(self._outputs(app_id).shown.values()), {})
        named = {"name": "JobName", "user": "UserId", "partition": "Partition", "command": "Command"}
        facts = {key: shown.get(name, "") for key, name in named.items()}
        facts["user"] = facts["user"].partition("(")[0]
        facts["folder"] = shown.get("WorkDir", "")
        return {key: value for key, value in facts.items() if value not in ("", "(null)")}

    # -- what became of it -----------------------------------------------------------------------

    def _facts(self, site: Site, app_ids: list[str], folders: Mapping[str, JobFolder]) -> dict[str, Known]:  # noqa: ARG002  # the scheduler's
        records = self._slurm(site).jobs(app_ids, tasks=True)
        known = {app_id: found for app_id in app_ids if (found := _of_job(app_id, records))}
        return {i: Known(foreign_facts(i, found), self._outputs(i)) for i, found in known.items()}

    def _look(self, folder: JobFolder, replicas: Sequence[ReplicaFacts]) -> list[Evidence]:
        left = folder.evidence([(r.role, r.replica) for r in replicas])
        said = [replace(found, said=found.stderr) for found in left]
        return [explained(found, signal=r.signal) for found, r in zip(said, replicas, strict=True)]

    def log_replicas(self, app_id: str) -> list[tuple[str, int]] | None:
        found = super().log_replicas(app_id)
        if found and len(found) > 1 and found[0][0] == COMPONENT:  # only the first component writes output
            places = self._outputs(app_id).places()
            found = [at for at in found if places.get(f"{at[0]}/{at[1]}", ("", ""))[0]] or found
        return found

    def _outputs(self, app_id: str) -> SlurmOutputs:
        site = self._site(app_id)
        return SlurmOutputs(site.files, app_id, functools.partial(self.run_command, site))


# -- facts -----------------------------------------------------------------------------------------------


def _of_job(app_id: str, records: Mapping[str, list[JobRecord]]) -> dict[str, list[JobRecord]]:
    """Return the records of a job, or of each task of an array."""
    return {i: found for i, found in records.items() if i == app_id or i.startswith(f"{app_id}_")}


def foreign_facts(app_id: str, records: Mapping[str, Sequence[JobRecord]]) -> JobFacts:
    """Facts about a job from its records, or those of each task of an array; pending tasks are under the array's id."""
    every = [record for found in records.values() for record in found]
    facts = facts_of(bare(app_id, every))
    tasks = {int(i.rpartition("_")[2]): found for i, found in records.items() if i != app_id}
    if tasks:
        waiting = list(records.get(app_id, ()))
        waits = pending_sentence(waiting, JobEvents()) if waiting else ""
        members = []
        for k, found in sorted(tasks.items()):
            kind, why = ENDINGS.get(found[0].state, ("", ""))
            replica = _replica(TASK, k, found[0])
            members.append(replace(replica, reason=why, kind=kind, signal="") if why else replica)
        return task_facts(facts, members, waits=waits)
    role = COMPONENT if len(every) > 1 else JOB
    members = [_replica(role, r.component, r) for r in sorted(every, key=lambda r: r.component)]
    failed = facts.state is AppState.FAILED and not facts.kind
    return replace(facts, reason="" if failed else facts.reason, roles=[RoleFacts(name=role, replicas=members)])


def _replica(role: str, k: int, record: JobRecord) -> ReplicaFacts:
    state = app_state(record.state)
    if record.completing and not is_terminal(state):
        state = AppState.RUNNING
    no_output = record.signal == _NO_OUTPUT
    signal = signal_name(record.signal) if record.signal and not no_output else ""
    return ReplicaFacts(
        role=role,
        replica=k,
        state=state,
        native=record.state,
        exit_code=record.exit_code if is_terminal(state) and not signal else None,
        signal=signal,
        host=record.nodes,
        started=(record.started or 0.0) if state is not AppState.PENDING else 0.0,
        ended=(record.ended or 0.0) if is_terminal(state) else 0.0,
        reason="Slurm could not open its output file: is the folder there?" if no_output else "",
        kind="error" if no_output else "",
        stopped=state is AppState.CANCELLED,
    )


# -- output files ----------------------------------------------------------------------------------------


class SlurmOutputs(Outputs):
    """The output files of a job, found by Slurm's commands."""

    def __init__(self, files: Files, app_id: str, run: Run) -> None:
        super().__init__(files, app_id, _NO_FILE)
        self._run = run

    @functools.cached_property
    def shown(self) -> dict[str, _Shown]:
        """Slurm's description of the job, or of each task or component: ``job/0``, ``task/3``."""
        done = self._run(["scontrol", "show", "job", self.app_id])
        found = parse_scontrol(done.stdout) if done.returncode == 0 else []
        return _by_replica([self._filled(job) for job in found or self._accounted()], self.app_id)

    def places(self) -> dict[str, tuple[str, str]]:
        return {replica: (shown.get("StdOut", ""), shown.get("StdErr", "")) for replica, shown in self.shown.items()}

    def _accounted(self) -> list[_Shown]:
        """Descriptions from accounting: its command line, and the script if it exists, say where the output is."""
        form = ["--noheader", "--parsable2", f"--delimiter={SEPARATOR}", f"--format={','.join(_ACCOUNTED)}"]
        done = self._run(["sacct", "--allocations", *form, f"--jobs={self.app_id}"])
        rows = [line.split(SEPARATOR, len(_ACCOUNTED) - 1) for line in done.stdout.split("\n") if line]
        found = [dict(zip(_ACCOUNTED, row, strict=True)) for row in rows if len(row) == len(_ACCOUNTED)]
        return [self._placed(row) for row in found if done.returncode == 0]

    def _placed(self, row: _Shown) -> _Shown:
        full, component = row["JobID"].partition("+")[::2]
        master, task = full.partition("_")[::2]
        shown = {"JobName": row["JobName"], "UserId": row["User"], "WorkDir": row["WorkDir"]}
        shown |= {"JobId": row["JobIDRaw"].partition("+")[0], "ArrayTaskId": task, "HetJobOffset": component}
        shown |= {"ArrayJobId": master, "NodeList": row["NodeList"]}
        try:
            words = shlex.split(row["SubmitLine"])
        except ValueError:
            words = []
        if not words or posixpath.basename(words[0]) != "sbatch" or (component or "0") != "0":
            return shown
        try:
            options, rest = read_options(words[1:], "sbatch")
        except SpecError:
            return shown  # options of a newer release
        given = {option: value for option, value, _ in options}
        script = posixpath.join(row["WorkDir"], rest[0]) if rest else ""
        shown["Command"] = " ".join([script, *rest[1:]])
        for option, value in self._in_script(script):
            given.setdefault(option, value)
        folder = given.get("chdir", row["WorkDir"])
        output = given.get("output", "slurm-%A_%a.out" if task else "slurm-%j.out")
        shown["StdOut"] = posixpath.join(folder, output)
        shown["StdErr"] = posixpath.join(folder, given.get("error", output))
        return shown

    def _filled(self, shown: _Shown) -> _Shown:
        """Replace patterns in file names, which Slurm does not always expand."""
        job, task = shown.get("JobId", ""), shown.get("ArrayTaskId", "")
        values = {"j": job, "J": job, "A": shown.get("ArrayJobId", job), "a": task or "4294967294"}
        values |= {"x": shown.get("JobName", ""), "u": shown.get("UserId", "").partition("(")[0], "s": "batch"}
        values |= {"n": "0", "t": "0", "b": str(int(task) % 10 if task.isdigit() else 0)}
        names = {name: expand(shown[name], values) for name in ("StdOut", "StdErr") if "%" in shown.get(name, "")}
        for name, path in names.items():
            if "%N" in path:  # the host name, which may differ from the node name
                folder, pattern = posixpath.split(path)
                shape = "(.+)".join(map(re.escape, pattern.split("%N")))
                there = [n for n in self.files.names(folder) if re.fullmatch(shape, n)] if "%N" not in folder else []
                node = re.split(r"[\[,]", shown.get("NodeList", ""), maxsplit=1)[0]
                names[name] = posixpath.join(folder, there[0] if len(there) == 1 else pattern.replace("%N", node))
        return {**shown, **names}

    def _in_script(self, path: str) -> list[tuple[str, str]]:
        text = self.files.read(path, 0, _MAX_SCRIPT) if path else None
        try:
            return [(d.option, d.value) for d in directives((text or b"").decode("utf-8", "replace"))]
        except SpecError:
            return []


def parse_scontrol(text: str) -> list[_Shown]:
    r"""Return the output of ``scontrol show job``: a dict for each job, task or component.

    >>> parse_scontrol("JobId=8 ArrayTaskId=2 JobName=my job\n   UserId=me(7)\n   Command=/x a b=c\n")
    [{'JobId': '8', 'ArrayTaskId': '2', 'JobName': 'my job', 'UserId': 'me(7)', 'Command': '/x a b=c'}]
    """
    found: list[_Shown] = []
    for line in map(str.strip, text.splitlines()):
        if line.startswith("JobId="):
            before, _, name = line.partition(" JobName=")
            found.append({**_pairs(before), "JobName": name})
        elif found and line.partition("=")[0] in _OWN_LINE:
            key, _, value = line.partition("=")
            found[-1][key] = value
        elif found:
            found[-1].update(_pairs(line))
    return found


def _pairs(line: str) -> _Shown:
    return {key: value for word in line.split() for key, equals, value in [word.partition("=")] if equals}


def _by_replica(shown: Sequence[_Shown], app_id: str) -> dict[str, _Shown]:
    several = len(shown) > 1
    found = {}
    for job in sorted(shown, key=lambda job: int(job.get("HetJobOffset") or 0)):
        task, offset = job.get("ArrayTaskId", ""), job.get("HetJobOffset", "")
        if task.isdigit() and "_" not in app_id:
            found[f"{TASK}/{task}"] = job
        elif offset.isdigit() and several:
            silent = () if offset == "0" else ("StdOut", "StdErr")  # only the first component runs the script
            found[f"{COMPONENT}/{offset}"] = {key: value for key, value in job.items() if key not in silent}
        elif not task or task.isdigit():
            found[f"{JOB}/0"] = job
    return found
