"""The program that decides on another attempt of a batch job may be killed, too."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from torchx.schedulers.batch import attempts
from torchx.schedulers.kit.shell import read_script


@pytest.mark.parametrize(
    ("kills", "says", "runs"),
    [(0, "again - 1000", 1), (2, "again - 1000", 3), (3, "end", 3), (-1, "end", 1)],
)
def test_a_killed_program_runs_again(kills: int, says: str, runs: int, tmp_path: Path) -> None:
    """Three times; -1: it fails by itself, which a further run does not change."""
    fails = "exit 1" if kills < 0 else f"test $(wc -l <{tmp_path}/runs) -gt {kills} || kill -9 $$"
    (tmp_path / "python").write_text(f"#!/bin/sh\necho >>{tmp_path}/runs; {fails}; echo again - 1000\n")
    (tmp_path / "python").chmod(0o755)
    stubs = f'python_of() {{ echo "$1"; }}; folder={tmp_path} python={tmp_path}/python'
    text = f"{read_script(attempts.__file__, 'program.sh')}\n{stubs}; decide failed"
    done = subprocess.run(["bash", "-c", text], capture_output=True, text=True, check=True)
    assert (done.stdout, len((tmp_path / "runs").read_text())) == (f"{says}\n", runs)
