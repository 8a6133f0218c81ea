"""`[logs] keep = end` with jobs whose folder is removed afterwards, such as one on a scratch file system."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.backends import kept
from tests.backends.shell import Shell


def test_logs_outlive_folders(shell: Shell, tmp_path: Path) -> None:
    jobs = tmp_path / "jobs"

    def lose(_: str) -> None:
        assert [*jobs.rglob("stdout.log")]
        shutil.rmtree(jobs)

    words = ["-s", "slurm", "--cpu", "1", "--memMB", "100"]
    shell = Shell(tmp_path, {**shell.env, "TORCHX_SLURM_JOB_DIR": f"{jobs}"})
    kept.outlive(shell, tmp_path, words, lose)
