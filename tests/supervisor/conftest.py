"""Gates at which the processes of a job wait for the test, and the test for them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.supervisor.forks import Gate


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Gate]:
    """Where processes wait until the test lets them go on."""
    gate = Gate(tmp_path / "gate")
    yield gate
    gate.close()


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Gate]:
    """Where the test waits until processes have begun."""
    gate = Gate(tmp_path / "up")
    yield gate
    gate.close()
