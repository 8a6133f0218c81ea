"""A tracker that is down never fails a job, costs it little, and is told about once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.backends.shell import Shell
from tests.backends.trackers.conftest import AWS, SilentServer

pytestmark = pytest.mark.timeout(1800)  # packages are installed

# A call that is given up goes on in its thread: with MET, until it has come to the server, however late that is.
SCRIPT = """
import os, time
from torchx.tracker import app_run_from_env
app_run = app_run_from_env()
slept = []
sleep = time.sleep
time.sleep = lambda seconds: (slept.append(seconds), sleep(seconds))
started = time.monotonic()
for step in range(50):
    app_run.add_metadata(step=step)
    app_run.add_artifact("model", "/m")
took = time.monotonic() - started
while not os.path.exists(os.environ.get("MET", "/")):
    sleep(0.1)
print(f"took {took:.1f} s; slept {sum(slept):.1f} s; the job has done its work")
"""


@pytest.fixture
def run(project: Shell):
    def go(trackers: dict[str, str], **env: str) -> tuple[float, float, str]:
        lines = [f"{name} = {config}" for name, config in trackers.items()]
        (project.cwd / ".torchxconfig").write_text("\n".join(["[torchx:tracker]", *lines, ""]))
        (project.cwd / "work.py").write_text(SCRIPT)
        project.env.update(env)
        printed = project.torchx(
            "run", "-s", "local_cwd", "--wait", "utils.python", "--script", "work.py", timeout_s=600
        )
        handle = printed.split()[-1]
        status = json.loads(project.torchx("status", "--json", handle))
        assert status["state"] == "SUCCEEDED"
        log = project.torchx("log", "--no-prefix", handle)
        took, slept = (float(log.partition(word)[2].split()[0]) for word in ("took ", "slept "))
        return took, slept, log

    return go


def warnings(log: str) -> list[str]:
    return [line for line in log.splitlines() if "tracker `" in line]


def test_nobody_listens(run, closed_port: int, tmp_path: Path) -> None:
    """An MLflow server that is not there: one warning with the reason, no waiting, and the other tracker has everything."""
    _, slept, log = run({"mlflow": f"http://127.0.0.1:{closed_port}", "fsspec": f"{tmp_path}/runs"})
    assert warnings(log) == [
        f"tracker `MLflowTracker` could not be written to: ConnectionError: `127.0.0.1:{closed_port}` does not answer:"
        " Connection refused (the job goes on; later failures are not logged)"
    ]
    assert slept == 0
    (written,) = (tmp_path / "runs").rglob("metadata/*.jsonl")
    assert len([line for line in written.read_text().splitlines() if line]) == 50


@pytest.mark.parametrize("kind", ["mlflow", "s3"])
def test_nobody_answers(run, silent_server: SilentServer, kind: str) -> None:
    """A server that takes the connection and says nothing costs the job its timeout once, not at each of 100 writes."""
    met = str(silent_server.met)
    if kind == "mlflow":
        config = json.dumps({"tracking_uri": silent_server.url, "timeout_s": 2})
        took, _, log = run({"mlflow": config}, MET=met)
        name = "MLflowTracker"
    else:
        config = json.dumps({"root_path": "s3://runs/x", "timeout_s": 2})
        took, _, log = run({"fsspec": config}, **AWS, AWS_ENDPOINT_URL=silent_server.url, MET=met)
        name = "FsspecTracker"
    assert [line.partition(" (")[0] for line in warnings(log)] == [
        f"tracker `{name}` could not be written to: TimeoutError: no answer within 2 s"
    ]
    assert took >= 2
    assert 1 <= silent_server.connections() < 20


def test_no_such_tracker_in_the_job(run, tmp_path: Path) -> None:
    """A tracker whose package the job's image lacks, or whose config is wrong, is told about once; the job goes on."""
    _, _, log = run({"nosuch": "x", "mlflow": "{", "fsspec": f"{tmp_path}/runs"})
    assert [line.partition(" is not used")[0] for line in warnings(log)] == ["tracker `nosuch`", "tracker `mlflow`"]
    assert list((tmp_path / "runs").rglob("metadata/*.jsonl"))


def test_the_command_says_who_is_down(project: Shell, closed_port: int) -> None:
    """`torchx tracker` on a server that is down is one line, soon, and exit code 4."""
    (project.cwd / ".torchxconfig").write_text(f"[torchx:tracker]\nmlflow = http://127.0.0.1:{closed_port}\n")
    with project.start("tracker", "list", "jobs") as command:
        _, err = command.communicate(timeout=400)
    assert command.returncode == 4
    assert err.splitlines()[1] == (  # the first one says that the folder's file names the tracker
        f"torchx: error: the tracker `mlflow` cannot be read: `127.0.0.1:{closed_port}` does not answer: Connection refused"
    )
