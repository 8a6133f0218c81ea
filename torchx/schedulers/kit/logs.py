"""The one query for logs, and what is the same for every backend when it is answered."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from enum import Enum
from typing import TYPE_CHECKING, Any

from torchx.errors import ConfigError, NotFoundError
from torchx.util.records import dataclass

if TYPE_CHECKING:
    from datetime import datetime


class Stream(str, Enum):
    """Which output of a replica: its stdout, its stderr, or both in the order of writing."""

    STDOUT = "stdout"
    STDERR = "stderr"
    COMBINED = "combined"


@dataclass(frozen=True, kw_only=True)
class LogQuery:
    """What is wanted of one replica's output.

    Attributes:
        since: only lines written at or after this Unix time, seconds.
        until: only lines written before this Unix time, seconds.
        regex: only lines that match this regular expression.
        stream: which output; None: the backend's usual one.
        follow: keep printing until the job has ended.
        last: only so many lines of each replica, the newest; None: all.
        keep: have the backend keep a copy, on this machine, of all that it reads for this: it has ``log_keep``.
        timestamps: each line begins with the time at which it was written, as far as the backend knows it, and a
            space: ``2026-11-23T08:00:00.250Z``, or ``-``.
        previous: the output of the attempt before the last restart instead of all.
        live: a progress bar is shown while it grows: what is there of its line comes as a
            :class:`~torchx.supervisor.lines.Part`. A backend may ignore this one.
    """

    since: float | None = None
    until: float | None = None
    regex: re.Pattern[str] | None = None
    stream: Stream | None = None
    follow: bool = False
    last: int | None = None
    keep: bool = False
    timestamps: bool = False
    previous: bool = False
    live: bool = False

    @staticmethod
    def of(
        *,
        regex: str | None,
        since: datetime | None,
        until: datetime | None,
        should_tail: bool,
        streams: Stream | None,
    ) -> LogQuery:
        """The query in the words of ``Scheduler.log_iter``. Times without zone are local.

        Raises:
            ConfigError: ``regex`` is not a regular expression.
        """
        return LogQuery(
            since=None if since is None else since.timestamp(),
            until=None if until is None else until.timestamp(),
            regex=compile_regex(regex) if regex else None,
            stream=Stream(streams) if streams else None,
            follow=should_tail,
        )

    def words(self) -> dict[str, Any]:
        """The query as arguments of ``Scheduler.log_iter``; its times are UTC.

        >>> LogQuery(follow=True).words()["should_tail"]
        True
        """
        from datetime import datetime, timezone

        def moment(at: float | None) -> datetime | None:
            return None if at is None else datetime.fromtimestamp(at, timezone.utc)

        return {
            "regex": self.regex.pattern if self.regex else None,
            "since": moment(self.since),
            "until": moment(self.until),
            "should_tail": self.follow,
            "streams": self.stream,
        }

    def matching(self, lines: Iterable[str]) -> Iterable[str]:
        """The lines in which the regular expression is found; all when there is none."""
        if self.regex is None:
            return lines
        found = self.regex.search
        return (line for line in lines if found(line))


def stamped(block: bytes, at: int, *, begun: bool = False) -> bytes:
    """The lines of a block after their time, as with ``timestamps``; each state of a progress bar is one.

    Args:
        block: a :class:`~torchx.supervisor.lines.Part` stays one.
        at: nanoseconds since the epoch; 0: not known.
        begun: the first line goes on with one that has its time already.

    >>> stamped(b"a\\nb\\n", 1_500_000_000)
    b'1970-01-01T00:00:01.500Z a\\n1970-01-01T00:00:01.500Z b\\n'
    """
    import re

    stamp = b"- "
    if at:
        second = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(at // 10**9))
        stamp = f"{second}.{at // 10**6 % 1000:03}Z ".encode()
    lines = re.sub(rb"(\n|\r(?!\n))(?=.)", rb"\g<1>" + stamp, block, flags=re.DOTALL)
    return type(block)(lines if begun else stamp + lines)


def not_started_again() -> NotFoundError:
    """What a backend answers to ``previous`` where there was one attempt alone."""
    return NotFoundError("this replica was not started again", hint="omit `--previous`")


def compile_regex(regex: str) -> re.Pattern[str]:
    """``re.compile`` whose error is one of ours.

    Raises:
        ConfigError: ``regex`` is not a regular expression.
    """
    try:
        return re.compile(regex)
    except re.error as e:
        raise ConfigError(
            f"`{regex}` is not a regular expression: {e}",
            hint="escape characters such as `[`, `(`, `*`, `+`, `?` with a backslash to mean themselves",
        ) from e
