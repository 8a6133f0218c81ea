"""``Any`` for annotations that are never evaluated, without importing :mod:`typing`."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any as Any  # noqa: PLC0414  # so that it is exported
else:
    Any = object
