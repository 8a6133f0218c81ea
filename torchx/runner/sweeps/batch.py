"""Similar apps submitted as one sweep by ``Runner.run_many``, and their results as tasks end."""

from __future__ import annotations

import re
import time
from collections.abc import Generator, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from torchx.errors import SpecError
from torchx.runner.sweeps import sweeps
from torchx.runner.watching.wait import WaitTimeoutError
from torchx.specs.api import AppDef, AppState, AppStatus, UnknownAppException
from torchx.specs.copies import copy_data
from torchx.specs.macros import split_macros, unescaped
from torchx.specs.tasks import NAME, TaskList, is_terminal_task
from torchx.util.records import dataclass

if TYPE_CHECKING:
    from torchx.runner.sweeps.verbs import Sweeps

_FIRST_S, _MAX_S = 0.05, 5.0
_SHARE = 10  # pause between polls, in multiples of the time that a poll takes: polling uses a tenth of a core at most


@dataclass(frozen=True, kw_only=True)
class TaskResult:
    """The result of one task.

    Attributes:
        number: number of the task: the index of its app in the list.
        handle: app handle of the task, which every method of the Runner accepts.
        state: SUCCEEDED, FAILED, CANCELLED, or UNKNOWN if the end of the task was not observed.
        exit_code: ``-n`` if signal n killed the task; None if it is not known.
    """

    number: int
    handle: str
    state: AppState
    exit_code: int | None


