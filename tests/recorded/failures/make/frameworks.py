"""Programs that use what people use: accelerate, Lightning, Hydra, pydantic, click, joblib, transformers, tqdm.

Needs these packages, without their dependencies, in a folder of ``PYTHONPATH``.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.recorded.failures.make.cases import Case
from tests.recorded.failures.make.torchrun import PLAIN, n, on

LIGHTNING = """\
import torch, lightning as L
class Net(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 2)
    def training_step(self, batch, i):
        {}
        return self.layer(batch).sum()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)
data = torch.utils.data.DataLoader(torch.randn(32, 8), batch_size=4)
L.Trainer(max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False).fit(Net(), data)
"""
HYDRA = """\
import hydra
from omegaconf import DictConfig, OmegaConf
@hydra.main(version_base=None)
def main(cfg):
    {}
main()
"""
CLICK = "import click\n@click.command()\n@click.option('--lr', required=True, type=float)\ndef main(lr):\n    pass\nmain()\n"
PROGRAMS: dict[str, tuple[str, tuple[str, ...]]] = {
    "lightning-value": (LIGHTNING.format("raise ValueError(f'bad batch {i}')"), ("ValueError: bad batch 0",)),
    "lightning-shape": (LIGHTNING.format("batch = batch[:, :7]"), ("mat1 and mat2 shapes cannot be multiplied",)),
    "lightning-step3": (LIGHTNING.format("assert i < 3, 'loss is NaN'"), ("loss is NaN",)),
    "lightning-exit": (LIGHTNING.format("if i == 3: raise SystemExit('no more data')"), ("no more data",)),
    "hydra-value": (HYDRA.format("raise ValueError('bad lr')"), ("ValueError: bad lr",)),
    "hydra-missing": (HYDRA.format("print(cfg.optimizer.lr)"), ()),
    "omegaconf": ("from omegaconf import OmegaConf\nc = OmegaConf.create({'a': '${nosuch}'})\nprint(c.a)\n", ("nosuch",)),
    "pydantic": (
        "from pydantic import BaseModel\nclass C(BaseModel):\n    lr: float\n    steps: int\nC(lr='fast', steps=None)\n",
        ("2 validation errors for C", "lr"),
    ),
    "click": (CLICK, ("Missing option '--lr'",)),
    "joblib": (
        "from joblib import Parallel, delayed\ndef f(x):\n    raise ValueError(f'bad shard {x}')\n"
        "if __name__ == '__main__':\n    Parallel(2)(delayed(f)(i) for i in range(3))\n", ("ValueError: bad shard",),
    ),
    "hub-no-repo": (
        "from transformers import AutoTokenizer\nAutoTokenizer.from_pretrained('/nosuch/model')\n", ("/nosuch/model",),
    ),
    "hub-config": (
        "import os\nos.mkdir('m')\nfrom transformers import AutoConfig\nAutoConfig.from_pretrained('./m')\n", (),
    ),
    "hub-offline": (
        "import os\nos.environ['HF_HUB_OFFLINE'] = '1'\nfrom transformers import AutoConfig\n"
        "AutoConfig.from_pretrained('nosuch/model')\n", (),
    ),
    "hub-unreachable": (
        "import os\nos.environ['HF_ENDPOINT'] = 'http://localhost:9'\nfrom huggingface_hub import snapshot_download\n"
        "snapshot_download('nosuch/model')\n", (),
    ),
    "httpx": ("import httpx\nhttpx.get('http://localhost:9/labels')\n", ("ConnectError",)),
    "safetensors": (
        "from safetensors.torch import load_file\nopen('a', 'wb').write(b'x' * 20)\nload_file('a')\n", ("SafetensorError",),
    ),
    "yaml": ("import yaml\nyaml.safe_load('a: [1')\n", ("ParserError",)),
    "accelerate-prepare": (
        "from accelerate import Accelerator\na = Accelerator(mixed_precision='fp99')\n", ("fp99",),
    ),
    "tqdm-warning": (
        "import tqdm, warnings, sys\nfor i in tqdm.tqdm(range(9)):\n    if i == 5:\n        warnings.warn('slow')\n"
        "        sys.exit('fatal: shard 5 is empty')\n", ("fatal: shard 5 is empty",),
    ),
    "logging": (
        "import logging\nlogging.basicConfig(level=20, format='%(asctime)s %(levelname)s %(name)s: %(message)s')\n"
        "logging.info('start')\nlogging.error('no data in /data')\nlogging.info('bye')\nraise SystemExit(1)\n",
        ("no data in /data",),
    ),
    "checkpoint": (
        "import torch.distributed.checkpoint as dcp\ndcp.load({'a': 1}, checkpoint_id='/nosuch/ckpt', no_dist=True)\n",
        ("/nosuch/ckpt",),
    ),
    "compile": (
        "import torch\n@torch.compile(backend='nosuch')\ndef f(x):\n    return x + 1\nf(torch.ones(1))\n", ("nosuch",),
    ),
    "export": (
        "import torch\nclass N(torch.nn.Module):\n    def forward(self, x):\n        if x.sum() > 0:\n            return x\n"
        "        return -x\ntorch.export.export(N(), (torch.ones(2),))\n", (),
    ),
}  # fmt: skip
LAUNCH = (
    "-m",
    "accelerate.commands.launch",
    "--cpu",
    "--num_machines",
    "1",
    "--mixed_precision",
    "no",
    "--dynamo_backend",
    "no",
)


def cases() -> list[Case]:
    return [*(Case(id=name, program=p, said=said) for name, (p, said) in PROGRAMS.items()), *_launched()]


def _launched() -> Iterator[Case]:
    one = (*LAUNCH, "--num_processes", "1")
    fails = {
        "value": ("raise ValueError('bad batch')", ("ValueError: bad batch",)),
        "exit": ("import sys\nsys.exit('no data in /data')", ("no data in /data",)),
    }
    for name, (code, said) in fails.items():
        yield Case(id=f"accelerate-{name}", program=code + "\n", args=one, said=said)
    yield Case(id="accelerate-segv", program="import ctypes\nctypes.string_at(0)\n", args=one)
    ranks = {
        "lightning-rank": (LIGHTNING.format("raise ValueError('bad batch')"), ("ValueError: bad batch",)),
        "hydra-rank": (HYDRA.format("raise ValueError('bad lr')"), ("ValueError: bad lr",)),
        "pydantic-rank": (on(1, PROGRAMS["pydantic"][0]), ("2 validation errors for C",)),
        "click-rank": (on(1, CLICK), ("Missing option '--lr'",)),
        "joblib-rank": (PROGRAMS["joblib"][0], ("ValueError: bad shard",)),
    }
    for name, (program, said) in ranks.items():
        for setup, args in (("tee2", n(2)), ("plain2", n(2, *PLAIN))):
            yield Case(id=f"{name}-{setup}", by="torchrun", program=program, args=args, said=said)
