"""LSF jobs that torchx did not submit; the answers follow IBM's documentation of LSF 10.1."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from torchx.errors import CommandError, NotFoundError, NotSupportedError
from torchx.schedulers.kit.logs import LogQuery
from torchx.schedulers.lsf.foreign import own_words
from torchx.schedulers.lsf_scheduler import LsfScheduler
from torchx.specs.api import AppState
from torchx.specs.failures import parse_failure
from torchx.testing import FakeCommandRunner, Recordings

RECORDED = Recordings(str(Path(__file__).resolve().parents[2] / "recorded"))
REPORT = RECORDED.read("lsf", "10.1", "report-exit").rstrip("\n")
MISSING = "Job <7> is not found"


def bjobs(*jobs: dict[str, str]) -> str:
    """The output of `bjobs -o`."""
    known = {"jobid": "7", "stat": "EXIT", "job_name": "my train", "exec_host": "hostA", "user": "ann", "queue": "gpu"}
    known |= {"exit_code": "3", "submit_time": "Nov 20 08:00", "start_time": "Nov 20 08:01", "jobindex": "0"}
    known |= {"finish_time": "Nov 20 08:09", "sub_cwd": "$HOME/work", "exec_home": "/home/ann", "command": "python a|b"}
    from torchx.schedulers.lsf.foreign import _MORE
    from torchx.schedulers.lsf.parse import FIELDS

    fields = (*FIELDS, *_MORE)
    rows = ["|".join({**known, **job}.get(name, "-") for name in fields) for job in jobs]
    return "\n".join(["|".join(fields).upper(), *rows, ""])


def view(fake: FakeCommandRunner, *jobs: dict[str, str]) -> Any:
    """The view on an LSF with these jobs."""
    fake.on("bjobs", stdout=bjobs(*jobs) if jobs else "", stderr="" if jobs else MISSING, returncode=0 if jobs else 255)
    found: Any = LsfScheduler("foreign", commands=fake, sleep=lambda _: None).foreign()
    found.fresh_s = 0
    return found


@pytest.fixture
def fake() -> FakeCommandRunner:
    return FakeCommandRunner()


def test_a_job_says_what_its_log_says(fake: FakeCommandRunner, tmp_path: Path) -> None:
    """The cause is the exit code and the last line, without LSF's report in the same file."""
    (tmp_path / "out.7").write_text(f"{REPORT}\n\nepoch 1\nValueError: no such frob\n\n\n")
    jobs = view(fake, {"sub_cwd": str(tmp_path), "output_file": "out.%J"})
    found = jobs.describe("7")
    assert (found.state, found.msg) == (AppState.FAILED, "job/0 on hostA: exit code 3: ValueError: no such frob")
    assert found.ended_at - found.started_at == 8 * 60
    assert jobs.log_replicas("7") == [("job", 0)]
    (log,) = jobs.open_logs("7", [("job", 0)], LogQuery())
    assert "epoch 1\n" in list(log)
    about = {"name": "my train", "user": "ann", "queue": "gpu", "folder": str(tmp_path), "command": "python a|b"}
    assert jobs.about("7") == about
    assert {tuple(call.argv[:4]) for call in fake.calls} == {("bjobs", "-a", "-u", "all")}


def test_streams_in_files_of_their_own(fake: FakeCommandRunner, tmp_path: Path) -> None:
    """The cause comes from stderr, without LSF's reference to it."""
    pointer = "PS:\n\nRead file <7.err> for stderr output of this job.\n"
    (tmp_path / "7.out").write_text(f"{REPORT}\n\nepoch 1\n\n\n{pointer}")
    (tmp_path / "7.err").write_text("KeyError: 'frob'\n")
    jobs = view(fake, {"sub_cwd": str(tmp_path), "output_file": "%J.out", "error_file": "%J.err"})
    assert jobs.describe("7").msg == "job/0 on hostA: exit code 3: KeyError: 'frob'"
    (log,) = jobs.open_logs("7", [("job", 0)], LogQuery())
    assert "KeyError: 'frob'\n" in list(log)
    assert own_words((tmp_path / "7.out").read_text()).strip() == "epoch 1"


