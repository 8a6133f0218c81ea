"""How an outage of what is asked again and again is borne: said once, with pauses that grow, for ten minutes."""

from __future__ import annotations

import time
from collections.abc import Callable

from torchx.errors import TorchXError, TransientError

OUTAGE_S = 600.0
"""What cannot be reached, for a reason that may pass, is asked again for so long by those who wait."""

_FIRST_PAUSE_S = 1.0
_MOST_PAUSE_S = 15.0


class Outage:
    """The outages of one thing, one after the other.

    Args:
        what: that goes on meanwhile, as the warning names it.
        warn: called with the warning, once in each outage.
        now: the time, in seconds.

    >>> said, clock = [], [0.0]
    >>> outage = Outage("the job", said.append, now=lambda: clock[0])
    >>> outage.bear(TransientError("no answer")), outage.bear(TransientError("no answer"))
    (1.0, 2.0)
    >>> said
    ['no answer; the job goes on; torchx keeps asking for 10 minutes']
    """

    def __init__(self, what: str, warn: Callable[[str], None], *, now: Callable[[], float] | None = None) -> None:
        self._what = what
        self._warn = warn
        self._now = now or time.monotonic
        self._since = 0.0
        self._pause = 0.0

    def bear(self, error: TorchXError) -> float:
        """Seconds to sleep before the next question.

        Raises:
            TorchXError: ``error``, which does not pass, or has not for :data:`OUTAGE_S`.
        """
        if not self._pause:
            self._since = self._now()
        if not isinstance(error, TransientError) or self._now() - self._since > OUTAGE_S:
            self.over()  # who waits once more is patient once more
            raise error
        if not self._pause:
            self._warn(f"{error}; {self._what} goes on; torchx keeps asking for {OUTAGE_S / 60:.0f} minutes")
        self._pause = min(2 * self._pause or _FIRST_PAUSE_S, _MOST_PAUSE_S)
        return self._pause

    def over(self) -> None:
        """There was an answer."""
        self._pause = 0.0
