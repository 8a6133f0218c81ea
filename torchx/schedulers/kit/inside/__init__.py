"""Interfaces to a process inside a replica and to a connection to one of its ports."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, NamedTuple

from torchx.errors import NotFoundError

if TYPE_CHECKING:
    from typing_extensions import Self

    from torchx.schedulers.api import DescribeAppResponse

STDOUT, STDERR = 1, 2
CHUNK = 1 << 16


class Tty(NamedTuple):
    """The size of a terminal, and its ``TERM``."""

    columns: int = 80
    rows: int = 24
    term: str = "xterm-256color"


def described(found: DescribeAppResponse | None, app_id: str, role: str, k: int) -> NotFoundError:
    """Return the error for a replica that cannot be entered, with its state as described by the scheduler."""
    if found is None:
        return NotFoundError(
            f"there is no job `{app_id}` any more", hint="`torchx status` shows what is on record of it"
        )
    states = {(s.role, r.id): r.state for s in found.roles_statuses for r in s.replicas}
    return not_running(app_id, role, k, str(states.get((role, k), found.state)))


class Duplex(ABC):
    """A connection into a replica. One thread may read while another one writes."""

    @abstractmethod
    def write(self, data: bytes) -> None:
        """Write all of ``data`` to its stdin. Raises BrokenPipeError if it no longer reads its stdin."""

    @abstractmethod
    def close_stdin(self) -> None:
        """Close its stdin. Does nothing with a terminal, where a control character ends the input."""

    @abstractmethod
    def read(self) -> tuple[int, bytes] | None:
        """Wait for output and return its stream and the data; None at the end of the output."""

    @abstractmethod
    def close(self) -> None:
        """End the other side if it still runs, and close the connection."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class InsideProcess(Duplex):
    """A process inside a replica.

    With a terminal, all output comes on :data:`STDOUT`, and control characters of the input send signals.
    """

    @abstractmethod
    def resize(self, columns: int, rows: int) -> None:
        """Change the size of its terminal."""

    @abstractmethod
    def send_signal(self, number: int) -> None:
        """Send a signal to its process group."""

    @abstractmethod
    def wait(self) -> int:
        """Return its exit code when the output has ended; 128 plus the number for a signal.

        Raises BackendError if the connection was lost, so that the exit code is unknown.
        """


class NotRunningError(NotFoundError):
    """A replica has ended, or has not started yet."""


def not_running(app_id: str, role: str, k: int, state: str) -> NotRunningError:
    """Return the error for a replica that has ended or has not started yet.

    >>> str(not_running("train-x1", "trainer", 0, "SUCCEEDED"))
    'replica trainer/0 of `train-x1` is not running: it is SUCCEEDED'
    """
    early = state in ("UNSUBMITTED", "SUBMITTED", "PENDING", "RUNNING")
    state = "just ending, or starting" if state == "RUNNING" else state
    hint = "try again when it runs: `torchx status` shows that" if early else "`torchx log` shows what it has written"
    return NotRunningError(f"replica {role}/{k} of `{app_id}` is not running: it is {state}", hint=hint)
