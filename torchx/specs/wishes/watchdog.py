"""The watchdog for hung jobs (``torchx run --watchdog``), stored in ``AppDef.metadata[WATCHDOG]``.

With ``10m``, the watchdog inspects a job if no replica has written output or reported progress
(:func:`torchx.distributed.progress`) for ten minutes; if its ranks are still computing, it waits for half an hour.
``torchx status`` shows what every rank was doing. An optional action determines what follows: ``stacks``, the default,
does nothing more; ``cancel`` ends the job, which fails with class ``timeout``; ``retry`` ends the attempt, and the
policy of ``--retry`` decides about another one.
"""

from __future__ import annotations

from typing import NamedTuple

from torchx.errors import SpecError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

WATCHDOG = "torchx/watchdog"
"""Metadata key of the watchdog setting, for example ``10m:cancel``."""

ALARMS = ("no output for ", "idle for ")
"""Beginnings of the sentences that report a job that is silent, or idle, now."""

ACTIONS = ("stacks", "cancel", "retry")
_MIN_S, _MAX_S = 2, 366 * 86400


class Watchdog(NamedTuple):
    """How many seconds a job may be silent, and the action that follows."""

    seconds: int
    action: str


def parse_watchdog(text: str, *, what: str = "the watchdog", actions: Sequence[str] = ACTIONS) -> Watchdog:
    """Parse a setting of ``what``, ``TIME`` or ``TIME:ACTION``; raises SpecError if it is invalid.

    >>> parse_watchdog("10m"), parse_watchdog("1h30m:retry")
    (Watchdog(seconds=600, action='stacks'), Watchdog(seconds=5400, action='retry'))
    """
    from torchx.util.spans import parse_span

    span, _, action = text.strip().partition(":")
    seconds = None if span.rstrip().lower().endswith("ago") else parse_span(span)
    if seconds is None or not _MIN_S <= seconds <= _MAX_S:
        raise SpecError(f"`{span}` of {what} is not a length of time from 2s to 366d", hint="for example `10m`")
    action = action.strip() or actions[0]
    if action not in actions:
        raise SpecError(f"`{action}` is not an action of {what}", hint=f"one of: {', '.join(actions)}")
    return Watchdog(int(seconds), action)
