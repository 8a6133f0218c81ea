"""Cases of sweeps, views and checks of Slurm's jobs in which one operand of a condition decides."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.schedulers.slurm.test_slurm_scheduler import fake, scheduler
from torchx.errors import BackendError
from torchx.schedulers.batch.folders import JobFolder, LogPaths
from torchx.schedulers.kit.commands import Completed
from torchx.schedulers.kit.files import LocalFiles
from torchx.schedulers.kit.findings import Finding
from torchx.schedulers.slurm import inside
from torchx.schedulers.slurm.answers import Job
from torchx.schedulers.slurm.doctor import _accounts, _partitions, _trial, _version
from torchx.schedulers.slurm.events import JobEvents, parse_events, starts_of
from torchx.schedulers.slurm.folders import LegacyFolder, Waiting, choose_previous, files_of
from torchx.schedulers.slurm.foreign import _by_replica, _replica, foreign_facts, parse_scontrol
from torchx.schedulers.slurm.inside import component_of, host_of, step_words
from torchx.schedulers.slurm.options import SlurmOpts
from torchx.schedulers.slurm.parse import JobRecord, _exit_of_text, _moment
from torchx.schedulers.slurm.simulate import _is_warned, _sooner, _step
from torchx.specs import AppDef, AppState, Role
from torchx.specs.serialize import appdef_to_dict

__all__ = ["fake", "scheduler"]


def run(stdout: str = "", returncode: int = 0, stderr: str = "") -> Any:
    """Answers every command with this."""
    return lambda argv, **_: Completed(list(argv), returncode, stdout, stderr)


# -- replicas that are entered -----------------------------------------------------------------------

UP = "100 start 0 7\n101 up w/0 n1\n101 up w/1 n2\n"


@pytest.mark.parametrize(
    ("events", "k", "host"),
    [
        (UP, 0, "n1"),
        (UP, 1, "n2"),
        (UP, 2, ""),
        (f"{UP}105 down w/0 0\n", 0, ""),
        (f"{UP}105 down w/0 0\n", 1, "n2"),
        (f"{UP}105 end 0\n", 1, ""),
        ("", 0, ""),
    ],
)
def test_where_a_replica_runs(events: str, k: int, host: str, tmp_path: Path) -> None:
    """Until it, or the job, has ended."""
    (tmp_path / "events").write_text(events)
    assert host_of(JobFolder(LocalFiles(), str(tmp_path)), "w", k) == host


def test_the_words_of_a_step() -> None:
    """A component of a heterogeneous job is named, and 0 is one; a terminal is asked for."""
    plain = step_words("7", "n1", component=None, tty=False)
    assert "--nodelist=n1" in plain and "--jobid=7" in plain and "--overlap" in plain
    assert [word for word in plain if "het" in word or "pty" in word] == []
    assert step_words("7", "n1", component=0, tty=False) == [*plain, "--het-group=0"]
    assert step_words("7", "n1", component=1, tty=True) == [*plain, "--het-group=1", "--pty"]


def test_the_component_of_a_host() -> None:
    """Slurm expands the lists; one list needs no question."""
    names = {"n[1-2]": "n1\nn2\n", "m1": "m1\n"}

    def expands(argv: list[str]) -> Completed:
        return Completed(argv, 0, names[argv[-1]], "")

    both = {0: "n[1-2]", 1: "m1"}
    assert [component_of(expands, host, both) for host in ("n2", "m1", "n", "x")] == [0, 1, None, None]
    assert component_of(run("m1"), "m1", {0: "m1"}) is None


@pytest.mark.parametrize(("number", "words"), [(10, ["--signal=USR1"]), (None, [])])
def test_a_signal_to_a_step(number: int | None, words: list[str]) -> None:
    """By its name; without one the step is cancelled."""
    seen: list[list[str]] = []
    step = SimpleNamespace(_run=seen.append)
    inside.Step._signal(step, "7.3", number)  # type: ignore[arg-type]  # a stand-in
    assert seen == [["scancel", *words, "7.3"]]


# -- simulated faults --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ran", "limit", "minutes"),
    [
        ("00:00:30", "UNLIMITED", 1),
        ("00:02:59", "UNLIMITED", 2),
        ("00:02:00", "00:03:00", 2),
        ("00:02:00", "00:02:30", 2),
        ("00:02:00", "00:02:00", None),
        ("00:00:30", "00:01:00", None),
        ("", "", 1),
    ],
)
def test_a_limit_that_ends_a_job_soon(ran: str, limit: str, minutes: int | None) -> None:
    """It is below the job's own."""
    shown = {"RunTime": ran, "TimeLimit": limit}
    if minutes is None:
        with pytest.raises(BackendError, match="about to reach its time limit"):
            _sooner(shown)
    else:
        assert _sooner(shown) == minutes


