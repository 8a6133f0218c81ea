"""The event that describes one call of the Runner, as a serializable record."""

from __future__ import annotations

from enum import Enum

from torchx.errors import ParseError
from torchx.util.foreign import loads
from torchx.util.records import dataclass


class SourceType(str, Enum):
    """The kind of caller."""

    UNKNOWN = "<unknown>"
    INTERNAL = "INTERNAL"
    EXTERNAL = "EXTERNAL"


@dataclass
class TorchxEvent:
    """One call of an API.

    Args:
        session: id of the session, which the processes of one launch share.
        scheduler: name of the scheduler.
        api: name of the method: ``run``, ``status``, ...
        app_id: app id of the job.
        app_image: image of the job's first role.
        runcfg: run options as JSON, secrets masked.
        raw_exception: the traceback, if the call failed.
        source: the kind of caller.
        cpu_time_usec, wall_time_usec: duration of the call.
        start_epoch_time_usec: start time of the call.
        exception_source_location: file, line and function, as JSON.

    >>> event = TorchxEvent("s", "local_cwd", "run", app_id="echo-1")
    >>> TorchxEvent.deserialize(event.serialize()) == event
    True
    """

    session: str
    scheduler: str
    api: str
    app_id: str | None = None
    app_image: str | None = None
    app_metadata: dict[str, str] | None = None
    runcfg: str | None = None
    raw_exception: str | None = None
    source: SourceType = SourceType.UNKNOWN
    cpu_time_usec: int | None = None
    wall_time_usec: int | None = None
    start_epoch_time_usec: int | None = None
    workspace: str | None = None
    exception_type: str | None = None
    exception_message: str | None = None
    exception_source_location: str | None = None

    def __str__(self) -> str:
        return self.serialize()

    @staticmethod
    def deserialize(data: str | TorchxEvent) -> TorchxEvent:
        """Parse an event from JSON; an event is returned unchanged.

        Raises:
            ParseError: the text is not an event.
        """
        if isinstance(data, TorchxEvent):
            return data
        try:
            fields = loads(data)
            return TorchxEvent(**{**fields, "source": SourceType(fields.get("source", SourceType.UNKNOWN))})
        except (ValueError, TypeError, AttributeError) as e:
            raise ParseError(f"`{data}` is not an event: {e}", text=data) from None

    def serialize(self) -> str:
        """Return the event as JSON, one key for each field."""
        import json

        return json.dumps(self.__dict__)
