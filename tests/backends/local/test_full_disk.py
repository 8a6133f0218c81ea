"""A full disk, a real and small one, during a run: what became of the job is told truthfully all the same."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time

import pytest

from torchx.schedulers.api import Stream
from torchx.specs.api import AppState
from torchx.supervisor.layout import COMBINED_LOG, STATE_FILE
from torchx.supervisor.statefile import read_state

from .conftest import ended, eventually, lines, processes_of
from .moments import command

FILL = "head -c 100M /dev/zero 2>/dev/null"


@pytest.fixture
def disk(tmp_path, monkeypatch):
    """Torchx's home on a disk of 6 MB of its own."""
    if os.geteuid():
        pytest.skip("only root may mount a disk")
    place = tmp_path / "disk"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=6m,nr_inodes=400", "torchx-test", place], check=True)
    monkeypatch.setenv("TORCHX_HOME", str(place / "home"))
    yield place
    eventually(lambda: subprocess.run(["umount", place], capture_output=True, check=False).returncode == 0)


@pytest.fixture
def scheduler(disk, scheduler):
    """One whose jobs are on that disk."""
    return scheduler


def _is_full(disk) -> bool:
    left = os.statvfs(disk)
    return left.f_bavail * left.f_frsize < 4096


def _fill(disk) -> int:
    """Take what room there is; returns how many bytes."""
    with open(disk / "ballast", "ab", buffering=0) as f:
        begin = f.tell()
        with contextlib.suppress(OSError):
            while True:
                f.write(b"x" * 4096)
        return f.tell() - begin


def _stays_full(disk) -> bool:
    """Fill it, for good: a supervisor that finds no room for a whole line gives back what it has taken so far."""
    for _ in range(10):
        if _fill(disk):
            return False
        time.sleep(0.02)
    return _is_full(disk)


def test_a_job_that_fills_the_disk_and_succeeds(scheduler, submit, disk) -> None:
    """Exit code 0 is SUCCEEDED, whatever could not be written; that combined.log is incomplete is said."""
    app_id = submit(f"echo begin; {FILL}; exit 0")
    described = ended(scheduler, app_id)
    assert described.state == AppState.SUCCEEDED
    assert "combined.log is incomplete" in described.msg
    assert "No space left" in described.msg
    assert read_state(os.path.join(scheduler._jobs.find(app_id), STATE_FILE)).replicas[0].exit == 0
    assert lines(scheduler, app_id, streams=Stream.STDOUT)[0] == "begin\n"


def test_a_job_that_fails_because_the_disk_is_full(scheduler, submit, disk) -> None:
    """FAILED, with its exit code, although its own words found no room."""
    code = "import sys\\nwhile True: sys.stdout.write('x' * 99999)"
    app_id = submit(
        f'printf "{code}" > "$TMPDIR/p.py"; {sys.executable} "$TMPDIR/p.py"; c=$?; rm "$TMPDIR/p.py"; exit $c'
    )
    described = ended(scheduler, app_id)
    assert described.state == AppState.FAILED
    assert described.msg.startswith("r/0: exit code 1")


def test_each_of_several_replicas_has_its_own_fate(scheduler, submit, disk, tmp_path) -> None:
    """On a full disk replicas still fail, are retried, and are stopped, one by one on record."""
    first = tmp_path / "first"
    # The second waits until the supervisor has taken note of the first one's end.
    after_it = f"while [ ! -s {first} ] || kill -0 $(cat {first}) 2> /dev/null; do sleep 0.01; done; rm {first}"
    work = f"0) {FILL}; echo $$ > {first}; exit 0;; 1) {after_it}; exit 7;; *) sleep 1000;;"
    app_id = submit(f"case ${{replica_id}} in {work} esac", 3, max_retries=2)
    described = ended(scheduler, app_id)
    assert described.state == AppState.FAILED
    assert described.msg.startswith("r/1: exit code 7")
    states = [replica.state for replica in described.roles_statuses[0].replicas]
    assert states == [AppState.SUCCEEDED, AppState.FAILED, AppState.CANCELLED]


def test_a_full_disk_does_not_keep_a_job_from_being_cancelled(scheduler, submit, disk, tmp_path) -> None:
    """CANCELLED is written, and nothing is left of the job."""
    app_id = submit(f"{FILL}; touch {tmp_path}/filled; sleep 1000")
    eventually((tmp_path / "filled").exists)
    eventually(lambda: _stays_full(disk))
    scheduler.cancel(app_id)
    assert ended(scheduler, app_id).state == AppState.CANCELLED
    assert processes_of(scheduler, app_id) == []


