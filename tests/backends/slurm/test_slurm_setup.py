"""Set-up lines on a real cluster, where a shell function plays the module system."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pytest

from tests.backends.slurm.conftest import PATIENCE_S
from torchx.runner import Runner, get_runner
from torchx.specs import AppDef, AppStatus, Resource, Role
from torchx.specs.wishes.checks import CHECK_NODES, SPARES
from torchx.specs.wishes.retries import RETRY
from torchx.specs.wishes.setup import SETUP
from torchx.specs.wishes.stages import STAGE

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


def test_spare_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that fails its check is left out, with the reason in the log; if there are too few, the job fails by it."""
    shim = tmp_path / "nvidia-smi"
    shim.write_text(
        '#!/bin/sh\ncase " $BAD " in *" $SLURMD_NODENAME "*) n=2 ;; *) n=0 ;; esac; echo "0, $n, Not Active"\n'
    )
    shim.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    role = Role("r", "", entrypoint="sh", args=["-c", "echo $SLURMD_NODENAME"], resource=Resource(1, 0, 50))
    app = AppDef("spares", [role], metadata={CHECK_NODES: "gpus", SPARES: "1"})
    with get_runner() as runner:
        for bad, state in (("n1", "SUCCEEDED"), ("n1 n2", "FAILED")):
            monkeypatch.setenv("BAD", bad)
            handle = runner.run(app, "slurm", {"nodelist": "n[1-2]"})
            status = runner.wait(handle, wait_interval=0.2)
            assert status is not None
            assert status.state.name == state, status
            log = "".join(runner.log_lines(handle, "r", 0))
            assert "torchx: node left out: n1: GPU 0 has 2 uncorrected memory errors (ECC)" in log
        assert "node check failed: n1: GPU 0 has 2" in status.format()


def test_the_next_attempt_avoids_a_node_that_failed_its_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slurm itself takes the node for fine."""
    shim = tmp_path / "nvidia-smi"
    shim.write_text('#!/bin/sh\n[ "$SLURMD_NODENAME" = n1 ] && n=2 || n=0; echo "0, $n, Not Active"\n')
    shim.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    role = Role("r", "", entrypoint="true", num_replicas=2, resource=Resource(1, 0, 50))
    app = AppDef("unfit", [role], metadata={CHECK_NODES: "gpus", RETRY: "node:1:avoid"})
    with get_runner() as runner:
        status = runner.wait(runner.run(app, "slurm"), wait_interval=0.2)
    assert status is not None and status.state.name == "SUCCEEDED", status
    assert [(a.kind, a.avoid) for a in status.attempts] == [("node", ["n1"])]


def test_data_is_sent_to_all_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By `sbcast`, once; a second job finds it, and one whose data did not arrive copies it."""
    data = tmp_path / "data"
    (data / "sub").mkdir(parents=True)
    (data / "sub" / "x").write_bytes(os.urandom(2 << 20))
    shim = tmp_path / "sbcast"
    real = shutil.which("sbcast")
    shim.write_text(
        f"#!/bin/sh\nif [ -e {tmp_path}/fails ]; then echo failed >>{tmp_path}/sent; exit 1; fi\n"
        f'{real} "$@" && echo arrived >>{tmp_path}/sent\n'
    )
    shim.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    role = Role("r", "", entrypoint="cksum", args=["got/sub/x"], num_replicas=2, resource=Resource(1, 0, 50))
    said = []
    for number in range(3):
        monkeypatch.setenv("TORCHX_STAGE_DIR", str(tmp_path / f"cache-{number // 2}"))
        (tmp_path / "fails").touch() if number else None
        app = AppDef("sent", [role], metadata={STAGE: f"{data}={tmp_path}/got"})
        role.args = [f"{tmp_path}/got/sub/x"]
        with get_runner() as runner:
            handle = runner.run(app, "slurm")
            status = runner.wait(handle, wait_interval=0.2)
            assert status is not None and status.state.name == "SUCCEEDED", status
            said += [*runner.log_lines(handle, "r", 1)]
            told = (tmp_path / "sent").read_text().splitlines()
        assert told == [["arrived"], ["arrived"], ["arrived", "failed"]][number]
        assert [*tmp_path.glob("cache-*-*")] == []
    assert len(set(said)) == 1
