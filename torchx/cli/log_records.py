"""Records of the standard ``logging``, shown as ``torchx: warning: ...``."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def install(level: str = "WARNING") -> None:
    """Gives the root logger a handler that writes lines of ours, unless the program has set up logging itself."""
    import logging

    from torchx.cli import failures

    class Lines(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            try:
                text = record.getMessage()
                if record.levelno >= logging.ERROR:
                    failures.error(text)
                elif record.levelno >= logging.WARNING:
                    failures.warn(text)
                else:
                    failures.note(f"{record.levelname} {record.name}: {text}")
                if record.exc_info and level == "DEBUG":
                    failures.note(logging.Formatter().formatException(record.exc_info))
            except Exception:
                self.handleError(record)

    root = logging.getLogger()
    if not root.handlers:
        root.addHandler(Lines())
    if level != "WARNING":
        root.setLevel(level)


def install_when_imported() -> None:
    """:func:`install` as soon as anything imports ``logging``: it costs 5 ms, and most verbs never need it."""
    if "logging" in sys.modules:
        install()
    elif not any(isinstance(finder, _Watch) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Watch())


class _Watch:
    """A finder that finds nothing but the moment at which ``logging`` is imported."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != "logging":
            return None
        sys.meta_path.remove(self)
        specs = (finder.find_spec(name, path, target) for finder in sys.meta_path)
        spec = next((spec for spec in specs if spec is not None), None)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            execute(module)
            install()

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]  # of this one loader
        return spec
