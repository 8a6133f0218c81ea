"""Which schedulers can start a job after others."""

from __future__ import annotations

from collections.abc import Iterable

from torchx.errors import NotSupportedError
from torchx.schedulers.kit.caps import Capabilities
from torchx.specs.api import AppDef, parse_app_handle
from torchx.specs.wishes import Wishes

_HINT = "`--after wait` as well: then this command waits for it"


def check_after(after: Iterable[tuple[str, str]], scheduler: str, caps: Capabilities) -> None:
    """Raise NotSupportedError if the scheduler cannot wait for these jobs, as their conditions require."""
    for condition, handle in after:
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
    """Raise NotSupportedError if a sweep depends on other jobs."""
    if Wishes.of(app).after:
        raise NotSupportedError("no scheduler starts a sweep after another job", hint=_HINT)
