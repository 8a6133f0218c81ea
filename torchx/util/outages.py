"""Retries of polls during an outage: with one warning, exponential backoff, and a limit of ten minutes."""

from __future__ import annotations

import time
from collections.abc import Callable

from torchx.errors import TorchXError, TransientError

OUTAGE_S = 600.0
"""How long transient errors are retried, in seconds."""

_MIN_PAUSE_S = 1.0
_MAX_PAUSE_S = 15.0


class Outage:
    """Backoff for the outages of a polled resource: ``warn`` is called once per outage, ``what`` continues meanwhile.

    >>> said, clock = [], [0.0]
    >>> outage = Outage("the job", said.append, now=lambda: clock[0])
    >>> outage.retry_delay_s(TransientError("no answer")), outage.retry_delay_s(TransientError("no answer"))
    (1.0, 2.0)
    >>> said
    ['no answer; the job continues; torchx retries for 10 minutes']
    """

    def __init__(self, what: str, warn: Callable[[str], None], *, now: Callable[[], float] | None = None) -> None:
        self._what = what
        self._warn = warn
        self._now = now or time.monotonic
        self._since = 0.0
        self._pause = 0.0

    def retry_delay_s(self, error: TorchXError) -> float:
        """Return the seconds to sleep before the next poll.

        Raises:
            TorchXError: ``error``, if it is not transient or the outage is longer than :data:`OUTAGE_S`.
        """
        if not self._pause:
            self._since = self._now()
        if not isinstance(error, TransientError) or self._now() - self._since > OUTAGE_S:
            self.recovered()  # a caller that polls again gets the full time
            raise error
        if not self._pause:
            self._warn(f"{error}; {self._what} continues; torchx retries for {OUTAGE_S / 60:.0f} minutes")
        self._pause = min(2 * self._pause or _MIN_PAUSE_S, _MAX_PAUSE_S)
        return self._pause

    def recovered(self) -> None:
        """End the outage after a successful poll."""
        self._pause = 0.0
