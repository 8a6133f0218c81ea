"""Parser for durations such as ``90s``, ``10m`` and ``1h30m``."""

from __future__ import annotations

import re

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_UNIT_NAMES = "s(?:ec(?:onds?)?)?|m(?:in(?:utes?)?)?|h(?:ours?)?|d(?:ays?)?|w(?:eeks?)?"
_SPAN = re.compile(rf"(?:\d+(?:\.\d+)?\s*(?:{_UNIT_NAMES})\s*)+(?:ago)?", re.IGNORECASE)
_PART = re.compile(rf"(\d+(?:\.\d+)?)\s*({_UNIT_NAMES})", re.IGNORECASE)


def parse_span(text: str) -> float | None:
    """Parse a duration; returns seconds, or None if the text is not a duration.

    >>> parse_span("1h30m"), parse_span("90s"), parse_span("2 days"), parse_span("soon")
    (5400.0, 90.0, 172800.0, None)
    """
    if not _SPAN.fullmatch(text.strip()):
        return None
    return sum(float(number) * _UNITS[unit[0].lower()] for number, unit in _PART.findall(text))
