"""Ends of LSF jobs that may be none, ends without a reason, and what `bkill` and `bsub` say, as a real daemon does."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from torchx.errors import CommandError, TransientError
from torchx.schedulers.api import DescribeAppResponse
from torchx.schedulers.batch.inherit import RULES, hidden
from torchx.schedulers.kit.commands import Completed, LocalCommandRunner
from torchx.schedulers.kit.logs import LogQuery
from torchx.schedulers.lsf.client import accept_kill, refusal
from torchx.schedulers.lsf.ends import NOTE, SETTLES_S, Ends
from torchx.schedulers.lsf.foreign import own_words
from torchx.schedulers.lsf.parse import DELIMITER, FIELDS, cells, row_of
from torchx.schedulers.lsf.reasons import why_pending
from torchx.schedulers.lsf.replicas import CANCELLED_FILE
from torchx.schedulers.lsf_scheduler import LsfScheduler
from torchx.specs.api import AppDef, AppState, Role
from torchx.specs.failures import parse_failure
from torchx.supervisor import proctree
from torchx.testing import FakeCommandRunner

NOW = time.time()
MORE = ("user", "queue", "sub_cwd", "exec_home", "error_file", "command")


def minute(ago_s: float = 0) -> str:
    """A time as LSF shows it."""
    return time.strftime("%b %d %H:%M", time.localtime(NOW - ago_s))


class Lsf:
    """An LSF with one job, a clock, and the scheduler of this session."""

    def __init__(self, app_id: str = "") -> None:
        self.now = NOW
        self.fake = FakeCommandRunner()
        self.job = {
            "jobid": "7",
            "jobindex": "0",
            "exec_host": "h1",
            "start_time": minute(600),
            "finish_time": minute(),
        }
        if app_id:
            self.job |= {"job_name": f"{app_id}.0-r.0", "job_group": f"/torchx_{app_id}"}
        self.fake.on("bjobs", stdout=lambda _: self._text())
        self.fake.on("bkill")
        self.scheduler: Any = LsfScheduler("s", commands=self.fake, sleep=lambda _: None)
        self.scheduler.fresh_s = 0
        self.scheduler._ends = Ends(lambda: self.now)
        self.seen = self.scheduler if app_id else self.scheduler.foreign()
        self.app_id = app_id or "7"

    def _text(self) -> str:
        fields = (*FIELDS, *(() if self.seen is self.scheduler else MORE))
        return "\n".join([DELIMITER.join(fields).upper(), DELIMITER.join(self.job.get(f, "-") for f in fields), ""])

    def told(self, after_s: float = 0, **job: str) -> DescribeAppResponse:
        self.now += after_s
        self.job |= job
        found = self.seen.describe(self.app_id)
        assert found is not None
        return found

    def state(self, after_s: float = 0, **job: str) -> str:
        return self.told(after_s, **job).state.name


@pytest.fixture
def app_id(tmp_path: Path) -> str:
    return "job-x1"


@pytest.fixture
def ours(app_id: str, tmp_path: Path) -> Lsf:
    """A job of torchx with one replica, `r/0`, on record."""
    lsf = Lsf(app_id)
    folder = lsf.scheduler.folders(lsf.scheduler._here)
    path = tmp_path / app_id
    (path / "r" / "0").mkdir(parents=True)
    folder.remember(app_id, str(path))
    from torchx.schedulers.batch.folders import JobFolder

    JobFolder(lsf.scheduler._here.files, str(path)).create({}, AppDef("job", [Role("r", "", entrypoint="x")]), app_id)
    (path / "r" / "0").mkdir(parents=True, exist_ok=True)
    return lsf


@pytest.fixture(params=["ours", "of others"])
def lsf(request: pytest.FixtureRequest) -> Lsf:
    return request.getfixturevalue("ours") if request.param == "ours" else Lsf()


def test_a_requeued_job_with_a_reason(lsf: Lsf) -> None:
    """It is pending at once."""
    for word in ("OWNER", "ADMIN", "RC"):
        found = lsf.told(stat="EXIT", exit_code="130", exit_reason=f"TERM_REQUEUE_{word}: job killed and requeued")
        assert (found.state, "put back into the queue" in found.msg) == (AppState.PENDING, True)


def test_a_requeued_job_without_a_reason(lsf: Lsf) -> None:
    """It goes on while LSF shows an end, and never ends; the reader is told why."""
    found = lsf.told(stat="EXIT", exit_code="130")
    assert (found.state, NOTE in found.msg) == (AppState.RUNNING, True)
    assert lsf.state(15) == "RUNNING"
    waits = {
        "exec_host": "-",
        "exit_code": "-",
        "finish_time": "-",
        "pend_reason": "Requeue the job for the next run: 1 host;",
    }
    found = lsf.told(1, stat="PEND", **waits)
    assert found.state is AppState.PENDING
    assert found.msg.endswith("it was put back into the queue")
    assert lsf.state(30, stat="RUN", exec_host="h1") == "RUNNING"
    assert lsf.state(600, stat="EXIT", exit_code="130", finish_time=minute(-660)) == "RUNNING"  # the next end


def test_an_end_that_stays(lsf: Lsf) -> None:
    """Seen again seconds later it is final."""
    assert lsf.state(stat="EXIT", exit_code="130") == "RUNNING"
    assert lsf.state(SETTLES_S - 1) == "RUNNING"
    assert lsf.state(1) == "CANCELLED"


def test_an_old_end_is_final(lsf: Lsf) -> None:
    """A single look suffices, a minute later; ends with a reason or before a start are final at once."""
    assert lsf.state(stat="EXIT", exit_code="130", finish_time=minute(200)) == "CANCELLED"
    assert lsf.state(exit_reason="TERM_OWNER: job killed by owner", finish_time=minute()) == "CANCELLED"
    assert lsf.state(exit_reason="-", exec_host="-") == "CANCELLED"
    assert lsf.state(exec_host="h1", exit_code="140") == "FAILED"  # the run limit


def test_a_command_that_ends_with_0_when_it_is_requeued() -> None:
    """LSF shows it as DONE for some seconds."""
    lsf = Lsf()
    assert lsf.state(stat="DONE") == "RUNNING"
    assert lsf.state(3, stat="PEND", finish_time="-") == "PENDING"
    assert Lsf().state(SETTLES_S + 60, stat="DONE") == "SUCCEEDED"


@pytest.mark.parametrize(
    ("noted", "code", "first", "later"),
    [
        ("3 0", "3", "FAILED", "FAILED"),  # it failed by itself
        ("3 1", "3", "RUNNING", "CANCELLED"),  # it handled the signal
        ("143 1", "143", "RUNNING", "CANCELLED"),
        ("3 2", "3", "RUNNING", "FAILED"),  # it went on after the run limit, and then failed
        ("", "1", "FAILED", "FAILED"),
        ("", "137", "RUNNING", "FAILED"),
    ],
)
def test_what_the_script_of_a_replica_recorded(
    noted: str, code: str, first: str, later: str, ours: Lsf, tmp_path: Path
) -> None:
    """An end of the program itself is final."""
    if noted:
        (tmp_path / "job-x1" / "r" / "0" / "exit").write_text(f"{noted} {NOW:.0f}\n")
    assert (ours.state(stat="EXIT", exit_code=code), ours.state(SETTLES_S + 60)) == (first, later)
    if noted == "3 2":
        cause = parse_failure(ours.told().structured_error_msg)
        assert cause is not None
        assert cause.kind == "timeout"


def test_a_job_that_torchx_cancels(ours: Lsf, tmp_path: Path) -> None:
    """Its end is final at once; what has ended is not marked."""
    assert ours.state(stat="RUN", finish_time="-") == "RUNNING"
    ours.scheduler.cancel("job-x1")
    assert (tmp_path / "job-x1" / CANCELLED_FILE).exists()
    assert ours.state(stat="EXIT", exit_code="130", finish_time=minute()) == "CANCELLED"
    (tmp_path / "job-x1" / CANCELLED_FILE).unlink()
    ours.job |= {"stat": "DONE"}
    ours.scheduler.cancel("job-x1")
    assert not (tmp_path / "job-x1" / CANCELLED_FILE).exists()


BUSY = "Job <119>: Operation is in progress"


@pytest.mark.parametrize(
    ("said", "fine"),
    [
        (BUSY, True),
        (f"{BUSY}\nJob <120>: Operation is in progress\n", True),
        ("Job <7>: Termination request issued; but unable to reach the execution host", True),
        ("Job <7>: Job has already finished", True),
        (f"{BUSY}\nJob <120>: User permission denied\n{BUSY}", False),
        ("User permission denied", False),
        ("", False),
    ],
)
def test_what_bkill_says(said: str, fine: bool) -> None:
    """LSF fails for jobs that it ends anyway; another complaint counts, wherever it stands."""
    if fine:
        accept_kill(Completed(["bkill", "-g", "/torchx_a", "0"], 255, "", said))
    else:
        with pytest.raises(CommandError, match=r"denied|said nothing"):
            accept_kill(Completed(["bkill", "7"], 255, "", said))
    accept_kill(Completed(["bkill", "7"], 0, "Job <7> is being terminated", ""))


@pytest.mark.parametrize("program", ["bsub", "bjobs"])
def test_variables_of_the_shell(program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What changes what LSF's commands do or print is dropped; what leads to the cluster stays, and defaults."""
    kept = ("LSF_ENVDIR", "LSB_DEFAULTQUEUE", "LSB_ESUB_METHOD")
    for name in (*RULES["lsf"].dropped, *kept):
        monkeypatch.setenv(name, "1")
    stand_in = tmp_path / program
    stand_in.write_text(f'#!/bin/sh\nenv >"{tmp_path}/env"\n')
    stand_in.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    lsf: Any = LsfScheduler("s")
    lsf.submit(AppDef("a", [Role("r", "", entrypoint="true")]), {}) if program == "bsub" else lsf.list()
    got = {line.partition("=")[0] for line in (tmp_path / "env").read_text().splitlines()}
    assert got.isdisjoint(RULES["lsf"].dropped)
    assert got >= {*kept}
    assert {"BSUB_CHK_RESREQ", "BSUB_BLOCK", "LSB_BJOBS_FORMAT"} <= RULES["lsf"].dropped
    monkeypatch.setenv("LSB_JOBID", "7")
    assert "LSB_DEFAULTQUEUE" in hidden("lsf", os.environ)  # that of the job in which torchx runs