@pytest.mark.parametrize(
    ("text", "warned"),
    [("early=120 every=\n", True), ("early=0 every=\n", False), ("x early=1\n", False), (None, False)],
)
def test_whether_the_script_handles_the_limit(text: str | None, warned: bool, tmp_path: Path) -> None:
    """It says so."""
    if text is not None:
        (tmp_path / "job.sh").write_text(f"#!/bin/bash\n{text}")
    assert _is_warned(LocalFiles(), str(tmp_path)) is warned
    assert not _is_warned(LocalFiles(), "")


def test_the_step_of_a_replica() -> None:
    """By the name that the script gives it."""
    rows = "7.0|n1|replica.10\n7.1|n2|replica.1\n7.2\n7.batch|n1|batch\n"
    assert _step(run(rows), "7", 1) == ("7.1", "n2")
    assert _step(run(rows), "7", 10) == ("7.0", "n1")
    with pytest.raises(BackendError, match="no step for it"):
        _step(run(rows), "7", 0)


# -- records -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "code", "number"),
    [
        ("3:0", 3, 0),
        ("0:9", None, 9),
        ("768", 3, 0),
        ("9", None, 9),
        ("137", None, 9),
        ("0", 0, 0),
        ("", 0, 0),
        ("x:y", 0, 0),
    ],
)
def test_exit_codes_of_releases(text: str, code: int | None, number: int) -> None:
    """As code and signal, or as the status of `wait`."""
    assert _exit_of_text(text) == (code, number)


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("100", 100.0),
        ("0", None),
        ("-1", None),
        ("Unknown", None),
        ("999999999999", 999999999999.0),
        ("1e12", None),
        ("nan", None),
    ],
)
def test_times_of_slurm(text: str, moment: float | None) -> None:
    """What is no time is none."""
    assert _moment(text) == moment


def test_where_attempts_began() -> None:
    """Lines with sizes, or without any; others are left out."""
    text = "5 up w/0 n1\n6 up w/0 n1 3\n7 up w/0 n1 3 x\n8 up w/0 n1 3 4\n9 up w/1 n1 1 2\n9 down w/0 0 0 0\n9 up w/0 n1 9 9"
    assert starts_of(text) == {"w/0": [(0, 0), (3, 4)], "w/1": [(1, 2)]}


# -- folders -----------------------------------------------------------------------------------------


def job_folder(path: Path, events: str = UP, **more: str) -> JobFolder:
    """The folder of a job of one role."""
    path.mkdir(exist_ok=True)
    (path / "job.json").write_text(json.dumps({"app": appdef_to_dict(AppDef("a", [Role("w", "", num_replicas=2)]))}))
    (path / "events").write_text(events)
    for name, text in more.items():
        (path / name.replace("_", ".")).write_text(text)
    return JobFolder(LocalFiles(), str(path))


def test_what_is_read_of_jobs(tmp_path: Path) -> None:
    """Those on record, and those whose record leads to a folder of torchx; of others Slurm's record alone."""
    known = job_folder(tmp_path / "known")
    job_folder(tmp_path / "ours", f"{UP}104 hang\n", watchdog_txt="silent")
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "events").write_text(UP)
    records = {
        "2": [JobRecord(job_id="2", state="RUNNING", folder=str(tmp_path / "ours"))],
        "3": [JobRecord(job_id="3", state="RUNNING", folder=str(tmp_path / "foreign"))],
        "4": [JobRecord(job_id="4", state="RUNNING", folder="relative")],
        "5": [],
    }
    gone = JobFolder(LocalFiles(), str(tmp_path / "gone"))
    found = files_of(LocalFiles(), records, {"1": known, "6": gone})
    assert sorted(found) == ["1", "2", "3", "4"]
    assert [bool(found[i].folder) for i in "1234"] == [True, True, False, False]
    assert [found[i].events.starts for i in "1234"] == [1, 1, 0, 0]
    assert found["2"].texts == {"watchdog.txt": "silent"}
    assert [len(found[i].roles) for i in "1234"] == [1, 1, 0, 0]


