"""mypy and Python both report a misspelled run option in the constructor of an options class."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

OPTIONS = {
    "local": "Opts(log_dir='x')",
    "docker": "Opts(privileged=True)",
    "slurm": "SlurmOpts(partition='x')",
    "kubernetes": "Opts(namespace='x')",
    "kubernetes_mcad": "Opts(namespace='x')",
    "lsf": "Opts(lsf_queue='x')",
    "aws_batch": "Opts(queue='x')",
}


def test_mypy_finds_it(tmp_path: Path) -> None:
    """mypy reports it for each class; correct options pass and are a valid `cfg`."""
    lines = ["from torchx.runner import Runner", "from torchx.specs import AppDef"]
    lines += [f"from torchx.schedulers import {name}_scheduler" for name in OPTIONS]
    lines += ["def run(runner: Runner, app: AppDef) -> None:"]
    for name, given in OPTIONS.items():
        lines.append(f"    runner.run(app, 's', cfg={name}_scheduler.{given})")
        lines.append(f"    runner.run(app, 's', cfg={name}_scheduler.{given.replace('=', 'z=')})  # typo")
    program = tmp_path / "program.py"
    program.write_text("\n".join(lines) + "\n")
    root = Path(__file__).parents[2]
    argv = [sys.executable, "-m", "mypy", "--strict", f"--cache-dir={root / '.mypy_cache'}", str(program)]
    done = subprocess.run(argv, capture_output=True, text=True, cwd=root, check=False)
    wrong = [int(line.split(":")[1]) for line in done.stdout.splitlines() if "error:" in line]
    expected = [i for i, line in enumerate(lines, 1) if line.endswith("# typo")]
    assert wrong == expected, done.stdout + done.stderr


@pytest.mark.parametrize("name", OPTIONS)
def test_so_does_python(name: str) -> None:
    """Python raises TypeError."""
    import importlib

    module = importlib.import_module(f"torchx.schedulers.{name}_scheduler")
    name, _, option = OPTIONS[name].partition("=")[0].partition("(")
    with pytest.raises(TypeError, match=f"{option}z"):
        getattr(module, name)(**{f"{option}z": "x"})
