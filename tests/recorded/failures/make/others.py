"""JAX, Ray, Lightning, accelerate, DeepSpeed's launcher and rich, in several processes where they have some.

Needs these packages; JAX, Ray and DeepSpeed without GPUs. What needs a GPU is in `gpu`, by its documented words.
"""

from __future__ import annotations

from tests.recorded.failures.make.cases import Case
from tests.recorded.failures.make.frameworks import LAUNCH

JAX_PEERS = """\
import os, subprocess, sys
me = int(os.environ.get("ME", "0"))
if me == 0:
    subprocess.Popen([sys.executable, __file__], env={{**os.environ, "ME": "1"}}, stderr=subprocess.DEVNULL)
import jax
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize("localhost:@PORT@", 2, me, heartbeat_timeout_seconds=10)
import jax.numpy as jnp
from jax.experimental import multihost_utils
print(multihost_utils.process_allgather(jnp.ones(3)))
{}
"""
RAY = """\
import os, ray
ray.init(num_cpus=2, include_dashboard=False, logging_level="warning")
@ray.remote(max_retries=0)
def f(n):
    {}
ray.get(f.remote(3))
"""
LIGHTNING = """\
import os, signal, torch, lightning as L
class Net(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 2)
    def training_step(self, batch, i):
        {}
        return self.layer(batch).sum()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)
if __name__ == "__main__":
    data = torch.utils.data.DataLoader(torch.randn(64, 8), batch_size=4)
    L.Trainer(max_epochs=1, accelerator="cpu", devices={}, logger=False, enable_checkpointing=False).fit(Net(), data)
"""
RICH = "from rich.traceback import install\ninstall(show_locals={})\ndef load(shard):\n    {}\nload(3)\n"
TYPER = """\
import typer
def main(lr: float):
    raise ValueError(f"bad lr {{lr}}")
typer.run(main)
"""
DEEPSPEED = ("-m", "deepspeed.launcher.launch", "--world_info", "eyJsb2NhbGhvc3QiOiBbMCwgMV19")
SELF = "os.kill(os.getpid(), 9)"


def cases() -> list[Case]:
    return [*_jax(), *_ray(), *_torch(), *_boxes()]


def _jax() -> list[Case]:
    one = {
        "shape": ("print(jnp.ones((3, 4)) @ jnp.ones((3, 4)))", "error", "dot_general requires"),
        "missing": ("import no_such_module", "error", "No module named 'no_such_module'"),
        "oom": ("jnp.ones((1 << 45,), jnp.float32)", "gpu_oom", "Out of memory"),
        "backend": ("import jax\njax.config.update('jax_platforms', 'cuda')\njax.devices()", "error", "AssertionError"),
    }
    found = [
        Case(id=f"jax-{name}", program=f"import jax.numpy as jnp\n{code}\n", kind=kind, said=(said,))
        for name, (code, kind, said) in one.items()
    ]
    late = "import jax\njax.distributed.initialize('localhost:@PORT@', 2, 0, initialization_timeout=8)\n"
    return [
        *found,
        Case(id="jax-nobody-comes", program=late, kind="network", aftermath=True, said=("DEADLINE_EXCEEDED",)),
        Case(
            id="jax-peer-killed",
            program=JAX_PEERS.format(f"if me == 1:\n    {SELF}\nimport time; time.sleep(60)"),
            kind="network",
            aftermath=True,
        ),
        Case(
            id="jax-value",
            program=JAX_PEERS.format("if me == 0:\n    raise ValueError('bad batch')\nimport time; time.sleep(5)"),
            said=("ValueError: bad batch",),
        ),
    ]


def _ray() -> list[Case]:
    tasks = {
        "value": ('raise ValueError(f"bad shard {n}")', "error", "ValueError: bad shard 3"),
        "missing": ("import no_such_module", "error", "No module named 'no_such_module'"),
        "killed": (SELF, "unknown", "WorkerCrashedError"),
        "memory": ("return [0] * (1 << 60)", "oom", "MemoryError"),
    }
    actor = RAY.replace("@ray.remote(max_retries=0)\ndef f(n):\n    {}\nray.get(f.remote(3))", "{}").format(
        f"@ray.remote\nclass A:\n    def f(self):\n        {SELF}\na = A.remote()\nray.get(a.f.remote())"
    )
    return [
        *(Case(id=f"ray-{n}", program=RAY.format(code), kind=k, said=(s,)) for n, (code, k, s) in tasks.items()),
        Case(id="ray-actor-killed", program=actor, kind="unknown", said=("ActorDiedError",)),
    ]


def _torch() -> list[Case]:
    two = (*LAUNCH, "--num_processes", "2")
    value, died = "import os\nraise ValueError('bad batch')\n", f"import os\n{SELF}\n"
    return [
        Case(id="accelerate-killed", program=died, args=two, kind="unknown"),
        Case(id="deepspeed-value", program=value, args=DEEPSPEED, said=("ValueError: bad batch",)),
        Case(id="deepspeed-killed", program=died, args=DEEPSPEED, kind="unknown", signal="SIGKILL"),
        Case(id="deepspeed-segv", program="import ctypes\nctypes.string_at(0)\n", args=DEEPSPEED, signal="SIGSEGV"),
        Case(
            id="lightning-two-value",
            program=LIGHTNING.format("if self.global_rank == 1 and i == 2: raise ValueError('bad batch')", 2),
            said=("ValueError: bad batch",),
        ),
    ]


def _boxes() -> list[Case]:
    bad = 'raise ValueError(f"bad shard {shard}")'
    long = 'raise RuntimeError("the shard is bad, " * 20 + "truly")'
    return [
        Case(id="rich-value", program=RICH.format(False, bad), said=("ValueError: bad shard 3",)),
        Case(id="rich-locals", program=RICH.format(True, bad), said=("ValueError: bad shard 3",), unsaid=("locals",)),
        Case(id="rich-wraps", program=RICH.format(False, long), said=("RuntimeError: the shard is bad",)),
        Case(
            id="rich-peer",
            program=RICH.format(False, 'raise RuntimeError("Connection closed by peer")'),
            aftermath=True,
        ),
        Case(id="typer-usage", program=TYPER, said=("Missing argument",)),
    ]
