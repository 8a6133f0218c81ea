"""Ranks that share the first GPU of this machine and hang or fail on purpose: run by test_gpus.py under torchrun.

NCCL refuses two ranks of a host that share a GPU. `NCCL_HOSTID` makes each take the others for ranks of other hosts.
"""

from __future__ import annotations

import os
import sys
import time

import torch
import torch.distributed as dist

from torchx import distributed

ODD = 2
STEPS = 5


def step_over(kind: str, loss: torch.Tensor, model: torch.nn.Module) -> None:
    """Needs the result of the collective, each kind in its own way."""
    if kind in ("item", "kernel"):
        loss.item()
    elif kind == "compare" and loss > 1e9:
        print("large")
    elif kind == "synchronize":
        torch.cuda.synchronize()
    elif kind == "clip":
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)


def fail(kind: str, device: torch.device) -> None:
    if kind == "kernel":
        torch.cuda._sleep(10**13)  # cycles, for which the GPU of this rank is busy
    elif kind == "memory":
        torch.empty(1 << 42, dtype=torch.uint8, device=device)
    elif kind == "assertion":
        print(torch.zeros(4, device=device)[torch.tensor([9], device=device)].item())
    elif kind == "data":
        raise ValueError("bad batch")


def main(kind: str) -> None:
    rank = distributed.rank()
    if kind != "shared":
        os.environ.update(NCCL_HOSTID=f"host{rank}", NCCL_SOCKET_IFNAME="lo", TORCH_NCCL_ENABLE_TIMING="1")
    os.environ["LOCAL_RANK"] = "0"
    device = distributed.init_pg("nccl")
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4).to(device))
    for step in range(STEPS + 1):
        if step == STEPS and rank == ODD:
            fail(kind, device)
            time.sleep(0 if kind == "kernel" else 600)
        model(torch.ones(2, 4, device=device)).sum().backward()
        loss = torch.ones(1, device=device)
        dist.all_reduce(loss)
        step_over(kind, loss, model)
    time.sleep(600)


if __name__ == "__main__":
    main(sys.argv[1])
