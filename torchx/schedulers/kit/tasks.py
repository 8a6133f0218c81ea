"""A sweep as answers of a backend: the whole of it, and one of its tasks."""

from __future__ import annotations

from torchx.errors import NotFoundError, NotSupportedError
from torchx.schedulers.api import NONE, DescribeAppResponse
from torchx.specs.api import AppState, is_terminal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from torchx.schedulers.kit.facts import Look, ReplicaFacts
    from torchx.schedulers.kit.logs import LogQuery
    from torchx.specs.api import AppDef, Role
    from torchx.specs.tasks import TaskTable

__all__ = ["check_numbers", "check_query", "describe_sweep", "describe_task", "only_role"]


def only_role(app: AppDef | None, backend: str, *, timeout: bool = False) -> Role:
    """The role that each task runs.

    Args:
        timeout: tasks may have a time limit.

    Raises:
        NotSupportedError: the job is more than one process, or is to be started again: no task of ``backend``.
    """
    from torchx.specs.retries import RETRY
    from torchx.specs.timeouts import TIMEOUT
    from torchx.specs.watchdog import WATCHDOG

    roles = app.roles if app is not None else []
    if len(roles) != 1 or roles[0].num_replicas != 1:
        count = sum(role.num_replicas for role in roles)
        raise NotSupportedError(f"a task has {count} replicas, and one of a sweep on `{backend}` is one process")
    if app is not None and (RETRY in app.metadata or roles[0].max_retries):
        raise NotSupportedError(f"the tasks of a sweep on `{backend}` are not started again")
    if app is not None and WATCHDOG in app.metadata:
        raise NotSupportedError(f"the tasks of a sweep on `{backend}` are not watched", hint="omit `--watchdog`")
    if app is not None and TIMEOUT in app.metadata and not timeout:
        raise NotSupportedError(f"the tasks of a sweep on `{backend}` have no time limit")
    return roles[0]


def describe_sweep(
    app_id: str,
    table: TaskTable,
    *,
    state: AppState | None = None,
    started_at: float | None = None,
    ui_url: str | None = None,
) -> DescribeAppResponse:
    """The answer of ``describe`` for a sweep.

    Args:
        state: where the backend knows it; that of the tasks when None.
    """
    state = table.state() if state is None else state
    return DescribeAppResponse(
        app_id=app_id,
        state=state,
        num_restarts=0,
        msg=table.summary(),
        tasks=table,
        ui_url=ui_url,
        started_at=started_at,
        ended_at=(max(table.ended, default=0.0) or None) if is_terminal(state) else None,
    )


def describe_task(app_id: str, replica: ReplicaFacts, look: Look) -> DescribeAppResponse:
    """The answer of ``describe`` for one task; arguments as of :func:`torchx.schedulers.kit.verdict.describe`."""
    from torchx.schedulers.kit.facts import JobFacts, RoleFacts
    from torchx.schedulers.kit.verdict import describe

    state = AppState.FAILED if replica.state is AppState.UNKNOWN else replica.state
    facts = JobFacts(
        app_id=app_id,
        roles=[RoleFacts(name=replica.role, replicas=[replica])],
        state=state,
        native=replica.native,
        reason="nobody saw how it ended" if replica.state is AppState.UNKNOWN else "",
        kind=replica.kind,
        started=replica.started or None,
        ended=replica.ended or None,
        tell_hosts=False,
    )
    answer = describe(facts, look)
    return answer if answer.msg != NONE or state is not AppState.PENDING else waiting(answer)


def waiting(answer: DescribeAppResponse) -> DescribeAppResponse:
    """Says of a task why it has not started."""
    answer.msg = "waits until other tasks of the sweep have ended"
    return answer


def check_numbers(app_id: str, numbers: Sequence[int], count: int) -> None:
    """Refuses a task that the sweep does not have.

    Raises:
        NotFoundError: it has fewer.
    """
    for k in numbers:
        if not 0 <= k < count:
            raise NotFoundError(f"`{app_id}` has no task `{k}`", hint=f"it has tasks 0 to {count - 1:,}")


def check_query(query: LogQuery) -> None:
    """Refuses what cannot be told of a task's output: both streams are in one file, which has no times.

    Raises:
        NotSupportedError: that is asked for.
    """
    if query.since is not None or query.until is not None:
        raise NotSupportedError(
            "`--since` and `--until` do not work for tasks of a sweep", hint="`--tail N` prints the last lines"
        )
    if query.timestamps or query.previous:
        what = "--timestamps" if query.timestamps else "--previous"
        raise NotSupportedError(f"`{what}` does not work for tasks of a sweep", hint="omit it")
    if query.stream is not None and query.stream.value != "combined":
        raise NotSupportedError(
            f"the tasks of a sweep write both streams to one file: there is no {query.stream.value} of its own",
            hint="omit `--streams`",
        )