def test_a_command_that_hangs_leaves_no_process(tmp_path: Path) -> None:
    """A `bsub` that its script has started would submit the job when the daemon answers again."""
    script = f"sleep 600 & echo $! >{tmp_path}/pid; wait"
    with pytest.raises(TransientError, match="did not answer"):
        LocalCommandRunner().run(["sh", "-c", script], timeout=1)
    child = int((tmp_path / "pid").read_text())
    deadline = time.monotonic() + 60
    while (found := proctree.read_process(child)) is not None and found.state != "Z":
        assert time.monotonic() < deadline


@pytest.mark.parametrize("option", ["g", "rn", "Q"])
def test_an_option_that_bsub_does_not_have(option: str) -> None:
    """Its first line is shown, and no hint about a word of the usage after it."""
    usage = "Usage: bsub [-h] [-V] [-P project_name]\n            [-q queue_name ...] [command]"
    error = refusal(Completed(["bash", "submit.sh"], 255, "", f"bsub: illegal option -- {option}\n{usage}\n"))
    assert error.message == f"LSF did not take the job: bsub: illegal option -- {option}"
    assert "project" not in error.hint
    assert "bsub_args" in error.hint


@pytest.mark.parametrize(
    ("reason", "told"),
    [
        (
            "The queue is inactivated by the administrator: 1 host;",
            "its queue starts no jobs now: an administrator has stopped it",
        ),
        (
            "Requeued job is waiting for rescheduling: 1 host;(exit code 99)",
            "it was put back into the queue after a failed attempt",
        ),
        ("Closed by LSF administrator: 1 host;", "hosts are closed by an administrator (1 host)"),
    ],
)
def test_counts_of_hosts(reason: str, told: str) -> None:
    """They are shown where they say something."""
    assert why_pending(reason) == told


