"""The callbacks of docs/checkpoints.md, as they stand there: jobs of two ranks that are ended twice, on purpose."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.backends import venvs
from tests.backends.shell import ROOT, Shell

pytestmark = pytest.mark.timeout(900)  # most of it for the environment

TOGETHER = """
import os, torch

def told_to_go():
    \"\"\"The same on all ranks: one that did another step than the others would wait for them forever.\"\"\"
    told = torch.tensor(float(os.path.exists("go")))
    torch.distributed.all_reduce(told, torch.distributed.ReduceOp.MAX)
    return told.item() > 0
"""
LIGHTNING = """
import time
from lightning.pytorch import LightningModule

class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def on_train_start(self):
        print("from step", self.global_step, flush=True)

    def training_step(self, batch, index):
        time.sleep(0.05)
        self.trainer.should_stop = told_to_go()
        return self.layer(batch[0]).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)

data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(100000, 4)), batch_size=8)
quiet = dict(logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
trainer = Trainer(accelerator="cpu", devices=2, strategy="ddp", max_epochs=1, callbacks=[CheckpointWhenAsked("last.ckpt")], **quiet)
trainer.fit(Model(), data, ckpt_path="last.ckpt" if os.path.exists("last.ckpt") else None)
print("the end, at step", trainer.global_step, flush=True)
os._exit(0)  # the end of the interpreter may abort, even after destroy_process_group
"""
HUGGING_FACE = """
import glob, time
from transformers import Trainer

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def forward(self, x, labels=None):
        time.sleep(0.05)
        return {"loss": self.layer(x).square().mean()}

class Held(CheckpointWhenAsked):
    def on_train_begin(self, args, state, control, **_):
        print("from step", state.global_step, flush=True)

    def on_step_begin(self, args, state, control, **_):
        control.should_training_stop = told_to_go()

args = TrainingArguments("out", use_cpu=True, save_strategy="no", report_to=[], disable_tqdm=True, logging_strategy="no")
data = [{"x": torch.ones(4), "labels": 0} for _ in range(100000)]
trainer = Trainer(Model(), args, train_dataset=data, callbacks=[Held()])
RESUME
print("the end, at step", trainer.state.global_step, flush=True)
os._exit(0)  # the end of the interpreter may abort, even after destroy_process_group
"""


@pytest.fixture(scope="module")
def blocks() -> list[str]:
    """The programs on the page, in their order."""
    page = (ROOT / "docs" / "checkpoints.md").read_text()
    return re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("name", ["lightning", "transformers"])
def test_a_trainer(
    shell: Shell, eventually: Callable[..., object], tmp_path: Path, blocks: list[str], name: str
) -> None:
    """Asked for a checkpoint, it goes on from there; preempted then, from there again, and comes to its end."""
    venv = venvs.trainers()
    (callback,) = (text for text in blocks if f"from {name}" in text)
    (resume,) = (text for text in blocks if "resume_from_checkpoint" in text)
    program = callback + TOGETHER + (LIGHTNING if name == "lightning" else HUGGING_FACE.replace("RESUME", resume))
    (tmp_path / "train.py").write_text(program)
    shell.cwd = tmp_path
    shell.env["PATH"] = f"{venv / 'bin'}:{shell.env['PATH']}"
    shell.env["HF_HUB_OFFLINE"] = "1"
    begun = re.compile(r"from step (\d+)")

    def times() -> list[int]:
        """From which steps rank 0 went on, attempt by attempt."""
        return [
            int(m[1])
            for line in shell.torchx("log", handle).splitlines()
            if "[0]" in line and (m := begun.search(line))
        ]

    handle = shell.launch(
        *("--workspace=", "--retry", "standard", "dist.ddp", "-j", "1x2", "--env", "HF_HUB_OFFLINE=1", "--script"),
        str(tmp_path / "train.py"),
    )
    eventually(lambda: len(times()) == 1)
    shell.torchx("simulate", "--yes", "timeout", handle)
    eventually(lambda: len(times()) == 2)
    shell.torchx("simulate", "--yes", "preempt", handle)
    eventually(lambda: len(times()) == 3)
    (tmp_path / "go").touch()
    log = shell.torchx("log", "-f", handle)
    status = json.loads(shell.torchx("status", "--json", handle))
    assert status["state"] == "SUCCEEDED", shell.torchx("status", handle)
    assert [attempt["class"] for attempt in status["attempts"]] == ["timeout", "preempted"]
    first, second, third = times()
    assert first == 0 < second == third, log
    assert "the end, at step" in log
