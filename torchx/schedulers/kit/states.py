"""The one rule that makes an app's state out of its replicas' states."""

from __future__ import annotations

from collections.abc import Iterable

from torchx.specs.api import AppState

_STARTED = frozenset((AppState.RUNNING, AppState.SUCCEEDED))

# What is found first in this order decides.
_BY_WEIGHT = (AppState.RUNNING, AppState.UNKNOWN, AppState.PENDING, AppState.SUBMITTED, AppState.UNSUBMITTED)


def fold(states: Iterable[AppState], *, min_replicas: int | None = None) -> AppState:
    """The state of a gang of replicas.

    One that failed makes the gang fail, one that was cancelled makes it cancelled; but an elastic gang goes on, and
    succeeds, while ``min_replicas`` of its members do. A gang of which some run and some wait, or some are done and
    some wait, runs. No replicas at all: ``UNKNOWN``.

    >>> fold([AppState.RUNNING, AppState.PENDING]), fold([AppState.RUNNING, AppState.FAILED])
    (RUNNING (3), FAILED (5))
    >>> fold([AppState.FAILED, AppState.SUCCEEDED], min_replicas=1)
    SUCCEEDED (4)
    """
    members = list(states)
    if not members:
        return AppState.UNKNOWN
    lost = [s for s in members if s in (AppState.FAILED, AppState.CANCELLED)]
    if lost and (min_replicas is None or len(members) - len(lost) < min_replicas):
        return AppState.FAILED if AppState.FAILED in lost else AppState.CANCELLED
    left = set(members) - set(lost)
    if left == {AppState.SUCCEEDED}:
        return AppState.SUCCEEDED
    if left & _STARTED and AppState.UNKNOWN not in left:
        return AppState.RUNNING
    return next(state for state in _BY_WEIGHT if state in left)