@pytest.mark.parametrize("name", ["a | b", "a|3|b", 'odd "name" %J [x', "ümläut", "x" * 500, "a\x0bb\x85c\u2028d"])
def test_names(name: str) -> None:
    """Whatever stands in a name, the other fields are those of the job."""
    job = {"jobid": "7", "stat": "RUN", "job_name": name, "user": "ann", "command": name}
    fields = (*FIELDS, *MORE)
    text = "\n".join([DELIMITER.join(fields).upper(), DELIMITER.join(job.get(f, "-") for f in fields), ""])
    (found,) = cells(text)
    assert {k: v for k, v in found.items() if v} == job


@pytest.mark.parametrize(
    ("run", "started", "ended"),
    [("20 second(s)", 100, 120), ("-", 60, 120), ("900 second(s)", 60, 179), ("0", 60, 120)],
)
def test_seconds(run: str, started: float, ended: float) -> None:
    """How long a job ran is known to the second, although its start and end are known to the minute."""
    base = NOW - NOW % 60
    at = {
        name: time.strftime("%b %d %H:%M", time.localtime(base + s))
        for name, s in (("start_time", 60), ("finish_time", 120))
    }
    row = row_of({"jobid": "7", "stat": "DONE", "run_time": run, **at}, base + 3600)
    assert (row.started, row.ended) == (base + started, base + ended)
    running = row_of(
        {"jobid": "7", "stat": "RUN", "run_time": "50 second(s)", "start_time": at["start_time"]}, base + 130
    )
    assert (running.started, running.ended) == (base + 80, None)


