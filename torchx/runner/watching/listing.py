"""Lists the runs on record, and refreshes the states of unfinished ones from their schedulers."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torchx.errors import TorchXError
from torchx.runner.ground.backends import answers_within, is_near
from torchx.runner.ground.registry import read_run
from torchx.runner.launch.record import forget_notices
from torchx.runner.watching.answers import is_fresh, lost, message_of, status_of, with_cause
from torchx.runs import Run, RunRegistry
from torchx.runs.records import RunQuery
from torchx.specs.api import AppState, is_terminal
from torchx.specs.copies import copy_data
from torchx.util.records import replace

if TYPE_CHECKING:
    from torchx.schedulers.api import DescribeAppResponse, Scheduler

    Find = Callable[[str, str], Scheduler[Any]]
    Answers = dict[str, DescribeAppResponse | None]

_MAX_REFRESHED = 1000
_learned: set[str] = set()
_FORGOTTEN_AFTER_S = 30 * 24 * 3600.0


def runs(registry: RunRegistry, query: RunQuery, find: Find, timeout_s: float) -> list[Run]:
    """Return the matching runs, newest first, with refreshed states; ``timeout_s`` is for all schedulers together."""
    if query.states is None:
        found = registry.list(query)
        refresh(registry, found, find, timeout_s)
        return found
    # Recorded states may be outdated: refresh first, then select.
    states = {AppState(state) for state in query.states}
    unfinished = registry.list(replace(query, states=None, limit=_MAX_REFRESHED), unfinished=True)
    refresh(registry, unfinished, find, timeout_s)
    by_id = {run.id: run for run in registry.list(replace(query, states=states))}
    by_id.update({run.id: run for run in unfinished})
    chosen = sorted((run for run in by_id.values() if run.state in states), key=lambda run: -run.id)
    return chosen if query.limit is None else chosen[: max(query.limit, 0)]


def masked(found: list[Run]) -> list[Run]:
    """Masks the secrets of failed runs in the output of this process: another one may have recorded their causes."""
    for run in found:
        if run.state is AppState.FAILED and run.msg and run.handle not in _learned:
            _learned.add(run.handle)
            read_run(run.handle)
    return found


def refresh(
    registry: RunRegistry,
    found: list[Run],
    find: Find,
    timeout_s: float,
    kept: dict[str, DescribeAppResponse] | None = None,
) -> bool:
    """Query each scheduler once for its unfinished runs, and record the changes.

    If a scheduler cannot be queried or is too slow, its runs keep their last state and get a ``note``.

    Args:
        kept: cache of the last answers of clusters, by handle, for repeated calls; whole statuses that changed are
            recorded. None: no whole statuses are recorded.

    Returns:
        Whether all queried schedulers run on this machine.
    """
    groups: dict[tuple[str, str], list[Run]] = {}
    for run in found:
        if run.handle and not is_terminal(run.state):
            groups.setdefault((run.scheduler, run.session), []).append(run)
    changed: list[tuple[str, AppState, str, float | None]] = []
    forgotten: list[str] = []
    started: dict[str, float | None] = {}
    ended: list[tuple[Run, DescribeAppResponse]] = []
    statuses: dict[str, DescribeAppResponse] = {}
    all_near = True
    for group, answers, near in _ask_all(registry, groups, find, timeout_s):
        all_near = all_near and near
        for run in group:
            if isinstance(answers, str):
                run.note = answers
            elif (answer := answers.get(run.app_id)) is not None:
                if _update(run, answer):
                    changed.append((run.handle, run.state, run.msg, run.ended_at))
                    started[run.handle] = answer.started_at
                    ended += [(run, answer)] if is_terminal(run.state) else []
                if kept is not None and not near and kept.get(run.handle) != answer:
                    kept[run.handle] = copy_data(answer)
                    statuses[run.handle] = answer
            elif _is_lost(run, near=near):
                forgotten.append(run.handle)
            if kept is not None and is_terminal(run.state):
                kept.pop(run.handle, None)
    if ended:  # before others see the end: this process may be over then
        from torchx.runner.watching.ends import keep

        for run, answer in ended:
            answer.ended_at = answer.ended_at or run.ended_at
            keep(registry, find(run.scheduler, run.session), run.handle, answer, run.created_at)
    registry.saw_many(changed, _texts(statuses) if statuses else None, started)
    registry.lost(forgotten)
    forget_notices(*forgotten)
    return all_near


def _texts(answers: dict[str, DescribeAppResponse]) -> dict[str, str]:
    from torchx.runs.statuses import to_text

    texts = {handle: to_text(status_of(answer, near=False)) for handle, answer in answers.items()}
    return {handle: text for handle, text in texts.items() if text}


def _ask_all(
    registry: RunRegistry, groups: dict[tuple[str, str], list[Run]], find: Find, timeout_s: float
) -> list[tuple[list[Run], Answers | str, bool]]:
    """Return the answers per group of runs, or why there are none, and whether the scheduler runs on this machine."""
    answered: list[tuple[list[Run], Answers | str, bool]] = []
    far: list[tuple[list[Run], Callable[[], Answers | str]]] = []
    for (name, session), group in groups.items():
        try:
            scheduler = find(name, session)
        except TorchXError as e:
            answered.append((group, f"last seen; {e}", False))
            continue
        if is_near(scheduler):
            answered.append((group, _ask(scheduler, group), True))
        else:
            far.append((group, functools.partial(_ask, scheduler, group)))
    found = answers_within(timeout_s, [query for _, query in far]) if far else []
    for (group, _), answers in zip(far, found, strict=True):
        late = f"last seen; `{group[0].scheduler}` did not answer within {timeout_s:g} s"
        answered.append((group, late if answers is None else _with_causes(registry, group, answers), False))
    return answered


def _with_causes(registry: RunRegistry, group: list[Run], answers: Answers | str) -> Answers | str:
    """Return the answers with causes on record that the cluster no longer shows; see :func:`with_cause`."""
    if isinstance(answers, str):
        return answers
    known = {run.app_id: functools.partial(registry.status, run.handle, outdated=True) for run in group}
    return {i: answer and with_cause(answer, known[i]) if i in known else answer for i, answer in answers.items()}


def _ask(scheduler: Scheduler[Any], group: list[Run]) -> Answers | str:
    try:
        wanted = [run.app_id for run in group]
        if any(app_id.startswith("sweep-") for app_id in wanted):
            from torchx.runner.jobs.lookup import describe_many

            return describe_many(scheduler, wanted)
        return scheduler.describe_many(wanted)
    except Exception as e:  # whatever a backend raises, the other runs are listed
        return f"last seen; `{group[0].scheduler}` cannot be queried: {e}"


def _update(run: Run, answer: DescribeAppResponse) -> bool:
    """Update ``run`` from the scheduler's answer; return whether state or message changed."""
    if answer.state is AppState.FAILED:
        from torchx.runner.ground.secrets import learn_roles

        learn_roles(answer.roles)  # the cause may contain a secret
    msg = message_of(answer)
    if (run.state, run.msg) == (answer.state, msg):
        return False
    run.state, run.msg, run.updated_at = answer.state, msg, time.time()
    run.ended_at = (answer.ended_at or run.updated_at) if is_terminal(answer.state) else None
    return True


def _is_lost(run: Run, *, near: bool) -> bool:
    """Mark ``run`` as unknown to its scheduler; return whether that is final."""
    if is_fresh(run):
        return False
    run.note = lost(run)
    run.state = AppState.UNKNOWN
    # The configuration may point to another cluster at the moment: only a local scheduler is believed at once.
    return near or time.time() - run.created_at > _FORGOTTEN_AFTER_S
