"""Slurm jobs that use nothing, by the samples of their nodes."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.backends.shell import Shell
from tests.backends.slurm.test_slurm_watchdog import clean, ends, status

__all__ = ["clean"]

WORKS = "i=0; while [ $i -lt 1500000 ]; do i=$((i+1)); done"


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Shell]:
    """Samples are taken each second."""
    (tmp_path / ".torchxconfig").write_text("[metrics]\nevery = 1s\n")
    path = f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"
    yield Shell(tmp_path, {**os.environ, "PATH": path, "TORCHX_HOME": str(tmp_path / "home"), "HOME": str(tmp_path)})


def job(shell: Shell, script: str, *words: str) -> str:
    return shell.launch("-s", "slurm", "--workspace=", *words, "utils.sh", "--", "sh", "-c", script)


def test_idle_jobs(own: Shell, clean: list[str]) -> None:
    """One that works, then sleeps, is ended; one is asked for a checkpoint; one that has not begun goes on."""
    works = job(own, f"{WORKS}; sleep 600", "--idle", "8s:cancel")
    asked = 'sleep 2; : >"$TORCHX_STEPS"; until [ -e "$TORCHX_CHECKPOINT_NOW" ]; do sleep 1; done; echo was asked'
    asked = job(own, asked, "--idle", "4s:checkpoint", "--retry", "timeout:1")
    waits = job(own, "sleep 600", "--idle", "4s:cancel")
    clean += [works, asked, waits]
    for handle in (works, asked):
        found = ends(own, handle)
        assert (found["state"], found["cause"]["class"]) == ("FAILED", "timeout"), found
        assert found["msg"].startswith("idle for "), found
        assert not found.get("attempts"), found
    assert "was asked" in own.torchx("log", asked)
    found = status(own, waits)
    assert (found["state"], found["hang"]) == ("RUNNING", None), found
