"""Roles in order, with real processes: the contract, and faults at random."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.backends.orders import OrderContract, OrderGround, once, orders_of
from torchx.schedulers.local_scheduler import LocalScheduler
from torchx.specs import Role
from torchx.supervisor import proctree


@pytest.fixture
def ground(scheduler: LocalScheduler, tmp_path: Path) -> Iterator[OrderGround]:
    def role(name: str, script: str) -> Role:
        return Role(name, "", entrypoint="sh", args=["-c", script])

    def left(handle: str) -> list[proctree.Process]:
        folder = scheduler._jobs.find(handle.rpartition("/")[2])
        return proctree.marked(folder) if folder else []

    cfg = {"cancel_grace_s": 2}
    with orders_of("test", "local_cwd", role, cfg=cfg, left=left, first=lambda: once(tmp_path)) as made:
        yield made


class TestLocalOrder(OrderContract):
    """The contract."""
