"""Roles in order, on a real Slurm cluster."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.backends.orders import PROGRAM, OrderContract, OrderGround, once, orders_of
from torchx.specs import Resource, Role


@pytest.fixture
def ground(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[OrderGround]:
    monkeypatch.setenv("TORCHX_HOME", str(tmp_path / "home"))

    def role(name: str, script: str) -> Role:
        return Role(name, "", entrypoint="sh", args=["-c", script], resource=Resource(1, 0, 50))

    def left(handle: str) -> str:
        asked = ["squeue", "--noheader", f"--jobs={handle.rpartition('/')[2]}"]
        return subprocess.run(asked, capture_output=True, text=True, check=False).stdout

    with orders_of("test", "slurm", role, left=left, first=lambda: once(tmp_path)) as made:
        yield made


class TestSlurmOrder(OrderContract):
    """The contract."""

    def test_example(self, ground: OrderGround) -> None:
        """On one host, because those of the test share their ports."""
        example = (["--program", f"{PROGRAM}/program.py"], None)
        super().test_example(ground._replace(cfg={"replicas_per_node": 4}, example=example))
