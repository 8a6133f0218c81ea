"""What a Slurm job records about its own end: who hears of it, and when Slurm need not be queried."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.schedulers.slurm.test_slurm_scheduler import fake, role, row, says, scheduler, submitted
from torchx.schedulers.slurm import notices
from torchx.schedulers.slurm_scheduler import SlurmScheduler
from torchx.specs import AppDef, AppState
from torchx.testing.commands import FakeCommandRunner

__all__ = ["fake", "scheduler"]

STARTED = "100 start 0 7\n101 up w/0 n1\n"


@pytest.fixture
def folder(scheduler: SlurmScheduler, fake: FakeCommandRunner) -> Path:
    """The folder of job 7, which was seen running."""
    made = submitted(scheduler, fake, AppDef("a", [role("w")]))
    says(fake, row("7", "RUNNING", folder=str(made)))
    (made / "events").write_text(STARTED)
    job = scheduler.describe("7")
    assert job is not None
    assert job.state is AppState.RUNNING
    return made


def asked(fake: FakeCommandRunner) -> int:
    """How often Slurm was queried."""
    return len(fake.argvs("env"))


@pytest.mark.parametrize(
    ("end", "slurm", "state", "queries"),
    [
        ("105 down w/0 0\n105 end 0 over\n", "RUNNING", "SUCCEEDED", 0),  # Slurm's answer is late
        ("105 down w/0 0\n105 end 0\n", "CANCELLED by 1000", "CANCELLED", 1),  # Slurm terminated it, it exits with 0
        ("105 down w/0 0\n105 end 0\n", "PREEMPTED", "FAILED", 1),
        ("105 down w/0 3\n105 end 3 over\n", "FAILED", "FAILED", 1),
        ("105 down w/0 3\n105 end 3\n", "FAILED", "FAILED", 1),
    ],
    ids=["succeeded", "cancelled, exits with 0", "preempted, exits with 0", "failed", "failed when terminated"],
)
def test_who_needs_not_be_queried(
    end: str, slurm: str, state: str, queries: int, folder: Path, scheduler: SlurmScheduler, fake: FakeCommandRunner
) -> None:
    """Only a job that exits with 0, and was not terminated by Slurm: of all others Slurm knows why they ended."""
    says(fake, row("7", slurm, status=3 << 8 if slurm == "FAILED" else 0, folder=str(folder)))
    (folder / "events").write_text(STARTED + end)
    assert scheduler.changed(["7"], 0) == {"7"}
    before = asked(fake)
    job = scheduler.describe("7")
    assert job is not None
    assert job.state.name == state
    assert (asked(fake) - before > 0) == (queries > 0)
    if not queries:
        assert job.ended_at == 105.0
        assert job.started_at == 100.0


def test_an_end_is_heard_of_once(folder: Path, scheduler: SlurmScheduler, fake: FakeCommandRunner) -> None:
    """By the last line of its record; what was read before, is not read again."""
    assert scheduler.changed(["7"], 0) == set()
    (folder / "events").write_text(STARTED + "105 end 0 over")  # half a line counts as soon as it says it
    assert scheduler.changed(["7"], 0) == {"7"}
    scheduler.describe("7")
    assert scheduler.changed(["7"], 0) == set()


@pytest.mark.parametrize("last", ["105 retry 1", "105 up w/0 end", "105 start end 7", "end", "", "105"])
def test_what_is_no_end(last: str, folder: Path, scheduler: SlurmScheduler) -> None:
    """Whatever else the last line says, also after an earlier attempt that ended."""
    (folder / "events").write_text(f"{STARTED}104 end 3\n{last or '106 start 1 7'}\n")
    assert scheduler.changed(["7"], 0) == set()


def test_an_end_behind_a_long_record(folder: Path, scheduler: SlurmScheduler) -> None:
    """The end of the file is enough."""
    (folder / "events").write_text(STARTED + "102 note\n" * 1000 + "105 end 0 over\n")
    assert scheduler.changed(["7"], 0) == {"7"}


def test_a_job_without_its_record(folder: Path, scheduler: SlurmScheduler) -> None:
    """It is not heard of; Slurm will be queried in its time."""
    (folder / "events").unlink()
    assert scheduler.changed(["7"], 0) == set()


def test_ends_count_for_one_query(folder: Path, scheduler: SlurmScheduler, fake: FakeCommandRunner) -> None:
    """Afterwards Slurm's answer counts: a job may have been requeued."""
    (folder / "events").write_text(STARTED + "105 down w/0 0\n105 end 0 over\n")
    assert scheduler.changed(["7"], 0) == {"7"}
    scheduler.describe("7")
    assert scheduler.changed(["7"], 0) == set()
    before = asked(fake)
    scheduler.describe("7")
    assert asked(fake) > before


def test_who_gets_the_addresses_of_notices(scheduler: SlurmScheduler, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that sends notices itself."""
    monkeypatch.setattr(notices, "content", lambda *_: "addresses")
    info = scheduler.submit_dryrun(AppDef("a", [role()]), {})
    assert scheduler._secret_files(info) == {}
    info.request.notify = True
    assert scheduler._secret_files(info) == {notices.NOTICES_FILE: "addresses"}
    monkeypatch.setattr(notices, "content", lambda *_: "")
    assert scheduler._secret_files(info) == {}


SAMPLE = '{"t":100.0,"a":0,"cpu":0.50,"mem":1000}\n'


def test_usage_of_replicas(scheduler: SlurmScheduler, fake: FakeCommandRunner) -> None:
    """Of a job all of them; nothing of one whose folder is unknown."""
    folder = submitted(scheduler, fake, AppDef("a", [role("w", num_replicas=2)]))
    says(fake, row("7", "RUNNING", folder=str(folder)))
    (folder / "w" / "1").mkdir(parents=True)
    (folder / "w" / "1" / "metrics.jsonl").write_text(SAMPLE)
    found = scheduler.metrics("7")
    assert found is not None
    assert [(one.role, one.replica, len(one.samples)) for one in found if one.samples] == [("w", 1, 1)]
    assert scheduler.metrics("8") is None


@pytest.mark.parametrize("whole", [False, True])
def test_usage_of_tasks(whole: bool, scheduler: SlurmScheduler, fake: FakeCommandRunner) -> None:
    """Of one task, from the file of its array or of its own folder; of a sweep they are too many."""
    folder = submitted(scheduler, fake, AppDef("a", [role("w")]))
    scheduler.folders(scheduler._here).remember("sweep-7", str(folder))
    (folder / "array.sh").write_text("count=7 size=5 width=\n")
    (folder / "chunks").write_text("0 5 7\n5 2 8\n")
    task = folder / "tasks" / "6" if whole else folder
    path = task / "w" / "0" / "metrics.jsonl" if whole else folder / "w" / "5+1.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(SAMPLE)
    if whole:
        (task / "job.json").write_text((folder / "job.json").read_text())
    else:
        (folder / "job.sh").unlink()
    found = scheduler.metrics("sweep-7/6")
    assert found is not None
    assert [(one.role, len(one.samples)) for one in found] == [("w", 1)]
    assert scheduler.metrics("sweep-7") == []
