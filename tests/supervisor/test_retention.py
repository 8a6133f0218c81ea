"""Old and big jobs go, oldest first; running ones, and the files of others, stay."""

from __future__ import annotations

import functools
import os
import shutil
from pathlib import Path

import pytest

from tests.supervisor.forks import Clock
from torchx.supervisor import retention
from torchx.supervisor.layout import JOB_FILES, REPLICA_FILES
from torchx.supervisor.statefile import JobState, StateWriter, read_state

DAY = 86400.0
NOW = 1_800_000_000.0


@pytest.fixture(autouse=True)
def clock(monkeypatch) -> Clock:
    clock = Clock(NOW)
    monkeypatch.setattr(retention, "time", clock)
    return clock


def _job(base, name: str, *, days: float, state: str = "SUCCEEDED", size: int = 0, logs: str = "") -> str:
    folder = base / "session" / name
    folder.mkdir(parents=True)
    job = JobState({"app_id": name, "logs": logs or str(folder)}, [("r", 1)])
    job.state = state
    job.ended = NOW - days * DAY
    writer = StateWriter(str(folder / "state"), job)
    writer.flush()
    writer.close()
    replica = (folder if not logs else type(folder)(logs)) / "r" / "0"
    replica.mkdir(parents=True)
    (replica / "stdout.log").write_bytes(b"x" * size)
    (folder / "job.json").write_text("{}")
    return str(folder)


def _names(base) -> list[str]:
    return sorted(p.name for p in (base / "session").iterdir())


def test_finished_jobs_go_after_their_days(tmp_path) -> None:
    """A job that ended 31 days ago goes; one of yesterday and one that has not ended stay."""
    _job(tmp_path, "old", days=31)
    _job(tmp_path, "new", days=1)
    _job(tmp_path, "running", days=31, state="RUNNING")
    _job(tmp_path, "pending", days=31, state="PENDING")
    retention.apply(str(tmp_path), max_age_s=30 * DAY, max_bytes=0)
    assert _names(tmp_path) == ["new", "pending", "running"]


def test_the_last_moment_of_a_job(tmp_path, clock) -> None:
    """Exactly as old as it may be it stays, a moment later it goes; failed and cancelled ones too."""
    for state in ("SUCCEEDED", "FAILED", "CANCELLED"):
        _job(tmp_path, state, days=30, state=state)
    retention.apply(str(tmp_path), max_age_s=30 * DAY, max_bytes=0)
    assert len(_names(tmp_path)) == 3
    clock.now += 0.001
    retention.apply(str(tmp_path), max_age_s=30 * DAY, max_bytes=0)
    assert not (tmp_path / "session" / "FAILED").exists()
    assert _names(tmp_path) == []


def test_the_oldest_go_above_the_size(tmp_path) -> None:
    """Above the size the oldest go first."""
    for i, name in enumerate(["newest", "middle", "oldest"]):
        _job(tmp_path, name, days=i, size=1 << 20)
    retention.apply(str(tmp_path), max_age_s=0, max_bytes=5 << 19)
    assert _names(tmp_path) == ["middle", "newest"]


def test_what_lies_on_the_disk_is_what_counts(tmp_path) -> None:
    """All together may be exactly as big as they may be; one byte less, and the oldest goes. A hole takes no room."""
    for i, name in enumerate(["newest", "oldest"]):
        folder = _job(tmp_path, name, days=i, size=1 << 16)
        with open(f"{folder}/r/0/stderr.log", "wb") as f:
            f.truncate(1 << 30)
    paths = list((tmp_path / "session").rglob("*.log"))
    size = sum(os.stat(path).st_blocks * 512 for path in paths)
    assert 2 << 16 <= size < 1 << 20
    retention.apply(str(tmp_path), max_age_s=0, max_bytes=size)
    assert _names(tmp_path) == ["newest", "oldest"]
    retention.apply(str(tmp_path), max_age_s=0, max_bytes=size - 1)
    assert _names(tmp_path) == ["newest"]


def test_either_limit_is_enough(tmp_path) -> None:
    """Too old though small, too much though new."""
    _job(tmp_path, "old", days=31)
    _job(tmp_path, "new", days=1, size=1 << 16)
    retention.apply(str(tmp_path), max_age_s=30 * DAY, max_bytes=1 << 30)
    assert _names(tmp_path) == ["new"]
    retention.apply(str(tmp_path), max_age_s=30 * DAY, max_bytes=1)
    assert _names(tmp_path) == []


def test_zero_keeps_all(tmp_path) -> None:
    """0 days and 0 bytes mean no limit."""
    _job(tmp_path, "old", days=1000, size=1 << 20)
    retention.apply(str(tmp_path), max_age_s=0, max_bytes=0)
    assert _names(tmp_path) == ["old"]


def test_all_files_of_a_job_go(tmp_path) -> None:
    """Those of the job and of each of its replicas, the folders above them too: nothing of it is left."""
    folder = Path(_job(tmp_path, "old", days=31))
    for name in JOB_FILES[2:]:
        (folder / name).touch()
    for name in REPLICA_FILES:
        (folder / "r" / "0" / name).touch()
    retention.apply(str(tmp_path), max_age_s=DAY, max_bytes=0)
    assert not folder.exists()


