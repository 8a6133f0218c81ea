"""Moments as people write them: ``2026-11-21T08:00``, ``10m`` (ago), ``1h30m``."""

from __future__ import annotations

import re

from torchx.cli.failures import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from datetime import datetime

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_UNIT_NAMES = "s(?:ec(?:onds?)?)?|m(?:in(?:utes?)?)?|h(?:ours?)?|d(?:ays?)?|w(?:eeks?)?"
_SPAN = re.compile(rf"(?:\d+(?:\.\d+)?\s*(?:{_UNIT_NAMES})\s*)+(?:ago)?", re.IGNORECASE)
_PART = re.compile(rf"(\d+(?:\.\d+)?)\s*({_UNIT_NAMES})", re.IGNORECASE)


def parse_span(text: str) -> float | None:
    """Seconds of a length of time; None when the text is none.

    >>> parse_span("1h30m"), parse_span("90s"), parse_span("2 days"), parse_span("soon")
    (5400.0, 90.0, 172800.0, None)
    """
    if not _SPAN.fullmatch(text.strip()):
        return None
    return sum(float(number) * _UNITS[unit[0].lower()] for number, unit in _PART.findall(text))


def parse_moment(text: str, *, now: float | None = None) -> datetime:
    """A moment: so long ago, or a date and time. One without a zone is local.

    Raises:
        UsageError: the text is neither.

    >>> parse_moment("10m", now=1000.0).timestamp()
    400.0
    >>> parse_moment("2026-11-21T08:00:00Z").timestamp()
    1795248000.0
    """
    import time
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
