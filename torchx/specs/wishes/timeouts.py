"""The time limit of a job (``torchx run --timeout``), stored in ``AppDef.metadata[TIMEOUT]``.

On every scheduler, an attempt that exceeds the limit is killed and fails with class ``timeout``. Time in the queue does
not count, and each attempt has the full limit.
"""

from __future__ import annotations

from torchx.errors import SpecError

TIMEOUT = "torchx/timeout"
"""Metadata key of the time limit, for example ``2h``."""

_MAX_S = 366 * 86400


def parse_timeout(text: str, what: str = "the timeout") -> int:
    """Return a time limit in seconds; raises SpecError unless it has a unit, and is from 1 second to 366 days. Errors
    begin with ``what``.

    >>> parse_timeout("2h"), parse_timeout("90 s"), parse_timeout("1.5h")
    (7200, 90, 5400)
    """
    from torchx.util.spans import parse_span

    seconds = None if text.rstrip().lower().endswith("ago") else parse_span(text)
    if seconds is None:
        hint = "for example `90s`, `45m`, `2h` or `1d12h`"
        if text.strip().isdecimal() and len(text) < 10:
            hint = f"write its unit: `{text.strip()}s`, `{text.strip()}m` or `{text.strip()}h`"
        raise SpecError(f"{what} `{text}` is not a length of time", hint=hint)
    if not 1 <= seconds <= _MAX_S:
        raise SpecError(f"{what} `{text}` is too {'short' if seconds < 1 else 'long'}", hint="1s to 366d")
    return int(seconds)


def clock(seconds: int, *, of_hours: bool = False) -> str:
    """Format a limit for batch systems: ``H:MM:SS``; with ``of_hours``, ``H:MM`` with the minutes rounded up.

    >>> clock(5400), clock(90), clock(90, of_hours=True)
    ('1:30:00', '0:01:30', '0:02')
    """
    if of_hours:
        minutes = -(-seconds // 60)
        return f"{minutes // 60}:{minutes % 60:02}"
    return f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}"
