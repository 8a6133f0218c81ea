"""``torchx run`` killed with SIGKILL at any step of a submission: no job, or one whole job on record."""

from __future__ import annotations

import json
import subprocess

import pytest

from tests.backends.leftovers import gone, living

from .moments import command, count, environment

MOMENTS = 11  # and a twelfth: just after the handle is printed
WORK = 'echo $$ >> "ran.$0"; i=0; while [ $i -lt 500 ]; do echo "line $i of $0"; i=$((i+1)); done; sleep 0.2; echo end'
ARGS = ("run", "utils.sh", "--num_replicas", "2", "--", "sh", "-c", WORK, "${replica_id}")


def _output(k: int) -> str:
    return "".join(f"line {i} of {k}\n" for i in range(500)) + "end\n"


@pytest.fixture(scope="module")
def steps(tmp_path_factory) -> list[int]:
    """After which steps of a submission to be killed: the first, that which puts the intent on record, and then evenly."""
    folder = tmp_path_factory.mktemp("reference")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(folder))
        patch.setenv("TORCHX_HOME", str(folder / "torchx"))
        found = count(folder, *ARGS).names
    for kind in ("connect", "Connection.execute", "mkdir", "posix_spawn", "write"):
        assert kind in found, f"a submission without `{kind}`: moments.py must learn the new steps"
    gone("launcher.py")
    intent = found.index("mkdir")
    rest = len(found) - 1 - intent
    return [1, intent, *(intent + 1 + k * rest // (MOMENTS - 3) for k in range(MOMENTS - 2))]


@pytest.mark.parametrize("moment", [*range(MOMENTS), "handle printed"])
def test_run_is_killed(steps: list[int], tmp_path, moment) -> None:
    """No job, and nothing on record; or one job on record that runs on, complete to the byte."""
    if moment == "handle printed":
        run = subprocess.Popen(command(*ARGS), env=environment(tmp_path), cwd=tmp_path, stdout=subprocess.PIPE)
        assert run.stdout is not None
        handle = run.stdout.readline().decode().strip()
        run.kill()
        run.stdout.close()
        run.wait()
        assert handle.startswith("local_cwd://torchx/sh-")
    else:
        env = environment(tmp_path, STEPS_KILL_AFTER=str(steps[moment]))
        killed = subprocess.run(command(*ARGS), env=env, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert killed.returncode == -9, killed.stderr
        handle = ""
    gone("launcher.py")  # the job, if there is one, has ended

    def torchx(*args: str) -> str:
        return subprocess.run(command(*args), cwd=tmp_path, capture_output=True, text=True, check=True).stdout

    runs = json.loads(torchx("list", "--json"))["runs"]
    jobs = json.loads(torchx("list", "-s", "local_cwd", "--json"))["jobs"]
    assert [run["handle"] for run in runs] == [job["handle"] for job in jobs]
    assert len(runs) <= 1
    started = sorted(path.name for path in tmp_path.glob("ran.*"))
    assert not living(WORK)
    if not runs:
        assert not handle
        assert not started
        return
    assert runs[0]["state"] == "SUCCEEDED"
    assert handle in ("", runs[0]["handle"])
    assert started == ["ran.0", "ran.1"]
    assert all(len((tmp_path / name).read_text().split()) == 1 for name in started)  # once each
    for k in (0, 1):
        assert torchx("log", "--no-prefix", f"@last/sh/{k}") == _output(k)
