"""`torchx init`: files that work as they are, and nobody's file written over."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from .conftest import Call


def test_the_files_work_together(torchx: Call, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`torchx run` in the new folder launches the component, which runs the script under torchrun."""
    outcome = torchx("init", "new/folder")
    assert outcome.out.split() == ["new/folder/train.py", "new/folder/component.py", "new/folder/.torchxconfig"]
    monkeypatch.chdir(project / "new" / "folder")
    first = torchx("run", "--dryrun", "--json", "-s", "slurm")
    assert first.err == "", "torchx announces nothing of a config file that it has written"
    document = json.loads(first.out)
    (role,) = document["app"]["roles"]
    assert (document["app"]["name"], role["num_replicas"]) == ("train", 1)
    assert "torchrun" in role["args"][1]
    assert "--nproc_per_node 2" in role["args"][1]
    words = ["component.py:train", "-j", "2x8", "--gpu", "8", "--", "--lr", "0.3"]
    (role,) = json.loads(torchx("run", "--dryrun", "--json", "-s", "slurm", *words).out)["app"]["roles"]
    assert role["args"][1].endswith("train.py --lr 0.3")
    assert (role["num_replicas"], role["resource"]["gpu"]) == (2, 8)


def test_the_config_file_has_no_unknown_key(torchx: Call, project: Path) -> None:
    """All keys are valid, also the commented ones."""
    torchx("init")
    config = project / ".torchxconfig"
    lines = [line[2:] if line.startswith("# ") and " = " in line else line for line in config.read_text().splitlines()]
    config.write_text("\n".join(lines) + "\n")
    outcome = torchx("run", "--dryrun", "-s", "slurm")
    assert outcome.code == 0, outcome.err
    assert "no argument" not in outcome.err
    assert "unknown" not in outcome.err
    assert "--partition=gpu" in outcome.out
    assert "8 gpu" in outcome.out


@pytest.mark.parametrize("name", ["train.py", "component.py", ".torchxconfig"])
def test_nothing_is_written_over(torchx: Call, project: Path, name: str) -> None:
    """If one of the files exists, nothing is written."""
    (project / name).write_text("mine")
    outcome = torchx("init")
    assert outcome.code == 2
    assert f"`./{name}` already exists" in outcome.err
    assert [path.name for path in project.iterdir()] == [name]
    assert (project / name).read_text() == "mine"


def test_what_is_next(torchx: Call, project: Path, tmp_path: Path) -> None:
    """It says what to run next; without PyTorch, so do it and the script, with the command that installs it."""
    said = torchx("init", "a b").err
    assert "Next: cd 'a b', then:\n  torchx run " in said
    assert ("pip install torch" in said) == (find_spec("torch") is None)
    (project / "a b" / "torch.py").write_text("raise ImportError('no torch')\n")
    done = subprocess.run([sys.executable, project / "a b" / "train.py"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "train.py needs PyTorch (no torch): pip install torch\n")
