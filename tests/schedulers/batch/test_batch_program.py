"""The program that nodes without torchx run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from torchx.schedulers.batch.attempts import program


@pytest.mark.parametrize(
    "module", ["slurm.attempts", "slurm.hangs", "slurm.inside", "slurm.notices", "lsf.attempts", "kit.stacks.look"]
)
def test_it_has_all_that_it_imports(module: str, tmp_path: Path) -> None:
    """It imports nothing but the standard library and the archive."""
    archive = tmp_path / "retry.pyz"
    archive.write_bytes(os.fsencode(program("lsf" if module.startswith("lsf") else "slurm")))
    words = f"import sys; sys.path.append({str(archive)!r}); import torchx.schedulers.{module}"
    subprocess.run([sys.executable, "-I", "-S", "-c", words], check=True, cwd=tmp_path)
