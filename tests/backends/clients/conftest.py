"""Programs of others that are built on torchx, from their packages, each in an environment of its own with this torchx.

What they require of ``torchx`` is installed with them, and lies behind this checkout's wheel on the path.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.backends import venvs
from tests.backends.compat.test_dropin_installed import docker_image, slurm_cluster  # noqa: F401  # fixtures
from tests.backends.shell import ROOT

Client = Callable[..., str]


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what this checkout's wheel holds."""
    folder = tmp_path_factory.mktemp("torchx")
    argv = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(folder), str(ROOT)]
    done = subprocess.run(argv, cwd="/", capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def runner(name: str, packages: list[str], wheel: Path, tmp_path: Path) -> Client:
    """Runs Python with these packages and our torchx, in a Git repository, with a home of its own."""
    with venvs._or_skip():
        venv = venvs.made(f"client-{name}", packages)
    work = tmp_path / "work"
    work.mkdir()
    env = {k: v for k, v in os.environ.items() if k not in ("VIRTUAL_ENV", "PYTHONPATH")}
    env |= {
        "HOME": str(tmp_path),
        "TMPDIR": str(work),
        "TORCHX_HOME": str(tmp_path / "torchx"),
        "PYTHONPATH": str(wheel),
        "PATH": f"{venv}/bin:{env['PATH']}",
        "COLUMNS": "200",
    }
    git = ["git", "-c", "user.name=n", "-c", "user.email=n@example.org"]
    for args in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "x"]):
        subprocess.run([*git, *args], cwd=work, check=True)

    def run(*argv: str, script: str = "") -> str:
        (work / "program.py").write_text(script)
        words = argv or ("python", "program.py")
        done = subprocess.run(
            words, cwd=work, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    assert str(wheel) in run(script="import torchx; print(torchx.__file__)"), "another torchx is run"
    return run


@pytest.fixture
def nemo_run(wheel: Path, tmp_path: Path) -> Client:
    """NeMo-Run. Newer packages of leptonai than this one lack a module that it imports."""
    return runner("nemo-run", ["nemo-run==0.11.1", "leptonai==0.26.7", "docker>=7"], wheel, tmp_path)


@pytest.fixture
def monarch(wheel: Path, tmp_path: Path) -> Client:
    """Monarch, of the last release whose command line creates jobs by torchx."""
    return runner("monarch", ["torchmonarch==0.3.0"], wheel, tmp_path)


@pytest.fixture
def ax(wheel: Path, tmp_path: Path) -> Client:
    """Ax, with the PyTorch that all tests have."""
    return runner("ax", ["ax-platform==1.3.1", "torch==2.13.0"], wheel, tmp_path)