class Batch:
    """Tasks that were submitted together. ``await`` it to get the results of all tasks, in order.

    Attributes:
        handle: app handle of the sweep.
    """

    def __init__(self, runner: Sweeps, handle: str, count: int) -> None:
        self._runner, self.handle, self._count = runner, handle, count

    def __len__(self) -> int:
        return self._count

    def __repr__(self) -> str:
        return f"Batch({self.handle!r}, {self._count} tasks)"

    def status(self) -> AppStatus | None:
        """Return the status of the sweep; its ``tasks`` are those of the batch."""
        return self._runner.status(self.handle)

    def as_completed(self, timeout: float | None = None) -> Iterator[TaskResult]:
        """Iterate over the results, in the order in which tasks end.

        Args:
            timeout: maximum time in seconds to wait for all tasks; None: no limit.

        Raises:
            WaitTimeoutError: some tasks have not ended within ``timeout``; they keep running.
            BackendError: the scheduler could not be queried for ten minutes, or the failure is permanent.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        left, pause = set(range(self._count)), _FIRST_S
        while left:
            began = time.monotonic()
            ended = self._ended(left)
            for result in ended:
                left.discard(result.number)
                yield result
            if not left:
                return
            now = time.monotonic()
            if deadline is not None and now >= deadline:
                raise WaitTimeoutError(f"{len(left):,} tasks of `{self.handle}` have not ended after {timeout:g} s")
            pause = _FIRST_S if ended else min(pause * 1.5, _MAX_S)
            nap = max(pause, _SHARE * (now - began))
            time.sleep(nap if deadline is None else min(nap, deadline - now))

    def results(self, timeout: float | None = None) -> list[TaskResult]:
        """Wait for all tasks and return their results in order; see :meth:`as_completed`."""
        return sorted(self.as_completed(timeout), key=lambda result: result.number)

    def failures(self) -> list[sweeps.FailureGroup]:
        """Group the failed tasks by cause, most frequent cause first."""
        status = self.status()
        return [] if status is None or status.tasks is None else self._runner.sweep_failures(self.handle, status.tasks)

    def cancel(self) -> None:
        """Cancel the running and the pending tasks."""
        self._runner.cancel(self.handle)

    def __await__(self) -> Generator[Any, None, list[TaskResult]]:
        import asyncio

        return asyncio.to_thread(self.results).__await__()

    def _ended(self, wanted: set[int]) -> list[TaskResult]:
        status, near = self.status(), self._runner.is_near(self.handle)
        if status is None or self._runner._waiter.pause_s(self.handle, status, near=near) is None:
            raise UnknownAppException(self.handle)
        table = status.tasks
        if table is None:  # its scheduler cannot be queried at the moment
            if status.error is None and status.is_terminal():
                raise UnknownAppException(self.handle)
            return []
        return [
            TaskResult(number=k, handle=f"{self.handle}/{k}", state=table.states[k], exit_code=table.exit_codes[k])
            for k in sorted(wanted)
            if is_terminal_task(table.states[k])
        ]


def template(apps: Sequence[AppDef]) -> tuple[AppDef, list[str], list[tuple[str, ...]]]:
    """Merge apps into one template. Returns it, the names of its placeholders, and the values of each app."""
    if not apps:
        raise SpecError("there are no apps to run", hint="`run_many` takes a list with one app or more")
    made: AppDef = copy_data(apps[0])
    names: list[str] = []
    columns: list[list[str]] = []

    def column(texts: Sequence[str], *, is_last: bool) -> str:
        # The value of a macro between braces would look like a placeholder, so the first brace becomes a value.
        is_open = not is_last and re.search(rf"{{(?:{NAME})?$", texts[0])
        if len(set(texts)) == 1 and not is_open:
            return re.sub(rf"(?<!\$)\{{({NAME})\}}", r"{{\1}}", texts[0])
        names.append(f"v{len(names)}")
        columns.append([unescaped(text) for text in texts])  # macros are substituted in the template only
        return f"{{{names[-1]}}}"

    def place(texts: list[str]) -> str:
        """Return the text of the template: macros, which must be equal,
        and constant text or placeholders between them.
        """
        pieces = [split_macros(text) for text in texts] if any("${" in text for text in texts) else [[t] for t in texts]
        if any(found[1::2] != pieces[0][1::2] for found in pieces):
            raise SpecError(f"the apps differ in macros: `{texts[0]}`", hint="submit those with other macros apart")
        last = len(pieces[0]) - 1
        parts = enumerate(zip(*pieces, strict=True))
        return "".join(alike[0] if i % 2 else column(alike, is_last=i == last) for i, alike in parts)

    if any(app.metadata != made.metadata for app in apps):
        raise SpecError(
            "the apps differ in their metadata", hint="submit apps with other time limits, retries, ... apart"
        )
    for number, role in enumerate(made.roles):
        others = [app.roles[number] if number < len(app.roles) else None for app in apps]
        alike = [other for other in others if other is not None and _is_like(role, other)]
        if len(alike) < len(apps) or any(len(app.roles) != len(made.roles) for app in apps):
            raise SpecError(
                "the apps differ in more than arguments and values of variables",
                hint="`run_many` takes apps with the same roles, images, resources and numbers of arguments;"
                " submit others one by one",
            )
        role.args = [place([other.args[i] for other in alike]) for i in range(len(role.args))]
        role.env = {
            name: place([other.env[name] for other in alike]) if value.__class__ is str else value
            for name, value in role.env.items()
        }
    points: list[tuple[str, ...]] = [tuple(column[k] for column in columns) for k in range(len(apps))]
    return made, names, points


def submit(runner: Sweeps, apps: Sequence[AppDef], scheduler: str, given: dict[str, Any], max_parallel: int) -> Batch:
    """Implement :meth:`Runner.run_many`."""
    app, names, points = template(apps)
    tasks = TaskList(names=names, points=points, max_parallel=max_parallel)
    runner.check_sweep(tasks)
    info = runner.dryrun(app, scheduler, **given)
    return Batch(runner, sweeps.submit(runner, info, tasks), len(points))


def _is_like(role: Any, other: Any) -> bool:
    """Whether two roles differ only in the texts of arguments and environment variables."""
    mine, theirs = dict(vars(role)), dict(vars(other))
    for fields in (mine, theirs):
        args, env = fields.pop("args"), fields.pop("env")
        fields["shape"] = (len(args), {name: None if value.__class__ is str else value for name, value in env.items()})
    return mine == theirs
