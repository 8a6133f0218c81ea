"""Processes that the kernel ends because their memory cgroup is full; needs root and cgroup v1's memory controller."""

from __future__ import annotations

from collections.abc import Iterator

from tests.recorded.failures.make.cases import Case
from tests.recorded.failures.make.torchrun import PLAIN, TRAINER, n, on

EAT = "x = []\nwhile True:\n    x.append(bytearray(1 << 22))\n"
CHILD = """\
import multiprocessing as mp, sys
def eat():
    x = []
    while True:
        x.append(bytearray(1 << 22))
if __name__ == "__main__":
    p = mp.Process(target=eat)
    p.start(); p.join()
    sys.exit(f"worker ended with {p.exitcode}")
"""
LOADER = """\
import torch
from torch.utils.data import DataLoader, Dataset
class Data(Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, i):
        self.x = [torch.ones(1 << 20) for _ in range(9999)]
        return self.x[0]
if __name__ == "__main__":
    for batch in DataLoader(Data(), num_workers=2):
        pass
"""


def cases() -> list[Case]:
    return list(_killed())


def _killed() -> Iterator[Case]:
    yield Case(id="python", program="print('step 5')\n" + EAT, memory_mb=64, kind="oom", signal="SIGKILL")
    yield Case(
        id="numpy", program="import numpy\nx = numpy.ones(1 << 27)\n", memory_mb=128, kind="oom", signal="SIGKILL"
    )
    yield Case(
        id="torch", program="import torch\nx = torch.ones(1 << 28)\n", memory_mb=400, kind="oom", signal="SIGKILL"
    )
    yield Case(id="child", program=CHILD, memory_mb=64, kind="oom", said=("worker ended with -9",))
    yield Case(id="loader", program=LOADER, memory_mb=900, kind="oom", said=("is killed by signal: Killed",))
    shell = "echo loading\npython3 -c 'x = [bytearray(1 << 22) for _ in range(9999)]'\n"
    yield Case(id="shell", by="sh", program=shell, memory_mb=64, kind="oom", signal="SIGKILL")
    yield Case(
        id="shell-then", by="sh", program=shell + "echo 'training failed' >&2; exit 1\n", memory_mb=64, kind="oom"
    )
    for setup, args, rank in (("tee2", n(2), 1), ("plain2", n(2, *PLAIN), 1), ("role2", n(2, *TRAINER), 0)):
        yield Case(
            id=f"torchrun-{setup}", by="torchrun", program=on(rank, EAT), args=args, memory_mb=900, kind="oom", rank=rank,
            signal="SIGKILL",
        )  # fmt: skip
