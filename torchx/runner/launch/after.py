"""Jobs that start after other jobs: by a dependency of the scheduler, or by waiting in this process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torchx.errors import EXIT_JOB_FAILED, NotFoundError, NotSupportedError, SpecError, TorchXError
from torchx.schedulers.kit.caps import Capabilities
from torchx.specs.after import AFTER, WAIT, earlier_jobs, split_condition
from torchx.specs.api import AppDef, AppState, parse_app_handle

if TYPE_CHECKING:
    from torchx.runner import Runner

_HINT = "`--after wait` as well: then this command waits for it"
_ENDS = {"ok": "succeeded", "any": "ended", "fail": "failed"}


class NotStartedError(TorchXError):
    """The earlier job did not end as the condition requires, so the later job is not submitted."""

    exit_code = EXIT_JOB_FAILED


def put_after(
    runner: Runner, app: AppDef, earlier: Sequence[str], scheduler: str, *, sweep: bool = False
) -> list[tuple[str, str]]:
    """Adds the dependencies of a job on ``earlier`` ones to its metadata.

    Among these references, ``wait`` allows this process to wait for jobs that the scheduler cannot wait for. Returns
    conditions and handles of those, for :func:`wait_for`. No scheduler can start a ``sweep`` after another job.
    """
    jobs = [split_condition(reference) for reference in earlier if reference != WAIT]
    if not jobs:
        raise SpecError("`--after wait` has no job to wait for", hint="use it together with `--after JOB`")
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
    """Waits until a job has ended; raises NotStartedError if it does not meet the condition."""
    status = runner.wait(handle)
    if status is None:
        raise NotFoundError(f"`{handle}` is no longer known", hint="nothing was submitted")
    failed = status.state not in (AppState.SUCCEEDED, AppState.UNKNOWN)  # the scheduler may have forgotten the job
    is_met = {"ok": status.state is AppState.SUCCEEDED, "fail": failed, "any": True}
    if not is_met[condition]:
        raise NotStartedError(
            f"`{handle}` is {status.state.name}, but the job may only start after it has {_ENDS[condition]}",
            hint="nothing was submitted",
        )


def check_after(app: AppDef, scheduler: str, caps: Capabilities) -> None:
    """Raises NotSupportedError if the scheduler cannot wait for the jobs that ``app`` depends on, as they require."""
    for condition, handle in earlier_jobs(app):
        if not caps.after:
            raise NotSupportedError(f"`{scheduler}` does not start one job after another", hint=_HINT)
        if condition not in caps.after:
            raise NotSupportedError(
                f"`{scheduler}` starts a job only after another has succeeded, not with the condition `{condition}`",
                hint=_HINT,
            )
        if parse_app_handle(handle).scheduler_backend != scheduler:
            raise NotSupportedError(f"`{scheduler}` cannot wait for `{handle}` of another scheduler", hint=_HINT)


def refuse_sweep(app: AppDef) -> None:
    """Raises NotSupportedError if a sweep depends on other jobs."""
    if AFTER in app.metadata:
        raise NotSupportedError("no scheduler starts a sweep after another job", hint=_HINT)
