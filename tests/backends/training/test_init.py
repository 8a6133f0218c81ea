"""What `torchx init` writes, with real PyTorch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")


def test_it_trains_as_it_is(tmp_path: Path) -> None:
    """`torchx run` in the new folder: two workers, and a loss that falls."""
    env = {**os.environ, "TORCHX_HOME": str(tmp_path / "home")}

    def torchx(*words: str, cwd: Path = tmp_path) -> str:
        argv = [sys.executable, "-m", "torchx", *words]
        done = subprocess.run(argv, cwd=cwd, env=env, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout + done.stderr

    torchx("init", "new")
    said = torchx("run", "--log", cwd=tmp_path / "new")
    losses = [float(line.rpartition(" ")[2]) for line in said.splitlines() if "epoch " in line]
    assert len(losses) == 3
    assert losses[-1] < 0.01
    alone = torchx("run", "--log", "train.py", "--epochs", "1", cwd=tmp_path / "new")
    assert "epoch 0: loss" in alone
