"""Exported jobs on the real cluster: `sbatch` alone, from a folder that was moved, gives the same outcome and output."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from torchx.runner import Runner
from torchx.schedulers.slurm_scheduler import create_scheduler
from torchx.specs import AppDef, Resource, Role, Secret
from torchx.specs.wishes.setup import SETUP

SCRIPT = 'cat data.txt; echo "$A it\'s $TORCHX_REPLICA"; echo oops >&2; [ "$TOKEN" = "a\'b $" ] || exit 4; exit $CODE'


def test_sbatch_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two replicas, a secret, set-up, code, an exit code: as when torchx launches it. Nothing of torchx is on the path."""
    code = tmp_path / "project"
    code.mkdir()
    (code / "data.txt").write_text("data\n")
    monkeypatch.chdir(code)
    env = {"CODE": "3", "TOKEN": Secret("env:TOKEN"), "TORCHX_REPLICA": "${replica_id}"}
    resource = Resource(cpu=1, gpu=0, memMB=100)
    role = Role("r", "", entrypoint="sh", args=["-c", SCRIPT], env=env, num_replicas=2, resource=resource)
    app = AppDef("exported", [role], metadata={SETUP: 'say() { echo y; }; export A="x $(say)"'})
    # The path has what sbatch and shells treat in a way of their own.
    moved = Path(f"/var/tmp/torchx-export-{os.getpid()}") / "it's 100% %j"
    try:
        with Runner("test", {"slurm": create_scheduler}) as runner:
            info = runner.dryrun(app, "slurm", workspace=str(code))
            runner.export(info, str(tmp_path / "out"))
            moved.parent.mkdir()
            shutil.move(tmp_path / "out", moved)
            shutil.move(code, tmp_path / "elsewhere")
            os.chdir("/")
            (tmp_path / "home").mkdir()
            plain = {"PATH": os.environ["PATH"], "HOME": str(tmp_path / "home"), "TOKEN": "a'b $"}
            argv = ["env", "-i", *(f"{k}={v}" for k, v in plain.items()), str(moved / "run.sh")]
            job = subprocess.run(argv, check=True, capture_output=True, text=True).stdout.strip()
        deadline = time.monotonic() + 180
        while (state := _state(job)) not in ("FAILED", "COMPLETED") and time.monotonic() < deadline:
            time.sleep(0.2)
        (folder,) = (moved / "runs").iterdir()
        assert state == "FAILED", (folder / "slurm.log").read_text()
        said = [(folder / "r" / str(k) / "stdout.log").read_text() for k in (0, 1)]
        assert "data\nx y it's 0\n" in said or "data\nx y it's 1\n" in said
        assert all(text in ("", f"data\nx y it's {k}\n") for k, text in enumerate(said))
        assert not (folder / "secrets.sh").exists(), "the job removes it at its end"
    finally:
        shutil.rmtree(moved.parent, ignore_errors=True)


def _state(job: str) -> str:
    shown = subprocess.run(["scontrol", "show", "job", job], capture_output=True, text=True, check=True).stdout
    return shown.partition("JobState=")[2].split()[0]
