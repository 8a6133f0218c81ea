"""Jobs of submitit and Snakemake on the real cluster: what `torchx why` says is what a person finds."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.backends import venvs
from tests.backends.slurm.test_slurm_foreign import folder, over, runner  # noqa: F401  # fixtures
from torchx.runner import Runner
from torchx.runner.foreign.explain import Explained
from torchx.specs import AppState
from torchx.specs.failures import parse_failure

pytestmark = pytest.mark.timeout(1200)  # most of it for the environment

MISSING = "FileNotFoundError: [Errno 2] No such file or directory: '/no/data'"
SUBMITIT = """\
import sys
import submitit

def train(x):
    print("begun", x)
    if x == 2:
        open("/no/data")

executor = submitit.AutoExecutor(folder="logs", cluster="slurm")
executor.update_parameters(mem_gb=0.2, timeout_min=5, name="my train")
values = [int(x) for x in sys.argv[1:]]
if len(values) > 1:
    print(executor.map_array(train, values)[0].job_id.partition("_")[0])
else:
    print(executor.submit(train, *values).job_id)
"""
SNAKEFILE = """\
rule all:
    input: "out.txt"

rule train:
    output: "out.txt"
    resources: mem_mb=200, runtime=5, slurm_partition="main", slurm_account="root"
    shell: "echo begun; python3 -c \\"open('/no/data')\\""
"""


@pytest.fixture(scope="module")
def tools() -> str:
    """The folder of both programs."""
    with venvs._or_skip():
        packages = ["submitit==1.5.*", "snakemake==9.27.*", "snakemake-executor-plugin-slurm==2.8.*"]
        return f"{venvs.made('foreign-slurm', packages)}/bin"


@pytest.fixture
def plain(tools: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both on the path, and no torchx."""
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    monkeypatch.delenv("PYTHONPATH", raising=False)


def submitit(folder: Path, *values: int) -> str:  # noqa: F811  # its name
    """Submit a call for each value; the id of the job."""
    (folder / "launch.py").write_text(SUBMITIT)
    argv = ["python", "launch.py", *map(str, values)]
    return subprocess.run(argv, cwd=folder, capture_output=True, text=True, check=True).stdout.strip()


def cause(found: Explained) -> tuple[str, int | None, int | None, str]:
    """Whose fault it was: role, replica, exit code, message."""
    failure = parse_failure(found.status.structured_error_msg)
    assert failure is not None, found
    return failure.role, failure.replica, failure.exit_code, failure.message


@pytest.mark.usefixtures("plain")
class TestSubmitit:
    def test_a_call_that_returns(self, runner: Runner, folder: Path) -> None:  # noqa: F811  # fixtures
        """It has succeeded, by the name that it was given; its log is submitit's file."""
        job = submitit(folder, 1)
        found = over(runner, job)
        assert (found.status.state, found.about["name"]) == (AppState.SUCCEEDED, "my train")
        lines = list(runner.log_lines(found.handle, "job"))
        for name in ("out", "err"):
            assert set((folder / "logs" / f"{job}_0_log.{name}").read_text().splitlines(keepends=True)) <= set(lines)
        assert "begun 1\n" in lines

    def test_a_call_that_fails(self, runner: Runner, folder: Path) -> None:  # noqa: F811  # fixtures
        """The exception of the function is the cause, not submitit's own frames around it."""
        job = submitit(folder, 2)
        found = over(runner, job)
        assert (found.status.state, cause(found)) == (AppState.FAILED, ("job", 0, 1, MISSING))
        assert f"{MISSING}\n" in found.lines

    def test_an_array(self, runner: Runner, folder: Path) -> None:  # noqa: F811  # fixtures
        """The task that failed is named, and its log is that of its call."""
        job = submitit(folder, 0, 1, 2)
        found = over(runner, job)
        assert (found.status.state, cause(found)) == (AppState.FAILED, ("task", 2, 1, MISSING))
        states = [r.state for role in found.status.roles for r in role.replicas]
        assert states == [AppState.SUCCEEDED, AppState.SUCCEEDED, AppState.FAILED]
        for k in range(3):
            assert f"begun {k}\n" in list(runner.log_lines(found.handle, "task", k))


@pytest.fixture
def snakemake(plain: None, folder: Path) -> Iterator[tuple[str, Path]]:  # noqa: F811  # its name
    """A flow whose one rule fails: the job's id, and the log that Snakemake names."""
    (folder / "Snakefile").write_text(SNAKEFILE)
    argv = ["snakemake", "--executor", "slurm", "--jobs", "1"]
    with (folder / "said").open("w") as said:
        flow = subprocess.Popen(
            argv, cwd=folder, stdout=said, stderr=subprocess.STDOUT, env={**os.environ, "TMPDIR": str(folder)}
        )
    try:
        found = None
        while found is None:
            found = re.search(r"SLURM jobid (\d+) \(log: (.*)\)\.", (folder / "said").read_text())
            assert flow.poll() is None or found, (folder / "said").read_text()
        yield found[1], Path(found[2])
    finally:
        flow.kill()
        flow.wait()


def test_a_rule_of_snakemake(runner: Runner, snakemake: tuple[str, Path]) -> None:  # noqa: F811  # fixtures
    """What the rule's own command wrote is the cause, not Snakemake's report of it; the log is the one that it names."""
    job, log = snakemake
    found = over(runner, job)
    assert (found.status.state, cause(found)) == (AppState.FAILED, ("job", 0, 1, MISSING))
    lines = list(runner.log_lines(found.handle, "job"))
    assert "".join(lines) == log.read_text()
    assert "begun\n" in lines
