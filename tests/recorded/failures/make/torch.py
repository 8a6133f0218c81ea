"""What PyTorch itself raises in one process: shapes, checkpoints, data loaders, spawned processes."""

from __future__ import annotations

from collections.abc import Iterator

from tests.recorded.failures.make.cases import Case

LOADER = """\
import os, signal, time
import torch
from torch.utils.data import DataLoader, Dataset
class Data(Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, i):
        {}
        return torch.ones(1)
if __name__ == "__main__":
    for batch in DataLoader(Data(), num_workers=2{}):
        time.sleep(0.5)
"""
SPAWN = """\
import ctypes, os, sys, time
import torch.multiprocessing as mp
def work(i):
    if i == 1:
        {}
    time.sleep(30)
if __name__ == "__main__":
    mp.spawn(work, nprocs=2)
"""
T = "import torch\n"
NET = T + "m = torch.nn.Linear(4, 4)\n"
PROGRAMS: dict[str, tuple[str, tuple[str, ...]]] = {
    "load-keys": (NET + "m.load_state_dict({'w': torch.ones(1)})\n", ("Missing key(s)", "Unexpected key(s)")),
    "load-size": (NET + "m.load_state_dict({'weight': torch.ones(2), 'bias': torch.ones(4)})\n", ("size mismatch for weight",)),
    "load-net": (
        T + "m = torch.nn.Sequential(*[torch.nn.Linear(4, 4) for _ in range(30)])\nm.load_state_dict({})\n",
        ("Missing key(s)", "29.bias"),
    ),
    "load-no-file": (T + "torch.load('/ckpt/last.pt')\n", ("FileNotFoundError", "/ckpt/last.pt")),
    "load-broken": (T + "open('a.pt', 'wb').write(b'x' * 100)\ntorch.load('a.pt')\n", ("UnpicklingError",)),
    "load-cut": (
        T + "torch.save(torch.ones(9999), 'a.pt')\nd = open('a.pt', 'rb').read()\nopen('a.pt', 'wb').write(d[:20000])\n"
        "torch.load('a.pt')\n", ("OSError",),
    ),
    "load-empty": (T + "open('a.pt', 'wb')\ntorch.load('a.pt')\n", ("EOFError",)),
    "load-class": (T + "class A: pass\ntorch.save(A(), 'a.pt')\ntorch.load('a.pt')\n", ("Weights only load failed",)),
    "matmul": (NET + "m(torch.ones(2, 5))\n", ("mat1 and mat2 shapes cannot be multiplied",)),
    "index": (T + "torch.nn.Embedding(3, 2)(torch.tensor([7]))\n", ("IndexError: index out of range in self",)),
    "cat": (T + "torch.cat([torch.ones(2, 3), torch.ones(3, 2)])\n", ("Sizes of tensors must match",)),
    "dtype": (NET + "m(torch.ones(2, 4, dtype=torch.long))\n", ("RuntimeError: mat1 and mat2 must have the same dtype",)),
    "no-cuda": (T + "torch.ones(1).cuda()\n", ("Torch not compiled with CUDA enabled",)),
    "twice": (NET + "y = m(torch.ones(4)).sum()\ny.backward()\ny.backward()\n", ("backward through the graph a second time",)),
    "no-grad": (T + "torch.ones(1).backward()\n", ("does not require grad",)),
    "inplace": (
        T + "x = torch.ones(3, requires_grad=True)\ny = x.exp()\ny += 1\ny.sum().backward()\n",
        ("modified by an inplace operation",),
    ),
    "anomaly": (
        T + "torch.autograd.set_detect_anomaly(True)\nx = torch.zeros(1, requires_grad=True)\n(x / x).sum().backward()\n",
        ("returned nan values",),
    ),
    "item": (T + "torch.ones(2).item()\n", ("RuntimeError",)),
    "oneof": (T + "torch.nn.functional.cross_entropy(torch.ones(2, 3), torch.tensor([1, 9]))\n", ("Target 9 is out of bounds",)),
    "script": (T + "@torch.jit.script\ndef f(x):\n    return x.nosuch()\n", ("nosuch",)),
    "loader-value": (LOADER.format("raise ValueError(f'bad row {i}')", ""), ("ValueError: bad row",)),
    "loader-key": (LOADER.format("{}['label']", ""), ("KeyError: 'label'",)),
    "loader-shapes": (
        LOADER.format("return torch.ones(i)", ", batch_size=4"), ("stack expects each tensor to be equal size",)
    ),
    "loader-segv": (
        LOADER.format("import ctypes; ctypes.string_at(0)", ""), ("is killed by signal: Segmentation fault",)
    ),
    "loader-exit": (LOADER.format("os._exit(1)", ""), ("exited unexpectedly",)),
    "spawn-value": (SPAWN.format("raise ValueError('bad shard')"), ("ValueError: bad shard",)),
    "spawn-exit": (SPAWN.format("sys.exit(3)"), ("process 1 terminated with exit code 3",)),
    "spawn-segv": (SPAWN.format("ctypes.string_at(0)"), ("process 1 terminated with signal SIGSEGV",)),
}  # fmt: skip


def cases() -> list[Case]:
    return [
        *(Case(id=name, program=program, said=said) for name, (program, said) in PROGRAMS.items()),
        *_unknown(),
        *_memory(),
    ]


def _unknown() -> Iterator[Case]:
    """Killed by somebody who does not say so."""
    kill = "os.kill(os.getpid(), 9)"
    yield Case(id="loader-kill", program=LOADER.format(kill, ""), kind="unknown", said=("is killed by signal: Killed",))
    yield Case(
        id="spawn-kill", program=SPAWN.format(kill), kind="unknown", said=("process 1 terminated with signal SIGKILL",)
    )


def _memory() -> Iterator[Case]:
    yield Case(
        id="allocator",
        program=T + "torch.empty(1 << 50)\n",
        kind="oom",
        said=("DefaultCPUAllocator: can't allocate memory",),
    )
    yield Case(
        id="allocator-net", program=T + "torch.nn.Linear(1 << 24, 1 << 24)\n", kind="oom", said=("DefaultCPUAllocator",)
    )
    yield Case(id="numpy", program="import numpy\nnumpy.ones((1 << 45,))\n", kind="oom", said=("Unable to allocate",))
    wrapped = "try:\n    torch.empty(1 << 50)\nexcept RuntimeError as e:\n    raise RuntimeError('no buffer') from e\n"
    yield Case(id="allocator-chain", program=T + wrapped, kind="oom", said=("can't allocate memory", "no buffer"))
    limited = "import resource\nresource.setrlimit(resource.RLIMIT_AS, (600 << 20, 600 << 20))\n"
    yield Case(
        id="rlimit", program=T + limited.replace("600", "6000") + "x = [torch.ones(1 << 27) for _ in range(64)]\n",
        kind="oom", said=("DefaultCPUAllocator",),
    )  # fmt: skip
    yield Case(
        id="rlimit-list",
        program=limited + "x = [bytearray(1 << 24) for _ in range(99)]\n",
        kind="oom",
        said=("MemoryError",),
    )
    yield Case(id="memory-error", program="x = 'a' * (1 << 62)\n", kind="oom", said=("MemoryError",))
    worker = LOADER.format("return torch.empty(1 << 50)", "")
    yield Case(id="loader-memory", program=worker, kind="oom", said=("DefaultCPUAllocator",))
