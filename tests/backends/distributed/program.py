"""Every rank writes what it saw to `$OUT/RANK.json`: run by test_process_groups.py under torchrun."""

from __future__ import annotations

import json
import os
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from torchx import distributed

OUT = Path(os.environ.get("OUT", "."))


def first(enter: Any, flag: Path, *, mine: bool) -> bool:
    """Whether the flag was there when this rank came through; the first rank needs a while to make it."""
    with enter():
        there = flag.exists()
        if mine:
            time.sleep(0.5)
            flag.touch()
    return there


def after_a_failure() -> str:
    """What rank 0 raises in the block is its own; the others go on."""
    try:
        with distributed.on_rank0_first():
            if distributed.is_rank0():
                raise RuntimeError("rank 0 fails")
    except RuntimeError as e:
        return str(e)
    return "went on"


def main() -> None:
    before = [distributed.rank(), distributed.world_size(), distributed.local_rank()]
    device = distributed.init_pg(timeout=timedelta(minutes=5))
    total = torch.tensor([float(distributed.rank())], device=device)
    dist.all_reduce(total)
    host = os.environ["GROUP_RANK"]
    seen = {
        "before": before,
        "after": [distributed.rank(), distributed.world_size(), distributed.local_rank()],
        "device": str(device),
        "backend": dist.get_backend(),
        "sum": total.item(),
        "rank 0 first": first(distributed.on_rank0_first, OUT / "all", mine=distributed.is_rank0()),
        "local rank 0 first": first(
            distributed.on_local_rank0_first, OUT / f"host{host}", mine=distributed.is_local_rank0()
        ),
        "failure": after_a_failure(),
    }
    dist.barrier()
    (OUT / f"{distributed.rank()}.json").write_text(json.dumps(seen))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
