"""Faults that are planted in a copy of the sources: the sweeps of ``make torture`` find each of them soon."""

from __future__ import annotations

import os

import pytest

from tests.torture.__main__ import main
from tests.torture.faults import FAULTS


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    """By the sweep that is for it; without the fault it finds nothing (tests/torture).

    Half a minute may be a single round, which kills somebody else: it looks up to three times.
    """
    argv = ["--plant", name, "--minutes", "0.5", FAULTS[name].sweep, "--seed"]
    assert any(main([*argv, str(os.getpid() + more)]) == 0 for more in range(3)), capfd.readouterr().out
