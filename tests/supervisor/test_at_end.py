"""The program that says whether a job is started again: what it is given, and how long it may take."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.supervisor.forks import in_fork, role, started, state, until_dead
from torchx.supervisor import at_end
from torchx.supervisor.at_end import may_start_again


def test_it_speaks_by_its_exit_code_alone(capfd: pytest.CaptureFixture[str]) -> None:
    """It has its variables and nothing to read, and whatever it prints is not the job's."""
    script = 'read line && exit 1; echo out; echo error >&2; test "$A" = b'
    assert may_start_again(["/bin/sh", "-c", script], {"A": "b"})
    assert not may_start_again(["/bin/sh", "-c", script], {"A": "c"})
    assert capfd.readouterr() == ("", "")


def test_one_that_is_not_there_is_killed_or_never_ends_says_no(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a job that is over already nobody waits for it for long."""
    assert not may_start_again(["/no/such/program"], {})
    assert not may_start_again(["/bin/sh", "-c", "kill -9 $$"], {})
    monkeypatch.setattr(at_end, "_PATIENCE_S", 0.1)
    began = time.monotonic()
    assert not may_start_again(["/bin/sleep", "600"], {})
    assert 0.1 <= time.monotonic() - began < 60


def test_what_it_reads_of_the_job_is_written_by_then(tmp_path: Path) -> None:
    """Which replica has failed, and how, stands in the file of the job's state."""
    job = str(tmp_path / "job")

    def steps() -> None:
        supervisor = started(job, role("exit 7", retries=1, policy="ROLE"))
        supervisor._again = ["/bin/sh", "-c", f"cp -r '{job}' '{tmp_path}/seen'; exit 1"]
        until_dead(supervisor.replicas[0].line.pid)
        supervisor._reap(1000.0)
        supervisor._settle(set(), 1000.0)

    in_fork(steps)
    [replica] = state(str(tmp_path / "seen")).replicas
    assert (replica.state, replica.exit) == ("FAILED", 7)
