"""``Any`` for annotations, without the 2 ms that importing :mod:`typing` takes: no annotation is evaluated."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any as Any  # noqa: PLC0414  # so that it is exported
else:
    Any = object
