"""`run --after`: unsupported dependencies are rejected with a hint."""

from __future__ import annotations

import pytest

from torchx.errors import NotSupportedError
from torchx.runner import Runner
from torchx.runner.launch.after import check_after
from torchx.runner.watching.after import NotStartedError, wait_for
from torchx.schedulers.kit.caps import Capabilities
from torchx.specs.api import AppDef, AppState, AppStatus
from torchx.specs.wishes import Wishes
from torchx.specs.wishes.after import AFTER, parse_after

HANDLE = "aws_batch://torchx/queue:train-x1"


@pytest.mark.parametrize("condition", ["any", "fail"])
def test_a_condition_that_the_scheduler_does_not_know(condition: str) -> None:
    """AWS Batch starts a job only after another one succeeds; the hint says how to wait for other conditions."""
    earlier = Wishes.of(AppDef("a", metadata={AFTER: f"{condition}:{HANDLE}"})).after
    with pytest.raises(
        NotSupportedError,
        match=f"starts a job only after another has succeeded, not with the condition `{condition}`",
    ) as e:
        check_after(earlier, "aws_batch", Capabilities(after=("ok",)))
    assert "`--after wait`" in e.value.hint
    check_after(parse_after(f"ok:{HANDLE}"), "aws_batch", Capabilities(after=("ok",)))


def test_a_job_that_its_scheduler_has_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have succeeded: what is to run after a failure is not submitted, what is to run after any end is."""
    gone = AppStatus(AppState.UNKNOWN, gone=True)
    with Runner("test", {}) as runner:
        monkeypatch.setattr(runner, "wait", lambda _: gone)
        for condition in ("ok", "fail"):
            with pytest.raises(NotStartedError, match="is UNKNOWN"):
                wait_for(runner, condition, HANDLE)
        wait_for(runner, "any", HANDLE)
        monkeypatch.setattr(runner, "wait", lambda _: AppStatus(AppState.CANCELLED))
        wait_for(runner, "fail", HANDLE)
