"""Finds out what became of submissions whose answer was lost.

Before a job is submitted, an intent is recorded (:meth:`torchx.runs.RunRegistry.begin`), with a token by which the
scheduler can find the job. If the process is killed before it records the answer, or the connection breaks, the intent
remains. The next command that lists or looks up runs asks the scheduler about it.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any, TypeVar

from torchx.errors import TorchXError
from torchx.runner.ground.backends import answers_within, is_near
from torchx.runner.jobs.lookup import resolve_backend
from torchx.runner.launch.record import forget_notices
from torchx.runner.watching.wait import warn
from torchx.runs import Run, RunRegistry, submitter
from torchx.runs.registry import SWEEP
from torchx.schedulers.api import Scheduler
from torchx.specs.api import make_app_handle

Find = Callable[[str, str], Scheduler[Any]]
T = TypeVar("T")

_GIVEN_UP_AFTER_S = 30 * 24 * 3600.0
_LOST = "the submitting process died, was interrupted, or lost its connection"


def settle_intents(registry: RunRegistry, find: Find, timeout_s: float) -> None:
    """Record the handles of jobs that their schedulers know, and mark submissions that led to no job as abandoned.

    Intents that cannot be decided yet, or not within ``timeout_s`` for all schedulers, are left unchanged.
    """
    near: list[Run] = []
    far: list[Run] = []
    elsewhere = set()
    for run, who in registry.intents():
        if submitter.is_elsewhere(who):
            # It is not known whether that process is alive, but the scheduler knows whether the job exists.
            if _age(run) < _with_scheduler(run, find, lambda found: float(found.submission_s), _GIVEN_UP_AFTER_S):
                continue
            elsewhere.add(run.id)
        elif submitter.may_be_alive(who):
            continue
        (near if _with_scheduler(run, find, is_near, otherwise=False) else far).append(run)
    for run in near:
        _settle(registry, run, _ask(run, find), find, elsewhere=run.id in elsewhere)
    answers = answers_within(timeout_s, [functools.partial(_ask, run, find) for run in far])
    for run, app_id in zip(far, answers, strict=True):
        _settle(registry, run, app_id, find, elsewhere=run.id in elsewhere)


def _settle(registry: RunRegistry, run: Run, app_id: str | None, find: Find, *, elsewhere: bool) -> None:
    if app_id:
        handle = make_app_handle(run.scheduler, run.session, app_id)
        registry.submitted(run.id, handle)
        if handle != run.handle:
            _plan_notices(run, handle, find)
        warn(f"{_what(run)} led to `{handle}`, which is on record now: {_LOST}")
    elif _age(run) > _GIVEN_UP_AFTER_S or (app_id == "" and not elsewhere):
        registry.abandoned(run.id, f"nothing was submitted: {_LOST} before")
        forget_notices(run.handle)
        warn(f"{_what(run)} led to no job: {_LOST} before")
    elif not elsewhere:
        warn(f"whether {_what(run)} led to a job is not known yet: `{run.scheduler}` will be asked again")


def _plan_notices(run: Run, handle: str, find: Find) -> None:
    """Store the notices of a job, as its submitter would have done."""
    app = run.appdef()
    if app is None:
        return
    from torchx.runner.notices.plans import Plan
    from torchx.schedulers.kit.abilities import SendsNotices

    try:
        plan = Plan.of(app)
        if plan is not None and isinstance(find(run.scheduler, run.session), SendsNotices) and SWEEP not in run.tags:
            plan.for_job()
        if plan is not None:
            plan.submitted(handle)
    except TorchXError as e:  # for example, the config files have changed
        warn(f"nobody will be notified of `{handle}`: {e}")


def _ask(run: Run, find: Find) -> str | None:
    """Return the app id of the job; empty if there is no job; None if that is not known."""
    cfg = {key: setting.get("value") for key, setting in run.cfg.items() if isinstance(setting, dict)}
    token = run.submission or run.app_id

    def find_submission(scheduler: Scheduler[Any]) -> str | None:
        if token.startswith("sweep-"):
            scheduler = resolve_backend(scheduler, token)[0]
        return scheduler.find_submission(token, cfg, age_s=_age(run))

    return _with_scheduler(run, find, find_submission, None)


def _with_scheduler(run: Run, find: Find, call: Callable[[Scheduler[Any]], T], otherwise: T) -> T:
    """Return the result of a call on the scheduler of a run; ``otherwise`` if it raises:
    the runs are listed nevertheless.
    """
    try:
        return call(find(run.scheduler, run.session))
    except Exception:
        return otherwise


def _age(run: Run) -> float:
    return time.time() - run.created_at


def _what(run: Run) -> str:
    began = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(run.created_at))
    return f"the submission of `{run.name}` to `{run.scheduler}` of {began}"
