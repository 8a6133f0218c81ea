"""`run --after`: unsupported dependencies are rejected with a hint."""

from __future__ import annotations

import pytest

from torchx.errors import NotSupportedError
from torchx.runner.after import check_after
from torchx.schedulers.kit.caps import Capabilities
from torchx.specs.after import AFTER
from torchx.specs.api import AppDef

HANDLE = "aws_batch://torchx/queue:train-x1"


@pytest.mark.parametrize("condition", ["any", "fail"])
def test_a_condition_that_the_scheduler_does_not_know(condition: str) -> None:
    """AWS Batch starts a job only after another one succeeds; the hint says how to wait for other conditions."""
    app = AppDef("a", metadata={AFTER: f"{condition}:{HANDLE}"})
    with pytest.raises(
        NotSupportedError,
        match=f"starts a job only after another has succeeded, not with the condition `{condition}`",
    ) as e:
        check_after(app, "aws_batch", Capabilities(after=("ok",)))
    assert "`--after wait`" in e.value.hint
    check_after(AppDef("a", metadata={AFTER: f"ok:{HANDLE}"}), "aws_batch", Capabilities(after=("ok",)))
