"""Fixtures of the registry's tests: a registry of its own, and warnings that are repeated."""

from __future__ import annotations

import pytest

from torchx.runs import RunRegistry, store


@pytest.fixture
def registry(tmp_path):
    found = RunRegistry(str(tmp_path / "runs.db"))
    yield found
    found.close()


@pytest.fixture(autouse=True)
def _warn_again():
    store._warned.clear()
