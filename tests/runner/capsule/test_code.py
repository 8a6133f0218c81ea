"""The patch of a run: when it counts, and when the code of the run is not known."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchx.runner.capsule.code import CodeGoneError, patch_of
from torchx.runs import Run
from torchx.settings import make_private, torchx_home
from torchx.specs import AppState
from torchx.util.git import TOO_LARGE, TOO_LATE

RAISES = "raises"


@pytest.mark.parametrize(
    ("content", "dirty", "found"),
    [
        ("diff --git a b", True, "the patch"),
        ("diff --git a b", False, "the patch"),  # new files alone
        ("diff --git a b", None, "the patch"),
        (TOO_LATE, True, RAISES),
        (TOO_LATE, False, ""),  # the tree was clean at the time of the submission
        (TOO_LATE, None, RAISES),
        (TOO_LARGE, True, RAISES),
        (TOO_LARGE, False, RAISES),
        (TOO_LARGE, None, RAISES),
        (None, True, RAISES),
        (None, False, ""),
        (None, None, ""),
    ],
)
def test_the_patch_of_a_run(content: str | None, dirty: bool | None, found: str) -> None:
    """A run whose changes are not on record is not run again without them."""
    run = Run(
        id=1, handle="x://s/a", scheduler="x", session="s", app_id="a", name="a", state=AppState.SUCCEEDED,
        git_dirty=dirty, tags={"patch": "a.patch"},
    )  # fmt: skip
    path = Path(torchx_home("patches", "a.patch"))
    make_private(str(path.parent))
    if content is not None:
        path.write_text(f"{content}\n")
    if found == RAISES:
        with pytest.raises(CodeGoneError):
            patch_of(run)
    else:
        assert patch_of(run) == (str(path) if found else "")