HEAD = "Sender: LSF System <a@h1>\nSubject: Job 7: <x> Exited\n\nYour job looked like:\n\nExited with exit code 3.\n\n"


def test_a_report_that_repeats_stderr() -> None:
    """A real daemon adds the text of the file to which it refers."""
    text = f"{HEAD}The output (if any) follows:\n\nfine\nPS:\n\n\nPS:\n\nRead file <e> for stderr output of this job.\n\nbad\n"
    assert own_words(text).split() == ["fine", "PS:"]
    assert own_words("PS:\n\nRead file <e> for stderr output of this job.\n").startswith("PS:")  # no report


def test_a_lost_job_file(tmp_path: Path) -> None:
    """LSF's words are the cause."""
    said = "Cannot open your job file: /spool/7.shell"
    (tmp_path / "out").write_text(
        f"{HEAD.replace('Exited with', f'{said}{chr(10)}{chr(10)}Exited with')}The output (if any) follows:\n\n\nPS:\n\n"
        "Unable to read output data from the stdout buffer file\n"
    )
    found = Lsf().told(SETTLES_S + 60, stat="EXIT", exit_code="127", sub_cwd=str(tmp_path), output_file="out")
    assert (found.state, said in found.msg) == (AppState.FAILED, True)


def test_a_lost_job_file_of_ours(ours: Lsf, tmp_path: Path) -> None:
    """Instead of a guess."""
    reports = tmp_path / "job-x1" / "reports"
    reports.mkdir()
    (reports / "0.0").write_text("Cannot open your job file: /spool/7.shell\n\nExited with exit code 127.\n")
    assert "LSF said: Cannot open your job file" in ours.told(stat="EXIT", exit_code="127").msg


@pytest.mark.parametrize(("said", "fine"), [("Job <7> : Not yet started.", True), ("LIM is down", False)])
def test_no_output_and_no_answer_are_two_things(said: str, fine: bool) -> None:
    """A `bpeek` that fails is no empty log."""
    lsf = Lsf()
    lsf.job |= {"stat": "RUN", "finish_time": "-"}
    lsf.fake.on("bpeek", stderr=said, returncode=255)
    if fine:
        assert list(lsf.seen.open_logs("7", [("job", 0)], LogQuery())[0]) == []
    else:
        with pytest.raises(CommandError, match="LIM is down"):
            lsf.seen.open_logs("7", [("job", 0)], LogQuery())
