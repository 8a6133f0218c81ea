"""Collectives, stores and rendezvous of torch.distributed (gloo) that fail: by a peer, by a wait, by a user's bug."""

from __future__ import annotations

from collections.abc import Iterator

from tests.recorded.failures.make.cases import Case
from tests.recorded.failures.make.torchrun import PLAIN, TRAINER, n, on

HEAD = """\
from datetime import timedelta
import torch, torch.distributed as dist
dist.init_process_group("gloo", timeout=timedelta(seconds=4))
t = torch.ones(8)
dist.all_reduce(t)
"""
PEER = "dist.all_reduce(t); dist.all_reduce(t); dist.barrier()"
# The guilty one ends late, so that torchrun sees the victim first.
LATE = "import atexit; atexit.register(time.sleep, 6)\n"


def _victims() -> Iterator[Case]:
    """One dies of its own error; others lose their peer. It is the first that is to be named."""
    own = {
        "value": ('raise ValueError("bad batch")', ("ValueError: bad batch",), "", "error"),
        "exit": ('sys.exit("no data in /data")', ("no data in /data",), "", "error"),
        "segv": ("import ctypes; ctypes.string_at(0)", (), "SIGSEGV", "error"),
        "kill": ("os.kill(os.getpid(), 9)", (), "SIGKILL", "unknown"),
        "chain": (
            "try:\n    raise KeyError('shard')\nexcept KeyError as e:\n    raise RuntimeError('no next batch') from e",
            ("KeyError: 'shard'",), "", "error",
        ),
    }  # fmt: skip
    for name, (code, said, signal, kind) in own.items():
        for setup, args, rank in (("tee2", n(2), 1), ("plain2", n(2, *PLAIN), 1), ("role4", n(4, *TRAINER), 2)):
            yield Case(
                id=f"peer-{name}-{setup}", by="torchrun", program=on(rank, code, others=PEER, head=HEAD), args=args,
                rank=rank, said=said, signal=signal, kind=kind, unsaid=("Connection closed by peer", "ChildFailedError"),
            )  # fmt: skip
    for setup, args in (("tee2", n(2)), ("plain2", n(2, *PLAIN)), ("role2", n(2, *TRAINER))):
        yield Case(
            id=f"late-{setup}", by="torchrun", args=args, rank=1, said=("ValueError: bad batch",),
            program=on(1, "dist.destroy_process_group()\n" + LATE + 'raise ValueError("bad batch")', others=PEER, head=HEAD),
            unsaid=("Connection closed by peer",),
        )  # fmt: skip


def _nodes() -> Iterator[Case]:
    """Two nodes side by side: the one that failed, and the one that lost it."""
    fails = on(1, 'time.sleep(1); raise ValueError("bad batch")', others=PEER, head=HEAD)
    yield Case(
        id="nodes-guilty", by="torchrun", program=fails, args=n(1, "--node_rank", "@NODE@"), nodes=2, node=1,
        said=("ValueError: bad batch",),
    )  # fmt: skip
    yield Case(
        id="nodes-victim", by="torchrun", program=fails, args=n(1, "--node_rank", "@NODE@"), nodes=2, node=0,
        kind="network", aftermath=True, said=("Connection closed by peer",),
    )  # fmt: skip
    static = (
        "--rdzv_backend",
        "static",
        "--master_addr",
        "localhost",
        "--master_port",
        "@PORT@",
        "--node_rank",
        "@NODE@",
    )
    for node, rank in ((0, 1), (1, 3)):
        yield Case(
            id=f"static-{node}", by="torchrun", args=n(2, *static), nodes=2, node=node, rank=rank,
            program=on(rank, f'time.sleep(1); raise ValueError("bad batch {rank}")', others="time.sleep(60)", head=""),
            said=(f"ValueError: bad batch {rank}",),
        )  # fmt: skip


def _waits() -> Iterator[Case]:
    """Waits for a peer that does not come: class network."""
    network = {
        "all-reduce": on(1, "time.sleep(12)", others="dist.all_reduce(t)", head=HEAD),
        "barrier": on(1, "time.sleep(12)", others="dist.barrier()", head=HEAD),
        "broadcast": on(0, "time.sleep(12)", others="dist.broadcast(t, 0)", head=HEAD),
        "recv": on(1, "time.sleep(12)", others="dist.recv(t, 1)", head=HEAD),
        "gather-object": on(1, "time.sleep(12)", others="dist.all_gather_object([None] * 2, 'x')", head=HEAD),
        "monitored": on(1, "time.sleep(12)", others="dist.monitored_barrier(timeout=timedelta(seconds=3))", head=HEAD),
        "store-get": on(
            0, "dist.TCPStore('localhost', @PORT@, 1, True, timeout=timedelta(seconds=2)).get('nobody-sets-this')",
            others="time.sleep(60)", head=HEAD,
        ),
        "ddp-backward": on(
            1, "time.sleep(12)", head=HEAD + "m = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))\n",
            others="for i in range(3):\n    m(t).sum().backward()",
        ),
    }  # fmt: skip
    for name, program in network.items():
        for setup, args in (("tee2", n(2)), ("plain2", n(2, *PLAIN))):
            yield Case(
                id=f"wait-{name}-{setup}", by="torchrun", program=program, args=args, kind="network", aftermath=True,
                rank=1 if name == "broadcast" else 0,
            )  # fmt: skip
    alone = """\
import os
from datetime import timedelta
import torch.distributed as dist
os.environ.update(MASTER_ADDR="{host}", MASTER_PORT="{port}", RANK="{rank}", WORLD_SIZE="2")
dist.init_process_group("gloo", timeout=timedelta(seconds=3))
"""
    for name, host, port, rank in (
        ("clients", "localhost", "@PORT@", 0),
        ("refused", "localhost", "9", 1),
        ("unresolved", "no-such-host.invalid", "29500", 1),
    ):
        yield Case(
            id=f"init-{name}", program=alone.format(host=host, port=port, rank=rank), kind="network", aftermath=True
        )
    taken = "import socket\ns = socket.socket(socket.AF_INET6)\ns.bind(('::', @PORT@))\ns.listen()\n"
    yield Case(
        id="init-port-taken", program=taken + alone.format(host="localhost", port="@PORT@", rank=0), kind="network",
        said=("EADDRINUSE",),
    )  # fmt: skip


