"""A training job whose every rank writes down its settings, its loss and its checkpoint: run by test_ddp_job.py."""

from __future__ import annotations

import os
from pathlib import Path

import torch
import torch.distributed as dist

from torchx import distributed
from torchx.tracker import app_run_from_env


def main() -> None:
    device = distributed.init_pg()
    rank, world = distributed.rank(), distributed.world_size()
    app_run = app_run_from_env()
    app_run.add_metadata(**{f"rank{rank}": {"local_rank": distributed.local_rank(), "device": str(device)}})
    if distributed.is_rank0():
        app_run.add_metadata(world_size=world, optimizer="sgd")
    weight = torch.zeros(1, device=device)
    for step in range(5):
        gradient = 2 * (weight - rank)
        dist.all_reduce(gradient)
        weight -= 0.1 * gradient / world
        loss = float((weight - rank) ** 2)
        app_run.add_metadata(**{f"loss/rank{rank}": loss, f"step/rank{rank}": step})
    path = Path(os.environ["CHECKPOINTS"]) / f"{rank}.pt"
    torch.save({"weight": weight}, path)
    app_run.add_artifact(f"checkpoint-{rank}", str(path), {"step": 4, "loss": loss})
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
