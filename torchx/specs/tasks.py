"""The tasks of a sweep: the values that they differ in, where these stand in a job, and what became of each."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from torchx.errors import SpecError
from torchx.specs.states import AppState, is_terminal
from torchx.util.records import dataclass
from torchx.util.strings import nearest

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from torchx.specs.api import AppDef, Role

__all__ = ["ENV_TASK", "NAME", "TaskList", "TaskTable", "check_placeholders", "fill", "placeholders"]

ENV_TASK = "TORCHX_TASK"
"""In the environment of a task: its number within the sweep, from 0."""

NAME = r"[A-Za-z_][\w.-]*"
"""What the name of a value looks like, as a regular expression."""

# `${name}` is a macro or the shell's; JSON and format strings do not look like this, or are doubled.
_PLACEHOLDER = rf"\{{\{{({NAME})\}}\}}|(?<!\$)\{{({NAME})\}}"
_FAILED = (AppState.FAILED, AppState.UNKNOWN)


@dataclass(frozen=True, kw_only=True)
class TaskList:
    """What the tasks of a sweep differ in.

    Attributes:
        names: of the values.
        points: for each task its values, in the order of ``names``.
        max_parallel: how many tasks run at the same time; 0: as many as the backend finds right.
    """

    names: Sequence[str]
    points: Sequence[Sequence[str]]
    max_parallel: int = 0

    def values(self, k: int) -> dict[str, str]:
        """The values of task ``k`` by name."""
        return dict(zip(self.names, self.points[k], strict=True))

    def text(self, k: int) -> str:
        """The values of task ``k`` in one line.

        >>> TaskList(names=["lr", "seed"], points=[("1e-4", "0")]).text(0)
        'lr=1e-4, seed=0'
        """
        return ", ".join(f"{name}={value}" for name, value in self.values(k).items())


@dataclass(kw_only=True)
class TaskTable:
    """What became of the tasks of a sweep, one entry a task in each list.

    Attributes:
        states: their states.
        exit_codes: ``-n`` for signal n; None before the end, and where it is not known.
        ended: Unix times of their ends; 0 before.
        max_parallel: how many may run at the same time; 0 where there is no limit.
    """

    states: list[AppState]
    exit_codes: list[int | None]
    ended: list[float]
    max_parallel: int = 0

    def counts(self) -> dict[AppState, int]:
        """How many tasks are in each state; states of none are missing."""
        return {state: self.states.count(state) for state in dict.fromkeys(self.states)}

    def failed(self) -> list[int]:
        """The tasks that failed, or of which nobody knows how they ended."""
        return [k for k, state in enumerate(self.states) if state in _FAILED]

    def state(self) -> AppState:
        """The state of the sweep: its tasks are not a gang, so it ends with the last of them.

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
        """The counts as a sentence.

        >>> TaskTable(states=[AppState.SUCCEEDED, AppState.FAILED], exit_codes=[0, 1], ended=[1.0, 1.0]).summary()
        '1 of 2 tasks succeeded, 1 failed'
        """
        counts = self.counts()
        words = [f"{counts.get(AppState.SUCCEEDED, 0):,} of {len(self.states):,} tasks succeeded"]
        words += [f"{n:,} {state.name.lower()}" for state, n in counts.items() if state is not AppState.SUCCEEDED]
        return ", ".join(words)


def progress(msg: str) -> str:
    """How far a sweep is, of a message that begins with :meth:`TaskTable.summary`; empty of any other.

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
    """Whether a task in this state has ended; of one in the state UNKNOWN nobody saw how."""
    return is_terminal(state) or state is AppState.UNKNOWN


def fill(text: str, values: Mapping[str, str]) -> str:
    """The text with the values in place of their ``{name}``; ``{{name}}`` stands for ``{name}`` itself.

    >>> fill("--lr={lr} {{lr}} ${app_id} {0} {'a': 1}", {"lr": "1e-4"})
    "--lr=1e-4 {lr} ${app_id} {0} {'a': 1}"
    """
    if "{" not in text:
        return text
    return re.sub(_PLACEHOLDER, lambda m: f"{{{m[1]}}}" if m[1] else values[m[2]], text)


def fill_in(words: Any, values: Mapping[str, str]) -> None:
    """Puts the values into a role, or whatever else has an ``entrypoint``, ``args`` and ``env``."""
    words.entrypoint = fill(words.entrypoint, values)
    words.args = [fill(arg, values) for arg in words.args]
    words.env = {n: fill(text, values) if text.__class__ is str else text for n, text in words.env.items()}


def replica_names(roles: Sequence[Role], count: int) -> list[tuple[str, int]]:
    """How replicas of a sweep are called, where each task is a job of these roles: where that is one replica,
    ``(role, task)``; else ``(task, n)``, the replicas of all roles counted through.
    """
    several = sum(role.num_replicas for role in roles)
    if several == 1:
        return [(role.name, k) for role in roles if role.num_replicas for k in range(count)]
    return [(str(k), n) for k in range(count) for n in range(several)]


def replica_of(roles: Sequence[Role], replica: tuple[str, int]) -> tuple[int, tuple[str, int]]:
    """The task of such a replica, and what it is called within that task's job."""
    own = [(role.name, k) for role in roles for k in range(role.num_replicas)]
    return (replica[1], own[0]) if len(own) == 1 else (int(replica[0]), own[replica[1]])


def placeholders(text: str) -> set[str]:
    """The names of the values that stand in a text.

    >>> sorted(placeholders("--lr={lr} {{seed}}"))
    ['lr']
    """
    return {m[2] for m in re.finditer(_PLACEHOLDER, text) if m[2]} if "{" in text else set()


def texts(app: AppDef) -> Iterable[str]:
    """Where values may stand in a job: in arguments and variables."""
    for role in app.roles:
        yield role.entrypoint
        yield from role.args
        yield from (value for value in role.env.values() if value.__class__ is str)


def check_placeholders(app: AppDef, names: Sequence[str]) -> None:
    """Refuses a job with a placeholder for which there is no value.

    Raises:
        SpecError: it has one.
    """
    for text in texts(app):
        for name in sorted(placeholders(text) - set(names)):
            close = nearest(name, names)
            raise SpecError(
                f"`{{{name}}}` in `{text}` is not the name of a value of the sweep",
                hint=(f"did you mean `{{{close}}}`? " if close else "")
                + f"the names: {', '.join(names)}; write `{{{{{name}}}}}` for the text `{{{name}}}`",
            )