def _rendezvous() -> Iterator[Case]:
    sleep = "import time\ntime.sleep(60)\n"
    short = "join_timeout=4,last_call_timeout=1,timeout=4,read_timeout=4,connect_timeout=2"
    for name, args in {
        "nobody-comes": ("--nnodes", "2", "--rdzv_backend", "c10d", "--rdzv_endpoint", "localhost:@PORT@"),
        "no-store": ("--nnodes", "2", "--rdzv_backend", "c10d", "--rdzv_endpoint", "localhost:9"),
        "no-such-host": ("--nnodes", "2", "--rdzv_backend", "c10d", "--rdzv_endpoint", "no-such-host.invalid:29400"),
        "static-alone": (
            "--nnodes", "2", "--rdzv_backend", "static", "--master_addr", "localhost", "--master_port", "9",
            "--node_rank", "1",
        ),
    }.items():  # fmt: skip
        yield Case(
            id=f"rendezvous-{name}", by="torchrun", program=sleep, args=(*n(1), "--rdzv_conf", short, *args),
            kind="network", aftermath=True,
        )  # fmt: skip
    yield Case(
        id="rendezvous-bad-option", by="torchrun", program=sleep, said=("nosuch",),
        args=(*n(1), "--rdzv_backend", "nosuch", "--rdzv_endpoint", "localhost:0"),
    )  # fmt: skip


def _bugs() -> Iterator[Case]:
    """A user's bugs in collectives: class error, although other ranks lose their peer of them."""
    bare = "import torch, torch.distributed as dist\n"
    two = 'dist.init_process_group("gloo")\n'
    ddp = HEAD + "m = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8 + {}))\n"
    programs = {
        "shapes": (on(1, "dist.all_reduce(torch.ones(9))", others="dist.all_reduce(t)", head=HEAD), ()),
        "ddp-shapes": (on(1, "pass", others="pass", head=ddp.format("rank")), ()),
        "ddp-unused": (
            HEAD
            + "class N(torch.nn.Module):\n    def __init__(self):\n        super().__init__()\n"
            + "        self.a, self.b = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)\n"
            + "    def forward(self, x):\n        return self.a(x)\n"
            + "m = torch.nn.parallel.DistributedDataParallel(N())\nfor i in range(3):\n    m(t).sum().backward()\n",
            ("Expected to have finished reduction in the prior iteration",),
        ),
        "bad-backend": (bare + 'dist.init_process_group("nosuch")\n', ()),
        "nccl-without-gpu": (bare + 'dist.init_process_group("nccl")\ndist.all_reduce(torch.ones(1))\n', ("NCCL",)),
        "twice": (bare + two + two, ("initialize the default process group twice",)),
        "no-group": (bare + "dist.all_reduce(torch.ones(1))\n", ("Default process group has not been initialized",)),
        "bad-root": (bare + two + "dist.broadcast(torch.ones(1), src=7)\n", ()),
        "shapes-detail": (on(1, "dist.all_reduce(torch.ones(9))", others="dist.all_reduce(t)", head=HEAD), ()),
        "order-detail": (on(1, "dist.barrier()", others="dist.all_reduce(t)", head=HEAD), ()),
        "cpu-scatter": (bare + two + "dist.scatter(torch.ones(1), [torch.ones(1)] * 3)\n", ()),
    }
    for name, (program, said) in programs.items():
        env = {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"} if name.endswith("-detail") else {}
        for setup, args in (("tee2", n(2)), ("plain2", n(2, *PLAIN))) if "detail" not in name else (("tee2", n(2)),):
            yield Case(id=f"bug-{name}-{setup}", by="torchrun", program=program, args=args, said=said, env=env)
    yield Case(id="bug-no-env", program=bare + two, said=("environment variable RANK expected",))


def cases() -> list[Case]:
    return [*_victims(), *_nodes(), *_waits(), *_rendezvous(), *_bugs()]
