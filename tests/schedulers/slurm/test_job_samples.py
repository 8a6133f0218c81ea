"""The resource usage of a Slurm job's replicas, sampled by a program that its steps start; `srun` runs them here."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from tests.schedulers.slurm.test_job_script import programs, run, sh
from torchx.schedulers.kit.files import LocalFiles
from torchx.schedulers.kit.metrics import read_kept
from torchx.schedulers.slurm.request import SAMPLER_FILE
from torchx.schedulers.slurm_scheduler import SlurmScheduler
from torchx.specs import AppDef, RetryPolicy, Role
from torchx.supervisor import metrics

__all__ = ["programs"]

MIB = 1 << 20
CHILDLESS = "import os, sys\ntry: os.waitpid(-1, 0)\nexcept ChildProcessError: sys.exit(0)\nsys.exit(9)"
SAMPLED = "until grep -q '\"a\":'$1 $0/metrics.jsonl 2>/dev/null; do :; done"


def _wait(folder: Path, attempt: str, then: str) -> str:
    return f"sh -c {_quoted(SAMPLED)} {folder}/w/0 {attempt} && {then}"


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def test_each_attempt_is_sampled(programs: Path) -> None:
    """Attempts are kept apart; the limits are Slurm's; the sampler is not a child of the program."""
    folder = programs.parent / "job"
    folder.mkdir()
    (folder / SAMPLER_FILE).write_bytes(Path(metrics.__file__).read_bytes())
    python = f"{sys.executable} -c {_quoted(CHILDLESS)}"
    first = f"{python} || exit 9; {_wait(folder, '0', ': > once; exit 5')}"
    script = f"if [ -e once ]; then {_wait(folder, '1', 'exit 0')}; fi; {first}"
    role = sh(script, max_retries=1, retry_policy=RetryPolicy.REPLICA)
    role.image = str(programs.parent)
    slurm = {"SLURM_MEM_PER_NODE": "3", "SLURM_CPUS_PER_TASK": "1"}
    code, events, _ = run(programs, role, slurm=slurm)
    assert (code, events.again) == (0, 1)
    (found,) = read_kept(LocalFiles(), {("w", 0): f"{folder}/w/0/metrics.jsonl"})
    assert (found.memory_limit, found.cpus) == (3 * MIB, 1)
    assert {sample.attempt for sample in found.samples} == {0, 1}
    assert all(0 < sample.memory < 100 * MIB for sample in found.samples)


@pytest.mark.parametrize(("given", "every", "there"), [(None, "15", True), (0.0, "", False), (2.5, "2.5", True)])
def test_how_often(tmp_path: Path, given: float | None, every: str, there: bool) -> None:
    """Every 15 s, or as configured; without sampling the job has no such program."""
    scheduler = SlurmScheduler("s")
    info: Any = scheduler.submit_dryrun(AppDef("job", [Role("r", "", entrypoint="true")]), {"job_dir": str(tmp_path)})
    info.submission.sample_s = given
    made = scheduler._submission(info, scheduler._here)
    assert f" every={every}\n" in made.files["job.sh"]
    assert (SAMPLER_FILE in made.files) is there
