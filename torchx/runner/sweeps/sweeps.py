"""Sweeps: one job that runs many times with different values, each time as a task with an app handle of its own."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torchx.config.files import load_files
from torchx.errors import NotFoundError, NotSupportedError, SpecError, TransientError
from torchx.runner.launch.after import refuse_sweep
from torchx.runner.launch.checks import is_encodable
from torchx.runs import Run, default_registry
from torchx.schedulers.api import Scheduler
from torchx.schedulers.kit.abilities import PacksTasks, RunsTasks
from torchx.settings import ENV_IMAGE_DIGEST, ENV_JOB_ID, ENV_PARENT_RUN_ID, ENV_WORKSPACE_HASH
from torchx.specs.api import AppDef, AppDryRunInfo, AppState, AppStatus
from torchx.specs.failures import parse_failure
from torchx.specs.tasks import TaskList, TaskTable, check_placeholders, placeholders
from torchx.tracker.api import TrackerBase
from torchx.util.notices import logger
from torchx.util.records import dataclass
from torchx.util.secrets import CERTAIN, grade
from torchx.util.shlex import SHELLS

if TYPE_CHECKING:
    from torchx.runner.sweeps.verbs import Sweeps

_MAX_DESCRIBED = 10  # failed tasks per exit code
_MAX_CODES = 8
_AGAIN = (AppState.FAILED, AppState.CANCELLED, AppState.UNKNOWN)
_OURS = (ENV_IMAGE_DIGEST, ENV_JOB_ID, ENV_PARENT_RUN_ID, ENV_WORKSPACE_HASH)  # set anew by each dry run


def check(tasks: TaskList) -> None:
    """Validate the tasks of a sweep, independent of the job. See :meth:`Runner.check_sweep`."""
    if not tasks.points:
        raise SpecError("the sweep has no tasks", hint="give each name a value, for example `--grid lr=1e-4,3e-4`")
    if tasks.max_parallel < 0:
        raise SpecError(
            f"{tasks.max_parallel} tasks at a time would never end", hint="give 1 or more; 0: the scheduler decides"
        )
    for k, point in enumerate(tasks.points):
        for name, value in zip(tasks.names, point, strict=True):
            if not isinstance(value, str) or "\0" in value or not is_encodable(value):
                odd = "it contains a NUL character, or half of a surrogate pair"
                raise SpecError(
                    f"the value {value!r} of `{name}`, of task {k}, cannot be passed to a program",
                    hint=odd if isinstance(value, str) else "write it as a string",
                )
    for name, *values in zip(tasks.names, *tasks.points, strict=True):
        if any(grade(name, value) == CERTAIN for value in values):
            raise SpecError(
                f"`{name}` is the name of a credential, and the values of a sweep are on record",
                hint=f"pass it as `--secret {name.upper()}`; if it is not a credential, rename it",
            )


def check_job(app: AppDef | None, tasks: TaskList) -> None:
    """Check that each placeholder of a job has a value, and that the job does not depend on another job."""
    if app is None:
        return
    check_placeholders(app, tasks.names)
    refuse_sweep(app)


def submit(runner: Sweeps, info: AppDryRunInfo[Any], tasks: TaskList, *, typed: bool = False) -> str:
    """Submit a sweep; if it is rejected, discards the request, which only this call uses.

    With ``typed`` the user typed the placeholders: a component may have quoted them without knowing the values.
    """
    try:
        if typed and info._app is not None:
            _check_quotes(info._app, tasks)
        return runner.schedule_sweep(info, tasks)
    except TransientError:
        raise  # the job may exist nevertheless
    except Exception:
        runner.discard(info)
        raise


def _check_quotes(app: AppDef, tasks: TaskList) -> None:
    """Raise SpecError for a value with a single quote whose placeholder is within single quotes in a shell command."""
    quoted: set[str] = set()
    for role in app.roles:
        if os.path.basename(role.entrypoint) in SHELLS and role.args[:1] == ["-c"]:
            for script in role.args[1:2]:
                for word in script.split("'")[1::2]:
                    quoted |= placeholders(word)
    for name in sorted(quoted.intersection(tasks.names)):  # others are rejected later
        column = list(tasks.names).index(name)
        if bad := next((point[column] for point in tasks.points if "'" in point[column]), None):
            raise SpecError(
                f"the value `{bad}` of `{name}` contains a `'`, and `{{{name}}}` is within single quotes in a shell"
                " command",
                hint="`utils.python` takes any value; or submit such apps by `Runner.run_many`",
            )


def check_pack(backend: Scheduler[Any], scheduler: str, tasks: TaskList) -> None:
    """Raise NotSupportedError if tasks are to share elements of an array, and this backend runs each by itself."""
    if tasks.pack > 1 and not isinstance(backend, PacksTasks):
        raise NotSupportedError(
            f"`{scheduler}` runs each task by itself: in one element, they would have one log and one end",
            hint="omit `--pack`, or run them on `slurm`, `lsf` or `kubernetes`",
        )


def submitter(backend: Scheduler[Any], info: AppDryRunInfo[Any], tasks: TaskList) -> Scheduler[Any]:
    """Return the scheduler that submits the sweep: ``backend`` as a job array, or else a pacer as single jobs.

    Raises NotSupportedError if tasks are to share elements of an array, and cannot.
    """
    check_pack(backend, str(info._scheduler), tasks)
    if tasks.pack > 1 and isinstance(backend, PacksTasks):
        backend.check_pack(info)
    if isinstance(backend, RunsTasks):
        try:
            backend.check_tasks(info, tasks)
        except NotSupportedError as e:
            if tasks.pack > 1:
                raise NotSupportedError(str(e), hint=e.hint or "omit `--pack`, or what it does not support") from e
            why = str(e)
        else:
            return backend
    else:
        why = f"torchx makes no job arrays on `{info._scheduler}`"
    from torchx.runner.jobs.paced.sweeps import PacedSweeps

    paced = PacedSweeps(backend)
    if paced.is_cluster():  # the sweep depends on this machine, although its jobs do not
        logger("torchx").warning("this machine submits the tasks as single jobs: %s", why)
    return paced


@dataclass(frozen=True, kw_only=True)
class FailureGroup:
    """Tasks of a sweep that failed for the same cause.

    Attributes:
        kind: class of the cause, see :data:`torchx.schedulers.kit.failures.classes.CLASSES`.
        cause: the message of one of the tasks.
        tasks: numbers of the tasks.
    """

    kind: str
    cause: str
    tasks: list[int]


def failures(backend: Scheduler[Any], app_id: str, table: TaskTable) -> list[FailureGroup]:
    """Group the failed tasks by cause.

    Only some tasks per exit code are described; if these have the same cause, the others are counted with them.
    """
    by_code: dict[int | None, list[int]] = {}
    for k in table.failed():
        by_code.setdefault(table.exit_codes[k], []).append(k)
    found: dict[tuple[str, str], FailureGroup] = {}
    for code, tasks in list(by_code.items())[:_MAX_CODES]:
        chosen = tasks[:_MAX_DESCRIBED]
        answers = backend.describe_tasks(app_id, chosen) if isinstance(backend, RunsTasks) else None
        causes: set[tuple[str, str]] = set()
        for k, answer in zip(chosen, answers or (), strict=False):
            failure = parse_failure(answer.structured_error_msg)
            kind = failure.kind if failure is not None else ""
            cause = failure.summary() if failure is not None else answer.msg
            key = (kind, re.sub(r"\d+(\.\d+)?", "#", cause))
            causes.add(key)
            found.setdefault(key, FailureGroup(kind=kind or "unknown", cause=cause, tasks=[])).tasks.append(k)
        rest = tasks[len(chosen) :]
        if len(causes) == 1:
            found[causes.pop()].tasks.extend(rest)
        elif rest:
            cause = f"exit code {code}, not looked into"
            found.setdefault(("", cause), FailureGroup(kind="unknown", cause=cause, tasks=[])).tasks.extend(rest)
    return sorted(found.values(), key=lambda group: (-len(group.tasks), group.tasks))


@dataclass(frozen=True, kw_only=True)
class SweepResults:
    """The values and results of the tasks of a sweep.

    Attributes:
        names: names of the values in which the tasks differ.
        points: the values of each task, in the order of ``names``.
        metadata: what each task wrote to the tracker; empty if it wrote nothing.
    """

    names: Sequence[str]
    points: Sequence[Sequence[str]]
    metadata: Sequence[Mapping[str, object]]

    def columns(self) -> list[str]:
        """Return the names of the metadata, in order of appearance, without those that are in ``names``.

        >>> SweepResults(names=["lr"], points=[["1e-1"]], metadata=[{"lr": 0.1, "loss": 2.5}]).columns()
        ['loss']
        """
        return [name for name in dict.fromkeys(n for found in self.metadata for n in found) if name not in self.names]


def read_results(handle: str, tracker: TrackerBase | None) -> SweepResults | None:
    """Read what the tasks of a sweep wrote to a tracker, if there is one; None if the job is not a sweep on record."""
    registry = default_registry()
    tasks = registry.tasks(registry.get(handle))
    if tasks is None:
        return None
    metadata = [dict(tracker.metadata(f"{handle}/{k}")) if tracker else {} for k in range(len(tasks.points))]
    return SweepResults(names=list(tasks.names), points=tasks.points, metadata=metadata)


def again(
    run: Run, tasks: TaskList, status: AppStatus | None, max_parallel: int | None
) -> tuple[AppDef, dict[str, Any], TaskList]:
    """Return the job, its run options and the tasks of a sweep that retries ``run``. See :meth:`Runner.retry_sweep`."""
    from torchx.runner.ground.masks import fill

    table = status.tasks if status is not None else None
    if table is None:
        why = status.msg if status is not None else f"`{run.scheduler}` does not know it"
        raise NotFoundError(f"the states of the tasks of `{run.handle}` are not known: {why}")
    wanted = [k for k, state in enumerate(table.states) if state in _AGAIN]
    if not wanted:
        raise NotFoundError(
            f"no task of `{run.handle}` has failed", hint=f"{table.summary()}; `torchx status` shows them"
        )
    app = run.appdef()
    if app is None:
        raise NotFoundError(f"the AppDef of `{run.handle}` is not on record", hint="launch it again by `torchx sweep`")
    for role in app.roles:
        role.env = {name: value for name, value in role.env.items() if name not in _OURS}
        if run.tags.get(f"image.{role.name}") != role.image:
            role.workspace = None  # the code is in the image
    fill(app, load_files(), None)
    cfg = {name: setting["value"] for name, setting in run.cfg.items() if setting["source"] != "default"}
    parallel = tasks.max_parallel if max_parallel is None else max_parallel
    points = [tasks.points[k] for k in wanted]
    return app, cfg, TaskList(names=tasks.names, points=points, max_parallel=parallel, pack=tasks.pack)
