"""The states of a job and its replicas."""

from __future__ import annotations

from enum import Enum

NONE = "<NONE>"
RESET = "\033[0m"
YELLOW_BOLD = "\033[1;33m"


class AppState(int, Enum):
    """The state of a job or a replica.

    >>> str(AppState.RUNNING), repr(AppState.RUNNING)
    ('RUNNING', 'RUNNING (3)')
    """

    UNSUBMITTED = 0
    SUBMITTED = 1
    PENDING = 2
    RUNNING = 3
    SUCCEEDED = 4
    FAILED = 5
    CANCELLED = 6
    UNKNOWN = 7

    def __str__(self) -> str:
        return self._name_  # `name` is a property, which is slow for lists of thousands of states

    def __repr__(self) -> str:
        return f"{self.name} ({self.value})"


ReplicaState = AppState
"""Replicas have the same states as apps."""

COLORS = {
    "SUCCEEDED": "\033[32m",
    "FAILED": "\033[31m",
    "RUNNING": "\033[36m",
    "PENDING": "\033[34m",
    "SUBMITTED": "\033[34m",
    "CANCELLED": YELLOW_BOLD,
    "UNKNOWN": YELLOW_BOLD,
}
"""Terminal colours by state name."""

CANCELLING = "cancelling"
"""How the message of a running job begins whose processes were asked to end."""

_TERMINAL = frozenset({AppState.SUCCEEDED, AppState.FAILED, AppState.CANCELLED})


def state_text(state: AppState | str, *, color: bool, text: str = "") -> str:
    """Return the name of a state, or another text, in the colour of the state; other texts stay uncoloured."""
    text = text or str(state)
    start = COLORS.get(str(state), "") if color else ""
    return f"{start}{text}{RESET}" if start else text


def is_terminal(state: AppState) -> bool:
    """Whether the state is final: SUCCEEDED, FAILED or CANCELLED.

    >>> is_terminal(AppState.FAILED), is_terminal(AppState.UNKNOWN)
    (True, False)
    """
    return state in _TERMINAL


def is_started(state: AppState) -> bool:
    """Whether the job has started: the state is RUNNING or final.

    >>> is_started(AppState.RUNNING), is_started(AppState.PENDING)
    (True, False)
    """
    return state == AppState.RUNNING or state in _TERMINAL


def is_cancelling(state: AppState, message: str) -> bool:
    """Whether a job runs although its processes were asked to end; the message then says when they are killed."""
    return state is AppState.RUNNING and message.startswith(CANCELLING)
