"""Ranks that all wait, in different collectives: run by test_hangs.py under torchrun. The argument says how they disagree."""

from __future__ import annotations

import sys
import time

import torch
import torch.distributed as dist

from torchx import distributed


def meet(size: int = 8, group: dist.ProcessGroup | None = None) -> None:
    dist.all_reduce(torch.ones(size), group=group)


def call(operation: str) -> None:
    one = torch.ones(8)
    dist.all_reduce(one) if operation == "all_reduce" else dist.broadcast(one, src=1)


def main(kind: str) -> None:
    distributed.init_pg("gloo")
    rank = distributed.rank()
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    for _ in range(3):
        meet()
    if kind == "extra" and rank == 2:  # nobody else calls that
        dist.broadcast(torch.ones(3), src=2, async_op=True)
    elif kind == "size" and rank in (0, 2):  # data of different sizes, once it meets, ends a process
        time.sleep(600)
    elif kind == "pairs" and rank < 2:
        meet(group=pairs[0])
    if kind == "operation":
        call("broadcast" if rank == 2 else "all_reduce")
    elif kind == "pairs":  # rank 1 is where rank 0 does not go, rank 3 where rank 2 does not
        meet(group=pairs[rank // 2]) if rank % 2 else time.sleep(600)
    elif kind == "later":
        work = dist.all_reduce(torch.ones(8), async_op=True) if rank != 2 else None
        work.wait() if work else dist.barrier()
    elif kind == "backward":
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
        loss = model(torch.ones(2, 4)).sum()
        time.sleep(600) if rank == 2 else loss.backward()
    else:
        meet(16 if kind == "size" and rank == 1 else 8)


if __name__ == "__main__":
    main(sys.argv[1])
