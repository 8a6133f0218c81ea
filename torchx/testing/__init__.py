"""The kit for people who write a backend or a plugin.

=========================================  =================================================================
:class:`SchedulerContract`                 the tests that every scheduler passes; subclass it
:class:`CommandContract`                   the same for the trouble that a command-driven backend may meet
:class:`FakeCommandRunner`                 scripted answers instead of a cluster's commands
:class:`FaultyCommandRunner`               lost answers, damaged output, programs that are not there
:class:`Recordings`                        outputs recorded from real systems
:class:`FakeClock`                         time that only the test moves
:func:`site`                               packages that look installed, for tests of plugins
``torchx.testing.fixtures``                the same as pytest fixtures
=========================================  =================================================================

Nothing of the product imports it. ``SchedulerContract``, ``CommandContract`` and the fixtures need pytest.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

from torchx.testing.clock import FakeClock
from torchx.testing.commands import Call, FakeCommandRunner, Recordings
from torchx.testing.faults import FaultyCommandRunner
from torchx.testing.site import Site, site

if TYPE_CHECKING:
    from torchx.testing.command_contract import CommandContract
    from torchx.testing.contract import SchedulerContract

__all__ = [
    "Call",
    "CommandContract",
    "FakeClock",
    "FakeCommandRunner",
    "FaultyCommandRunner",
    "Recordings",
    "SchedulerContract",
    "Site",
    "site",
]

_CONTRACTS = {"SchedulerContract": "torchx.testing.contract", "CommandContract": "torchx.testing.command_contract"}


def __getattr__(name: str) -> Any:
    if name in _CONTRACTS:
        if _CONTRACTS[name] not in sys.modules:
            import pytest

            pytest.register_assert_rewrite(_CONTRACTS[name])  # failed asserts show their values
        return getattr(importlib.import_module(_CONTRACTS[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
