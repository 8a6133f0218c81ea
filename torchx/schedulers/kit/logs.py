"""The query for logs, and helpers for backends that answer it."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from enum import Enum
from typing import TYPE_CHECKING, Any

from torchx.errors import ConfigError, NotFoundError, NotSupportedError
from torchx.util.records import dataclass

if TYPE_CHECKING:
    from datetime import datetime


class Stream(str, Enum):
    """An output stream of a replica: its stdout, its stderr, or both in the order of writing."""

    STDOUT = "stdout"
    STDERR = "stderr"
    COMBINED = "combined"


@dataclass(frozen=True, kw_only=True)
class LogQuery:
    """Selects lines of one replica's output.

    Attributes:
        since: only lines written at or after this Unix time, seconds.
        until: only lines written before this Unix time, seconds.
        regex: only lines that match this regular expression.
        stream: which output; None: the backend's default.
        follow: follow the log until the job has ended.
        last: only this many of the newest lines of each replica; None: all.
        keep: keep a copy of what is read on this machine; needs the capability ``log_keep``.
        timestamps: prefix each line with the time of writing and a space: ``2026-11-23T08:00:00.250Z``, or ``-`` if
            the backend does not know it.
        previous: only the output of the attempt before the last restart.
        live: update progress bars while they grow: an unfinished line comes as
            :class:`~torchx.supervisor.lines.Part`. A backend may ignore this.
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
        *, regex: str | None, since: datetime | None, until: datetime | None, should_tail: bool, streams: Stream | None
    ) -> LogQuery:
        """Create the query from the arguments of ``Scheduler.log_iter``. Times without zone are local.

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
        """Return the query as arguments of ``Scheduler.log_iter``, with times in UTC."""
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
        """Return the lines that match the regular expression; all lines if there is none."""
        if self.regex is None:
            return lines
        found = self.regex.search
        return (line for line in lines if found(line))


def stamped(block: bytes, at: int, *, begun: bool = False) -> bytes:
    """Prefixes each line of a block with its time, see ``LogQuery.timestamps``; a carriage return also starts a line.

    Args:
        block: the result has the same type, which may be :class:`~torchx.supervisor.lines.Part`.
        at: nanoseconds since the epoch; 0 if unknown.
        begun: the block begins in the middle of a line, which already has its time.

    >>> stamped(b"a\\nb\\n", 1_500_000_000)
    b'1970-01-01T00:00:01.500Z a\\n1970-01-01T00:00:01.500Z b\\n'
    """
    stamp = b"- "
    if at:
        second = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(at // 10**9))
        stamp = f"{second}.{at // 10**6 % 1000:03}Z ".encode()
    lines = re.sub(rb"(\n|\r(?!\n))(?=.)", rb"\g<1>" + stamp, block, flags=re.DOTALL)
    return type(block)(lines if begun else stamp + lines)


def not_started_again() -> NotFoundError:
    """Return the error for ``previous`` if the replica had only one attempt."""
    return NotFoundError("this replica was not started again", hint="omit `--previous`")


def refuse_streams(query: LogQuery, system: str) -> None:
    """Raise NotSupportedError for stdout or stderr alone, for a system that has one log for both."""
    if query.stream not in (None, Stream.COMBINED):
        said = f"{system} has one log for stdout and stderr, and cannot show `{query.stream.value}` alone"
        raise NotSupportedError(said, hint="omit `--streams`")


def compile_regex(regex: str) -> re.Pattern[str]:
    """Like ``re.compile``, but raises a torchx error.

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
