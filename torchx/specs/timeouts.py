"""How long a job may run: the words of ``torchx run --timeout``, which mean the same on every scheduler.

An attempt that has run for so long is ended, and has failed with the class ``timeout``. The time that it waits in a
queue does not count, and the next attempt has all of it again. A job carries its limit in ``AppDef.metadata[TIMEOUT]``.
"""

from __future__ import annotations

from torchx.errors import SpecError
from torchx.specs.api import AppDef

TIMEOUT = "torchx/timeout"
"""The key of ``AppDef.metadata`` that holds a job's limit, such as ``2h``."""

_MOST_S = 366 * 86400


def timeout_s(app: AppDef) -> int:
    """The limit that a job carries, in seconds; 0 when it has none.

    Raises:
        SpecError: it cannot be read.

    >>> from torchx.specs.api import AppDef
    >>> timeout_s(AppDef("a", metadata={TIMEOUT: "1h30m"})), timeout_s(AppDef("a"))
    (5400, 0)
    """
    text = app.metadata.get(TIMEOUT) if app.metadata else None
    return parse_timeout(text) if text else 0


def parse_timeout(text: str) -> int:
    """Seconds of a limit.

    Raises:
        SpecError: it is not a length of time with its unit, or one that makes no sense as a limit.

    >>> parse_timeout("2h"), parse_timeout("90 s"), parse_timeout("1.5h")
    (7200, 90, 5400)
    """
    from torchx.util.spans import parse_span

    seconds = None if text.rstrip().lower().endswith("ago") else parse_span(text)
    if seconds is None:
        hint = "for example `90s`, `45m`, `2h` or `1d12h`"
        if text.strip().isdecimal() and len(text) < 10:
            hint = f"write its unit: `{text.strip()}s`, `{text.strip()}m` or `{text.strip()}h`"
        raise SpecError(f"the timeout `{text}` is not a length of time", hint=hint)
    if not 1 <= seconds <= _MOST_S:
        raise SpecError(f"the timeout `{text}` is too {'short' if seconds < 1 else 'long'}", hint="1s to 366d")
    return int(seconds)


def clock(seconds: int, *, of_hours: bool = False) -> str:
    """A limit as batch systems write it: hours, minutes and seconds; or hours and whole minutes, rounded up.

    >>> clock(5400), clock(90), clock(90, of_hours=True)
    ('1:30:00', '0:01:30', '0:02')
    """
    if of_hours:
        minutes = -(-seconds // 60)
        return f"{minutes // 60}:{minutes % 60:02}"
    return f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}"
