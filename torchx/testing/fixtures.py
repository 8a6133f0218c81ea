"""Pytest fixtures of the test kit: ``torchx_site``, ``fake_commands``, ``fake_clock``.

Set ``pytest_plugins = ["torchx.testing.fixtures"]`` in the top-level ``conftest.py``, or import ``<name>_fixture`` in
the test module.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from torchx.testing.clock import FakeClock
from torchx.testing.commands import FakeCommandRunner
from torchx.testing.site import Site, site


@pytest.fixture(name="torchx_site")
def torchx_site_fixture(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Yield a folder on ``sys.path`` in which a test installs packages of its own."""
    with site(os.fspath(tmp_path_factory.mktemp("site"))) as made:
        yield made


@pytest.fixture(name="fake_commands")
def fake_commands_fixture() -> FakeCommandRunner:
    """Return a command runner with scripted output."""
    return FakeCommandRunner()


@pytest.fixture(name="fake_clock")
def fake_clock_fixture() -> FakeClock:
    """Return a clock that only the test advances."""
    return FakeClock()
