"""A Grid Engine that runs, and an environment into which torchx and the plugin were installed from their wheels."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.backends.gridengine import cell
from tests.backends.shell import ROOT, Shell

PLUGIN = ROOT / "examples" / "torchx-gridengine"


@pytest.fixture(scope="session")
def grid() -> Iterator[None]:
    """A cell that runs. One that ran before the tests goes on after them; another is taken down."""
    was_up = cell.is_up()
    try:
        cell.up()
    except cell.NoCellHereError as e:
        pytest.skip(f"no Grid Engine here: {e}")
    yield
    if not was_up:
        cell.down()


@pytest.fixture(scope="session")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with both wheels and pytest, and nothing of this checkout on its path."""
    folder = tmp_path_factory.mktemp("plugin")
    wheels = folder / "wheels"
    _run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(wheels), str(ROOT), str(PLUGIN))
    _run(sys.executable, "-m", "venv", str(folder / "venv"))
    built = sorted(str(wheel) for wheel in wheels.glob("*.whl"))
    assert len(built) == 2, built
    _run(str(folder / "venv/bin/pip"), "install", "-q", *built, "pytest")
    return folder / "venv"


@pytest.fixture
def user(grid: None, environment: Path, tmp_path: Path) -> Shell:
    """torchx as a user of that environment types it, with a home of their own."""
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    path = f"{environment}/bin:{cell.BIN}:{env['PATH']}"
    return Shell(tmp_path, {**env, "TORCHX_HOME": str(tmp_path / "home"), "PATH": path})


def _run(*argv: str) -> None:
    done = subprocess.run(argv, cwd="/", capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{argv}: {done.stdout}{done.stderr}"
