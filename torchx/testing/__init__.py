"""The kit for people who write a backend or a plugin.

=========================================  =================================================================
:class:`SchedulerContract`                 the tests that every scheduler passes; subclass it
:class:`FakeCommandRunner`                 scripted answers instead of a cluster's commands
:class:`Recordings`                        outputs recorded from real systems
:class:`FakeClock`                         time that only the test moves
:func:`site`                               packages that look installed, for tests of plugins
``torchx.testing.fixtures``                the same as pytest fixtures
=========================================  =================================================================

Nothing of the product imports it. ``SchedulerContract`` and the fixtures need pytest.
"""

from __future__ import annotations

from torchx.testing.clock import FakeClock
from torchx.testing.commands import Call, FakeCommandRunner, Recordings
from torchx.testing.site import Site, site

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from torchx.testing.contract import SchedulerContract

__all__ = ["Call", "FakeClock", "FakeCommandRunner", "Recordings", "SchedulerContract", "Site", "site"]


def __getattr__(name: str) -> Any:
    if name == "SchedulerContract":
        import pytest

        pytest.register_assert_rewrite("torchx.testing.contract")  # failed asserts show their values
        from torchx.testing.contract import SchedulerContract

        return SchedulerContract
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
