"""What happens to a job that uses neither GPUs nor processors (``torchx run --idle``), in ``AppDef.metadata[IDLE]``.

With ``30m``, ``torchx status`` and a notification (event ``hang``) report a job that was idle for half an hour after
its first step, with what was sampled. ``30m:cancel`` also ends it, with the failure class ``timeout``;
``30m:checkpoint`` asks its ranks for a checkpoint first.
"""

from __future__ import annotations

from torchx.specs.wishes.watchdog import Watchdog, parse_watchdog

IDLE = "torchx/idle"
"""Metadata key of the setting, for example ``30m:cancel``."""

ACTIONS = ("notify", "cancel", "checkpoint")


def parse_idle(text: str) -> Watchdog:
    """Parse ``TIME`` or ``TIME:ACTION``; raises SpecError if it is invalid.

    >>> parse_idle("30m"), parse_idle("1h:cancel")
    (Watchdog(seconds=1800, action='notify'), Watchdog(seconds=3600, action='cancel'))
    """
    return parse_watchdog(text, what="`--idle`", actions=ACTIONS)
