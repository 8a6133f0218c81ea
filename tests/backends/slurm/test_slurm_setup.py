"""Set-up lines on a real cluster, where a shell function plays the module system."""

from __future__ import annotations

import time

from tests.backends.slurm.conftest import PATIENCE_S
from torchx.runner import Runner, get_runner
from torchx.specs import AppDef, AppStatus, Resource, Role
from torchx.specs.wishes.checks import CHECK_NODES
from torchx.specs.wishes.setup import SETUP

MODULES = 'module() { [ "$2" != nope ] && export LOADED=$2; }; export -f module'


def _run(runner: Runner, setup: str, site: str) -> tuple[str, AppStatus]:
    role = Role("r", "", entrypoint="sh", args=["-c", "echo $0 $LOADED $HERE"], resource=Resource(1, 0, 50))
    role.args.append("${replica_id}")
    role.num_replicas = 2
    metadata = {SETUP: setup, CHECK_NODES: "all"}
    handle = runner.run(AppDef("setup", [role], metadata=metadata), "slurm", {"setup": site})
    deadline = time.monotonic() + PATIENCE_S
    while True:
        status = runner.status(handle)
        if (status is not None and status.is_terminal()) or time.monotonic() > deadline:
            assert status is not None
            return handle, status
        time.sleep(0.2)


def test_each_replica_runs_the_lines() -> None:
    """Those of the site define `module`, those of the job load one, and the nodes are fit; a failure is that of the set-up."""
    with get_runner() as runner:
        handle, status = _run(runner, "module load cuda/12.4\nexport HERE=$SLURM_JOB_ID", MODULES)
        assert status.state.name == "SUCCEEDED", status
        job = handle.rpartition("/")[2]
        for k in (0, 1):
            assert [*runner.log_lines(handle, "r", k)] == [f"{k} cuda/12.4 {job}\n"]
        _, status = _run(runner, "module load nope", MODULES)
        assert status.state.name == "FAILED"
        assert "set-up failed: module load nope (exit 1)" in status.format()
