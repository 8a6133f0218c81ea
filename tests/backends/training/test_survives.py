"""The digits example is ended in the middle of its training, on purpose: it goes on from its checkpoint, and learns all."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.backends.shell import Shell
from tests.backends.training.held import Held


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("fault", "kind"), [("preempt", "preempted"), ("timeout", "timeout")])
def test_a_local_job(shell: Shell, eventually: Callable[..., object], tmp_path: Path, fault: str, kind: str) -> None:
    """Preempted at once; or asked for a checkpoint, which is written in the middle and nowhere else."""
    checkpoint = tmp_path / "digits.pt"
    held = Held(tmp_path, 4)
    every = "100" if fault == "timeout" else "1"
    handle = shell.launch(
        *("--retry", "standard", "dist.ddp", "-j", "1x2", "--script", held.script),
        *("--", "--epochs", "15", "--checkpoint", str(checkpoint), "--save-every", every),
    )
    eventually(lambda: re.search(r"epoch +3/15", shell.torchx("log", handle)), timeout_s=240)
    shell.torchx("simulate", fault, handle)
    held.go_on()
    log = shell.torchx("log", "-f", handle, timeout_s=400)
    status = json.loads(shell.torchx("status", "--json", handle))
    assert status["state"] == "SUCCEEDED", shell.torchx("status", handle)
    assert [attempt["class"] for attempt in status["attempts"]] == [kind]
    resumed = [int(epoch) for epoch in re.findall(r"from epoch (\d+)", log)]
    assert resumed[0] == 1
    assert 3 < resumed[1] <= 15, log[-3000:]
    assert float(re.findall(r"final test accuracy: ([\d.]+)", log)[-1]) >= 0.96
