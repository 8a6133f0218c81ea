"""The one query for logs, and what is the same for every backend when it is answered."""

from __future__ import annotations

from collections.abc import Iterable

TYPE_CHECKING = False
if TYPE_CHECKING:
    import re
    from dataclasses import dataclass
    from datetime import datetime

    from torchx.schedulers.api import Stream
else:
    from torchx.util.records import dataclass


@dataclass(frozen=True, kw_only=True)
class LogQuery:
    """What is wanted of one replica's output.

    Attributes:
        since: only lines written at or after this Unix time, seconds.
        until: only lines written before this Unix time, seconds.
        regex: only lines in which it is found.
        stream: which output; None: the backend's usual one.
        follow: go on until the job has ended.
    """

    since: float | None = None
    until: float | None = None
    regex: re.Pattern[str] | None = None
    stream: Stream | None = None
    follow: bool = False

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
        from torchx.schedulers.api import Stream, compile_regex

        return LogQuery(
            since=None if since is None else since.timestamp(),
            until=None if until is None else until.timestamp(),
            regex=compile_regex(regex) if regex else None,
            stream=Stream(streams) if streams else None,
            follow=should_tail,
        )

    def matching(self, lines: Iterable[str]) -> Iterable[str]:
        """The lines in which the regular expression is found; all when there is none."""
        if self.regex is None:
            return lines
        found = self.regex.search
        return (line for line in lines if found(line))
