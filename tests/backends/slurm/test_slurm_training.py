"""``dist.ddp`` with real PyTorch on a real Slurm cluster, by the command line, as a user does it."""

from __future__ import annotations

import json
import os
import re
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.backends.shell import ROOT, Shell
from tests.backends.slurm.conftest import command, start_now

TRAIN = """
import os, sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
total = torch.tensor([rank + 1.0]); dist.all_reduce(total)
print(f"rank {rank} of {world} on {os.environ['SLURMD_NODENAME']}: sum {int(total)}", flush=True)
print(f"{sys.argv[1:]} {os.environ['TORCHX_JOB_ID']} {os.environ['TORCHELASTIC_RUN_ID']}", flush=True)
if "fail" in sys.argv and rank == 2:
    dist.destroy_process_group()  # without it, an interpreter that ends may abort before its exit code is told
    raise ValueError("rank 2 has no data")
dist.barrier()
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Shell:
    """A folder with a script in it, and a home that all calls share."""
    folder = tmp_path_factory.mktemp("project")
    (folder / "train.py").write_text(textwrap.dedent(TRAIN))
    path = f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"
    env = {**os.environ, "PATH": path, "OMP_NUM_THREADS": "1", "TORCHX_HOME": str(folder / "home"), "HOME": str(folder)}
    return Shell(folder, env)


def launch(shell: Shell, size: str, *args: str, **cfg: str) -> str:
    options = ",".join(f"{k}={v}" for k, v in cfg.items())
    more = ["-cfg", options] if options else []
    words = ["-s", "slurm", *more, "dist.ddp", "-j", size, "--cpu", "2", "--memMB", "1500", "--script", "train.py"]
    return shell.launch(*words, "--", *args)


@pytest.mark.usefixtures("overtime")  # it has its minute while PyTorch is imported
def test_two_by_two_and_four_by_one(shell: Shell) -> None:
    """Both sizes reduce over all their ranks, each replica on a node of its own, and are found again from elsewhere."""
    two, four = launch(shell, "2x2", "a b", "$(id)"), launch(shell, "4x1")
    elsewhere = Shell(ROOT, shell.env)
    for handle, ranks, nodes in ((two, 4, 2), (four, 4, 4)):
        log = elsewhere.torchx("log", "-f", handle, timeout_s=300)
        found = re.findall(r"rank (\d) of (\d) on (n\d): sum (\d+)", log)
        assert sorted(int(rank) for rank, *_ in found) == list(range(ranks)), log[-3000:]
        assert {(world, total) for _, world, _, total in found} == {(str(ranks), "10")}
        assert len({node for _, _, node, _ in found}) == nodes
        status = json.loads(elsewhere.torchx("status", "--json", handle))
        assert status["state"] == "SUCCEEDED"
        assert {replica["state"] for role in status["roles"] for replica in role["replicas"]} == {"SUCCEEDED"}
        assert handle in elsewhere.torchx("list")
    log = elsewhere.torchx("log", two)
    job_id = two.rpartition("/")[2]
    assert f"['a b', '$(id)'] {two} {job_id}" in log
    assert '"name": "train"' in elsewhere.torchx("describe", "--json", two) or "train" in elsewhere.torchx(
        "describe", two
    )
    shell.torchx("delete", four)
    assert four not in elsewhere.torchx("list")


def test_the_traceback_of_the_failing_rank(shell: Shell) -> None:
    """`status` shows the exception of the rank that failed, not those of the ranks that lost it.

    Its torchrun has no exit code if the one on the other node notices first, and Slurm then ends the step.
    """
    handle = launch(shell, "2x2", "fail")
    shell.torchx("log", "-f", handle, timeout_s=300)
    page = shell.torchx("status", handle, check=False)
    assert "ValueError: rank 2 has no data" in page
    assert "raise ValueError" in page
    assert re.search(r"cause: +train/[01] rank \d on n[1-4]: (exit code 1: )?ValueError", page), page


def test_code_as_it_was_at_submission(shell: Shell, tmp_path: Path, eventually: Callable[..., object]) -> None:
    """With `job_dir` a job that is requeued runs the code that it was submitted with; requeues and retries are counted."""
    project = tmp_path / "project"
    project.mkdir()
    (project / ".torchxconfig").write_text("[cli:run]\nworkspace = .\n")
    script = project / "say.sh"
    start = "${SLURM_RESTART_COUNT:-0}"
    script.write_text(f'echo "old code, start {start}"; [ "{start}" = 0 ] && exec sleep 600; exit 7')
    (project / "jobs.py").write_text(RETRIED)
    mine = Shell(project, shell.env)
    job_dir = tmp_path / "code"
    handle = mine.launch("-s", "slurm", "-cfg", f"job_dir={job_dir}", "jobs.py:retried")
    script.write_text("echo 'new code'")
    app_id = handle.rpartition("/")[2]
    eventually(lambda: "start 0" in mine.torchx("log", handle), timeout_s=180, every_s=0.5)
    command("scontrol", "requeue", app_id)
    eventually(lambda: status_of(mine, handle)["state"] == "PENDING", timeout_s=100, every_s=0.5)
    start_now(app_id)
    eventually(lambda: "retry 1 of 1" in (status_of(mine, handle)["msg"] or ""), timeout_s=100, every_s=0.5)
    start_now(app_id)
    eventually(lambda: status_of(mine, handle)["state"] == "FAILED", timeout_s=180, every_s=0.5)
    said = mine.torchx("log", "--no-prefix", handle).splitlines()
    assert said == [f"old code, start {i}" for i in range(3)]
    status = status_of(mine, handle)
    assert status["num_restarts"] == 2
    assert status["msg"].endswith("exit code 7: old code, start 2; after 2 restarts")
    assert (job_dir / "torchx-jobs").is_dir()


def status_of(shell: Shell, handle: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(shell.torchx("status", "--json", handle))
    return document


RETRIED = '''
from torchx import specs


def retried() -> specs.AppDef:
    """A job that may be started again once."""
    role = specs.Role("r", "", entrypoint="sh", args=["say.sh"], max_retries=1, resource=specs.resource(cpu=1, memMB=100))
    return specs.AppDef("retried", [role])
'''
