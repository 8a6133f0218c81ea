"""Jobs in allocations, without a cluster: what is submitted, refused, and made of Slurm's answers."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.schedulers.slurm.test_job_script import SRUN
from torchx.errors import TorchXError
from torchx.schedulers.slurm.allocations import _record
from torchx.schedulers.slurm.events import parse_events
from torchx.schedulers.slurm.parse import JobRecord
from torchx.schedulers.slurm_scheduler import SlurmScheduler
from torchx.specs import AppDef, Resource, Role
from torchx.specs.serialize import appdef_to_dict
from torchx.specs.wishes.retries import RETRY
from torchx.specs.wishes.timeouts import TIMEOUT
from torchx.testing.commands import FakeCommandRunner


def _scheduler(answer: str = "RUNNING 2 n[1-2]\n") -> SlurmScheduler:
    runner = FakeCommandRunner()
    runner.on("squeue", stdout=answer, returncode=0 if answer else 1)
    return SlurmScheduler("s", commands=runner, sleep=lambda _: None)


def _app(script: str = "true", n: int = 1, metadata: dict[str, str] | None = None) -> AppDef:
    role = Role("w", "", entrypoint="sh", args=["-c", script], num_replicas=n, resource=Resource(1, 0, 64))
    return AppDef("job", [role], metadata=metadata or {})


@pytest.mark.parametrize(
    ("given", "answer", "app", "said"),
    [
        pytest.param("9", "", _app(), "no running allocation 9: Slurm does not know it", id="unknown"),
        pytest.param("9", "PENDING 1\n", _app(), "no running allocation 9: it is PENDING", id="pending"),
        pytest.param("x", "", _app(), "run option `in` is `x`", id="no-id"),
        pytest.param("current", "", _app(), "this shell is not in an allocation", id="not-inside"),
        pytest.param("7", "RUNNING 2 n[1-2]\n", _app(n=3), "needs 3 nodes, and the allocation 7 has 2", id="too-small"),
        pytest.param(
            "7", "RUNNING 1 n1\n", _app(metadata={TIMEOUT: "5m"}), "`--timeout` is not available", id="timeout"
        ),
        pytest.param("7", "RUNNING 1 n1\n", _app(metadata={RETRY: "node:3"}), "`--retry` is not available", id="retry"),
    ],
)
def test_what_is_refused(given: str, answer: str, app: AppDef, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each with one line that names the value."""
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    with pytest.raises(TorchXError, match=said):
        _scheduler(answer).submit_dryrun(app, {"in": given})


def test_the_allocation_of_this_shell_is_suggested(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Until it is used: as `current`, by its id or by its handle."""
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    _scheduler().submit_dryrun(_app(), {})
    assert "this shell is in the allocation 7: `-cfg in=current`" in caplog.text
    caplog.clear()
    for given in ("current", "7", "slurm://torchx/7"):
        info = _scheduler().submit_dryrun(_app(), {"in": given, "partition": "gpu"})
        assert info.request.inside == ("7", "n[1-2]")
    assert {record.message for record in caplog.records} == {
        f"in={given}: not used: `partition`" for given in ("current", "7", "slurm://torchx/7")
    }


ENDED = JobRecord(job_id="7", state="TIMEOUT", ended=9.0)
RUNS = JobRecord(job_id="7", state="RUNNING")


@pytest.mark.parametrize(
    ("events", "alive", "held", "state"),
    [
        pytest.param("5 start 0 7.1\n", True, None, "RUNNING", id="running"),
        pytest.param("5 start 0 7.1\n6 end 0 over\n", False, None, "COMPLETED", id="succeeded"),
        pytest.param("5 start 0 7.1\n6 end 3 over\n", True, None, "FAILED", id="failed"),
        pytest.param("5 start 0 7.1\n6 end 0\n", True, RUNS, "CANCELLED", id="cancelled"),
        pytest.param("5 start 0 7.1\n", False, RUNS, "CANCELLED", id="killed"),
        pytest.param("5 start 0 7.1\n", False, ENDED, "TIMEOUT", id="limit-of-the-allocation"),
        pytest.param(
            "5 start 0 7.1\n", False, JobRecord(job_id="7", state="COMPLETED"), "CANCELLED", id="salloc-ended"
        ),
        pytest.param("5 start 0 7.1\n", False, None, "CANCELLED", id="forgotten"),
    ],
)
def test_the_state(events: str, alive: bool, held: JobRecord | None, state: str) -> None:
    """From the script's notes; if they have no end, from the end of the allocation."""
    found = _record("7.1", parse_events(events), alive, {"7": [held]} if held else {})
    assert found.state == state


def test_a_cancelled_job_ends_its_own_steps_only(tmp_path: Path) -> None:
    """The script reports the id of its step, starts its replicas on the allocation's nodes, and never signals the others."""
    programs, folder = tmp_path / "bin", tmp_path / "job"
    programs.mkdir()
    folder.mkdir()
    listed = "7.3 job\\n7.4 replica.0@3\\n7.5 replica.0@33\\n7.6 bash\\n"
    texts = {
        "srun": SRUN.replace('"7"', 'os.environ["SLURM_JOB_ID"]'),
        "scontrol": "#!/bin/sh\nexit 1\n",
        "scancel": f'#!/bin/sh\necho "$@" >>{tmp_path}/said\nexit 1\n',
        "squeue": f"#!/bin/sh\nprintf '{listed}'\n",
    }
    for name, text in texts.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    app = _app("echo $SLURM_JOB_ID $TORCHX_RANK0_HOST $0; : >../../stop; exec sleep 60")
    (folder / "job.json").write_text(json.dumps({"app": appdef_to_dict(app)}))
    request = _scheduler().submit_dryrun(app, {"in": "7", "job_dir": str(folder)}).request
    request.cwd = str(folder / "w" / "0")
    (folder / "w" / "0").mkdir(parents=True)
    text = request.materialize()
    assert "#SBATCH" not in text
    (folder / "job.sh").write_text(text)
    env = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "3", "SLURM_NTASKS": "9", "SLURM_JOB_NODELIST": "n2"}
    done = subprocess.run(
        ["bash", "job.sh"],
        cwd=folder,
        env={**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", **env},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "said").read_text().splitlines() == ["--signal=TERM --ctld 7.4"]
    events = parse_events((folder / "events").read_text())
    assert (events.job_id, events.exit_code, events.over) == ("7.3", 0, False)
    assert events.replicas["w/0"].host == "n1"
    assert (folder / "w/0/stdout.log").read_text() == "7 n1 sh\n"
