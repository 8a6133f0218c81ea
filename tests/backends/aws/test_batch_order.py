"""Roles in order on Batch: the contract, with containers whose commands are those of the registered job definition."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest

from tests.backends.docker.engine import IMAGE
from tests.backends.orders import STAYS, Case, OrderContract, OrderGround, is_there, orders_of
from torchx.specs import AppDef, AppState, Ready, Resource, Role


@pytest.fixture
def ground(queue: str) -> Iterator[OrderGround]:
    def role(name: str, script: str) -> Role:
        return Role(name, IMAGE, entrypoint="sh", args=["-c", script], resource=Resource(cpu=1, gpu=0, memMB=128))

    def left(handle: str) -> str:
        name = handle.rpartition(":")[2]
        names = ["docker", "ps", "--filter", f"name={name}", "--format", "{{.Names}}"]
        return subprocess.run(names, capture_output=True, text=True, check=True).stdout

    refused = ("server-restarts-the-trainer",)
    with orders_of("aws-order", "aws_batch", role, left=left, cfg={"queue": queue}, refused=refused) as made:
        yield made


class TestBatchOrder(OrderContract):
    """The contract."""

    @pytest.mark.skip(reason="Batch is not elastic: a replica that fails ends the job")
    def test_goes_on_without_a_replica(self) -> None:  # type: ignore[override]  # it is skipped
        """See the case `driver-ends-3`."""

    def test_servers_are_asked_at_their_addresses(self, ground: OrderGround) -> None:
        """Over the network of the nodes, by the macros and by the variable; the servers are ready by HTTP."""
        serve = "cd /etc && exec python3 -m http.server ${role.server.port.http} --bind 0.0.0.0"
        server = ground.role("server", serve)
        server.num_replicas, server.port_map, server.ready = 2, {"http": 8000}, Ready(http="/hostname")
        ask = "import os,sys,urllib.request as u; print(*(u.urlopen(f'http://{h}/hostname').status for h in sys.argv[1].split(',')))"
        script = f'test "$TORCHX_HOSTS_SERVER" = "${{role.server.hosts}}" && python3 -c "{ask}" "$TORCHX_HOSTS_SERVER"'
        driver = ground.role("driver", script)
        driver.after, driver.ends_job = ["server"], True
        handle = ground.runner.run(AppDef("ask", [server, driver]), ground.scheduler, cfg=dict(ground.cfg))
        assert ground.ended(handle).state is AppState.SUCCEEDED
        assert [line.strip() for line in ground.runner.log_lines(handle, "driver", 0)] == ["200 200"]

    def test_a_node_is_gone(self, ground: OrderGround) -> None:
        """It is killed with its wrapper: the main node ends the job, and the verdict names what was lost."""
        handle = ground.submit(Case([("server", STAYS, {}), ("trainer", STAYS, {"after": ["server"]})], ""))
        ground.until(handle, lambda status: is_there("trainer RUNNING", status))
        name = f"{handle.rpartition(':')[2]}-"
        ids = ["docker", "ps", "--filter", f"name={name}", "--format", "{{.ID}} {{.Names}}"]
        listed = subprocess.run(ids, capture_output=True, text=True, check=True).stdout.split("\n")
        victim = next(line.split()[0] for line in listed if line.endswith("-1"))
        subprocess.run(["docker", "kill", victim], check=True, capture_output=True)
        status = ground.ended(handle)
        assert [[r.state.name for r in role.replicas] for role in status.roles] == [["CANCELLED"], ["FAILED"]]
        assert "trainer/0" in status.msg
        assert "SIGKILL" in status.msg