def test_a_supervisor_killed_on_a_full_disk(scheduler, submit, disk, tmp_path) -> None:
    """FAILED, with that reason."""
    app_id = submit(f"{FILL}; touch {tmp_path}/filled; sleep 1000")
    eventually((tmp_path / "filled").exists)
    eventually(lambda: _stays_full(disk))
    os.kill(read_state(os.path.join(scheduler._jobs.find(app_id), STATE_FILE)).supervisor, signal.SIGKILL)
    described = ended(scheduler, app_id)
    assert described.state == AppState.FAILED
    assert "supervisor" in described.msg
    assert processes_of(scheduler, app_id) == []


def test_room_that_comes_back_makes_the_log_whole(scheduler, submit, disk, tmp_path) -> None:
    """What combined.log lacked while the disk was full is added when there is room again."""
    go, end, ballast = tmp_path / "go", tmp_path / "end", disk / "ballast"
    wait = "while [ ! -e {} ]; do sleep 0.01; done"
    app_id = submit(f"{wait.format(go)}; seq 100000; {wait.format(end)}; echo end")
    numbers = [f"{n}\n" for n in range(1, 100_001)]
    folder = scheduler._jobs.find(app_id)
    stdout, combined = (os.path.join(folder, "r/0", name) for name in ("stdout.log", COMBINED_LOG))
    eventually(lambda: os.path.exists(stdout))
    with open(ballast, "wb") as f:  # what is left holds stdout.log, not both
        left = os.statvfs(disk)
        f.write(b"x" * (left.f_bavail * left.f_frsize - 800_000))
    supervisor = read_state(os.path.join(folder, STATE_FILE)).supervisor
    os.kill(supervisor, signal.SIGSTOP)  # a copy that is made meanwhile takes the room that stdout.log needs
    go.touch()
    eventually(lambda: os.path.getsize(stdout) == len("".join(numbers)))
    os.kill(supervisor, signal.SIGCONT)
    eventually(lambda: os.path.exists(combined))  # it has tried
    ballast.unlink()
    end.touch()
    described = ended(scheduler, app_id)
    assert (described.state, described.msg) == (AppState.SUCCEEDED, "<NONE>")
    assert lines(scheduler, app_id) == [*numbers, "end\n"]


def test_replicas_that_find_no_room_for_their_folders(scheduler, submit, disk) -> None:
    """A disk without room for one more file: the job FAILED, and says why."""
    app_id = submit("sleep 1000", 300)
    described = ended(scheduler, app_id)
    assert described.state == AppState.FAILED
    assert "No space left" in described.msg
    assert processes_of(scheduler, app_id) == []


def test_commands_on_a_full_disk(disk, tmp_path, monkeypatch) -> None:
    """run --wait tells the job's fate by its exit code; status, log and list show it, and another job can be run."""

    monkeypatch.setenv("TMPDIR", str(tmp_path))  # where jobs go for want of a better place

    def torchx(*args: str) -> tuple[int, str, str]:
        done = subprocess.run(command(*args), cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
        assert "Traceback" not in done.stderr
        return done.returncode, done.stdout, done.stderr

    code, _, err = torchx("run", "--wait", "utils.echo")
    assert (code, err) == (0, "")
    go = tmp_path / "go"
    other = torchx("run", "utils.sh", f"while [ ! -e {go} ]; do sleep 0.01; done")[1].strip()
    code, out, err = torchx("run", "--wait", "utils.sh", f"echo first; {FILL}; exit 5")
    handle = out.splitlines()[0]
    assert code == 1
    eventually(lambda: _stays_full(disk))  # what the registry had borrowed, and given back
    assert "exit code 5" in err
    code, out, _ = torchx("status", "--json", handle)
    status = json.loads(out)
    assert (status["state"], code) == ("FAILED", 0)
    code, out, _ = torchx("log", "--no-prefix", "--streams", "stdout", handle)
    assert (out.split("\n")[0], code) == ("first", 0)
    go.touch()  # an end that is not on record yet
    state = disk / "home/local/torchx" / other.rpartition("/")[2] / STATE_FILE
    eventually(lambda: read_state(str(state)).state == AppState.SUCCEEDED.name)
    code, out, err = torchx("list", "--json")
    assert "new runs will not be in" in err
    assert [run["state"] for run in json.loads(out)["runs"] if run["handle"] == handle] == ["FAILED"]
    code, out, err = torchx("run", "--wait", "utils.echo", "--msg", "in spite of all")
    assert code == 0, err
    assert "No space left" in err and "disk" in err
    assert torchx("log", "--no-prefix", out.splitlines()[0])[1] == "in spite of all\n"
    assert torchx("delete", handle)[0] == 0
    assert not (disk / "home/local/torchx" / handle.rpartition("/")[2]).exists()
