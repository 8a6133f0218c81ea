"""Jobs that start after other jobs: by a dependency of the scheduler, or by waiting in this process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torchx.errors import EXIT_JOB_FAILED, NotFoundError, NotSupportedError, SpecError, TorchXError
from torchx.runner.launch.after import check_after, refuse_sweep
from torchx.specs.api import AppDef, AppState
from torchx.specs.wishes.after import AFTER, WAIT, split_condition

if TYPE_CHECKING:
    from torchx.runner.watching.verbs import Watches

_ENDS = {"ok": "succeeded", "any": "ended", "fail": "failed"}


class NotStartedError(TorchXError):
    """The earlier job did not end as the condition requires, so the later job is not submitted."""

    exit_code = EXIT_JOB_FAILED


def put_after(
    runner: Watches, app: AppDef, earlier: Sequence[str], scheduler: str, *, sweep: bool = False
) -> list[tuple[str, str]]:
    """Add the dependencies of a job on ``earlier`` ones to its metadata.

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
            refuse_sweep(app) if sweep else check_after(found, scheduler, runner._scheduler(scheduler).capabilities)
        except NotSupportedError:
            del app.metadata[AFTER]
            return found
    return []


def wait_for(runner: Watches, condition: str, handle: str) -> None:
    """Wait until a job has ended; raise NotStartedError if it does not meet the condition."""
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
