"""Decides what became of submissions whose answer was lost.

Before a job is submitted the record says what is about to be (:meth:`torchx.runs.RunRegistry.begin`), and by what the
scheduler will know it. When the process is killed before it can write down the answer, or the connection breaks and
stays so, that intent is what is left: whoever looks at runs next asks the scheduler.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

from torchx.runner.backends import answers_within, is_near
from torchx.runner.sweeps import asked
from torchx.runner.wait import warn
from torchx.runs import Run, RunRegistry, submitter
from torchx.schedulers.api import Scheduler
from torchx.specs.api import make_app_handle

Find = Callable[[str, str], Scheduler[Any]]


_GIVEN_UP_AFTER_S = 30 * 24 * 3600.0
_LOST = "the submitting process died, or lost its connection"


def settle_intents(registry: RunRegistry, find: Find, timeout_s: float) -> None:
    """Puts jobs on record that their schedulers know; submissions that came to nothing are marked as such.

    What cannot be told yet stays as it is.

    Args:
        find: the scheduler of a name and a session.
        timeout_s: how long all schedulers together may take to answer.
    """
    near: list[Run] = []
    far: list[Run] = []
    elsewhere = set()
    for run, who in registry.intents():
        if submitter.is_elsewhere(who):
            # Whether that process lives cannot be seen; that its job is there, can.
            if _age(run) < _scheduler_grace(run, find):
                continue
            elsewhere.add(run.id)
        elif submitter.may_be_alive(who):
            continue
        (near if _is_near(run, find) else far).append(run)
    for run in near:
        _settle(registry, run, _ask(run, find), elsewhere=run.id in elsewhere)
    answers = answers_within(timeout_s, [functools.partial(_ask, run, find) for run in far])
    for run, app_id in zip(far, answers):  # noqa: B905  # an answer for each
        _settle(registry, run, app_id, elsewhere=run.id in elsewhere)


def _settle(registry: RunRegistry, run: Run, app_id: str | None, *, elsewhere: bool) -> None:
    if app_id:
        handle = make_app_handle(run.scheduler, run.session, app_id)
        registry.submitted(run.id, handle)
        warn(f"{_what(run)} led to `{handle}`, which is on record now: {_LOST}")
    elif _age(run) > _GIVEN_UP_AFTER_S or (app_id == "" and not elsewhere):
        registry.abandoned(run.id, f"nothing was submitted: {_LOST} before")
        warn(f"{_what(run)} led to no job: {_LOST} before")
    elif not elsewhere:
        warn(f"whether {_what(run)} led to a job is not known yet: `{run.scheduler}` will be asked again")


def _ask(run: Run, find: Find) -> str | None:
    """The id of the job; empty when there is none; None when it cannot be told."""
    cfg = {key: setting.get("value") for key, setting in run.cfg.items() if isinstance(setting, dict)}
    try:
        scheduler = find(run.scheduler, run.session)
        token = run.submission or run.app_id
        if token.startswith("sweep-"):
            scheduler = asked(scheduler, token)[0]
        return scheduler.find_submission(token, cfg, age_s=_age(run))
    except Exception:  # whatever a backend raises, the runs are shown
        return None


def _is_near(run: Run, find: Find) -> bool:
    try:
        return is_near(find(run.scheduler, run.session))
    except Exception:  # as above
        return False


def _scheduler_grace(run: Run, find: Find) -> float:
    try:
        return float(find(run.scheduler, run.session).submission_s)
    except Exception:  # as above
        return _GIVEN_UP_AFTER_S


def _age(run: Run) -> float:
    return time.time() - run.created_at


def _what(run: Run) -> str:
    began = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(run.created_at))
    return f"the submission of `{run.name}` to `{run.scheduler}` of {began}"
