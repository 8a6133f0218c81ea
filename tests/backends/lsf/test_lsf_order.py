"""Roles in order, on the look-alike of LSF."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.backends.lsf.conftest import command
from tests.backends.lsf.lookalike.config import Config
from tests.backends.orders import PROGRAM, OrderContract, OrderGround, once, orders_of
from torchx.specs import Resource, Role


@pytest.fixture
def ground(cluster: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[OrderGround]:
    monkeypatch.setenv("TORCHX_HOME", str(tmp_path / "home"))

    def role(name: str, script: str) -> Role:
        return Role(name, "", entrypoint="sh", args=["-c", script], resource=Resource(1, 0, 50))

    def left(handle: str) -> str:
        return command("bjobs", "-noheader", "-g", f"/torchx_{handle.rpartition('/')[2]}")

    refused = ("server-restarts-the-trainer",)
    with orders_of("test", "lsf", role, left=left, first=lambda: once(tmp_path), refused=refused) as made:
        yield made


class TestLsfOrder(OrderContract):
    """The contract."""

    def test_example(self, ground: OrderGround) -> None:
        """On one host, because those of the test share their ports."""
        example = (["--program", f"{PROGRAM}/program.py"], None)
        super().test_example(ground._replace(cfg={"hosts": "127.0.0.11"}, example=example))
