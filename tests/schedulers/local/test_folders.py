"""Folders of local jobs: ours alone, and none is believed that another user could have made."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from torchx.errors import BackendError
from torchx.schedulers.local import jobs as local_jobs
from torchx.schedulers.local_scheduler import LocalScheduler, create_scheduler
from torchx.settings import torchx_home
from torchx.specs.api import AppDef, AppState, Role
from torchx.supervisor import proctree
from torchx.supervisor.statefile import JobState, StateWriter, read_state


@pytest.fixture
def scheduler() -> Iterator[LocalScheduler]:
    local = create_scheduler("test")
    yield local
    local.close()


@pytest.fixture
def victim() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True)
    yield process
    if process.poll() is None:
        process.communicate(b"\n")


def _submit(scheduler: LocalScheduler, command: str) -> str:
    return scheduler.submit(AppDef("job", [Role("r", "", entrypoint="sh", args=["-c", command])]), {})


@pytest.mark.parametrize("umask", [0o000, 0o002], ids=oct)
def test_every_folder_is_ours_alone(scheduler, umask) -> None:
    """Under a umask that takes nothing away, in a home that others could write, nobody else may enter any folder."""
    home = Path(torchx_home())
    before = os.umask(umask)
    try:
        home.mkdir(parents=True, exist_ok=True)
        os.chmod(home, 0o777 & ~umask)
        (home / "local").mkdir()
        app_id = _submit(scheduler, "true")
        scheduler.wait_for_end(app_id, 300)
    finally:
        os.umask(before)
    found = {
        str(path.relative_to(home)): stat.S_IMODE(path.stat().st_mode) for path in home.rglob("*") if path.is_dir()
    }
    assert f"local/test/{app_id}/r/0" in found
    assert set(found.values()) == {0o700}
    assert not home.stat().st_mode & 0o022


def _forge(app_id: str, victim: subprocess.Popen[bytes]) -> str:
    """A job that says of itself that the victim is its replica, and that its supervisor is dead."""
    folder = torchx_home("local", "test", app_id)
    os.makedirs(folder)
    place = {"host": os.uname().nodename, "boot": proctree.boot_id(), "pidns": proctree.pid_namespace()}
    job = JobState({"app_id": app_id, "handle": f"local_cwd://test/{app_id}", "logs": folder, **place}, [("r", 1)])
    job.state = job.replicas[0].state = "RUNNING"
    job.replicas[0].pid, job.replicas[0].ticks = victim.pid, proctree.start_ticks(victim.pid)
    writer = StateWriter(f"{folder}/state", job)
    writer.flush()
    writer.close()
    return folder


def test_a_forged_job_ends_no_process(scheduler, victim, caplog) -> None:
    """One warning in the list, beside the jobs that are ours; one sentence for whoever asks for it by name."""
    own = _submit(scheduler, "true")
    scheduler.wait_for_end(own, 300)
    folder = _forge("forged-1", victim)
    os.chmod(folder, 0o777)
    scheduler.close()
    assert [job.app_id for job in scheduler.list()] == [own]
    (warning,) = [record.getMessage() for record in caplog.records]
    assert warning == f"the local job in `{folder}` is not trusted: others can write to `{folder}` (mode 0777)"
    for ask in (scheduler.describe, scheduler.cancel, scheduler.delete):
        with pytest.raises(BackendError, match="is not trusted"):
            ask("forged-1")
    assert victim.poll() is None
    assert read_state(f"{folder}/state").state == "RUNNING"


def test_a_job_whose_end_nobody_saw(scheduler, victim) -> None:
    """Supervisor and guardian are gone, and so is the replica: class `lost`, and nobody says that it failed."""
    from torchx.specs.failures import parse_failure

    _forge("job-1", victim)
    victim.communicate(b"\n")
    described = scheduler.describe("job-1")
    assert described.msg == "the supervisor of the job was killed; it is not known how r/0 ended"
    assert described.roles_statuses[0].replicas[0].state is AppState.UNKNOWN
    assert parse_failure(described.structured_error_msg).kind == "lost"


def _guardian_and_supervisor(folder: str) -> list[proctree.Process]:
    job = read_state(f"{folder}/state")
    found = proctree.snapshot()
    return [found[pid] for pid in (job.guardian[0], job.supervisor)]


def _eventually(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        os.sched_yield()


def test_deleting_a_job_whose_supervisor_is_stopped(scheduler, monkeypatch) -> None:
    """It is said at once, with the process to wake; when that goes on the job can be deleted."""
    monkeypatch.setattr(local_jobs, "_LOOK_S", 0.01)
    app_id = _submit(scheduler, "exec sleep 1000")
    folder = scheduler._jobs.find(app_id)
    _, supervisor = _guardian_and_supervisor(folder)
    proctree.send(supervisor, signal.SIGSTOP)
    _eventually(lambda: proctree.is_stopped(supervisor.pid))
    try:
        with pytest.raises(BackendError, match=r"does not end: its supervisor is stopped") as e:
            scheduler.delete(app_id)
        assert e.value.hint == f"let the supervisor go on: `kill -CONT {supervisor.pid}`"
    finally:
        proctree.send(supervisor, signal.SIGCONT)
    scheduler.delete(app_id)
    assert not os.path.exists(folder)


def test_a_session_that_was_removed_is_created_again(scheduler, caplog) -> None:
    """Somebody may remove old jobs while a program goes on: its next job is in the same place, without a warning."""
    scheduler.wait_for_end(_submit(scheduler, "true"), 300)
    session = Path(torchx_home("local")) / "test"
    subprocess.run(["rm", "-r", str(session)], check=True)
    app_id = _submit(scheduler, "true")
    assert (session / app_id / "state").exists()
    assert not caplog.records
    scheduler.wait_for_end(app_id, 300)


@pytest.mark.parametrize("name", ["state", "control", "job.json"])
def test_a_role_with_the_name_of_a_file_of_the_job(scheduler, name) -> None:
    """It runs, and its output is found."""
    app_id = scheduler.submit(AppDef("job", [Role(name, "", entrypoint="echo", args=["hi"])]), {})
    scheduler.wait_for_end(app_id, 300)
    assert scheduler.describe(app_id).state is AppState.SUCCEEDED
    assert list(scheduler.log_iter(app_id, name)) == ["hi\n"]
    scheduler.delete(app_id)
    assert os.listdir(torchx_home("local", "test")) == []


@pytest.mark.parametrize("variable", ["TORCHX_LOCAL_RETENTION_DAYS", "TORCHX_LOCAL_RETENTION_GB"])
def test_infinite_retention_is_none(monkeypatch, variable) -> None:
    """`inf` keeps all jobs, as 0 does."""
    monkeypatch.setenv(variable, "inf")
    due = local_jobs.LocalJobs("test").retention_due(_folder_in_home())
    assert due is not None
    assert due["max_age_s" if variable.endswith("DAYS") else "max_bytes"] == 0


def _folder_in_home() -> str:
    folder = torchx_home("local", "test", "job-1")
    os.makedirs(folder)
    return folder
