"""The state file of a local job as facts, and what the verdict makes of them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from torchx.schedulers.kit.facts import ReplicaFacts
from torchx.schedulers.kit.failures.reader import Evidence
from torchx.schedulers.kit.verdict import describe, state_of
from torchx.schedulers.local import sweeps
from torchx.schedulers.local.answers import facts_of, listed, look
from torchx.specs.api import AppState
from torchx.specs.failures import parse_failure
from torchx.supervisor.layout import ERROR_FILE, STDERR_LOG, STDOUT_LOG
from torchx.supervisor.statefile import TASKS, JobState

LOST_PEER = "Traceback (most recent call last):\nRuntimeError: Connection closed by peer [127.0.0.1]:27045\n"
BAD_BATCH = "Traceback (most recent call last):\nValueError: bad batch\n"


def job(folder: Path, state: str, *replicas: tuple[str, int | None, float, str], first: int = 0) -> JobState:
    """A job of replicas: state, exit code, time of its end, what it wrote to stderr."""
    made = JobState(
        {"app_id": "a-1", "name": "a", "handle": "local_cwd://s/a-1", "host": os.uname().nodename},
        [("r", len(replicas))],
    )
    made.state, made.first = state, first
    for k, (own, code, ended, stderr) in enumerate(replicas):
        line = made.replicas[k]
        line.state, line.exit, line.ended = own, code, ended
        (folder / f"r/{k}").mkdir(parents=True)
        (folder / f"r/{k}/stderr.log").write_text(stderr)
    return made


def described(of: JobState, folder: Path) -> Any:
    return describe(facts_of(of, str(folder)), lambda replicas: look(str(folder), replicas))


@pytest.mark.parametrize("second", ["FAILED", "CANCELLED"], ids=["by itself", "while it was told to end"])
def test_the_victim_is_not_blamed_though_it_ended_first(tmp_path: Path, second: str) -> None:
    """Rank 0 lost its peer at 10, rank 1 had a reason of its own at 11: rank 1 is named, and its class is `error`."""
    of = job(tmp_path, "FAILED", ("FAILED", 1, 10, LOST_PEER), (second, 1, 11, BAD_BATCH))
    found = described(of, tmp_path)
    assert found.msg == "r/1: exit code 1: ValueError: bad batch"
    cause = parse_failure(found.structured_error_msg)
    assert cause is not None
    assert (cause.role, cause.replica, cause.kind) == ("r", 1, "error")
    assert listed(of, str(tmp_path)).state is found.state


def test_a_job_that_is_ending(tmp_path: Path) -> None:
    """Nothing has ended while a replica of it runs, and the list says so as well."""
    of = job(tmp_path, "RUNNING", ("FAILED", 3, 10, ""), ("RUNNING", None, 0, ""))
    found = described(of, tmp_path)
    assert (found.state.name, found.msg) == ("RUNNING", "r/0: exit code 3; the others are being ended")
    line = listed(of, str(tmp_path))
    assert (line.app_id, line.name, line.app_handle, line.state.name) == ("a-1", "a", "local_cwd://s/a-1", "RUNNING")


def test_an_elastic_job_that_succeeded_says_whom_it_lost(tmp_path: Path) -> None:
    """It went on without the replica that failed."""
    of = job(tmp_path, "SUCCEEDED", ("SUCCEEDED", 0, 10, ""), ("FAILED", -9, 5, ""), first=-1)
    found = described(of, tmp_path)
    assert found.state is AppState.SUCCEEDED
    assert found.msg == "1 of 2 replicas lost (r/1); the job went on with the others"


def test_a_failure_that_does_not_end_the_job(tmp_path: Path) -> None:
    """The supervisor starts it again, or can do without it: no cause is named."""
    of = job(tmp_path, "RUNNING", ("FAILED", 3, 10, ""), ("RUNNING", None, 0, ""), first=-1)
    assert (described(of, tmp_path).msg, state_of(facts_of(of, "x")).name) == ("<NONE>", "RUNNING")


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (-9, "killed by SIGKILL (often: out of memory)"),
        (-11, "killed by SIGSEGV"),
        (137, "killed by SIGKILL (often: out of memory)"),
        (4, "exit code 4"),
    ],
)
def test_exit_codes_and_signals(tmp_path: Path, code: int, said: str) -> None:
    """A negative code is a signal's; a shell reports that of its child as 128 and the number."""
    assert described(job(tmp_path, "FAILED", ("FAILED", code, 10, "")), tmp_path).msg == f"r/0: {said}"


def test_logs_that_are_gone_explain_nothing(tmp_path: Path) -> None:
    """Somebody has removed them: the exit code is still known."""
    of = job(tmp_path, "FAILED", ("FAILED", 4, 10, ""))
    assert described(of, tmp_path / "gone").msg == "r/0: exit code 4"


def test_what_a_file_ends_with(tmp_path: Path) -> None:
    """64 KiB of stderr, from the first whole line in it; the error file as it is; neither need be there."""
    said = tmp_path / "r/0/stderr.log"

    def left() -> Evidence:
        return look(str(tmp_path), [ReplicaFacts(role="r", replica=0, state=AppState.FAILED)])[0]

    assert left() == Evidence()
    said.parent.mkdir(parents=True)
    said.write_bytes(b"FIRST\n" + b"x" * ((1 << 16) - 7) + b"\n")
    assert left().stderr.startswith("FIRST\nxx")
    said.write_bytes(b"z" + said.read_bytes())
    assert left().stderr.startswith("xx")
    assert len(left().stderr) == (1 << 16) - 6
    (tmp_path / "r/0/error.json").write_text("{}")
    (tmp_path / "r/0/stdout.log").write_text("out\n")
    assert (left().error_file, left().stdout) == ("{}", "out\n")


def test_a_fifo_in_place_of_a_file_is_not_waited_for(tmp_path: Path) -> None:
    """A job may put anything there; the other files still say what they say."""
    folder = tmp_path / "w" / "0"
    folder.mkdir(parents=True)
    for name in (ERROR_FILE, STDOUT_LOG):
        os.mkfifo(folder / name)
    (folder / STDERR_LOG).write_text("why\n")
    (evidence,) = look(str(tmp_path), [ReplicaFacts(role="w", replica=0, state=AppState.FAILED)])
    assert (evidence.error_file, evidence.stderr, evidence.stdout) == (None, "why\n", "")


def test_the_address_of_a_folder() -> None:
    """Blanks and other special characters in it are escaped, for a job and for a sweep."""
    facts = {"logs": "/my logs/50%", TASKS: "1"}
    job = JobState(facts, [("r", 1)])
    assert describe(facts_of(job, "/x")).ui_url == "file:///my%20logs/50%25"
    assert sweeps.describe(job, "x-1").ui_url == "file:///my%20logs/50%25"
