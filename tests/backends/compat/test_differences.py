"""What the documentation says about version 0.7 is what version 0.7 does; the same for this one."""

from __future__ import annotations

import os
import runpy
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.backends import venvs
from tests.backends.shell import ROOT

pytestmark = pytest.mark.timeout(1200)  # most of it for the environment

ROWS = [row for row in runpy.run_path(str(ROOT / "docs/_site/differences.py"))["ROWS"] if row.program]


@pytest.fixture(scope="session")
def old() -> Path:
    """An environment with the package of that version."""
    with venvs._or_skip():
        return venvs.made("torchx-0.7", ["torchx==0.7.0", "docker>=7"]) / "bin"


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.what)
def test_both_sides(row: Any, old: Path, dropin_environment: Path, tmp_path: Path) -> None:
    """Each version, installed as users have it, does what its column of the table is about."""
    for version, folder, prints in zip(("0.7", "now"), (old, dropin_environment / "bin"), row.prints, strict=True):
        said = run(row.program, folder, tmp_path / version)
        assert prints in said, f"{version}: {said}"


def run(program: str, folder: Path, home: Path) -> str:
    work = home / "work"
    work.mkdir(parents=True)
    env = {"HOME": str(home), "TMPDIR": str(home), "PATH": f"{folder}:{os.environ['PATH']}"}
    argv = ["python", "-c", program] if program.startswith("from ") else ["bash", "-c", program]
    done = subprocess.run(
        argv, cwd=work, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, check=False
    )
    return done.stdout + ("" if done.stdout else done.stderr)
