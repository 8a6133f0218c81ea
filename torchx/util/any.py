"""``Any``, ``Generic`` and ``T`` for annotations that are never evaluated, without importing :mod:`typing`."""

from __future__ import annotations

from types import GenericAlias

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any as Any  # noqa: PLC0414  # so that it is exported
    from typing import Generic as Generic  # noqa: PLC0414  # as above
    from typing import TypeVar

    T = TypeVar("T")
else:
    Any = object
    T = "T"

    class Generic:
        __class_getitem__ = classmethod(GenericAlias)
