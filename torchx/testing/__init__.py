"""Test kit for authors of backends and plugins.

=========================================  =================================================================
:class:`SchedulerContract`                 tests that every scheduler must pass; subclass it
:class:`CommandContract`                   tests of error handling for command-driven backends; subclass it
:class:`FakeCommandRunner`                 scripted output instead of a cluster's commands
:class:`FaultyCommandRunner`               lost responses, damaged output, missing programs
:class:`Recordings`                        output recorded from real systems
:class:`FakeClock`                         a clock that only the test advances
:func:`site`                               packages that appear to be installed, for tests of plugins
``torchx.testing.fixtures``                pytest fixtures for these
=========================================  =================================================================

torchx itself does not import this package. ``SchedulerContract``, ``CommandContract`` and the fixtures need pytest.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

from torchx.testing.clock import FakeClock
from torchx.testing.commands import Call, FakeCommandRunner, FaultyCommandRunner, Recordings
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
