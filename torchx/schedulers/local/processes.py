"""Processes that the caller owns itself, without a supervisor."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import io
    import signal
    import subprocess


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


def start_process(
    args: list[str], env: dict[str, str], *, stdout: io.FileIO | None, stderr: io.FileIO | None, cwd: str | None
) -> subprocess.Popen[bytes]:
    """Start a program in a new session, with the caller's environment overridden by ``env``."""
    import subprocess

    return subprocess.Popen(
        args,
        env={**os.environ, **env},
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
        cwd=cwd,
        start_new_session=True,
    )
