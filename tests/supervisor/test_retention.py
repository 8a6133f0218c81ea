"""Old and big jobs go, oldest first; running ones, and the files of others, stay."""

from __future__ import annotations

import time

import pytest

from torchx.supervisor import retention
from torchx.supervisor.statefile import JobState, StateWriter

DAY = 86400.0


def _job(base, name: str, *, days: float, state: str = "SUCCEEDED", size: int = 0, logs: str = "") -> str:
    folder = base / "session" / name
    folder.mkdir(parents=True)
    job = JobState({"app_id": name, "logs": logs or str(folder)}, [("r", 1)])
    job.state = state
    job.ended = time.time() - days * DAY
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
    retention.apply(str(tmp_path), max_age_s=30 * DAY, max_bytes=0)
    assert _names(tmp_path) == ["new", "running"]


def test_the_oldest_go_above_the_size(tmp_path) -> None:
    """Above the size the oldest go first."""
    for i, name in enumerate(["newest", "middle", "oldest"]):
        _job(tmp_path, name, days=i, size=1 << 20)
    retention.apply(str(tmp_path), max_age_s=0, max_bytes=5 << 19)
    assert _names(tmp_path) == ["middle", "newest"]


def test_zero_keeps_all(tmp_path) -> None:
    """0 days and 0 bytes mean no limit."""
    _job(tmp_path, "old", days=1000, size=1 << 20)
    retention.apply(str(tmp_path), max_age_s=0, max_bytes=0)
    assert _names(tmp_path) == ["old"]


def test_files_of_others_stay(tmp_path) -> None:
    """What a user put into the folders is not removed, nor are the folders around it."""
    logs = tmp_path / "mine" / "session" / "old"
    _job(tmp_path / "base", "old", days=31, logs=str(logs))
    (logs / "r" / "0" / "checkpoint.pt").write_text("precious")
    retention.apply(str(tmp_path / "base"), max_age_s=DAY, max_bytes=0)
    assert _names(tmp_path / "base") == []
    assert (logs / "r" / "0" / "checkpoint.pt").read_text() == "precious"
    assert not (logs / "r" / "0" / "stdout.log").exists()


@pytest.mark.parametrize("content", [b"", b"garbage"], ids=["empty", "garbage"])
def test_what_cannot_be_read_stays(tmp_path, content: bytes) -> None:
    """A damaged record is not taken as leave to delete."""
    folder = tmp_path / "session" / "odd"
    folder.mkdir(parents=True)
    (folder / "state").write_bytes(content)
    retention.apply(str(tmp_path), max_age_s=1, max_bytes=1)
    assert _names(tmp_path) == ["odd"]
