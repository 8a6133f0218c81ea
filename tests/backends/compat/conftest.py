"""An environment into which torchx and a program of others were installed from their wheels."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.backends.shell import ROOT, Shell

DROPIN = ROOT / "tests" / "compat" / "dropin"


@pytest.fixture(scope="session")
def dropin_environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with both wheels and Docker's client; nothing of this checkout is on its path."""
    folder = tmp_path_factory.mktemp("dropin")
    wheels = folder / "wheels"
    _run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(wheels), str(ROOT), str(DROPIN))
    _run(sys.executable, "-m", "venv", str(folder / "venv"))
    built = sorted(str(wheel) for wheel in wheels.glob("*.whl"))
    assert len(built) == 2, built
    _run(str(folder / "venv/bin/pip"), "install", "-q", *built, "docker>=7")
    return folder / "venv"


@pytest.fixture
def others(dropin_environment: Path, tmp_path: Path) -> Shell:
    """Commands as the users of that program type them, in an empty folder, with a home of their own."""
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    (tmp_path / "work").mkdir()
    path = f"{dropin_environment}/bin:{env['PATH']}"
    return Shell(tmp_path / "work", {**env, "TORCHX_HOME": str(tmp_path / "home"), "PATH": path})


def _run(*argv: str) -> None:
    done = subprocess.run(argv, cwd="/", capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{argv}: {done.stdout}{done.stderr}"
