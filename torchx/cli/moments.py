"""Times on the command line: ``2026-11-21T08:00``, or ``10m`` (ago)."""

from __future__ import annotations

import time

from torchx.cli.failures import UsageError
from torchx.util.spans import parse_span


def parse_moment(text: str, *, now: float | None = None) -> float:
    """Parses a time span before now, or a date and time (local time unless it has a zone), into a Unix time.

    Raises:
        UsageError: the text is neither.

    >>> parse_moment("10m", now=1000.0), parse_moment("2026-11-21T08:00:00Z")
    (400.0, 1795248000.0)
    """
    from datetime import datetime

    span = parse_span(text)
    try:
        if span is not None:
            return datetime.fromtimestamp((time.time() if now is None else now) - span).timestamp()
        stripped = text.strip()
        # Python 3.10 does not read the `Z` of UTC.
        return datetime.fromisoformat(stripped[:-1] + "+00:00" if stripped[-1:] in ("Z", "z") else stripped).timestamp()
    except (ValueError, OverflowError, OSError):
        raise UsageError(
            f"`{text}` is not a time",
            hint="write how long ago (`90s`, `10m`, `2h`, `1d`), or a time (`2026-11-21T08:00`, with `Z` for UTC)",
        ) from None