@pytest.mark.parametrize(
    ("job", "state", "said", "kind"),
    [
        ({"exit_code": "130", "exit_reason": "TERM_MEMLIMIT: x"}, "FAILED", "it used more memory than", "oom"),
        ({"exit_code": "140", "exit_reason": "TERM_RUNLIMIT: x"}, "FAILED", "longer than its time limit", "timeout"),
        ({"exit_code": "130", "exit_reason": "TERM_OWNER: x"}, "CANCELLED", "it was killed by its owner", ""),
        ({"exit_code": "139"}, "FAILED", "killed by SIGSEGV", "error"),
        ({"exit_code": "127"}, "FAILED", "exit code 127", None),
        ({"stat": "DONE", "exit_code": "-"}, "SUCCEEDED", "", ""),
        ({"stat": "PEND", "pend_reason": "Job slot limit reached: 3 hosts;"}, "PENDING", "all slots are taken", ""),
        ({"stat": "USUSP"}, "PENDING", "has suspended it", ""),
    ],
)
def test_endings_and_waits(fake: FakeCommandRunner, job: dict[str, str], state: str, said: str, kind: str) -> None:
    """They are described as for torchx's own jobs, except that a missing command says nothing about folders."""
    found = view(fake, job).describe("7")
    assert found.state.name == state
    assert said in found.msg
    assert "folder" not in found.msg
    cause = parse_failure(found.structured_error_msg) if state == "FAILED" else None
    assert kind is None or (cause.kind if cause is not None else "") == kind


@pytest.mark.parametrize("enhanced", [False, True])
def test_an_array(fake: FakeCommandRunner, tmp_path: Path, enhanced: bool) -> None:
    """Its elements are replicas with a file each, and can be queried one by one; some sites append the index to the id."""

    def element(k: int, **more: str) -> dict[str, str]:
        name = {"jobid": f"7[{k}]"} if enhanced else {"jobindex": str(k)}
        return {**name, "job_name": f"arr[{k}]", "sub_cwd": str(tmp_path), "output_file": "%J_%I.log", **more}

    (tmp_path / "7_2.log").write_text("no more frobs\n")
    done = {"stat": "DONE", "exit_code": "-"}
    rows = [element(2), element(1, **done), element(3, **done)]
    jobs = view(fake, *rows)
    found = jobs.describe("7")
    assert (found.state, found.msg) == (AppState.FAILED, "task/2 on hostA: exit code 3: no more frobs")
    assert jobs.log_replicas("7") == [("task", 1), ("task", 2), ("task", 3)]
    assert jobs.describe("7[1]").state is AppState.SUCCEEDED
    assert jobs.log_replicas("7[2]") == [("job", 0)]
    assert list(jobs.open_logs("7[2]", [("job", 0)], LogQuery())[0]) == ["no more frobs\n"]
    waiting = element(4, stat="PEND", exit_code="-", pend_reason="Job slot limit reached: 3 hosts;")
    found = view(FakeCommandRunner(), *rows, waiting).describe("7")
    assert found.state is AppState.RUNNING
    assert found.msg.startswith("task/2 on hostA: exit code 3: no more frobs; the others are still running")


def test_paths(fake: FakeCommandRunner) -> None:
    """They are relative to the folder of submission; LSF abbreviates the home directory to `$HOME`."""
    paths = view(fake, {"output_file": "log/%J.out", "error_file": "/x/%I"})._outputs("7").log_paths("job", 0)
    assert (paths.stdout, paths.stderr) == ("/home/ann/work/log/7.out", "/x/0")


def test_a_folder(fake: FakeCommandRunner) -> None:
    """A name with a trailing slash is a folder, in which LSF names the files after the job."""
    paths = view(fake, {"output_file": "log/", "error_file": "/x/"})._outputs("7").log_paths("job", 0)
    assert (paths.stdout, paths.stderr) == ("/home/ann/work/log/7.out", "/x/7.err")
    merged = view(FakeCommandRunner(), {"output_file": "log/"})._outputs("7").log_paths("job", 0)
    assert (merged.stdout, merged.stderr) == ("/home/ann/work/log/7.out", "")


RUNS = {"stat": "RUN", "exit_code": "-", "finish_time": "-"}
PEEKED = "<< output from stdout >>\nepoch 1\nepoch 2\n<< output from stderr >>\nslow\n"


@pytest.mark.parametrize("output", [{}, {"output_file": "out.%J"}])
def test_what_lsf_keeps_until_the_end(fake: FakeCommandRunner, tmp_path: Path, output: dict[str, str]) -> None:
    """For a running job `bpeek` shows the output, until it is in the file or mailed."""
    jobs = view(fake, {"sub_cwd": str(tmp_path), **RUNS, **output})
    fake.on("bpeek", stdout=PEEKED)
    assert list(jobs.open_logs("7", [("job", 0)], LogQuery())[0]) == ["epoch 1\n", "epoch 2\n", "slow\n"]
    assert list(jobs.open_logs("7", [("job", 0)], LogQuery(regex=re.compile("ch 1")))[0]) == ["epoch 1\n"]
    assert [call.argv for call in fake.calls if call.argv[0] == "bpeek"] == [["bpeek", "7"]] * 2


