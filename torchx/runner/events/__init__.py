"""Events: a record of each call of the Runner, sent to the handlers of a logger. By default, events are off.

To listen, set ``TORCHX_EVENTS`` to ``console`` or ``file:PATH``, or give the logger a handler and a level::

    logger = logging.getLogger("torchx.runner.events")
    logger.addHandler(my_handler)
    logger.setLevel(logging.INFO)

Each record's message is the JSON of a :class:`TorchxEvent`. Secrets are masked.
"""

from __future__ import annotations

import os
import sys
import time
from functools import cache
from types import TracebackType
from typing import TYPE_CHECKING, Any

from torchx.specs.handles import parse_app_handle
from torchx.util.reexports import reexports
from torchx.util.secrets import mask_told
from torchx.util.session import get_session_id_or_create_new

if TYPE_CHECKING:
    import logging

    from torchx.runner.events.api import SourceType, TorchxEvent
    from torchx.runner.events.handlers import get_logging_handler

reexports(__name__)

__all__ = ["SourceType", "TorchxEvent", "get_logging_handler", "log_event", "record"]

ENV_EVENTS = "TORCHX_EVENTS"
"""Where events go; see :func:`get_logging_handler`. Read once, at the first call of a Runner."""

LOGGER = "torchx.runner.events"
_INFO, _OFF = 20, 100  # logging's own numbers: it is not imported for them

_loggers: dict[str, logging.Logger] = {}


class log_event:  # noqa: N801  # public name
    """Context manager that records one event for the code in its block.

    >>> with log_event("my_api", scheduler="local_cwd") as event:
    ...     event._torchx_event.app_id = "job-1"
    """

    __slots__ = ("_args", "_cpu_ns", "_epoch_us", "_event", "_wall_ns", "on")

    def __init__(  # noqa: PLR0917  # public signature
        self,
        api: str,
        scheduler: str | None = None,
        app_id: str | None = None,
        app_image: str | None = None,
        app_metadata: dict[str, str] | None = None,
        runcfg: str | None = None,
        workspace: str | None = None,
    ) -> None:
        self._args: tuple[Any, ...] = (scheduler or "", api, app_id, app_image, app_metadata, runcfg, workspace)
        self._event: TorchxEvent | None = None
        self.on = False  # whether events were on when the block was entered

    @property
    def _torchx_event(self) -> TorchxEvent:
        # Created on first access: it is not needed while events are off.
        if self._event is None:
            from torchx.runner.events.api import TorchxEvent

            *about, workspace = self._args  # in the order of the event's fields
            self._event = TorchxEvent(get_session_id_or_create_new(), *about, workspace=workspace)  # type: ignore[misc]
        return self._event

    def name_job(self, handle: str) -> None:
        """Add the job to the event, if events are on."""
        if self.on:
            self._torchx_event.scheduler, _, self._torchx_event.app_id = parse_app_handle(handle)

    def __enter__(self) -> log_event:
        self.on = is_on()
        if self.on:
            self._wall_ns = time.perf_counter_ns()
            self._cpu_ns = time.process_time_ns()
            self._epoch_us = time.time_ns() // 1000
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self.on:
            return
        event = self._torchx_event
        event.wall_time_usec = (time.perf_counter_ns() - self._wall_ns) // 1000
        event.cpu_time_usec = (time.process_time_ns() - self._cpu_ns) // 1000
        event.start_epoch_time_usec = self._epoch_us
        if error is not None:
            _describe_error(event, error, trace)
        record(event)


def record(event: TorchxEvent, destination: str = "null") -> None:
    """Send an event to the handlers of the logger ``torchx.runner.events``.

    Args:
        destination: a further destination; see :func:`get_logging_handler`.
    """
    _logger(destination).info(event.serialize())


def is_on() -> bool:
    """Whether a handler receives events."""
    if record is not _own_record:
        return True
    if "logging" not in sys.modules and _wanted() == "null":
        return False
    return _logger("null").isEnabledFor(_INFO)


@cache
def _wanted() -> str:
    return os.environ.get(ENV_EVENTS) or "null"


def _logger(destination: str) -> logging.Logger:
    found = _loggers.get(destination)
    if found is None:
        import logging

        from torchx.runner.events.handlers import get_logging_handler

        if destination == "null":
            found = logging.getLogger(LOGGER)
            # Events must not appear in the program's own log.
            found.propagate = False
            wanted = _wanted()
            found.addHandler(get_logging_handler(wanted))
            if found.level == logging.NOTSET:
                found.setLevel(_OFF if wanted == "null" else _INFO)
        else:
            found = logging.getLogger(f"{LOGGER}.{destination}")
            found.setLevel(_INFO)
            found.addHandler(get_logging_handler(destination))
        _loggers[destination] = found
    return found


def _describe_error(event: TorchxEvent, error: BaseException, trace: TracebackType | None) -> None:
    import json
    import traceback

    event.exception_type = type(error).__name__
    event.exception_message = mask_told(str(error), sys.argv)
    event.raw_exception = mask_told("".join(traceback.format_exception(type(error), error, trace)), sys.argv)
    if trace is not None:
        while trace.tb_next is not None:
            trace = trace.tb_next
        code = trace.tb_frame.f_code
        place = {"filename": code.co_filename, "lineno": trace.tb_lineno, "name": code.co_name}
        event.exception_source_location = json.dumps(place)


# A program may replace `record` to receive the events itself, which turns them on.
_own_record = record