def test_logs_elsewhere_stay(tmp_path) -> None:
    """Logs in the user's `log_dir` stay, and do not count; the job's own folder goes."""
    logs = tmp_path / "mine" / "session" / "old"
    _job(tmp_path / "base", "old", days=31, logs=str(logs), size=1 << 20)
    _job(tmp_path / "base", "new", days=0.6)
    retention.apply(str(tmp_path / "base"), max_age_s=DAY, max_bytes=1 << 19)
    assert (logs / "r" / "0" / "stdout.log").stat().st_size == 1 << 20
    assert _names(tmp_path / "base") == ["new"]


def test_a_home_with_two_names(tmp_path) -> None:
    """Logs in the job's folder go, also if the home has another name now."""
    folder = _job(tmp_path / "base", "old", days=31)
    (tmp_path / "link").symlink_to(tmp_path / "base")
    retention.apply(str(tmp_path / "link"), max_age_s=DAY, max_bytes=0)
    assert not os.path.exists(folder)


def test_deleted_logs_elsewhere_go(tmp_path) -> None:
    """`delete` removes the replicas' files, their folders, and those of the job and session that are empty."""
    logs = tmp_path / "mine" / "session" / "old"
    folder = _job(tmp_path / "base", "old", days=31, logs=str(logs))
    retention.remove_job(folder, read_state(f"{folder}/state"))
    assert not (tmp_path / "mine" / "session").exists()
    assert (tmp_path / "mine").exists()
    assert (tmp_path / "base" / "session").exists()  # a session may have its next job at any time


def test_files_of_others_stay(tmp_path) -> None:
    """What a user put into the folders is not removed, nor are the folders around it."""
    logs = tmp_path / "mine" / "session" / "old"
    folder = _job(tmp_path / "base", "old", days=31, logs=str(logs))
    (logs / "r" / "0" / "checkpoint.pt").write_text("precious")
    retention.remove_job(folder, read_state(f"{folder}/state"))
    assert _names(tmp_path / "base") == []
    assert (logs / "r" / "0" / "checkpoint.pt").read_text() == "precious"
    assert not (logs / "r" / "0" / "stdout.log").exists()


@pytest.mark.parametrize("content", [b"", b"garbage"], ids=["empty", "garbage"])
def test_what_cannot_be_read_stays(tmp_path, content: bytes) -> None:
    """A damaged record is not taken as leave to delete; what comes after it is looked at all the same."""
    folder = tmp_path / "session" / "odd"
    folder.mkdir(parents=True)
    (folder / "state").write_bytes(content)
    (tmp_path / "session" / "unreadable" / "state").mkdir(parents=True)
    for name in ("a", "b", "z"):
        _job(tmp_path, name, days=31)
    retention.apply(str(tmp_path), max_age_s=1, max_bytes=1)
    assert _names(tmp_path) == ["odd", "unreadable"]


def test_what_a_killed_submission_left_goes_after_an_hour(tmp_path, clock) -> None:
    """A folder without a state may be one that is just being submitted: for an hour, to the moment."""
    folder = tmp_path / "session" / "half"
    folder.mkdir(parents=True)
    (folder / "job.json").write_text("{}")
    os.utime(folder, (NOW - 3600, NOW - 3600))
    retention.apply(str(tmp_path), max_age_s=1, max_bytes=1)
    assert (folder / "job.json").exists()
    clock.now += 0.5
    retention.apply(str(tmp_path), max_age_s=1, max_bytes=1)
    assert not folder.exists()


def test_hidden_folders_and_files_are_no_jobs(tmp_path) -> None:
    """Neither a session nor a job begins with a dot; a file among them is in nobody's way."""
    _job(tmp_path / ".hidden", "old", days=31)
    _job(tmp_path, ".old", days=31)
    (tmp_path / "file").touch()
    (tmp_path / "session" / "file").touch()
    os.utime(tmp_path / "session" / "file", (0, 0))
    retention.apply(str(tmp_path), max_age_s=1, max_bytes=1)
    assert _names(tmp_path) == [".old", "file"]
    assert _names(tmp_path / ".hidden") == ["old"]
    retention.apply(str(tmp_path / "none"), max_age_s=1, max_bytes=1)


@pytest.mark.parametrize("at", range(6))
@pytest.mark.parametrize("gone", ["session/b", "session/half", "session/b/state", "session/b/r/0"])
def test_what_is_removed_meanwhile(tmp_path, gone, at) -> None:
    """Another process tidies up at the same time: whatever it takes away under our hands, the rest is removed."""
    for name in "abc":
        _job(tmp_path, name, days=31, size=10)
    _job(tmp_path, "new", days=0.1, size=10)
    (tmp_path / "session" / "half").mkdir()
    os.utime(tmp_path / "session" / "half", (0, 0))
    vanishing, touched = tmp_path / gone, [0]
    real = {name: getattr(os, name) for name in ("listdir", "stat", "open", "unlink", "rmdir")}

    def call(name: str, path: object, *args: object, **kwargs: object) -> object:
        if str(path).startswith(str(vanishing)):
            touched[0] += 1
            if touched[0] == at + 1:
                with pytest.MonkeyPatch.context() as patch:
                    for each, function in real.items():
                        patch.setattr(os, each, function)
                    shutil.rmtree(vanishing) if vanishing.is_dir() else vanishing.unlink(missing_ok=True)
        return real[name](path, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        for name in real:
            patch.setattr(os, name, functools.partial(call, name))
        retention.apply(str(tmp_path), max_age_s=DAY, max_bytes=1 << 30)
    assert "new" in _names(tmp_path)
    assert not {"a", "c"} & set(_names(tmp_path))
