"""Fixtures of the Runner's tests: a Runner with an in-memory cluster, and a fake clock."""

from __future__ import annotations

import pytest

from torchx import config
from torchx.runner import Runner
from torchx.testing import FakeClock

from .memory_backend import MemoryScheduler


@pytest.fixture
def jobs():
    """The jobs of the in-memory cluster."""
    return {}


@pytest.fixture
def runner(jobs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config._warned.clear()

    def memory(session_name, **params):
        return MemoryScheduler(session_name, jobs=jobs, **params)

    with Runner("test", {"memory": memory, "local_cwd": memory}) as found:
        yield found


@pytest.fixture
def clock(monkeypatch):
    """A clock that advances only by sleeping."""
    from torchx.runner.watching import wait

    found = FakeClock()
    monkeypatch.setattr(wait, "time", found)
    return found
