"""The syntax of `--watchdog`."""

from __future__ import annotations

import pytest

from torchx.errors import SpecError
from torchx.specs.api import AppDef
from torchx.specs.wishes import Wishes
from torchx.specs.wishes.retries import RETRY
from torchx.specs.wishes.watchdog import WATCHDOG, Watchdog, parse_watchdog


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("10m", (600, "stacks")),
        (" 90s : cancel ", (90, "cancel")),
        ("1d12h:retry", (129600, "retry")),
        ("2s:", (2, "stacks")),
    ],
)
def test_a_length_of_time_and_an_action(text: str, found: tuple[int, str]) -> None:
    """The default action only inspects the job."""
    assert parse_watchdog(text) == Watchdog(*found)


@pytest.mark.parametrize(
    "text",
    ["", "10", "cancel", ":cancel", "1s", "10m:kill", "10m:cancel:now", "10m ago", "-5m", "367d", "9" * 400 + "h"],
)
def test_what_is_neither_is_refused(text: str) -> None:
    """The error has the value, and the hint has alternatives."""
    with pytest.raises(SpecError) as refused:
        parse_watchdog(text)
    assert refused.value.hint


def test_a_retry_needs_a_policy() -> None:
    """`retry` without a retry policy is rejected, because the job would only be ended."""
    app = AppDef("a", metadata={WATCHDOG: "10m:retry"})
    with pytest.raises(SpecError, match="needs a policy"):
        Wishes.of(app)
    app.metadata[RETRY] = "standard"
    assert Wishes.of(app).watchdog == (600, "retry")
    assert Wishes.of(AppDef("a")).watchdog is None
