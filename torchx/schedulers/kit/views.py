"""Views: what a scheduler does differently for a kind of job, such as a sweep, in a class instead of in branches."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Self

    from torchx.schedulers.api import Scheduler

    _Base = Scheduler[Any]
else:
    _Base = object

_Method = TypeVar("_Method", bound="Callable[..., Any]")


class View(_Base):
    """Base class of views, combined with the class of a scheduler by :meth:`of`."""

    @classmethod
    def of(cls, backend: Scheduler[Any]) -> Self:
        """Create the view of a scheduler: it behaves like the scheduler, except for the methods of this class.

        It shares the connections and the configuration of the scheduler.
        """
        both: type[Self] = _combined(cls, type(backend))
        view = both.__new__(both)
        view.__dict__.update(backend.__dict__)
        return view

    def view_of(self, app_id: str) -> Self:  # noqa: ARG002  # as that of the scheduler
        """Itself: it was chosen already."""
        return self


@functools.cache
def _combined(view: type[Any], backend: type[Any]) -> type[Any]:
    return type(view.__name__, (view, backend), {"__doc__": view.__doc__})


def by_view(method: _Method) -> _Method:
    """Call the method of the view that ``view_of`` chooses for the job in the first argument."""

    @functools.wraps(method)
    def call(self: Any, app_id: str, *rest: Any, **named: Any) -> Any:
        view = self.view_of(app_id)
        if view is self:
            return method(self, app_id, *rest, **named)
        return getattr(view, method.__name__)(app_id, *rest, **named)

    return call  # type: ignore[return-value]  # the same signature
