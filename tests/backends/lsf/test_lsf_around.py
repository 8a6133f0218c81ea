"""Set-up lines, checks of nodes, results and what is free, on the look-alike of LSF."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchx.runner import get_runner
from torchx.schedulers.lsf_scheduler import LsfScheduler
from torchx.specs import AppDef, Resource, Role
from torchx.specs.wishes.checks import CHECK_NODES
from torchx.specs.wishes.fetch import FETCH
from torchx.specs.wishes.setup import SETUP


def test_around_the_program(scheduler: LsfScheduler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two replicas with the environment of the set-up, whose results are fetched; a failure; the hosts."""
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    role = Role("r", "", entrypoint="sh", args=["-c", "mkdir -p runs; echo $0 $A >>runs/x", "${replica_id}"])
    role.num_replicas, role.resource = 2, Resource(1, 0, 64)
    metadata = {
        SETUP: "module() { export A=$2; }\nmodule load a",
        CHECK_NODES: "net,clock",
        FETCH: f"runs/={tmp_path}/o",
    }
    with get_runner() as runner:
        handle = runner.run(AppDef("around", [role], metadata=metadata), "lsf")
        status = runner.wait(handle, 0.2, 120)
        assert status is not None and str(status.state) == "SUCCEEDED", status
        assert runner.fetch(handle)["runs/"].files == 1
        assert sorted((tmp_path / "o" / "x").read_text().splitlines()) == ["0 a", "1 a"]
        role.num_replicas = 1
        handle = runner.run(AppDef("around", [role], metadata={SETUP: "module load nope"}), "lsf")
        status = runner.wait(handle, 0.2, 120)
        assert status is not None and "set-up failed: module load nope (exit 127)" in status.format()
        pools = runner.nodes("lsf", None, Resource(1, 0, 64))
        assert sum(pool.nodes for pool in pools) == 4 and all(pool.free_cpus > 0 for pool in pools)
