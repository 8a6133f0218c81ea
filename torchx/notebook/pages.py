"""How a notebook prints a status as text."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from torchx.specs import AppStatus

_STATUS = ("torchx.specs.status", "AppStatus")


def register(shell: Any) -> None:
    """Teaches the shell to print a status as a page, without importing its class before somebody has one."""
    shell.display_formatter.formatters["text/plain"].for_type_by_name(*_STATUS, _status_text)


def unregister(shell: Any) -> None:
    """Statuses look as they did before."""
    formatter = shell.display_formatter.formatters["text/plain"]
    formatter.deferred_printers.pop(_STATUS, None)
    for known in [c for c in formatter.type_printers if (c.__module__, c.__name__) == _STATUS]:
        formatter.pop(known)


def _status_text(status: AppStatus, printer: Any, _cycle: bool) -> None:
    printer.text(status.format())
