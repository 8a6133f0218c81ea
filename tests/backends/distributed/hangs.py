"""Ranks that hang on purpose, in one round after another: run by test_hangs.py under torchrun.

The seed says who hangs and how. `$OUT/round-N` says that a round has begun, `$OUT/go-N` ends it; the last round has no end.
`$OUT/quiet` ends the lines of beats/sitecustomize.py.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader

from torchx import distributed

OUT = Path(os.environ.get("OUT", "."))
KINDS = ("sleep", "stop", "loader", "slow")


class Shards:
    """The second one does not come before the round is over."""

    def __init__(self, go: Path) -> None:
        self.go = go

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> int:
        if index == 1:
            wait_for(self.go)
        return index


def wait_for(path: Path) -> None:
    while not path.exists():
        time.sleep(0.05)


def spin(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        sum(range(100))


def meet() -> None:
    dist.all_reduce(torch.ones(8))


def slow_steps(go: Path, *, slow: bool) -> None:
    """Steps that take one rank three times as long, until all have seen the end of the round."""
    over = torch.zeros(1)
    while not over.item():
        spin(0.18 if slow else 0.06)
        over.fill_(go.exists())
        dist.all_reduce(over, op=dist.ReduceOp.MIN)


def hang(kind: str, go: Path) -> None:
    if kind == "sleep":
        wait_for(go)
    elif kind == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif kind == "loader":
        for _ in DataLoader(Shards(go), batch_size=None, num_workers=1, prefetch_factor=1):
            pass
    elif kind == "mismatch":
        dist.broadcast(torch.ones(3), src=(distributed.rank() + 1) % distributed.world_size())


def main(seed: int, rounds: int) -> None:
    distributed.init_pg("gloo")
    dist.barrier()
    (OUT / "quiet").touch()
    chance = random.Random(seed)
    for number in range(rounds):
        kind = chance.choice(KINDS) if number < rounds - 1 else "mismatch"
        who = chance.randrange(distributed.world_size())
        go = OUT / f"go-{number}"
        dist.barrier()
        mine = distributed.rank() == who
        if mine:
            said = OUT / f"round-{number}.new"
            said.write_text(json.dumps({"kind": kind, "who": who, "pid": os.getpid()}))
            said.rename(OUT / f"round-{number}")
        if kind == "slow":
            slow_steps(go, slow=mine)
            continue
        if mine:
            hang(kind, go)
        meet()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
