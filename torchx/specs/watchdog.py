"""What is done when a whole job has been silent: the words of ``torchx run --watchdog``.

``10m`` has a job looked into of which no replica has written anything for ten minutes, and that has left no mark of
progress either (:func:`torchx.distributed.progress`); where ranks compute meanwhile, it is left alone for half an hour.
``torchx status`` shows what every rank was doing. An action behind it says what comes next: ``stacks``, the default,
does nothing more; ``cancel`` ends the job, which has failed with the class ``timeout``; ``retry`` ends the attempt, and
the policy of ``--retry`` says whether there is another one. A job carries its wish in ``AppDef.metadata[WATCHDOG]``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from torchx.errors import SpecError

if TYPE_CHECKING:
    from torchx.specs.api import AppDef

__all__ = ["ACTIONS", "SILENT", "WATCHDOG", "Watchdog", "parse_watchdog", "watchdog_of"]

WATCHDOG = "torchx/watchdog"
"""The key of ``AppDef.metadata`` that holds the wish, such as ``10m:cancel``."""

SILENT = "no output for "
"""How a sentence begins that says of a job that it is silent now."""

ACTIONS = ("stacks", "cancel", "retry")
_LEAST_S = 2


class Watchdog(NamedTuple):
    """How long a job may be silent, in seconds, and what is done then."""

    seconds: int
    action: str


def watchdog_of(app: AppDef) -> Watchdog | None:
    """What a job wishes; None when nothing.

    Raises:
        SpecError: it cannot be read, or it needs a policy for retries that the job does not have.
    """
    text = app.metadata.get(WATCHDOG) if app.metadata else None
    if not text:
        return None
    from torchx.specs.retries import RETRY

    found = parse_watchdog(text)
    if found.action == "retry" and not app.metadata.get(RETRY):
        raise SpecError(f"the watchdog `{text}` needs a policy for retries", hint="for example `--retry standard`")
    return found


def parse_watchdog(text: str) -> Watchdog:
    """Reads such a wish.

    Raises:
        SpecError: it is not one.

    >>> parse_watchdog("10m"), parse_watchdog("1h30m:retry")
    (Watchdog(seconds=600, action='stacks'), Watchdog(seconds=5400, action='retry'))
    """
    from torchx.util.spans import parse_span

    span, _, action = text.strip().partition(":")
    seconds = None if span.rstrip().lower().endswith("ago") else parse_span(span)
    if seconds is None or seconds < _LEAST_S:
        raise SpecError(f"`{span}` of the watchdog is not a length of time from 2s up", hint="for example `10m`")
    action = action.strip() or ACTIONS[0]
    if action not in ACTIONS:
        raise SpecError(f"`{action}` is not what a watchdog does", hint=f"one of: {', '.join(ACTIONS)}")
    return Watchdog(int(seconds), action)
