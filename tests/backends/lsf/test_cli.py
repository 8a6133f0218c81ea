"""As a user types it: torchrun over two LSF jobs with real torch, and what `status`, `log` and `list` show."""

from __future__ import annotations

import re
import sys
from pathlib import Path

TRAIN = """
import os
import sys
import time
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
total = torch.ones(1) * (dist.get_rank() + 1)
dist.all_reduce(total)
print("sum", total.item(), "of", dist.get_world_size())
if "fail" in sys.argv:
    if os.environ["LSB_JOBNAME"].endswith(".1"):  # replica 0 has torchrun's store, without which the other agent fails, too
        dist.destroy_process_group()  # without it, an interpreter that ends may abort before its exit code is told
        raise RuntimeError(f"rank {os.environ['RANK']} has had enough")
    time.sleep(1000)
dist.barrier()
dist.destroy_process_group()
"""


def test_torchrun_over_two_jobs(lsf_shell, tmp_path: Path) -> None:
    """`dist.ddp -j 2x1`: the two agents meet at replica 0, the workers sum up, and the log has both ranks."""
    (tmp_path / "train.py").write_text(TRAIN)
    shown = lsf_shell.torchx(
        "run", "-s", "lsf", "--wait", "dist.ddp", "-j", "2x1", "--script", str(tmp_path / "train.py")
    )
    handle = next(line for line in shown.splitlines() if line.startswith("lsf://"))
    assert "SUCCEEDED" in lsf_shell.torchx("status", handle)
    log = lsf_shell.torchx("log", "--no-prefix", handle)
    assert log.count("sum 3.0 of 2") == 2
    assert "SUCCEEDED" in lsf_shell.torchx("list")


def test_a_failing_rank(lsf_shell, tmp_path: Path) -> None:
    """The traceback of the rank that failed is in `status`, and the other replica is ended.

    Which agent gets which rank is torchrun's choice: by host name, then by pid, and both hosts have this machine's name.
    """
    (tmp_path / "train.py").write_text(TRAIN)
    script = str(tmp_path / "train.py")
    lsf_shell.torchx(
        "run", "-s", "lsf", "--wait", "dist.ddp", "-j", "2x1", "--script", script, "--", "fail", check=False
    )
    page = lsf_shell.torchx("status", "@last", check=False)
    assert re.search(r"/1 rank (\d) on \S+: exit code 1: RuntimeError: rank \1 has had enough", page), page
    assert "1 CANCELLED, 1 FAILED" in page
    assert "raise RuntimeError" in page


def test_dryrun_shows_the_bsubs(lsf_shell) -> None:
    """A dryrun prints what would be submitted, secrets masked; of many replicas the first few."""
    shown = lsf_shell.torchx(
        *("run", "-s", "lsf", "--dryrun", "-cfg", "lsf_queue=gpu", "utils.echo", "--num_replicas", "1000"),
    )
    assert shown.count("bsub -J echo-") == 4
    assert "-q gpu" in shown
    assert "and 996 more replicas" in shown


def test_what_it_used_of_what_it_asked_for(lsf_shell) -> None:
    """As LSF counts it: in the status, and, on record when it is seen to end, where runs are compared."""
    eats = f"{sys.executable} -c 'import time; x = bytes([1]) * (150 << 20); time.sleep(3)'"
    lsf_shell.torchx("run", "--wait", "-s", "lsf", "utils.sh", "--memMB", "4096", eats)
    said = lsf_shell.torchx("status", "@last")
    assert re.search(r"used: +1[5-9]\d MiB of 4 GiB memory, 0\.\d of 1 CPU.*`--mem 256M` would do", said), said
    assert "--mem 256M" in lsf_shell.torchx("list", "--wasteful")