def test_output_that_is_written_at_once(fake: FakeCommandRunner, tmp_path: Path) -> None:
    """With LSB_STDOUT_DIRECT the file has it; for an array, `bpeek` gets the index of an element without output."""
    (tmp_path / "7_1").write_text("begun\n")
    elements = [{"jobindex": str(k), "sub_cwd": str(tmp_path), "output_file": "%J_%I", **RUNS} for k in (1, 2)]
    jobs = view(fake, *elements)
    fake.on("bpeek", stdout=PEEKED)
    first, second = jobs.open_logs("7", [("task", 1), ("task", 2)], LogQuery(last=5))
    assert (list(first), list(second)[-1]) == (["begun\n"], "slow\n")
    assert [call.argv for call in fake.calls if call.argv[0] == "bpeek"] == [["bpeek", "7[2]"]]


def test_output_by_mail(fake: FakeCommandRunner) -> None:
    """Without `-o` there is no file."""
    with pytest.raises(NotFoundError) as refused:
        view(fake, {}).open_logs("7", [("job", 0)], LogQuery())
    assert "mails the output" in refused.value.hint


@pytest.mark.parametrize(("reference", "found"), [("7", "7"), ("7[2]", None), ("8", None), ("7_2", None), ("x", None)])
def test_names(fake: FakeCommandRunner, reference: str, found: str | None) -> None:
    """References as LSF prints them; other words cause no query."""
    named = view(fake, {}).find(reference)
    assert (named and named.app_id) == found
    assert fake.calls or not reference[0].isdigit() or "_" in reference


def test_a_job_of_ours_is_told_from_others(fake: FakeCommandRunner) -> None:
    """Name and group identify it, because anybody may use the name."""
    ours = {"job_name": "train-x1.0-trainer.3", "job_group": "/torchx_train-x1"}
    assert view(fake, ours).find("7").app_id == "train-x1"
    assert view(FakeCommandRunner(), {**ours, "job_group": "/other"}).find("7").app_id == "7"


def test_lines_in_a_command_are_no_jobs(fake: FakeCommandRunner) -> None:
    """A script may contain a line that looks like a row: the first row of a job counts."""
    forged = bjobs({"stat": "DONE", "exit_code": "-"}).splitlines()[1]
    found = view(fake, {"command": f"#!/bin/sh\nsome|thing\n{forged}"}).describe("7")
    assert found.state is AppState.FAILED


def test_unknown(fake: FakeCommandRunner) -> None:
    """It is reported as unknown."""
    jobs = view(fake)
    assert jobs.find("7") is None
    assert jobs.describe("7") is None


def test_nothing_is_done_to_it(fake: FakeCommandRunner) -> None:
    """Only a forced cancel ends it, by its own id."""
    fake.on("bkill")
    jobs = view(fake, {"stat": "RUN", "exit_code": "-", "finish_time": "-"})
    for end in (jobs.cancel, jobs.delete):
        with pytest.raises(NotSupportedError):
            end("7")
    assert not [call for call in fake.calls if call.argv[0] == "bkill"]
    jobs.forced().cancel("7")
    assert [call.argv for call in fake.calls if call.argv[0] == "bkill"] == [["bkill", "7"]]


@pytest.mark.parametrize("app_id", ["-u", "-q", "0x7", "7-"])
def test_an_id_is_no_option(fake: FakeCommandRunner, app_id: str) -> None:
    """LSF is not asked for what is no number of a job."""
    jobs = view(fake, {})
    assert jobs.describe(app_id) is None
    jobs.forced().cancel(app_id)  # there is nothing to end
    assert fake.calls == []
    assert jobs.describe_many(["7", app_id])["7"].state is AppState.FAILED
    assert [call.argv[-1] for call in fake.calls] == ["7"]


@pytest.mark.parametrize(
    ("jobs", "said", "found"),
    [([{}], "Job <8> is not found", True), ([{}], "odd", True), ([], MISSING, False), ([], "odd", None)],
)
def test_an_answer_for_some(jobs: list[dict[str, str]], said: str, found: bool | None, fake: FakeCommandRunner) -> None:
    """Jobs that LSF shows count, whatever it says of others; without any, an error is an error."""
    fake.on("bjobs", stdout=bjobs(*jobs) if jobs else "", stderr=said, returncode=255)
    seen: Any = LsfScheduler("foreign", commands=fake, sleep=lambda _: None).foreign()
    if found is None:
        with pytest.raises(CommandError):
            seen.describe("7")
    else:
        assert (seen.describe("7") is not None) is found