@pytest.mark.parametrize(
    ("more", "events", "kept"),
    [
        ({}, "", True),
        ({"started": 900.0}, "", False),
        ({"restarts": 1}, "", False),
        ({"state": "RUNNING"}, "", False),
        ({}, UP, False),
    ],
)
def test_who_waits_is_judged_once(more: dict[str, Any], events: str, kept: bool) -> None:
    """If it has never started, and Slurm does not say when it will."""
    waiting = Waiting()
    given: dict[str, Any] = {"state": "PENDING", **more}
    one = JobRecord(job_id="7", **given)
    job = Job(app_id="7", records=[one], events=parse_events(events))
    assert bool(waiting.keep(job, None).answer) is kept
    assert bool(waiting.as_before({"7": [one]}, {})) is kept
    assert not waiting.as_before({"8": [one]}, {})
    assert not waiting.as_before({"7": [JobRecord(job_id="7", state="PENDING", reason="Priority")]}, {})
    assert not waiting.as_before({"7": [one]}, {"7": JobFolder(LocalFiles(), "/x")})
    waiting.keep(Job(app_id="7", records=[], events=JobEvents()), None)
    assert not waiting.as_before({"7": [one]}, {})


def test_the_attempt_before_the_last(tmp_path: Path) -> None:
    """Of replicas that were restarted."""
    folder = job_folder(tmp_path, "5 up w/0 n1\n6 up w/1 n1\n7 up w/0 n1 3 4\n8 up w/0 n1 5 6\n")
    paths = [folder.log_paths("w", k) for k in (0, 1)]
    choose_previous(folder, paths)
    assert [(one.again, one.begin, one.end) for one in paths] == [(True, (3, 4), (5, 6)), (False, (0, 0), None)]


def test_jobs_of_earlier_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last line of the index that names the job counts."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "index").write_text("5 = /old\n5 = new\n55 = /x\n7\n")
    found = LegacyFolder.find(LocalFiles(), "index", "5")
    assert found
    assert (found.path, found.is_ours()) == (str(tmp_path / "new"), False)
    assert found.log_paths("r", 1) == LogPaths(f"{tmp_path}/new/slurm-5-r-1.out", f"{tmp_path}/new/slurm-5-r-1.err")
    assert LegacyFolder.find(LocalFiles(), "index", "7") is None
    assert LegacyFolder.find(LocalFiles(), "none", "5") is None


# -- jobs of others ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "more", "shown"),
    [
        ("RUNNING", {}, (AppState.RUNNING, None, "", 5.0, 0.0, "")),
        ("PENDING", {}, (AppState.PENDING, None, "", 0.0, 0.0, "")),
        ("COMPLETED", {}, (AppState.SUCCEEDED, 3, "", 5.0, 9.0, "")),
        ("FAILED", {"signal": 9}, (AppState.FAILED, None, "SIGKILL", 5.0, 9.0, "")),
        ("FAILED", {"signal": 53}, (AppState.FAILED, 3, "", 5.0, 9.0, "error")),
        ("COMPLETING", {"completing": True}, (AppState.RUNNING, None, "", 5.0, 0.0, "")),
        ("CANCELLED", {"completing": True}, (AppState.CANCELLED, 3, "", 5.0, 9.0, "")),
    ],
)
def test_a_replica_of_a_foreign_job(state: str, more: dict[str, Any], shown: tuple[Any, ...]) -> None:
    """Its code, signal and times, as far as its state allows for them."""
    one = _replica(
        "job", 0, JobRecord(job_id="7", state=state, started=5.0, ended=9.0, exit_code=3, nodes="n1", **more)
    )
    assert (one.state, one.exit_code, one.signal, one.started, one.ended, one.kind) == shown
    assert one.stopped is (state == "CANCELLED")
    assert bool(one.reason) is (more.get("signal") == 53)


def test_the_names_of_its_parts() -> None:
    """A job, its components, or the tasks of an array with those that wait."""

    def names(**records: list[JobRecord]) -> list[str]:
        found = foreign_facts("7", {key.removeprefix("j"): value for key, value in records.items()})
        return [f"{one.role}/{one.replica} {one.state.name}" for one in found.replicas()]

    def one(state: str = "RUNNING", **more: Any) -> JobRecord:
        return JobRecord(job_id="7", state=state, **more)

    assert names(j7=[one()]) == ["job/0 RUNNING"]
    assert names(j7=[one(component=1), one("FAILED", component=0)]) == ["component/0 FAILED", "component/1 RUNNING"]
    assert names(j7_10=[one()], j7_2=[one("TIMEOUT")]) == ["task/2 FAILED", "task/10 RUNNING"]


def test_descriptions_of_slurm() -> None:
    """One for each job; lines of paths are kept whole, and what comes before the first job is none."""
    text = "x=1\nJobId=8 A=1 JobName=my job=2\n   B=2 C\n   StdOut=/a b=c\nJobId=9 JobName=\n   Command=x\n"
    assert parse_scontrol(text) == [
        {"JobId": "8", "A": "1", "JobName": "my job=2", "B": "2", "StdOut": "/a b=c"},
        {"JobId": "9", "JobName": "", "Command": "x"},
    ]


