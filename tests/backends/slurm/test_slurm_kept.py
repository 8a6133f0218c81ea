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


def test_who_waits_is_told(shell: Shell, tmp_path: Path) -> None:
    """Although another process of torchx, the poller, may be the first to see the end."""
    (tmp_path / "file").touch()
    (tmp_path / ".torchxconfig").write_text(f"[logs]\nkeep = end\nto = {tmp_path}/file\n")
    own = Shell(tmp_path, shell.env)
    job = ("-s", "slurm", "--workspace=", "utils.sh", "--cpu", "1", "--memMB", "100", "--", "sleep 3")
    for words in (lambda: ("run", "--wait", *job), lambda: ("wait", own.launch(*job))):
        process = own.start(*words())
        _, err = process.communicate(timeout=180)
        assert process.returncode == 0
        assert err.count("not in the archive") == 1 and "Not a directory; a later command tries again" in err, err
