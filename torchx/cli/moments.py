"""Moments as people write them: ``2026-11-21T08:00``, ``10m`` (ago), ``1h30m``."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from torchx.cli.failures import UsageError
from torchx.util.spans import parse_span

if TYPE_CHECKING:
    from datetime import datetime


def parse_moment(text: str, *, now: float | None = None) -> datetime:
    """A moment: so long ago, or a date and time. One without a zone is local.

    Raises:
        UsageError: the text is neither.

    >>> parse_moment("10m", now=1000.0).timestamp()
    400.0
    >>> parse_moment("2026-11-21T08:00:00Z").timestamp()
    1795248000.0
    """
    from datetime import datetime

    span = parse_span(text)
    try:
        if span is not None:
            return datetime.fromtimestamp((time.time() if now is None else now) - span).astimezone()
        stripped = text.strip()
        # Python 3.10 does not read the `Z` of UTC.
        moment = datetime.fromisoformat(stripped[:-1] + "+00:00" if stripped[-1:] in ("Z", "z") else stripped)
        return moment.astimezone()
    except (ValueError, OverflowError, OSError):
        raise UsageError(
            f"`{text}` is not a time",
            hint="write how long ago (`90s`, `10m`, `2h`, `1d`), or a time (`2026-11-21T08:00`, with `Z` for UTC)",
        ) from None


def parse_seconds(text: str) -> float:
    """:func:`parse_moment` in seconds since the epoch, as options take it."""
    return parse_moment(text).timestamp()