@pytest.mark.parametrize(
    ("shown", "app_id", "names"),
    [
        ([{}], "7", ["job/0"]),
        ([{"ArrayTaskId": "3"}], "7", ["task/3"]),
        ([{"ArrayTaskId": "3"}], "7_3", ["job/0"]),
        ([{"ArrayTaskId": "1-3"}], "7", []),
        ([{"HetJobOffset": "1"}, {"HetJobOffset": "0"}], "7", ["component/0", "component/1"]),
        ([{"HetJobOffset": "0"}], "7", ["job/0"]),
    ],
)
def test_descriptions_by_replica(shown: list[dict[str, str]], app_id: str, names: list[str]) -> None:
    """Only the first component of a job has output."""
    found = _by_replica([{**one, "StdOut": "/o"} for one in shown], app_id)
    assert list(found) == names
    assert [name for name, one in found.items() if "StdOut" not in one] == [n for n in names if n == "component/1"]


# -- checks ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wanted", "rows", "said"),
    [
        ("", "gpu*|up|3\ncpu|up|2\n", "`gpu` is up, 3 nodes"),
        ("cpu", "gpu*|up|3\ncpu|up|2\ncpu|up|x\n", "`cpu` is up, 2 nodes"),
        ("gpu,cpu", "gpu*|up|3\ncpu|up|2\n", "`gpu, cpu` is up, 5 nodes"),
        ("", "gpu|up|3\ncpu|up|2\n", "the cluster has no default"),
        ("cpu", "gpu*|up|3\ncpu|drain|2\n", "`cpu` is drain"),
        ("cpux", "gpu*|up|3\ncpu|up|2\n", "cpux"),
        ("cpu", "gpu*|up\ncpu|up|2\n", "`cpu` is up, 2 nodes"),
    ],
)
def test_partitions(wanted: str, rows: str, said: str) -> None:
    """The default, if none is named; what is down is said."""
    found = _partitions(run(rows), wanted)
    text = found.said if isinstance(found, Finding) else found
    assert text.startswith(said) or said in text
    assert isinstance(found, Finding) is ("up," not in said)


@pytest.mark.parametrize(
    ("opts", "rows", "code", "said", "doubted"),
    [
        ({}, "a|p|normal,high|normal\nb|p||\n", 0, "a, b; qos high, normal", False),
        ({}, "a|p||\n", 0, "a", False),
        ({"account": "A"}, "a|p||\n", 0, "a", False),
        ({"account": "x"}, "a|p||\n", 0, "`x` is not a account of yours; those are: a", True),
        ({"qos": "x"}, "a|p|normal|\n", 0, "`x` is not a qos of yours", True),
        ({"qos": "x"}, "a|p||\n", 0, "a", False),
        ({}, "", 0, "accounting has no account of yours", True),
        ({}, "a|p||\n", 1, "accounting has no account of yours", True),
    ],
)
def test_accounts(opts: dict[str, str], rows: str, code: int, said: str, doubted: bool) -> None:
    """Those of the user; a name that is none of them is doubted."""
    found = _accounts(run(rows, code), SlurmOpts(**opts))  # type: ignore[arg-type]  # only strings
    text = found.said if isinstance(found, Finding) else found
    assert text.startswith(said)
    assert isinstance(found, Finding) is doubted


@pytest.mark.parametrize(
    ("code", "stderr", "without", "said"),
    [
        (
            0,
            "sbatch: Job 7 to start at 2026-11-23T00:43:41 using 1",
            False,
            "accepts it (test only); earliest start 2026-11-23T00:43:41",
        ),
        (0, "", False, "accepts it (test only)"),
        (1, "x", True, "accepts it (test only), without a request for memory"),
        (1, "sbatch: error: invalid partition specified: x", False, "refuses it: invalid partition specified: x"),
        (1, "allocation failure: invalid account, busy", False, "says: invalid account, busy"),
        (1, "sbatch: error: odd", False, "says: odd"),
    ],
)
def test_a_trial(code: int, stderr: str, without: bool, said: str) -> None:
    """What Slurm would say to the job; only what never passes is certain."""
    found = _trial(run("", code, stderr), [], "#!/bin/sh\n", lambda _: without)
    assert (found.said if isinstance(found, Finding) else found) == said


def test_the_version_is_shown() -> None:
    """As Slurm writes it."""
    assert _version(run("slurm 22.05.8\n")) == "22.05"
