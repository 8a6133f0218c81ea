"""Types for programs that run local replicas themselves."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import signal


class PopenProtocol(ABC):
    """The part of ``subprocess.Popen`` that is needed to run a replica."""

    @property
    @abstractmethod
    def pid(self) -> int:
        """Process id."""

    @property
    @abstractmethod
    def returncode(self) -> int | None:
        """Exit code, ``-n`` for signal n; None until :meth:`poll` or :meth:`wait` has returned it."""

    @abstractmethod
    def poll(self) -> int | None:
        """The exit code; None while it runs."""

    @abstractmethod
    def wait(self, timeout: float | None = None) -> int:
        """Wait until the process has ended and return the exit code."""

    @abstractmethod
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
