"""One job after another: which scheduler can see to it, and what to do elsewhere."""

from __future__ import annotations

from torchx.errors import NotSupportedError
from torchx.specs.after import AFTER, earlier_jobs, split_condition
from torchx.specs.api import parse_app_handle

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from torchx.runner.verbs import RunnerVerbs
    from torchx.schedulers.kit.caps import Capabilities
    from torchx.specs.api import AppDef


_MEANWHILE = {"ok": " &&", "any": ";", "fail": " ||"}


def put_after(runner: RunnerVerbs, app: AppDef, earlier: Sequence[str]) -> None:
    """Writes down in a job which jobs come before it.

    Args:
        earlier: references to jobs, each perhaps with ``:ok``, ``:any`` or ``:fail``.

    Raises:
        NotFoundError: there is no such job on record.
    """
    words = []
    for reference, condition in map(split_condition, earlier):
        words.append(f"{condition}:{runner.resolve(reference)}")
    app.metadata[AFTER] = " ".join(words)


def check_after(app: AppDef, scheduler: str, caps: Capabilities) -> None:
    """Refuses jobs that the scheduler cannot wait for.

    Raises:
        NotSupportedError: it starts no job after another, or not after one of another scheduler.
    """
    for condition, handle in earlier_jobs(app):
        hint = f"wait for it here: `torchx wait {handle}{_MEANWHILE[condition]} torchx run ...`"
        if not caps.after:
            raise NotSupportedError(f"`{scheduler}` does not start one job after another", hint=hint)
        if condition not in caps.after:
            raise NotSupportedError(
                f"`{scheduler}` starts a job after another one only if that succeeds, and `{condition}` is asked for",
                hint=hint,
            )
        if parse_app_handle(handle).scheduler_backend != scheduler:
            raise NotSupportedError(f"`{scheduler}` cannot wait for `{handle}`, of which it knows nothing", hint=hint)
