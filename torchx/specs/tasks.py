"""The tasks of a sweep: their values, placeholders for the values in a job, and their states."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torchx.errors import SpecError
from torchx.specs.api import AppDef, Role
from torchx.specs.states import AppState, is_terminal
from torchx.util.records import dataclass
from torchx.util.strings import nearest

ENV_TASK = "TORCHX_TASK"
"""Environment variable with the index of a task within the sweep, from 0."""

NAME = r"[A-Za-z_][\w.-]*"
"""Regular expression for the name of a value."""

# `${name}` is a macro or a shell variable. JSON does not match; `{{name}}` is the escaped form.
_PLACEHOLDER = rf"\{{\{{({NAME})\}}\}}|(?<!\$)\{{({NAME})\}}"
_FAILED = (AppState.FAILED, AppState.UNKNOWN)


@dataclass(frozen=True, kw_only=True)
class TaskList:
    """The values of the tasks of a sweep."""

    names: Sequence[str]
    points: Sequence[Sequence[str]]  # the values of each task, in the order of `names`
    max_parallel: int = 0  # maximum number of tasks that run at the same time; 0 leaves it to the backend
    pack: int = 1  # number of tasks that each element of a job array runs, one after another

    def values(self, k: int) -> dict[str, str]:
        """Return the values of task ``k`` by name."""
        return dict(zip(self.names, self.points[k], strict=True))

    def text(self, k: int) -> str:
        """Return the values of task ``k`` in one line.

        >>> TaskList(names=["lr", "seed"], points=[("1e-4", "0")]).text(0)
        'lr=1e-4, seed=0'
        """
        return ", ".join(f"{name}={value}" for name, value in self.values(k).items())


@dataclass(kw_only=True)
class TaskTable:
    """The states of the tasks of a sweep; each list has one entry per task."""

    states: list[AppState]
    exit_codes: list[int | None]  # -n for signal n; None if unknown or not ended
    ended: list[float]  # Unix times; 0 if not ended
    max_parallel: int = 0  # maximum number of tasks that run at the same time; 0 for no limit

    def counts(self) -> dict[AppState, int]:
        """Return the number of tasks by state; states without tasks are omitted."""
        return {state: self.states.count(state) for state in dict.fromkeys(self.states)}

    def failed(self) -> list[int]:
        """Return the indices of the tasks that failed or ended in an unknown way."""
        return [k for k, state in enumerate(self.states) if state in _FAILED]

    def state(self) -> AppState:
        """Return the state of the sweep. Its tasks are not a gang, so it ends with the last task.

        >>> TaskTable(states=[AppState.FAILED, AppState.PENDING], exit_codes=[1, None], ended=[1.0, 0.0]).state().name
        'RUNNING'
        """
        counts = self.counts()
        if not all(map(is_terminal_task, counts)):
            return AppState.RUNNING if counts.keys() - {AppState.PENDING} else AppState.PENDING
        if any(state in counts for state in _FAILED):
            return AppState.FAILED
        return AppState.CANCELLED if AppState.CANCELLED in counts else AppState.SUCCEEDED

    def summary(self) -> str:
        """Return the counts as a sentence.

        >>> TaskTable(states=[AppState.SUCCEEDED, AppState.FAILED], exit_codes=[0, 1], ended=[1.0, 1.0]).summary()
        '1 of 2 tasks succeeded, 1 failed'
        """
        counts = self.counts()
        words = [f"{counts.get(AppState.SUCCEEDED, 0):,} of {len(self.states):,} tasks succeeded"]
        words += [f"{n:,} {state.name.lower()}" for state, n in counts.items() if state is not AppState.SUCCEEDED]
        return ", ".join(words)


def progress(msg: str) -> str:
    """Shorten a message that begins with :meth:`TaskTable.summary`; other messages give the empty string.

    >>> progress("6 of 9 tasks succeeded, 1 failed, 2 running"), progress("exit code 3")
    ('7/9 done, 1 failed', '')
    """
    if not (found := re.match(r"([\d,]+) of ([\d,]+) tasks succeeded((?:, [\d,]+ [a-z]+)*)", msg)):
        return ""
    others = {name: int(n.replace(",", "")) for n, name in re.findall(r", ([\d,]+) ([a-z]+)", found[3])}
    failed = sum(others.get(state.name.lower(), 0) for state in _FAILED)
    done = int(found[1].replace(",", "")) + failed + others.get("cancelled", 0)
    return f"{done:,}/{found[2]} done" + (f", {failed:,} failed" if failed else "")


def is_terminal_task(state: AppState) -> bool:
    """Whether a task in this state has ended; UNKNOWN means that its end was not observed."""
    return is_terminal(state) or state is AppState.UNKNOWN


def fill(text: str, values: Mapping[str, str]) -> str:
    """Replace each ``{name}`` with its value, and ``{{name}}`` with the literal ``{name}``.

    A name without a value stays: it is the value of a macro between braces, which may have been substituted before.

    >>> fill("--lr={lr} {{lr}} ${app_id} {0} {'a': 1}", {"lr": "1e-4"})
    "--lr=1e-4 {lr} ${app_id} {0} {'a': 1}"
    """
    if "{" not in text:
        return text
    return re.sub(_PLACEHOLDER, lambda m: f"{{{m[1]}}}" if m[1] else values.get(m[2], m[0]), text)


def fill_in(role: Any, values: Mapping[str, str]) -> None:
    """Substitute the values in a role, or in any object with ``entrypoint``, ``args`` and ``env``."""
    role.entrypoint = fill(role.entrypoint, values)
    role.args = [fill(arg, values) for arg in role.args]
    role.env = {n: fill(text, values) if text.__class__ is str else text for n, text in role.env.items()}


def replica_names(roles: Sequence[Role], count: int) -> list[tuple[str, int]]:
    """Return the (role name, replica) ids of a sweep of ``count`` tasks, each a job of these roles.

    If a task has one replica, they are ``(role, task)``; otherwise ``(task, n)``, where n counts the replicas of all
    roles.
    """
    per_task = sum(role.num_replicas for role in roles)
    if per_task == 1:
        return [(role.name, k) for role in roles if role.num_replicas for k in range(count)]
    return [(str(k), n) for k in range(count) for n in range(per_task)]


def replica_of(roles: Sequence[Role], replica: tuple[str, int]) -> tuple[int, tuple[str, int]]:
    """Convert an id of :func:`replica_names` to the task and the (role name, replica) within the task's job."""
    own = [(role.name, k) for role in roles for k in range(role.num_replicas)]
    return (replica[1], own[0]) if len(own) == 1 else (int(replica[0]), own[replica[1]])


def placeholders(text: str) -> set[str]:
    """Return the names of the placeholders in a text.

    >>> sorted(placeholders("--lr={lr} {{seed}}"))
    ['lr']
    """
    return {m[2] for m in re.finditer(_PLACEHOLDER, text) if m[2]} if "{" in text else set()


def texts(app: AppDef) -> Iterable[str]:
    """Yield the texts of a job that may contain placeholders: entrypoints, arguments and environment variables."""
    for role in app.roles:
        yield role.entrypoint
        yield from role.args
        yield from (value for value in role.env.values() if value.__class__ is str)


def check_placeholders(app: AppDef, names: Sequence[str]) -> None:
    """Raise SpecError if a placeholder of a job has no value."""
    for text in texts(app):
        for name in sorted(placeholders(text) - set(names)):
            close = nearest(name, names)
            raise SpecError(
                f"`{{{name}}}` in `{text}` is not the name of a value of the sweep",
                hint=(f"did you mean `{{{close}}}`? " if close else "")
                + f"the names: {', '.join(names)}; write `{{{{{name}}}}}` for the text `{{{name}}}`",
            )
