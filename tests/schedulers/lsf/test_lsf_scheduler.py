"""LSF without LSF: rendered scripts, parsed answers, and failures of commands."""

from __future__ import annotations

import calendar
import os
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from torchx.errors import BackendError, CommandError, ConfigError, NotFoundError, NotSupportedError, SpecError
from torchx.schedulers.api import DescribeAppResponse, Stream
from torchx.schedulers.kit.failures.reader import Evidence
from torchx.schedulers.kit.logs import LogQuery
from torchx.schedulers.kit.verdict import describe
from torchx.schedulers.lsf.answers import Exit, facts_of
from torchx.schedulers.lsf.parse import FIELDS, FORMAT, Row, group_of, job_name, moment, name_parts, report_end, rows
from torchx.schedulers.lsf.reasons import ENDED, PENDING, why_ended, why_pending
from torchx.schedulers.lsf_scheduler import (
    JOB_STATE,
    RANK0_HOST,
    LsfBsub,
    LsfScheduler,
    Opts,
    bjobs_msg_to_describe,
    bjobs_msg_to_list,
    bjobs_msg_to_log_file,
    cleanup_str,
    create_scheduler,
    find_rank0_host_from_bhosts_stdout,
    get_bsub,
    get_command,
    get_docker_command,
    get_job_state,
)
from torchx.specs.api import AppDef, AppState, BindMount, DeviceMount, Resource, RetryPolicy, Role, VolumeMount
from torchx.specs.failures import parse_failure
from torchx.specs.wishes.after import AFTER, split_condition
from torchx.testing import FakeCommandRunner, Recordings, SchedulerContract
from torchx.testing.commands import Call

TESTS = Path(__file__).resolve().parents[2]
RECORDED = Recordings(str(TESTS / "recorded"))
GOLDEN = TESTS / "golden" / "lsf"
VERSIONS = RECORDED.versions("lsf")
BJOBS = RECORDED.read("lsf", "10.1", "bjobs")


def role(**changes: Any) -> Role:
    fields: dict = {"image": "img", "entrypoint": "python", "args": ["train.py"], "resource": Resource(2, 0, 1024)}
    return Role("trainer", **{**fields, **changes})


def scheduler(fake: FakeCommandRunner | None = None) -> LsfScheduler:
    return LsfScheduler("test", commands=fake or FakeCommandRunner(), sleep=lambda s: None)


# -- rendering ---------------------------------------------------------------------------------------


def test_a_job_after_one_with_a_retry_policy(tmp_path: Path) -> None:
    """LSF does not know how that ends; the hint is in the syntax of the command line."""
    lsf = scheduler()
    (tmp_path / "retry.json").write_text("{}")
    lsf.folders(lsf._here).remember("first-x1", str(tmp_path))
    app = AppDef("later", [role()], metadata={AFTER: "ok:lsf://t/first-x1"})
    with pytest.raises(NotSupportedError, match="has a retry policy") as caught:
        lsf.submit_dryrun(app, {})
    (reference,) = re.findall(r"`--after (\S+)`", caught.value.hint)
    assert split_condition(reference) == ("lsf://t/first-x1", "any")


def test_a_job_after_others() -> None:
    """Every replica waits for all LSF jobs of the earlier jobs and for its own first replica, and is removed if it can
    never start.
    """
    earlier = "ok:lsf://t/first-x1 any:lsf://t/second-x2"
    app = AppDef("later", [role(num_replicas=2)], metadata={AFTER: earlier})
    info = scheduler().submit_dryrun(app, {})
    first, second = re.findall(r"^bsub .*$", info.request.materialize(), re.MULTILINE)
    condition = 'done("first-x1.*") && ended("second-x2.*")'
    name = shlex.split(first)[2]
    for line, expected in ((first, condition), (second, f'started("{name}") && {condition}')):
        words = shlex.split(line)
        assert words[words.index("-w") + 1] == expected
        assert "-ti" in words
    assert "done(" in str(info)


@pytest.mark.parametrize("handle", ["lsf://t/a*", "lsf://t/a)||(b", "lsf://t/1 2"])
def test_only_ids_are_waited_for(handle: str) -> None:
    """Words that are not valid ids never reach the condition."""
    with pytest.raises(SpecError):
        scheduler().submit_dryrun(AppDef("later", [role()], metadata={AFTER: f"ok:{handle}"}), {})


