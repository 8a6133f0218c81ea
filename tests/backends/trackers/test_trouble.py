"""A tracker that is down never fails a job, costs it little, and is told about once."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from tests.backends.shell import Shell
from tests.backends.trackers.conftest import AWS, free_port

SCRIPT = """
import time
from torchx.tracker import app_run_from_env
app_run = app_run_from_env()
started = time.monotonic()
for step in range(50):
    app_run.add_metadata(step=step)
    app_run.add_artifact("model", "/m")
print(f"took {time.monotonic() - started:.1f} s; the job has done its work")
"""


@pytest.fixture
def run(project: Shell):  # type: ignore[no-untyped-def]  # a function that runs the script with these trackers
    def go(trackers: dict[str, str], **env: str) -> tuple[float, str]:
        lines = [f"{name} = {config}" for name, config in trackers.items()]
        (project.cwd / ".torchxconfig").write_text("\n".join(["[torchx:tracker]", *lines, ""]))
        (project.cwd / "work.py").write_text(SCRIPT)
        project.env.update(env)
        printed = project.torchx("run", "-s", "local_cwd", "--wait", "utils.python", "--script", "work.py")
        handle = printed.split()[-1]
        status = json.loads(project.torchx("status", "--json", handle))
        assert status["state"] == "SUCCEEDED"
        log = project.torchx("log", "--no-prefix", handle)
        return float(log.partition("took ")[2].split()[0]), log

    return go


def warnings(log: str) -> list[str]:
    return [line for line in log.splitlines() if "tracker `" in line]


def test_nobody_listens(run, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]  # see the fixture
    """An MLflow server that is not there: one warning with the reason, no waiting, and the other tracker has everything."""
    port = free_port()
    took, log = run({"mlflow": f"http://127.0.0.1:{port}", "fsspec": f"{tmp_path}/runs"})
    assert warnings(log) == [
        f"tracker `MLflowTracker` could not be written to: ConnectionError: `127.0.0.1:{port}` does not answer:"
        " Connection refused (the job goes on; said once, whatever else is lost)"
    ]
    assert took < 10
    (written,) = (tmp_path / "runs").rglob("metadata/*.jsonl")
    assert len([line for line in written.read_text().splitlines() if line]) == 50


@pytest.mark.parametrize("kind", ["mlflow", "s3"])
def test_nobody_answers(run, silent_server: str, kind: str) -> None:  # type: ignore[no-untyped-def]  # see the fixture
    """A server that takes the connection and says nothing costs the job its timeout once, not at each of 100 writes."""
    if kind == "mlflow":
        config = json.dumps({"tracking_uri": silent_server, "timeout_s": 2})
        took, log = run({"mlflow": config})
        name = "MLflowTracker"
    else:
        config = json.dumps({"root_path": "s3://runs/x", "timeout_s": 2})
        took, log = run({"fsspec": config}, **AWS, AWS_ENDPOINT_URL=silent_server)
        name = "FsspecTracker"
    assert [line.partition(" (")[0] for line in warnings(log)] == [
        f"tracker `{name}` could not be written to: TimeoutError: no answer within 2 s"
    ]
    assert 2 <= took < 15


def test_no_such_tracker_in_the_job(run, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]  # see the fixture
    """A tracker whose package the job's image lacks, or whose config is wrong, is told about once; the job goes on."""
    _, log = run({"nosuch": "x", "mlflow": "{", "fsspec": f"{tmp_path}/runs"})
    assert [line.partition(" is not used")[0] for line in warnings(log)] == ["tracker `nosuch`", "tracker `mlflow`"]
    assert list((tmp_path / "runs").rglob("metadata/*.jsonl"))


def test_the_command_says_who_is_down(project: Shell) -> None:
    """`torchx tracker` on a server that is down is one line, soon, and exit code 4."""
    port = free_port()
    (project.cwd / ".torchxconfig").write_text(f"[torchx:tracker]\nmlflow = http://127.0.0.1:{port}\n")
    started = time.monotonic()
    with project.start("tracker", "list", "jobs") as command:
        _, err = command.communicate(timeout=60)
    assert command.returncode == 4
    assert err.splitlines()[0] == (
        f"torchx: error: the tracker `mlflow` cannot be read: `127.0.0.1:{port}` does not answer: Connection refused"
    )
    assert time.monotonic() - started < 50
