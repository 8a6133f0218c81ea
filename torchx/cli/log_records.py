"""Shows records of the standard ``logging`` as ``torchx: warning: ...``."""

from __future__ import annotations

import logging

from torchx.cli import failures


def install(level: str = "WARNING") -> None:
    """Add our handler to the root logger, unless the program has configured logging itself."""
    root = logging.getLogger()
    if not root.handlers:
        root.addHandler(_Lines(with_tracebacks=level == "DEBUG"))
    if level != "WARNING":
        root.setLevel(level)


class _Lines(logging.Handler):
    def __init__(self, *, with_tracebacks: bool) -> None:
        super().__init__()
        self._with_tracebacks = with_tracebacks

    def emit(self, record: logging.LogRecord) -> None:
        try:
            text = record.getMessage()
            if record.levelno >= logging.ERROR:
                failures.error(text)
            elif record.levelno >= logging.WARNING:
                failures.warn(text)
            else:
                failures.note(f"{record.levelname} {record.name}: {text}")
            if record.exc_info and self._with_tracebacks:
                failures.note(logging.Formatter().formatException(record.exc_info))
        except Exception:
            self.handleError(record)