GOLDEN_JOBS: dict[str, tuple[AppDef, Any]] = {
    "one-replica": (AppDef("one", [role()]), {}),
    "two-roles": (
        AppDef("two", [role(num_replicas=2, env={"A": "b c"}), Role("ps/x", "/img", entrypoint="ps", resource=Resource(1, 0, 64))]),
        {"lsf_queue": "gpu", "project": "p 1", "app": "pytorch", "time": "1:30"},
    ),
    "gpus-and-retries": (
        AppDef("gpus", [role(num_replicas=2, max_retries=3, retry_policy=RetryPolicy.REPLICA, min_replicas=1, resource=Resource(8, 4, 65536))]),
        {"gpu_options": "j_exclusive=yes", "exclusive": True, "resreq": "select[type==any]", "bsub_args": "-G 'team a' -sla gold", "memory": "task"},
    ),
    "docker": (
        AppDef("docker", [role(mounts=[BindMount("/data", "/mnt", True), VolumeMount("v", "/v"), DeviceMount("/dev/fuse", "/dev/fuse")], resource=Resource(1, 1, 64), port_map={"c10d": 29500}, env={"HF_TOKEN": "t"})]),
        {"shm_size": "8g", "container_workdir": "/work"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", GOLDEN_JOBS)
def test_rendered_scripts(name: str) -> None:
    """The scripts match tests/golden/lsf, which `UPDATE_GOLDEN=1` rewrites. bash can parse them."""
    app, cfg = GOLDEN_JOBS[name]
    info = scheduler().submit_dryrun(app, cfg)
    text = str(info).replace(info.request.app_id, "APP-ID")
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("UPDATE_GOLDEN"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert text == path.read_text()
    for script in (info.request.materialize(), info.request.replicas()):
        done = subprocess.run(["bash", "-n"], input=script, text=True, capture_output=True, check=False)
        assert done.returncode == 0, done.stderr


def test_a_request_shows_no_secret() -> None:
    """Neither str and repr nor the scripts contain secrets; the file for the replicas does."""
    info = scheduler().submit_dryrun(AppDef("a", [role(env={"HF_TOKEN": "abcdef"})]), {})
    assert "abcdef" not in f"{info}{info.request!r}"
    assert "HF_TOKEN" in str(info)
    assert "abcdef" not in info.request.replicas() + info.request.materialize()
    assert "export HF_TOKEN=abcdef" in info.request.secrets({})


def test_the_surface_of_a_request() -> None:
    """A request can be created directly, and replica 0 bound to a host."""
    request = LsfBsub(None, "a-1", AppDef("a", [role(num_replicas=2)]), Opts(), ["/bin/bash"])
    assert "-m" not in request.materialize()
    bound = request.materialize("hostE")
    assert bound.count("-m hostE") == 1
    assert "-J a-1.0-trainer.0 -g /torchx_a-1 -H -m hostE" in bound


def test_bsub_of_a_name_that_is_not_ours() -> None:
    """`get_bsub` waits for the head job by its name; the head is on hold."""
    line = get_bsub("a-1", "a-1.0-trainer.1", role(), Opts(), "a-1.0-trainer.0", RANK0_HOST)
    words = shlex.split(line)
    assert words[words.index("-w") + 1] == 'started("a-1.0-trainer.0")'
    assert "-H" in shlex.split(get_bsub("a-1", "x", role(), Opts(), "x", RANK0_HOST))
    assert "-w" not in shlex.split(get_bsub("a-1", "x", role(), Opts(), "", ""))


def test_commands() -> None:
    """Without docker the command is quoted; with an option for docker it runs in an unprivileged container."""
    odd = role(args=["a b", "$(id)"])
    assert get_command("n", odd, Opts()) == "python 'a b' '$(id)'"
    for opts in (Opts(docker=True), Opts(shm_size="1g"), Opts(host_network=True), Opts(container_workdir="/w")):
        line = get_command("n", odd, opts)
        assert line == get_docker_command("n", odd, opts)
        assert line.startswith("docker run --rm --init --name torchx-n")
        assert line.endswith("--entrypoint python img 'a b' '$(id)'")
        assert "--privileged" not in line
    assert "--network host" in get_docker_command("n", odd, Opts(host_network=True))
    assert "-p 29500:29500" in get_docker_command("n", role(port_map={"c": 29500}), Opts(docker=True))


@pytest.mark.parametrize(
    ("cfg", "changes", "told"),
    [
        ({"time": "1h"}, {}, "`time` is `1h`"),
        ({"memory": "all"}, {}, "`memory` is `all`"),
        ({"jobdir": "/a%J"}, {}, "`jobdir` is"),
        ({"bsub_args": "-J x"}, {}, "`-J`"),
        ({"bsub_args": "-K"}, {}, "`-K`"),
        ({"bsub_args": "'"}, {}, "No closing quotation"),
        ({"bsub_args": "rm -rf /"}, {}, "`rm`"),
        ({}, {"mounts": [BindMount("/a", "/b")]}, "mounts need containers"),
        ({"docker": True}, {"image": "/a/folder"}, "not a container image"),
    ],
    ids=lambda v: str(v)[:30] if not isinstance(v, str) else "",
)
def test_what_is_refused(cfg: dict, changes: dict, told: str) -> None:
    """Invalid options are rejected before the submission, with the value in the message."""
    with pytest.raises((ConfigError, SpecError), match=re.escape(told)):
        scheduler().submit_dryrun(AppDef("a", [role(**changes)]), cfg)


def test_nul_is_refused() -> None:
    """NUL characters cannot be passed to a program."""
    with pytest.raises(SpecError, match="NUL"):
        scheduler().submit_dryrun(AppDef("a", [role(args=["a\0b"])]), {})


TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)


@given(text=TEXT, queue=TEXT)
def test_hostile_words_stay_words(text: str, queue: str) -> None:
    """The shell parses any value as one word, in the bsub and in the command."""
    opts = Opts(
        lsf_queue=queue or None, project=text or None, app=queue or None, hosts=text or None, resreq=text or None
    )
    words = shlex.split(get_bsub("a", "a.0-r.0", role(), opts, "", ""))
    for option, value in (("-q", queue), ("-P", text), ("-app", queue), ("-m", text)):
        if value:
            assert words[words.index(option) + 1] == value
    assert shlex.split(get_command("n", role(args=[text, queue]), Opts())) == ["python", text, queue]


def test_names() -> None:
    """Names of LSF jobs identify the replica; foreign names are ignored."""
    assert name_parts(job_name("a-1", 2, "odd role/é.x", 7)) == ("a-1", "2", "7")
    assert name_parts("a-1.0-r") is None
    assert group_of("a-1") == "/torchx_a-1"
    assert cleanup_str("7 My Job!") == "My-Job"


# -- answers -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
def test_recorded_bjobs(version: str) -> None:
    """Own jobs have their state and reason; foreign jobs are left out, even if they look similar."""
    text = RECORDED.read("lsf", version, "bjobs")
    states = {job.app_id: job.state for job in bjobs_msg_to_list(text)}
    assert states == {
        "train-x1": AppState.RUNNING,
        "echo-x2": AppState.SUCCEEDED,
        "oom-x3": AppState.FAILED,
        "gone-x4": AppState.CANCELLED,
        "held-x5": AppState.PENDING,
        "susp-x6": AppState.PENDING,
        "stop-x7": AppState.PENDING,
        "lost-x8": AppState.UNKNOWN,
        "zomb-x9": AppState.UNKNOWN,
        "wait-y1": AppState.PENDING,
        "prov-y2": AppState.PENDING,
        "fail-y3": AppState.FAILED,
    }
    messages = {app_id: bjobs_msg_to_describe(app_id, text).msg for app_id in states}
    assert messages["train-x1"] == ("0/2: all slots are taken (3 hosts); hosts are closed by an administrator (1 host)")
    assert messages["oom-x3"] == "0/0 on hostA: it used more memory than it asked for (TERM_MEMLIMIT)"
    assert messages["gone-x4"] == "it was killed by its owner (TERM_OWNER)"
    assert messages["lost-x8"] == "its host does not answer to LSF"
    assert messages["fail-y3"] == "0/0 on hostA: exit code 7"
    train = bjobs_msg_to_describe("train-x1", text)
    assert [r.hostname for r in train.roles_statuses[0].replicas] == ["hostA:hostB", "hostC", ""]
    assert train.ended_at is None


def test_a_host_without_the_folder() -> None:
    """A host that does not see the job's folder exits with 127 and no records; the message explains that."""
    row = Row("1", "EXIT", "a", 0, 0, exit_code="127", hosts=("hostA",))
    assert "does not see the job's folder" in describe(facts_of("a", [row])).msg
    left = {(0, 0): Exit(127, killed=False, at=1.0)}
    said = Evidence(stderr="sh: nope: not found\n")
    told = describe(facts_of("a", [row], exits=left), lambda replicas: [said for _ in replicas]).msg
    assert told == "0/0 on hostA: exit code 127: sh: nope: not found"


BAD_BATCH = "Traceback (most recent call last):\n  x\nValueError: bad batch\n"
LOST_PEER = "Traceback (most recent call last):\n  x\nRuntimeError: Connection closed by peer\n"


def test_the_victim_that_died_first_is_not_blamed() -> None:
    """Rank 0 lost its peer a second before rank 1 reported why: rank 1 is the cause."""
    exited = [Row("1", "EXIT", "a", 0, k, exit_code="1", hosts=(f"host{k}",)) for k in (0, 1)]
    exits = {(0, k): Exit(1, killed=False, at=10.0 + k) for k in (0, 1)}
    said = {0: Evidence(stderr=LOST_PEER), 1: Evidence(stderr=BAD_BATCH)}
    answer = describe(facts_of("a", exited, exits=exits), lambda replicas: [said[r.replica] for r in replicas])
    failure = parse_failure(answer.structured_error_msg)
    assert failure is not None
    assert (failure.replica, failure.kind) == (1, "error")
    assert answer.msg == "0/1 on host1: exit code 1: ValueError: bad batch"


OWNER = "TERM_OWNER: job killed by owner"


@pytest.mark.parametrize(
    ("second", "left", "state", "msg", "replicas"),
    [
        (Row("2", "RUN", "a", 0, 1), {}, "RUNNING", "0/0: exit code 3; the others are being ended", "FAILED RUNNING"),
        (Row("2", "PEND", "a", 0, 1), {}, "RUNNING", "0/0: exit code 3; the others are being ended", "FAILED PENDING"),
        (Row("2", "EXIT", "a", 0, 1, exit_code="130", exit_reason=OWNER), {}, "FAILED", "0/0: exit code 3", "FAILED CANCELLED"),
        (Row("2", "EXIT", "a", 0, 1, exit_code="4", exit_reason=OWNER), {(0, 1): Exit(4, killed=False, at=2.0)}, "FAILED", "0/1: exit code 4", "FAILED FAILED"),
    ],
    ids=["runs", "waits", "ended", "failed-as-well"],
)  # fmt: skip
def test_a_job_of_which_one_has_failed(second: Row, left: dict, state: str, msg: str, replicas: str) -> None:
    """It runs while others run or are pending; another failure meanwhile is known from its exit file."""
    first = Row("1", "EXIT", "a", 0, 0, exit_code="3")
    answer = describe(facts_of("a", [first, second], exits={(0, 0): Exit(3, killed=False, at=5.0), **left}))
    assert (answer.state.name, answer.msg) == (state, msg)
    assert " ".join(r.state.name for r in answer.roles_statuses[0].replicas) == replicas


def test_a_job_that_is_being_cancelled() -> None:
    """It is being cancelled while a replica runs, and CANCELLED afterwards."""
    ended = Row("1", "EXIT", "a", 0, 0, exit_code="130", exit_reason=OWNER)
    answer = describe(facts_of("a", [ended, Row("2", "RUN", "a", 0, 1)]))
    assert (answer.state, answer.msg) == (AppState.RUNNING, "cancelling")
    answer = describe(facts_of("a", [ended]))
    assert (answer.state, answer.msg) == (AppState.CANCELLED, "it was killed by its owner (TERM_OWNER)")


def test_a_job_that_is_not_there() -> None:
    """Unknown jobs, empty answers and errors of LSF are None and empty lists."""
    assert bjobs_msg_to_describe("nobody", BJOBS) is None
    assert bjobs_msg_to_describe("x", "") is None
    assert bjobs_msg_to_list("No job found\n") == []


def test_log_files() -> None:
    """The output file that LSF reports leads to a replica's log."""
    folder = "/shared/torchx/lsf/train-x1/trainer/1"
    assert bjobs_msg_to_log_file("train-x1", "trainer", 1, None, BJOBS) == f"{folder}/stdout.log"
    assert bjobs_msg_to_log_file("train-x1", "trainer", 1, Stream.STDERR, BJOBS) == f"{folder}/stderr.log"
    with pytest.raises(NotFoundError, match="trainer/9"):
        bjobs_msg_to_log_file("train-x1", "trainer", 9, None, BJOBS)


@pytest.mark.parametrize("version", VERSIONS)
def test_every_recorded_reason_has_a_sentence(version: str) -> None:
    """Every documented pending or termination reason has a sentence."""
    for line in RECORDED.read("lsf", version, "pending").splitlines():
        assert "LSF says" not in why_pending(line), line
    for line in RECORDED.read("lsf", version, "terminated").splitlines():
        assert why_ended(line) == f"{ENDED[line.partition(':')[0]]} ({line.partition(':')[0]})"
    assert all(s[0].islower() or s.startswith("LSF") for s in [*PENDING.values(), *ENDED.values()])


def test_reasons_of_a_site() -> None:
    """Unknown phrases are passed on; a missing reason is stated."""
    assert why_pending("The janitor has the key: 2 hosts;") == "LSF says: The janitor has the key (2 hosts)"
    assert why_pending("-") == "LSF does not say why"
    assert why_ended("TERM_NEW_THING: of tomorrow") == "of tomorrow (TERM_NEW_THING)"
    assert why_ended("-") == ""


@pytest.mark.parametrize("version", VERSIONS)
def test_recorded_reports(version: str) -> None:
    """LSF's report shows how a job ended."""
    assert report_end(RECORDED.read("lsf", version, "report-done")) == ("0", "")
    assert report_end(RECORDED.read("lsf", version, "report-exit")) == ("7", "")
    memory = "TERM_MEMLIMIT: job killed after reaching LSF memory usage limit"
    assert report_end(RECORDED.read("lsf", version, "report-memlimit")) == ("130", memory)
    assert report_end("nothing of the kind") is None


def test_hosts() -> None:
    """The first host that is ok and has free slots; BackendError if there is none."""
    text = RECORDED.read("lsf", "10.1", "bhosts")
    assert find_rank0_host_from_bhosts_stdout(text, role(resource=Resource(2, 0, 1))) == "hostE"
    assert find_rank0_host_from_bhosts_stdout(text, role(resource=Resource(4, 0, 1))) == "hostF"
    assert find_rank0_host_from_bhosts_stdout(text, role(resource=Resource(99, 0, 1))) == "hostG"
    with pytest.raises(BackendError, match="no host has 2 free slots"):
        find_rank0_host_from_bhosts_stdout("HOST_NAME STATUS\n", role())


def test_moments() -> None:
    """LSF omits the year: the most recent such date counts, also around New Year and 29 February; a given year is used."""
    new_year = 1798761600.0  # 2027-01-01 00:00 UTC

    def day(text: str) -> tuple[int, ...]:
        import time

        at = moment(text, new_year + 43200)
        assert at is not None
        return tuple(time.localtime(at)[:5])

    assert day("Dec 31 23:51") == (2026, 12, 31, 23, 51)
    assert day("Jan  2 09:05") == (2027, 1, 2, 9, 5)
    assert day("Feb 29 10:00") == (2024, 2, 29, 10, 0)
    assert day("Mon Nov 20 08:00:01 2023") == (2023, 11, 20, 8, 0)
    assert [moment(t, new_year) for t in ("", "-", "Xyz 1 00:00", "Nov 31 00:00", "Nov 20 10:00 L")] == [None] * 5
    assert calendar.timegm((2027, 1, 1, 0, 0, 0)) == new_year


LINE = st.lists(st.sampled_from(["RUN", "EXIT", "-", "a.0-r.0", "/torchx_a", "9" * 5000, "1", "Nov 20 08:00", "\x00", "|", "é"]), max_size=14).map("|".join)  # fmt: skip


@example("\n".join(["JOBID|JOBINDEX|JOB_GROUP|JOB_NAME", f"{'9' * 5000}||/torchx_a|a.0-r.0"]))
@example(
    "\n".join(
        ["JOBID|JOBINDEX|JOB_GROUP|JOB_NAME|EXIT_CODE|STAT", f"7|{'9' * 5000}|/torchx_a|a.0-r.0|{'9' * 5000}|EXIT"]
    )
)
@given(st.one_of(st.text(), st.lists(LINE, max_size=4).map(lambda ls: "\n".join(["|".join(FIELDS).upper(), *ls]))))
def test_garbage(text: str) -> None:
    """Any text can be parsed."""
    for job in bjobs_msg_to_list(text):
        assert isinstance(bjobs_msg_to_describe(job.app_id, text), DescribeAppResponse)
    found = rows(text)
    assert len({row.name for row in found}) == len(found)
    assert all(row.jobid.isdecimal() for row in found)  # `int` refuses a number of 5,000 digits
    assert isinstance(why_pending(text), str)
    assert isinstance(why_ended(text), str)
    report_end(text)
    moment(text)
    Exit.parse(text)


@pytest.mark.parametrize(("raw", "state"), JOB_STATE.items())
def test_states(raw: str, state: AppState) -> None:
    """Each state of LSF has one of torchx; others are UNKNOWN."""
    assert get_job_state(raw, "1") is state
    assert get_job_state("WHAT", "-") is AppState.UNKNOWN


# -- what is done with commands ----------------------------------------------------------------------


def test_one_query_for_many() -> None:
    """Any number of jobs takes one bjobs; a single job queries only its group."""
    fake = FakeCommandRunner()
    fake.on("bjobs", stdout=BJOBS)
    found = scheduler(fake).describe_many(["train-x1", "echo-x2", "nobody"])
    assert [d and d.state for d in found.values()] == [AppState.RUNNING, AppState.SUCCEEDED, None]
    assert fake.argvs("bjobs") == [["bjobs", "-a", "-o", FORMAT]]
    scheduler(fake).describe("oom-x3")
    assert fake.argvs("bjobs")[-1] == ["bjobs", "-a", "-o", FORMAT, "-g", "/torchx_oom-x3"]


def an_elastic_job(lsf: LsfScheduler, fake: FakeCommandRunner, n: int) -> str:
    """A submitted job with a folder, of which replica 0 has failed and can be spared."""
    fake.on("/bin/bash", stdout=lambda call: f"{call.argv[1].split('/')[-2]}\n")
    app_id = lsf.submit(AppDef("a", [role(num_replicas=n, min_replicas=1)]), {})
    folder = lsf.folders(lsf._here).of(app_id)
    assert folder is not None
    for k in range(n):
        os.makedirs(folder.replica("trainer", k))
        Path(folder.replica("trainer", k), "stdout.log").write_text(f"hello {k}\n")
    cells = ["-"] * len(FIELDS)
    lines = ["|".join(FIELDS).upper()]
    for k in range(n):
        stat = "EXIT" if k == 0 and n > 1 else "RUN"
        known = {"jobid": str(k + 1), "stat": stat, "job_group": group_of(app_id), "exit_code": "1"}
        known |= {"job_name": job_name(app_id, 0, "trainer", k), "output_file": f"{folder.path}/reports/0.{k}"}
        lines.append("|".join(known.get(name, cell) for name, cell in zip(FIELDS, cells, strict=True)))
    fake.on("bjobs", stdout="\n".join(lines) + "\n")
    return app_id


@pytest.mark.parametrize("n", [1, 16, 64])
def test_the_logs_of_many_replicas_cost_no_command(n: int) -> None:
    """The job's folder lists the replicas and their logs: LSF is not queried, however many they are."""
    fake = FakeCommandRunner()
    lsf = scheduler(fake)
    app_id = an_elastic_job(lsf, fake, n)
    asked = len(fake.calls)
    replicas = lsf.log_replicas(app_id)
    assert replicas == [("trainer", k) for k in range(n)]
    logs = lsf.open_logs(app_id, replicas, LogQuery())
    assert [list(lines) for lines in logs] == [[f"hello {k}\n"] for k in range(n)]
    assert len(fake.calls) == asked


def test_list_says_what_status_says() -> None:
    """Also for an elastic job that has lost a replica: its minimum is in the folder."""
    fake = FakeCommandRunner()
    lsf = scheduler(fake)
    app_id = an_elastic_job(lsf, fake, 4)
    described = lsf.describe(app_id)
    assert described is not None
    assert described.state is AppState.RUNNING
    assert described.msg == "1 of 4 replicas lost (trainer/0); the job went on with the others"
    assert [job.state for job in lsf.list() if job.app_id == app_id] == [described.state]


def test_an_error_of_bjobs_is_not_an_empty_list() -> None:
    """Only messages about missing jobs count as empty; other failures are raised."""
    fake = FakeCommandRunner()
    fake.on("bjobs", returncode=255, stderr="No job found\n")
    assert scheduler(fake).list() == []
    fake = FakeCommandRunner()
    fake.on("bjobs", returncode=255, stderr="bjobs: pend_reason: unknown field\n")
    with pytest.raises(CommandError, match="unknown field"):
        scheduler(fake).list()


def test_a_restart_of_lsf_is_waited_for() -> None:
    """Queries are retried while LSF is down."""
    fake = FakeCommandRunner()
    fake.on("bjobs", returncode=255, stderr="LSF is down. Please wait ...\n")
    fake.on("bjobs", stdout=BJOBS)
    assert len(scheduler(fake).list()) == 12


def test_a_large_definition_is_read_whole() -> None:
    """Replicas have the names of their roles, however large the recorded job is."""
    fake = FakeCommandRunner()
    lsf = scheduler(fake)
    app_id = an_elastic_job(lsf, fake, 1)
    folder = lsf.folders(lsf._here).of(app_id)
    assert folder is not None
    record = Path(folder.path, "job.json")
    record.write_text(record.read_text().replace("train.py", "x" * (2 << 20)))
    found = lsf.describe(app_id)
    assert found is not None
    assert [r.role for r in found.roles_statuses] == ["trainer"]


def test_submission_and_cancel() -> None:
    """The script in the job's folder runs once and prints the id; cancelling kills the job group."""
    fake = FakeCommandRunner()
    fake.on("/bin/bash", stdout=lambda call: f"Job <1> is submitted to queue <q>.\n{call.argv[1].split('/')[-2]}\n")
    fake.on("bjobs", stdout=BJOBS)
    fake.on("bkill", returncode=255, stderr="Job <101>: Job has already finished\n")
    lsf = scheduler(fake)
    app_id = lsf.submit(AppDef("a", [role(num_replicas=100)]), {})
    (submitted,) = fake.argvs("/bin/bash")
    folder = submitted[1].removesuffix("/submit.sh")
    assert folder.endswith(f"/lsf/{app_id}")
    assert os.stat(folder).st_mode & 0o777 == 0o700
    assert {os.stat(f"{folder}/{n}").st_mode & 0o777 for n in ("submit.sh", "replicas.sh", "job.json")} == {0o600}
    assert [c.timeout for c in fake.calls] == [95.0]
    lsf.cancel("train-x1")
    assert fake.argvs("bkill") == [["bkill", "-g", "/torchx_train-x1", "0"]]


def test_a_failed_cancel_is_told() -> None:
    """A failure of bkill is an error, unless the job is over."""
    fake = FakeCommandRunner()
    fake.on("bjobs", stdout=BJOBS)
    fake.on("bkill", returncode=255, stderr="User permission denied\n")
    with pytest.raises(CommandError, match="permission denied"):
        scheduler(fake).cancel("train-x1")


@pytest.mark.parametrize(
    ("said", "hint"),
    [
        ("q: No such queue. Job not submitted.", "lsf_queue"),
        ("x: No such application profile. Job not submitted.", "-cfg app"),
        ("Request aborted by esub. Job not submitted.", "bsub_args"),
        ("No project specified. Job not submitted.", "-cfg project"),
    ],
)
def test_refusals(said: str, hint: str) -> None:
    """The message is LSF's, the hint names the option, and submitted replicas are killed."""
    fake = FakeCommandRunner()
    fake.on("/bin/bash", returncode=255, stderr=said)
    fake.on("bkill")
    with pytest.raises(CommandError, match=re.escape(said)) as refused:
        scheduler(fake).submit(AppDef("a", [role()]), {})
    assert hint in refused.value.hint
    assert len(fake.argvs("bkill")) == 1


class TestLsfContract(SchedulerContract):
    """The contract, with scripted answers."""

    raw_states = JOB_STATE
    name_rule = r"[A-Za-z][A-Za-z0-9_-]{0,90}"

    @pytest.fixture(autouse=True)
    def _home(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("TORCHX_HOME", str(tmp_path / "home"))

    def create_scheduler(self, folder: str) -> LsfScheduler:
        fake = FakeCommandRunner()
        fake.on("bjobs", stdout=self._answer)
        return scheduler(fake)

    @staticmethod
    def _answer(call: Call) -> str:
        return BJOBS

    def map_state(self, raw: str) -> AppState:
        return get_job_state(raw, "1")


def test_factory() -> None:
    """The factory creates a scheduler with the backend's name."""
    made = create_scheduler("s")
    assert (made.backend, made.session_name) == ("lsf", "s")
