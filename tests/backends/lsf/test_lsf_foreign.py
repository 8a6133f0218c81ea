"""Jobs that torchx did not submit, on the look-alike: what `torchx why` says is what a person finds."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from torchx.errors import NotSupportedError
from torchx.runner import Runner
from torchx.runner.foreign.explain import Explained
from torchx.schedulers.lsf import ends
from torchx.schedulers.lsf_scheduler import LsfScheduler, create_scheduler
from torchx.specs.api import AppState, is_terminal
from torchx.specs.failures import parse_failure

from .conftest import command, eventually

Bsub = Callable[..., str]


@pytest.fixture
def runner(scheduler: LsfScheduler, monkeypatch: pytest.MonkeyPatch) -> Iterator[Runner]:
    """A Runner that knows LSF alone, and for which an end is final at once."""
    monkeypatch.setattr(ends, "SETTLES_S", -60)
    with Runner("test", {"lsf": create_scheduler}) as made:
        yield made


@pytest.fixture
def bsub(tmp_path: Path) -> Bsub:
    """Submits by plain `bsub`; returns the job's id."""

    def run(*words: str) -> str:
        done = subprocess.run(["bsub", *words], cwd=tmp_path, capture_output=True, text=True, check=True)
        return done.stdout.partition("<")[2].partition(">")[0]

    return run


def over(runner: Runner, job: str) -> Explained:
    """What is said of a job at its end."""
    found = eventually(lambda: f if is_terminal((f := runner.why(job)).status.state) else None)
    assert isinstance(found, Explained)
    return found


def test_a_traceback(runner: Runner, bsub: Bsub, tmp_path: Path) -> None:
    """The exception is the cause, and not what LSF writes around it; the log is the file; nothing is on record."""
    (tmp_path / "train.py").write_text("print('begun', flush=True)\nopen('/no/data')\n")
    job = bsub("-J", "my train", "-q", "normal", "-o", "out.%J", sys.executable, "train.py")
    found = over(runner, job)
    assert found.handle == f"lsf://foreign/{job}"
    assert found.status.state is AppState.FAILED
    cause = parse_failure(found.status.structured_error_msg)
    assert cause is not None
    assert cause.message == "FileNotFoundError: [Errno 2] No such file or directory: '/no/data'"
    assert (cause.role, cause.replica, cause.exit_code) == ("job", 0, 1)
    assert "".join(found.lines[-3:]).strip() in (tmp_path / f"out.{job}").read_text()
    assert (found.about["name"], found.about["queue"]) == ("my train", "normal")
    assert found.about["folder"] == str(tmp_path)
    assert found.about["command"] == f"{sys.executable} train.py"
    assert runner.runs() == []


def test_two_files(runner: Runner, bsub: Bsub) -> None:
    """stderr has one of its own."""
    job = bsub("-o", "%J.out", "-e", "%J.err", "sh", "-c", "'echo fine; echo no more frobs >&2; exit 7'")
    assert over(runner, job).status.msg == "job/0 on 127.0.0.11: exit code 7: no more frobs"


def test_memory(runner: Runner, bsub: Bsub) -> None:
    """What LSF itself says of the end is the cause."""
    eats = "'import time; x = bytearray(300 << 20); time.sleep(1000)'"
    found = over(runner, bsub("-M", "100MB", "-o", "%J.out", sys.executable, "-c", eats))
    assert found.status.msg == "job/0 on 127.0.0.11: it used more memory than it asked for (TERM_MEMLIMIT)"


def test_why_it_waits(runner: Runner, bsub: Bsub) -> None:
    """A sentence for LSF's reason; of a job that waits there is no output."""
    found = runner.why(bsub("-H", "true"))
    assert found.status.state is AppState.PENDING
    assert "held" in found.status.msg
    assert (found.replica, list(found.lines)) == (None, [])


def test_adopted(runner: Runner, bsub: Bsub) -> None:
    """All verbs know it by its name; it is ended by force alone."""
    job = bsub("-o", "out", "sh", "-c", "'echo begun; sleep 1000'")
    eventually(lambda: list(runner.why(job).lines) == ["begun\n"])  # which LSF keeps until the end
    handle = runner.adopt(job, name="bert")
    assert runner.resolve("@bert") == handle
    with pytest.raises(NotSupportedError):
        runner.cancel("@bert")
    assert command("bjobs", "-noheader", "-o", "stat", job).strip() == "RUN"
    runner.cancel("@bert", force=True)
    ended = runner.wait("@bert", wait_interval=0.1, timeout=180)
    assert ended is not None
    assert ended.state is AppState.CANCELLED
    assert "begun\n" in list(runner.log_lines("@bert", "job"))


def test_one_of_ours(runner: Runner, scheduler: LsfScheduler, submit: Callable[..., str]) -> None:
    """The id that LSF gave a replica means the job of torchx."""
    app_id = submit("exit 3", 2)
    number = command("bjobs", "-a", "-noheader", "-o", "jobid", "-g", f"/torchx_{app_id}").split()[0]
    assert runner.why(number).handle.endswith(f"/{app_id}")
