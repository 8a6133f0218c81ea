"""The states of a job and its replicas."""

from __future__ import annotations

from enum import Enum

NONE = "<NONE>"
RESET = "\033[0m"
YELLOW_BOLD = "\033[1;33m"


class AppState(int, Enum):
    """Where a job, or one replica of it, stands.

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
        return self._name_  # `name` is a property in Python, and a list prints thousands of states

    def __repr__(self) -> str:
        return f"{self.name} ({self.value})"


ReplicaState = AppState
"""A replica goes through the same states as an app."""

COLORS = {
    "SUCCEEDED": "\033[32m",
    "FAILED": "\033[31m",
    "RUNNING": "\033[36m",
    "PENDING": "\033[34m",
    "SUBMITTED": "\033[34m",
    "CANCELLED": YELLOW_BOLD,
    "UNKNOWN": YELLOW_BOLD,
}
"""How a terminal shows the name of each state."""

_TERMINAL = frozenset({AppState.SUCCEEDED, AppState.FAILED, AppState.CANCELLED})


def state_text(state: AppState | str, *, color: bool, text: str = "") -> str:
    """The name of a state, or another text about it, in its colour; of what is not a state, the text."""
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
    """Whether there is nothing more to wait for before one can look at the job: it runs, or it is over.

    >>> is_started(AppState.RUNNING), is_started(AppState.PENDING)
    (True, False)
    """
    return state == AppState.RUNNING or state in _TERMINAL
