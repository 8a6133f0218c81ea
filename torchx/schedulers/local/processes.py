"""Types for programs that run local replicas themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import signal


class PopenProtocol(Protocol):
    """The part of ``subprocess.Popen`` that is needed to run a replica."""

    @property
    def pid(self) -> int:
        """Process id."""

    @property
    def returncode(self) -> int | None:
        """Exit code, ``-n`` for signal n; None until :meth:`poll` or :meth:`wait` has returned it."""

    def poll(self) -> int | None:
        """Return the exit code; None while it runs."""

    def wait(self, timeout: float | None = None) -> int:
        """Wait until the process has ended and return the exit code."""

    def kill(self) -> None:
        """Send SIGKILL."""


class SignalException(Exception):
    """A signal interrupted the wait for a job.

    Args:
        msg: what was interrupted.
        sigval: the signal.
    """

    def __init__(self, msg: str, sigval: signal.Signals) -> None:
        super().__init__(msg)
        self.sigval = sigval
