"""The main job with real PyTorch: DDP over 2 nodes x 2 workers on real digits, watched from other shells."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tests.backends.shell import Shell
from tests.backends.training.held import Held


def test_two_by_two_beats_a_linear_model(shell: Shell, tmp_path: Path, eventually: Callable[..., object]) -> None:
    """Four workers train a CNN past any linear model; status, log and list know of it during and after, from elsewhere."""
    held = Held(tmp_path, 1)
    handle = shell.launch("dist.ddp", "-j", "2x2", "--script", held.script)

    eventually(lambda: "epoch" in shell.torchx("log", handle), timeout_s=240)
    during = json.loads(shell.torchx("status", "--json", handle))
    assert during["state"] == "RUNNING"

    held.go_on()
    followed = shell.torchx("log", "-f", handle, timeout_s=300)  # ends when the job does
    after = json.loads(shell.torchx("status", "--json", handle))
    assert after["state"] == "SUCCEEDED"
    assert handle in shell.torchx("list")

    assert {int(rank) for rank in re.findall(r"worker (\d) of 4 is up", followed)} == {0, 1, 2, 3}
    assert len(re.findall(r"epoch +\d+/15 ", followed)) == 15
    assert accuracy(followed) >= linear_accuracy(shell) + 0.03


def linear_accuracy(shell: Shell) -> float:
    """What the best logistic regression reaches on the same split, computed here and now."""
    argv = [sys.executable, "examples/ddp_digits/linear_baseline.py"]
    printed = subprocess.run(argv, cwd=shell.cwd, env=shell.env, capture_output=True, text=True, check=True).stdout
    found = re.search(r"best linear test accuracy: ([\d.]+)", printed)
    assert found, printed
    assert 0.88 < float(found[1]) < 0.93  # scikit-learn's own reaches 0.9111
    return float(found[1])


def accuracy(log: str) -> float:
    found = re.findall(r"final test accuracy: ([\d.]+)", log)
    assert len(found) == 1, log[-3000:]
    return float(found[0])
