"""A process inside a replica, or a connection to one of its ports: what a backend returns that lets somebody in."""

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
    """A terminal: its size, and what ``TERM`` calls it."""

    columns: int = 80
    rows: int = 24
    term: str = "xterm-256color"


def described(found: DescribeAppResponse | None, app_id: str, role: str, k: int) -> NotFoundError:
    """The error for a replica that cannot be entered, with the state that its scheduler gives it."""
    if found is None:
        return NotFoundError(
            f"there is no job `{app_id}` any more", hint="`torchx status` shows what is on record of it"
        )
    states = {(s.role, r.id): r.state for s in found.roles_statuses for r in s.replicas}
    return not_running(app_id, role, k, str(states.get((role, k), found.state)))


class Duplex(ABC):
    """A connection to what is inside a replica. One thread may read while another one writes."""

    @abstractmethod
    def write(self, data: bytes) -> None:
        """Gives it all of ``data`` to read on stdin.

        Raises:
            BrokenPipeError: it does not read any more.
        """

    @abstractmethod
    def close_stdin(self) -> None:
        """Ends its stdin. With a terminal nothing happens: there, a character does that."""

    @abstractmethod
    def read(self) -> tuple[int, bytes] | None:
        """What it writes next, and on which stream; waits for it. None: the output has ended."""

    @abstractmethod
    def close(self) -> None:
        """Ends it if it goes on, and lets go of the connection."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class InsideProcess(Duplex):
    """A process inside a replica.

    With a terminal there is one stream of output, :data:`STDOUT`, and a signal is a character of the input.
    """

    @abstractmethod
    def resize(self, columns: int, rows: int) -> None:
        """Gives its terminal another size."""

    @abstractmethod
    def send_signal(self, number: int) -> None:
        """Sends a signal to it and to the processes that it has started, as far as they are in its group."""

    @abstractmethod
    def wait(self) -> int:
        """Its exit code, once the output has ended; 128 and its number for a signal.

        Raises:
            BackendError: the connection was lost, and how it ended is not known.
        """


def not_running(app_id: str, role: str, k: int, state: str) -> NotFoundError:
    """The error for a replica that has ended, or has not begun.

    >>> str(not_running("train-x1", "trainer", 0, "SUCCEEDED"))
    'replica trainer/0 of `train-x1` does not run: it is SUCCEEDED'
    """
    early = state in ("UNSUBMITTED", "SUBMITTED", "PENDING", "RUNNING")
    state = "just ending, or starting" if state == "RUNNING" else state
    hint = "try again when it runs: `torchx status` shows that" if early else "`torchx log` shows what it has written"
    return NotFoundError(f"replica {role}/{k} of `{app_id}` does not run: it is {state}", hint=hint)
