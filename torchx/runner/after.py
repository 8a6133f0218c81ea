"""One job after another: which scheduler can see to it, and waiting for it here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torchx.errors import EXIT_JOB_FAILED, NotFoundError, NotSupportedError, SpecError, TorchXError
from torchx.specs.after import AFTER, WAIT, earlier_jobs, split_condition
from torchx.specs.api import AppDef, AppState, parse_app_handle

if TYPE_CHECKING:
    from torchx.runner import Runner
    from torchx.schedulers.kit.caps import Capabilities

_HINT = "`--after wait` as well: then this command waits for it"
_ENDS = {"ok": "succeeded", "any": "ended", "fail": "failed"}


class NotStartedError(TorchXError):
    """The job before has not ended as it should, so that the one after it is not submitted."""

    exit_code = EXIT_JOB_FAILED


def put_after(
    runner: Runner, app: AppDef, earlier: Sequence[str], scheduler: str, *, sweep: bool = False
) -> list[tuple[str, str]]:
    """Writes down in a job which jobs come before it.

    Args:
        earlier: references to jobs, each perhaps with ``:ok``, ``:any`` or ``:fail``; and perhaps ``wait``.
        sweep: the job is a sweep, for which no scheduler waits.

    Returns:
        Conditions and handles of those that somebody has to wait for here, as :func:`wait_for` does.

    Raises:
        NotFoundError: there is no such job on record.
        SpecError: there is nothing to wait for.
    """
    jobs = [split_condition(reference) for reference in earlier if reference != WAIT]
    if not jobs:
        raise SpecError("`--after wait` has no job to wait for", hint="give it beside `--after JOB`")
    found = [(condition, runner.resolve(reference)) for reference, condition in jobs]
    app.metadata[AFTER] = " ".join(f"{condition}:{handle}" for condition, handle in found)
    if WAIT in earlier:
        try:
            refuse_sweep(app) if sweep else check_after(app, scheduler, runner._scheduler(scheduler).capabilities)
        except NotSupportedError:
            del app.metadata[AFTER]
            return found
    return []


def wait_for(runner: Runner, condition: str, handle: str) -> None:
    """Returns once a job has ended as it should.

    Raises:
        NotFoundError: nobody knows it any more.
        NotStartedError: it has ended otherwise.
    """
    status = runner.wait(handle)
    if status is None:
        raise NotFoundError(f"`{handle}` is not known any more", hint="nothing was submitted")
    is_met = {"ok": status.state is AppState.SUCCEEDED, "fail": status.state is not AppState.SUCCEEDED, "any": True}
    if not is_met[condition]:
        raise NotStartedError(
            f"`{handle}` is {status.state.name}, and the job was to start once it has {_ENDS[condition]}",
            hint="nothing was submitted",
        )


def check_after(app: AppDef, scheduler: str, caps: Capabilities) -> None:
    """Refuses jobs that the scheduler cannot wait for.

    Raises:
        NotSupportedError: it starts no job after another, or not after one of another scheduler.
    """
    for condition, handle in earlier_jobs(app):
        if not caps.after:
            raise NotSupportedError(f"`{scheduler}` does not start one job after another", hint=_HINT)
        if condition not in caps.after:
            raise NotSupportedError(
                f"`{scheduler}` starts a job after another one only if that succeeds, and `{condition}` is asked for",
                hint=_HINT,
            )
        if parse_app_handle(handle).scheduler_backend != scheduler:
            raise NotSupportedError(f"`{scheduler}` cannot wait for `{handle}`, of which it knows nothing", hint=_HINT)


def refuse_sweep(app: AppDef) -> None:
    """Refuses a sweep after other jobs.

    Raises:
        NotSupportedError: there are such.
    """
    if AFTER in app.metadata:
        raise NotSupportedError("no scheduler starts a sweep after another job", hint=_HINT)
