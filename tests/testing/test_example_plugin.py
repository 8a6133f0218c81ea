"""The example of a plugin package: its tests that need no Grid Engine pass, and its registration is what torchx reads."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PLUGIN = Path(__file__).parents[2] / "examples" / "torchx-gridengine"


@pytest.mark.slow
def test_its_tests_pass(tmp_path: Path) -> None:
    """Both contracts, and the parsers on recorded answers; tests/backends/gridengine has the rest."""
    argv = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", str(PLUGIN / "pyproject.toml")]
    done = subprocess.run(
        [*argv, "--basetemp", str(tmp_path / "pytest"), str(PLUGIN / "tests" / "test_gridengine.py")],
        env={**os.environ, "PYTHONPATH": str(PLUGIN), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed
    assert int(passed[1]) >= 50


def test_it_is_registered_by_one_line() -> None:
    """The entry point names a factory that is there."""
    text = (PLUGIN / "pyproject.toml").read_text()
    assert '[project.entry-points."torchx.schedulers"]\ngridengine = "torchx_gridengine:create_scheduler"\n' in text
    assert "def create_scheduler(session_name: str" in (PLUGIN / "torchx_gridengine" / "scheduler.py").read_text()
