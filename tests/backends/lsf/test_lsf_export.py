"""Exported jobs on the look-alike: its `bsub` alone, from a folder that was moved, gives the same outcome and output."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.backends.lsf.conftest import command, eventually
from tests.backends.lsf.lookalike.config import Config
from torchx.runner import Runner
from torchx.schedulers.api import Stream
from torchx.schedulers.lsf_scheduler import LsfScheduler, create_scheduler
from torchx.specs import AppDef, AppState, Resource, Role, Secret

SCRIPT = """
cat data.txt; echo "$A it's $K of $HOST0"; [ "$TOKEN" = "a'b $" ] || exit 4
if [ $K = 0 ]; then >"$DONE"; else until [ -e "$DONE" ]; do sleep 0.1; done; sleep 1; fi
echo oops >&2; exit $((K * 3))
"""


@pytest.mark.parametrize("replicas", [1, 2])
def test_bsub_alone(
    scheduler: LsfScheduler, cluster: Config, tmp_path: Path, replicas: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Replicas with a secret, code and exit codes of their own: as when torchx launches them. No torchx is on the path."""
    code = tmp_path / "project"
    code.mkdir()
    (code / "data.txt").write_text("data\n")
    monkeypatch.chdir(code)
    monkeypatch.setenv("TOKEN", "a'b $")
    env = {
        "A": "x y",
        "K": "${replica_id}",
        "HOST0": "${rank0_env}",
        "TOKEN": Secret("env:TOKEN"),
        "DONE": str(tmp_path / "done"),
    }
    role = Role(
        "r", "", entrypoint="sh", args=["-c", SCRIPT], env=env, num_replicas=replicas, resource=Resource(1, 0, 100)
    )
    app = AppDef("exported", [role])
    with Runner("test", {"lsf": create_scheduler}) as runner:
        handle = runner.run(app, "lsf", workspace=str(code))
        status = runner.wait(handle, 0.1, timeout=180)
        assert status is not None
        assert status.state is (AppState.SUCCEEDED if replicas == 1 else AppState.FAILED)
        ours = [
            "".join(runner.log_lines(handle, "r", k, streams=stream))
            for k in range(replicas)
            for stream in (Stream.STDOUT, Stream.STDERR)
        ]
        runner.export(runner.dryrun(app, "lsf", workspace=str(code)), str(tmp_path / "out"))
    (tmp_path / "done").unlink()
    shown = ("bjobs", "-a", "-noheader", "-o", "jobid stat exit_code delimiter='|'")
    before = set(command(*shown).splitlines())
    # The path has what bsub and shells treat in a way of their own.
    moved = tmp_path / "it's 100% %J"
    shutil.move(tmp_path / "out", moved)
    shutil.rmtree(code)
    os.chdir("/")
    (tmp_path / "empty").mkdir()
    path = f"{cluster.bindir}:/usr/bin:/bin"
    plain = {"PATH": path, "HOME": str(tmp_path / "empty"), "TOKEN": "a'b $", "LSF_ENVDIR": cluster.envdir}
    argv = ["env", "-i", *(f"{k}={v}" for k, v in plain.items()), str(moved / "run.sh")]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    eventually(lambda: not any(row.split("|")[1] in ("PEND", "RUN") for row in command(*shown).splitlines()))
    (folder,) = (moved / "runs").iterdir()
    said = [(folder / "r" / str(k) / f"{s}.log").read_text() for k in range(replicas) for s in ("stdout", "stderr")]
    assert said == ours
    ends = sorted(row.partition("|")[2] for row in {*command(*shown).splitlines()} - before)
    assert ends == (["DONE|-"] if replicas == 1 else ["DONE|-", "EXIT|3"])
    assert not list(moved.rglob("secrets.sh")), "the job removes it at its end"
