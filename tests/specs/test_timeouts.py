"""Time limits: syntax and errors."""

from __future__ import annotations

import pytest

from torchx.errors import SpecError
from torchx.specs.api import AppDef
from torchx.specs.wishes import Wishes
from torchx.specs.wishes.timeouts import TIMEOUT, clock


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("45m", 2700), ("2h", 7200), ("1d12h", 129600), ("1.5 hours", 5400), ("1w", 604800), ("", 0)],
)
def test_it_is_a_length_of_time_with_its_unit(text: str, seconds: int) -> None:
    """A limit has the syntax of `torchx log --since`; empty means no limit."""
    assert Wishes.of(AppDef("a", metadata={TIMEOUT: text})).timeout_s == seconds


@pytest.mark.parametrize(
    ("text", "said", "hint"),
    [
        ("soon", "is not a length of time", "for example"),
        ("2h ago", "is not a length of time", "for example"),
        ("90", "is not a length of time", "`90s`, `90m` or `90h`"),
        ("٣", "is not a length of time", "unit"),
        ("-2h", "is not a length of time", "for example"),
        ("1e3s", "is not a length of time", "for example"),
        ("0.5s", "is too short", "1s to 366d"),
        ("9" * 400 + "d", "is too long", "1s to 366d"),
    ],
)
def test_what_is_none_is_refused(text: str, said: str, hint: str) -> None:
    """A number without unit is rejected too: it means minutes on Slurm, and seconds elsewhere."""
    with pytest.raises(SpecError, match=said) as raised:
        Wishes.of(AppDef("a", metadata={TIMEOUT: text})).timeout_s
    assert hint in raised.value.hint


@pytest.mark.parametrize("seconds", [1, 59, 60, 61, 3599, 3600, 86400, 90061])
def test_batch_systems_never_get_less(seconds: int) -> None:
    """The form with seconds is exact; that of hours and minutes is rounded up."""
    hours, minutes, rest = map(int, clock(seconds).split(":"))
    assert hours * 3600 + minutes * 60 + rest == seconds
    hours, minutes = map(int, clock(seconds, of_hours=True).split(":"))
    assert 0 <= hours * 3600 + minutes * 60 - seconds < 60
