"""Roles in order on a real node: probes of the kubelet, and pods that wait for the names of ready ones."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.backends.kubernetes import dns
from tests.backends.kubernetes.jobs import Jobs
from tests.backends.orders import ORDER_CASES, OrderContract, OrderGround, once, orders_of
from torchx.specs import BindMount, Role

ALL_AT_ONCE = "server-restarts-the-trainer"
"""Needs a JobSet, whose controller cannot be had here."""


@pytest.fixture
def ground(jobs: Jobs, tmp_path: Path) -> Iterator[OrderGround]:
    with dns.served(jobs.namespace) as names:
        spec = {**names["spec"], "terminationGracePeriodSeconds": 3}

        def role(name: str, script: str) -> Role:
            return jobs.role(script, name, overlay={"spec": spec}, mounts=[BindMount(str(tmp_path), "/shared")])

        def left(handle: str) -> list[str]:
            pods = jobs.pods(handle.rpartition("/")[2])
            return [pod["metadata"]["name"] for pod in pods if pod["status"]["phase"] in ("Pending", "Running")]

        def first() -> tuple[str, str]:
            return once("/shared")

        cfg = {"namespace": jobs.namespace, "reserved_millicpu": 1000, "kind": "job"}
        with orders_of("tests", "kubernetes", role, cfg=cfg, left=left, first=first, file="/tmp/up") as made:
            yield made


class TestKubernetesOrder(OrderContract):
    """The contract."""

    @pytest.mark.parametrize("name", sorted(ORDER_CASES.keys() - {ALL_AT_ONCE}))
    def test_order(self, ground: OrderGround, name: str) -> None:
        super().test_order(ground, name)
