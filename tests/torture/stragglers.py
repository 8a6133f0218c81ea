"""Gloo jobs with a rank that sleeps, and even ones: ``python -m tests.torture.stragglers 20``, where PyTorch is.

In each of the first kind `torchx status` must name the rank within two intervals after the first step, in each of the
second kind nobody, at any time.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from torchx.runner import get_runner

RANKS, SLOW_S, SIDE_BY_SIDE = 4, 8.0, 2
_DEADLINE_S = 240.0
PROGRAM = """
import sys, time
import torch, torch.distributed as dist
from torchx import distributed
distributed.init_pg("gloo")
slow, kind = int(sys.argv[1]), sys.argv[2]
torch.set_num_threads(1)
x = torch.ones(64, 64)
model = torch.nn.Linear(64, 64)
model = torch.nn.parallel.DistributedDataParallel(model) if kind == "ddp" else model
step, until = 0, time.time() + float(sys.argv[3])  # from the first step: on a busy machine the start takes long
while True:
    time.sleep(0.03 + (0.06 if distributed.rank() == slow else 0))
    if kind == "ddp":
        model(x).sum().backward()
    over = torch.tensor([float(time.time() > until)])
    dist.all_reduce(over)
    step += 1
    distributed.progress(step, total=10_000)
    if over > 0:
        break
dist.destroy_process_group()
"""


def paces_of(seed: int, slow: int, folder: Path) -> list[dict[str, Any]]:
    """Run a job until three intervals after its first step; return what its status said, each half second."""
    script = folder / f"train{seed}.py"
    script.write_text(PROGRAM)
    env = f"TORCHX_STRAGGLER_S={SLOW_S:g},OMP_NUM_THREADS=1"
    kind = ("reduce", "ddp")[seed % 2]
    words = ["-s", "local_cwd", "dist.ddp", "--script", str(script), "-j", f"1x{RANKS}", "--env", env]
    argv = [sys.executable, "-m", "torchx", "run", "--json", *words, "--", str(slow), kind, f"{3 * SLOW_S:g}"]
    done = subprocess.run(argv, check=True, capture_output=True, text=True, cwd=folder)
    handle = json.loads(done.stdout)["handle"]
    seen: list[dict[str, Any]] = []
    with get_runner() as runner:
        deadline = time.monotonic() + _DEADLINE_S
        while time.monotonic() < deadline:
            status = runner.status(handle)
            assert status is not None
            if status.is_terminal():
                assert str(status.state) == "SUCCEEDED", status.msg
                break
            runner.fill_pace(handle, status)
            if status.pace is not None:
                rank = status.pace.slow.rank if status.pace.slow is not None else None
                seen.append({"at": status.pace.at, "rank": rank, "lines": status.pace.lines()})
            time.sleep(0.5)
    return seen


def survives(seed: int, *, even: bool, folder: Path) -> str:
    """Return what went wrong; empty if nothing did."""
    slow = -1 if even else random.Random(seed).randrange(RANKS)
    seen = paces_of(seed, slow, folder)
    if not seen:
        return "no steps were reported"
    named = {one["rank"] for one in seen if one["rank"] is not None}
    first = next((one["at"] - seen[0]["at"] for one in seen if one["rank"] == slow), None)
    if even:
        return f"named {named}: {seen[-1]['lines']}" if named else ""
    if named != {slow}:
        return f"rank {slow} is slow, named are {named or 'none'}: {seen[-1]['lines']}"
    return f"named after {first:.0f} s" if first is None or first > 2 * SLOW_S else ""


def main() -> int:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    bad = 0
    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        os.environ["TORCHX_HOME"] = os.path.join(name, "home")
        tries = [(seed, even) for seed in range(count) for even in (False, True)]
        answers = pool.map(lambda one: survives(one[0], even=one[1], folder=Path(name)), tries)
        for (seed, even), answer in zip(tries, answers, strict=True):
            bad += bool(answer)
            print(f"{'even' if even else 'straggler'} {seed}: {answer or 'ok'}", flush=True)
    print(f"{len(tries) - bad} of {len(tries)} as expected")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
