"""Helpers for backends that run sweeps: validate, describe, and render the commands of tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchx.errors import NotFoundError, NotSupportedError
from torchx.schedulers.api import NONE, DescribeAppResponse
from torchx.schedulers.kit.shell import env_words, exports, quote
from torchx.specs.api import AppDef, AppState, Role, is_terminal
from torchx.specs.ready import has_order
from torchx.specs.tasks import TaskList, TaskTable, fill
from torchx.util.records import replace

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from torchx.schedulers.kit.facts import Look, ReplicaFacts


def only_role(app: AppDef | None, backend: str, *, timeout: bool = False) -> Role:
    """Return the role that each task runs. ``timeout``: tasks may have a time limit.

    Rejects a job with several replicas, retries, a watchdog or a time limit, which tasks of ``backend`` cannot have.
    """
    from torchx.specs.wishes import Wishes

    wishes, roles = Wishes.of(app), app.roles if app is not None else []
    if len(roles) != 1 or roles[0].num_replicas != 1:
        count = sum(role.num_replicas for role in roles)
        raise NotSupportedError(f"a task has {count} replicas, but tasks of a sweep on `{backend}` can have only one")
    if app is not None and has_order(app):
        raise NotSupportedError(
            f"tasks of a sweep on `{backend}` cannot wait for each other", hint="omit `ready` and `ends_job`"
        )
    if wishes.retry or roles[0].max_retries:
        raise NotSupportedError(f"tasks of a sweep on `{backend}` cannot have retries")
    if wishes.watchdog:
        raise NotSupportedError(f"tasks of a sweep on `{backend}` cannot have a watchdog", hint="omit `--watchdog`")
    if wishes.idle:
        raise NotSupportedError(f"idle tasks of a sweep on `{backend}` are not detected", hint="omit `--idle`")
    if wishes.timeout_s and not timeout:
        raise NotSupportedError(f"tasks of a sweep on `{backend}` cannot have a time limit")
    return roles[0]


def as_replicas(app: AppDef, tasks: TaskList) -> AppDef:
    """Return the job with one replica per task."""
    (role,) = app.roles
    return replace(app, roles=[replace(role, num_replicas=len(tasks.points))])


def describe_sweep(app_id: str, table: TaskTable, state: AppState | None = None) -> DescribeAppResponse:
    """Return the result of ``describe`` for a sweep. Its state follows from the tasks unless the backend reports
    one.
    """
    state = table.state() if state is None else state
    answer = DescribeAppResponse(app_id=app_id, state=state, num_restarts=0, msg=table.summary(), tasks=table)
    answer.ended_at = (max(table.ended, default=0.0) or None) if is_terminal(state) else None
    return answer


def describe_task(app_id: str, replica: ReplicaFacts, look: Look) -> DescribeAppResponse:
    """Return the result of ``describe`` for one task; see :func:`torchx.schedulers.kit.verdict.describe`."""
    from torchx.schedulers.kit.facts import JobFacts, RoleFacts
    from torchx.schedulers.kit.verdict import describe

    state = AppState.FAILED if replica.state is AppState.UNKNOWN else replica.state
    facts = JobFacts(
        app_id=app_id,
        roles=[RoleFacts(name=replica.role, replicas=[replica])],
        state=state,
        native=replica.native,
        reason="it is not known how it ended" if replica.state is AppState.UNKNOWN else "",
        kind=replica.kind,
        started=replica.started or None,
        ended=replica.ended or None,
        tell_hosts=False,
    )
    answer = describe(facts, look)
    return answer if answer.msg != NONE or state is not AppState.PENDING else waiting(answer)


def waiting(answer: DescribeAppResponse) -> DescribeAppResponse:
    """Set the reason why a task has not started."""
    answer.msg = "waits until other tasks of the sweep have ended"
    return answer


def check_numbers(app_id: str, numbers: Sequence[int], count: int) -> None:
    """Rejects numbers of tasks that the sweep does not have, with a NotFoundError."""
    for k in numbers:
        if not 0 <= k < count:
            raise NotFoundError(f"`{app_id}` has no task `{k}`", hint=f"it has tasks 0 to {count - 1:,}")


# -- values in a shell --------------------------------------------------------------------------------------------


def values_line(point: Sequence[str]) -> str:
    r"""Return the values of a task as one line of assignments for a POSIX shell whose variable ``nl`` is a line end.

    >>> values_line(["its", "a\nb"])
    'v_0=its v_1=a"${nl}"b\n'
    """
    return " ".join(f"v_{i}={quote(value, {chr(10): 'nl'})}" for i, value in enumerate(point)) + "\n"


def shell_words(
    names: Sequence[str], env: Mapping[str, str], words: Iterable[str], late: Mapping[str, str] | None = None
) -> tuple[list[str], list[str]]:
    """Return the lines that export a task's variables, and the words of its command, for a shell with its values
    evaluated.

    ``late``: other values in variables of that shell, see :func:`torchx.schedulers.kit.shell.quote`.
    """
    marks = {name: f"@TORCHX_VALUE_{i}@" for i, name in enumerate(names)}
    late = {**{mark: f"v_{i}" for i, mark in enumerate(marks.values())}, **(late or {})}
    env = {name: fill(value, marks) for name, value in env.items()}
    return exports(env, late), [*env_words(env, late), *(quote(fill(word, marks), late) for word in words)]
