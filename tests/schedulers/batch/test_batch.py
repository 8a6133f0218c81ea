"""The base of command-driven backends: commands, folders, submission and logs, with a toy backend."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from torchx.errors import BackendError, CommandError, NotFoundError, NotSupportedError, TransientError
from torchx.runs import NewRun, default_registry
from torchx.schedulers.api import DescribeAppResponse, ListAppResponse, Stream
from torchx.schedulers.batch import attempts, folders
from torchx.schedulers.batch import logs as batch_logs
from torchx.schedulers.batch.base import PATIENCE_S, BatchScheduler, Site, Submission
from torchx.schedulers.batch.folders import (
    SECRETS_FILE,
    JobFolder,
    JobFolders,
    LogPaths,
    folder_name,
    read_whole,
    roles_of,
)
from torchx.schedulers.batch.logs import BatchLog, Growth
from torchx.schedulers.kit.commands import Completed, ConnectedRunner
from torchx.schedulers.kit.files import MAX_GROWN, LocalFiles
from torchx.schedulers.kit.logs import LogQuery
from torchx.schedulers.lsf import attempts as lsf_attempts
from torchx.schedulers.lsf import replicas as lsf_replicas
from torchx.schedulers.lsf import sweeps as lsf_sweeps
from torchx.schedulers.slurm import events, notices, request
from torchx.schedulers.slurm import sweeps as slurm_sweeps
from torchx.specs import AppDef, AppDryRunInfo, AppState, Resource, Role
from torchx.supervisor.layout import REPLICA_FILES
from torchx.testing.commands import FakeCommandRunner


class Toy(BatchScheduler):
    """Its commands: ``sub``, ``ask IDS``, ``find NAME``, ``kill ID``."""

    transient = __import__("re").compile("try later")
    programs = "Toy's commands"

    def _submit_dryrun(self, app: AppDef, cfg: Mapping) -> AppDryRunInfo:
        return AppDryRunInfo(app.name, str)

    def _submission(self, info: AppDryRunInfo, site: Site) -> Submission:
        folder = self.folders(site).place(info.request)
        return Submission(info.request, ["sub", info.request], folder, {"a/script": "#!/bin/sh\n"})

    def _parse_submitted(self, done: Completed) -> str:
        return done.stdout.strip()

    def _find_submitted(self, site: Site, token: str) -> str | None:
        return self.run_command(site, ["find", token]).check().stdout.strip() or None

    def _query(self, site: Site, app_ids: list[str], folders: Mapping[str, JobFolder]) -> dict:
        done = self.run_command(site, ["ask", *app_ids]).check()
        rows = dict(line.split() for line in done.stdout.splitlines())
        return {i: DescribeAppResponse(i, AppState[state]) for i, state in rows.items() if i in app_ids}

    def _query_all(self, site: Site) -> list[ListAppResponse]:
        done = self.run_command(site, ["ask"]).check()
        return [ListAppResponse(line.split()[0], AppState.RUNNING) for line in done.stdout.splitlines()]

    def _cancel_argv(self, app_id: str) -> list[str]:
        return ["kill", app_id]


@pytest.fixture
def fake() -> FakeCommandRunner:
    return FakeCommandRunner()


@pytest.fixture
def slept() -> list[float]:
    return []


@pytest.fixture
def toy(fake: FakeCommandRunner, slept: list[float]) -> Toy:
    return Toy("toy", "test", commands=fake, sleep=slept.append)


APP = AppDef("job", [Role("w", "", entrypoint="echo", resource=Resource(1, 0, 1))])


def schedule(toy: Toy) -> str:
    info = AppDryRunInfo("job-1", str)
    info._app = APP
    return toy.schedule(info)


# -- submissions whose answer nobody heard -----------------------------------------------------------


def intent(toy: Toy) -> str:
    info = AppDryRunInfo("job-1", str)
    info._app = APP
    return toy.submission_token(info)


def test_a_lost_submission_is_found_by_its_token(toy: Toy, fake: FakeCommandRunner) -> None:
    """The token that is recorded before the submission leads to the job and its folder."""
    token = intent(toy)
    assert fake.calls == []
    fake.on("find", stdout="7\n")
    assert Toy("toy", "test", commands=fake).find_submission(token, {}, age_s=1.0) == "7"
    assert toy.folders(toy._here).of("7").path == token.partition(" ")[2]


@pytest.mark.parametrize(("age_s", "answer"), [(1.0, None), (119.0, None), (121.0, "")])
def test_that_there_is_no_job_is_certain_later(
    toy: Toy, fake: FakeCommandRunner, age_s: float, answer: str | None
) -> None:
    """Until the timeout of the submitting command has passed, it may still be running."""
    fake.on("find", stdout="")
    assert toy.find_submission(intent(toy), {}, age_s=age_s) == answer


def test_what_was_prepared_for_the_record_is_submitted(toy: Toy, fake: FakeCommandRunner) -> None:
    """The request is rendered once, and submitted once: a second job would share the folder of the first."""
    rendered = []
    original = toy._submission
    toy._submission = lambda info, site: rendered.append(1) or original(info, site)  # type: ignore[method-assign]  # counts
    info = AppDryRunInfo("job-1", str)
    info._app = APP
    toy.submission_token(info)
    fake.on("sub", stdout="7\n")
    assert toy.schedule(info) == "7"
    assert rendered == [1]
    folder = toy.folders(toy._here).of("7")
    fake.on("sub", returncode=1, stderr="you may not")
    with pytest.raises(BackendError, match="`job-1` was already submitted"):
        toy.schedule(info)
    assert folder is not None
    assert folder.is_ours()


# -- commands ----------------------------------------------------------------------------------------


def test_what_passes_is_tried_again(toy: Toy, fake: FakeCommandRunner, slept: list[float]) -> None:
    """Temporary failures are retried with growing pauses; other failures are returned at once."""
    fake.on("ask", returncode=1, stderr="try later")
    fake.on("ask", raises=TransientError("no answer"))
    fake.on("ask", returncode=1, stderr="you may not")
    assert toy.run_command(toy._here, ["ask"]).stderr == "you may not"
    assert slept == [0.25, 0.5]


def test_patience_ends(toy: Toy, fake: FakeCommandRunner, slept: list[float]) -> None:
    """After that the last failure is raised, as a temporary one."""
    fake.on("ask", returncode=1, stderr="hm\ntry later\n")
    with pytest.raises(TransientError, match="`ask` failed: try later"):
        toy.run_command(toy._here, ["ask"])
    assert sum(slept) <= PATIENCE_S


@pytest.mark.parametrize("argv", [["ask"], ["env", "A=1", "ask"]], ids=["plain", "env"])
def test_a_missing_program_is_one_clear_line(toy: Toy, fake: FakeCommandRunner, argv: list[str]) -> None:
    """The error has a hint, also if `env` reported the missing program."""
    fake.on("ask", raises=CommandError("x", argv=["ask"], returncode=127))
    fake.on("env", returncode=127, stderr="env: 'ask': No such file or directory")
    with pytest.raises(CommandError, match="`ask` is not installed on this machine, or not on PATH") as caught:
        toy.run_command(toy._here, argv)
    assert caught.value.hint.startswith("Toy's commands are on the login nodes")


# -- submission --------------------------------------------------------------------------------------


def test_the_folder_is_written_first(toy: Toy, fake: FakeCommandRunner) -> None:
    """The job's files exist before the command runs, and only their user can read them."""
    seen: list[str] = []

    def look(_: object) -> str:
        seen.extend(sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*")))
        return "7\n"

    folder = Path(toy.folders(toy._here).place("job-1"))
    fake.on("sub", stdout=look)
    assert schedule(toy) == "7"
    assert seen == ["a", "a/script", "job.json"]
    assert (folder / "job.json").stat().st_mode & 0o777 == 0o600
    assert [role.name for role in roles_of((folder / "job.json").read_bytes())] == ["w"]
    assert toy.folders(toy._here).of("7").path == str(folder)


@pytest.mark.parametrize(
    "failure", [{"raises": TransientError("lost")}, {"returncode": 1, "stderr": "try later"}], ids=["lost", "later"]
)
def test_a_job_that_was_taken_is_not_submitted_again(toy: Toy, fake: FakeCommandRunner, failure: dict) -> None:
    """The scheduler is queried for the job's name before a retry."""
    fake.on("sub", **failure)
    fake.on("find", "job-1", stdout="7\n")
    assert schedule(toy) == "7"
    assert fake.argvs("sub") == [["sub", "job-1"]]


def test_an_unclear_end_keeps_the_folder(toy: Toy, fake: FakeCommandRunner) -> None:
    """If it is unknown whether the job was accepted, its files stay, because it may run."""
    fake.on("sub", raises=TransientError("lost"))
    fake.on("find", raises=TransientError("lost, too"))
    with pytest.raises(TransientError):
        schedule(toy)
    assert Path(toy.folders(toy._here).place("job-1"), "job.json").exists()


def test_a_refusal_removes_the_folder(toy: Toy, fake: FakeCommandRunner) -> None:
    """Nothing remains of a job that was rejected."""
    fake.on("sub", returncode=2, stderr="no such queue")
    with pytest.raises(CommandError, match="no such queue"):
        schedule(toy)
    assert not Path(toy.folders(toy._here).place("job-1")).exists()


class Uploads(Toy):
    """Uploads a folder for the job, and is cut off before or after it."""

    def __init__(self, *args: Any, cut: bool, **more: Any) -> None:
        super().__init__(*args, **more)
        self._cut = cut
        self.taken_back: list[dict[str, Any]] = []

    def _secret_files(self, info: AppDryRunInfo) -> dict[str, str]:
        return {SECRETS_FILE: "TOKEN=hunter2"}

    def _upload(self, info: AppDryRunInfo, site: Site, created: dict[str, Any]) -> None:
        created["/there/code"] = "new"
        if self._cut:
            raise TransientError("the connection was lost", hint="is the login node up?")

    def _take_back(self, site: Site, created: dict[str, Any]) -> None:
        self.taken_back.append({**created})


@pytest.mark.parametrize("during", ["upload", "folder"])
def test_a_submission_that_is_cut_off_before_it(
    fake: FakeCommandRunner, monkeypatch: pytest.MonkeyPatch, during: str
) -> None:
    """There is certainly no job: nothing of it stays, least of all its secrets, and nobody looks for it later."""
    toy = Uploads("toy", "test", commands=fake, cut=during == "upload")
    folder = Path(toy.folders(toy._here).place("job-1"))
    if during == "folder":
        real = JobFolder.create

        def create(self: JobFolder, *args: Any) -> None:
            real(self, *args)
            assert (folder / SECRETS_FILE).exists()
            raise TransientError("the connection was lost", hint="is the login node up?")

        monkeypatch.setattr(JobFolder, "create", create)
    with pytest.raises(BackendError, match="the connection was lost") as refused:
        schedule(toy)
    assert not isinstance(refused.value, TransientError)
    assert refused.value.hint == "is the login node up?"
    assert not folder.exists()
    assert toy.taken_back == [{"/there/code": "new"}]
    assert fake.argvs("sub") == []


def test_a_runner_that_runs_once_is_given_the_token() -> None:
    """A remote runner itself guarantees a single run; each attempt has its own token."""
    tokens: list[str] = []

    class Connected(FakeCommandRunner, ConnectedRunner):
        def run_once(
            self, argv: Sequence[str], *, token: str, stdin: str = "", timeout: float | None = None
        ) -> Completed:
            tokens.append(token)
            return Completed([*argv], 1, "", "try later") if len(tokens) == 1 else Completed([*argv], 0, "7", "")

    fake = Connected()
    toy = Toy("toy", "test", commands=fake, sleep=lambda _: None)
    fake.on("find", stdout="")
    assert schedule(toy) == "7"
    assert len(set(tokens)) == 2
    assert all(token.startswith("job-1") for token in tokens)


# -- questions ---------------------------------------------------------------------------------------


def test_many_jobs_cost_one_command(toy: Toy, fake: FakeCommandRunner) -> None:
    """Each job is queried once, even if it is named several times; unknown ones are None."""
    fake.on("ask", stdout="a RUNNING\nb FAILED\n")
    found = toy.describe_many(["a", "b", "c", "a"])
    assert {i: job and job.state for i, job in found.items()} == {
        "a": AppState.RUNNING,
        "b": AppState.FAILED,
        "c": None,
    }
    assert fake.argvs("ask") == [["ask", "a", "b", "c"]]


def test_those_who_wait_share_their_questions(toy: Toy, fake: FakeCommandRunner) -> None:
    """Recent answers are shared; jobs that callers wait for are part of each query."""
    toy.fresh_s = 3600
    fake.on("ask", stdout="a RUNNING\nb RUNNING\n")
    for app_id in ("a", "b", "a", "b"):
        assert toy.describe(app_id).state is AppState.RUNNING
    assert fake.argvs("ask") == [["ask", "a"], ["ask", "b", "a"]]
    toy.fresh_s = 0
    toy.describe("a")
    assert fake.argvs("ask")[-1] == ["ask", "a", "b"]


def test_who_asks_about_one_job_after_the_other_asks_twice(toy: Toy, fake: FakeCommandRunner) -> None:
    """The second query of a loop over jobs covers the other jobs on record."""
    ids = [f"j{k}" for k in range(100)]
    for app_id in ids:
        run = NewRun(scheduler="toy", session="test", name="job")
        default_registry().submitted(default_registry().begin(run), f"toy://test/{app_id}")
    fake.on("ask", stdout="".join(f"{app_id} RUNNING\n" for app_id in ids))
    toy.fresh_s = 3600
    assert all(toy.describe(app_id).state is AppState.RUNNING for app_id in ids)
    assert [len(argv) - 1 for argv in fake.argvs("ask")] == [1, 100]


def test_cancel_and_delete(toy: Toy, fake: FakeCommandRunner) -> None:
    """A running job is cancelled and its folder removed; it is hidden although its scheduler still reports it."""
    toy.fresh_s = 0
    fake.on("sub", stdout="a")
    fake.on("ask", stdout="a RUNNING\n")
    fake.on("kill", "a")
    schedule(toy)
    folder = Path(toy.folders(toy._here).of("a").path)
    assert folder.exists()
    toy.delete("a")
    assert fake.argvs("kill") == [["kill", "a"]]
    assert not folder.exists()
    assert toy.describe("a") is None
    assert toy.list() == []
    toy.delete("a")


def test_a_job_of_another_site_is_asked_for_there(fake: FakeCommandRunner, tmp_path: Path) -> None:
    """The scheduler object remembers the site of the submission."""
    far, near = FakeCommandRunner(), fake
    far.on("sub", stdout="f")
    far.on("ask", stdout="f RUNNING\n")
    near.on("ask", stdout="n RUNNING\n")
    toy = Toy("toy", "test", commands=near)
    toy._sites["login "] = Site(far, LocalFiles(), "login")
    info = AppDryRunInfo("job-1", str)
    info._cfg = {"ssh": "login"}
    assert toy.schedule(info) == "f"
    found = toy.describe_many(["f", "n"])
    assert [job.state for job in found.values()] == [AppState.RUNNING, AppState.RUNNING]
    assert (far.argvs("ask"), near.argvs("ask")) == ([["ask", "f"]], [["ask", "n"]])


def test_no_logs_of_an_unknown_job(toy: Toy) -> None:
    """The error says so."""
    with pytest.raises(NotFoundError, match="no logs of job `x`"):
        toy.log_iter("x", "w", 0)


# -- folders and files -------------------------------------------------------------------------------


@pytest.mark.parametrize("role", ["w", "../../etc", "", ".", "..", "a/b", "é" * 200, "x" * 300, "a b\n"])
def test_a_role_never_leaves_the_folder(role: str, tmp_path: Path) -> None:
    """Role names cannot lead out of the job's folder."""
    name = folder_name(role)
    assert "/" not in name
    assert name not in (".", "..")
    assert len(name) < 255
    if role:
        (tmp_path / name).mkdir()


def test_the_folder_of_a_role_is_no_file_of_the_job() -> None:
    """A role may have the name of any file that Slurm's or LSF's jobs have; other names stay as they are."""
    of_replicas = {*REPLICA_FILES, lsf_replicas.EXIT_FILE, lsf_replicas.UP_FILE}
    modules = (folders, attempts, lsf_attempts, lsf_replicas, lsf_sweeps, events, notices, request, slurm_sweeps)
    named = [item for module in modules for item in vars(module).items()]
    names = {value for name, value in named if name.endswith("_FILE") and isinstance(value, str)} - of_replicas
    assert len(names) > 20
    assert {name for name in names if folder_name(name) == name} == set()
    assert [folder_name(name) for name in ("w", "job", "state", "ps")] == ["w", "job", "state", "ps"]


def test_roles_have_folders_of_their_own() -> None:
    """Different role names have different folders."""
    names = ["a b", "a%20b", "a/b", "a-b", "€", " ac", "x" * 300, "x" * 301]
    assert len({folder_name(name) for name in names}) == len(names)


def test_odd_ids_have_markers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ids from the command line cannot be paths."""
    monkeypatch.setenv("TORCHX_HOME", str(tmp_path))
    folders = JobFolders(LocalFiles(), "toy")
    for app_id in ("../../x", "a/b", "7+1", "x y"):
        folders.remember(app_id, "/some/where")
        assert folders.of(app_id).path == "/some/where"
    assert [p.name for p in tmp_path.iterdir()] == ["toy"]
    assert folders.of("unknown") is None


def test_only_our_folders_are_removed(tmp_path: Path) -> None:
    """A folder without `job.json` is kept."""
    assert not JobFolder(LocalFiles(), str(tmp_path)).is_ours()


def test_files_say_why_not(tmp_path: Path) -> None:
    """Errors contain the path and the system's reason; missing files are None, and removing them succeeds."""
    files = LocalFiles()
    (tmp_path / "file").write_text("x")
    with pytest.raises(BackendError, match="cannot be made"):
        files.make_folder(str(tmp_path / "file" / "sub"))
    with pytest.raises(BackendError, match="cannot be written"):
        files.write(str(tmp_path / "no" / "file"), b"")
    assert files.read(str(tmp_path / "no")) is None
    assert files.names(str(tmp_path / "no")) == []
    assert files.sizes([str(tmp_path / "no"), str(tmp_path / "file")]) == {
        str(tmp_path / "no"): None,
        str(tmp_path / "file"): 1,
    }
    files.remove(str(tmp_path / "no"))


def test_grown_waits_for_news(tmp_path: Path) -> None:
    """It returns as soon as a file has grown."""
    path = tmp_path / "log"
    path.write_text("old")
    timer = threading.Timer(0.05, lambda: path.write_text("old new"))
    timer.start()
    assert LocalFiles().grown({str(path): 3}, wait_s=600) == {str(path): b" new"}
    timer.join()


# -- logs --------------------------------------------------------------------------------------------


def paths(folder: Path, out: str, err: str = "", times: str = "") -> LogPaths:
    found = LogPaths(str(folder / "stdout.log"), str(folder / "stderr.log"), str(folder / "times.idx"))
    for path, text in ((found.stdout, out), (found.stderr, err), (found.times, times)):
        Path(path).write_text(text)
    return found


def log(where: LogPaths, *, over: bool = True, **query: Any) -> BatchLog:
    return BatchLog(LocalFiles(), where, LogQuery(**query), lambda: over)


def test_outputs_are_merged_by_their_times(tmp_path: Path) -> None:
    """Whole lines in the order of writing; without an index stdout comes first."""
    where = paths(tmp_path, "o1\no2\no3", "e1\ne2\n", "10 3 0\n11 3 3\n12 7 3\n13 8 6\n")
    assert list(log(where)) == ["o1\n", "e1\n", "o2\n", "e2\n", "o3"]
    assert list(log(where, stream=Stream.STDOUT)) == ["o1\n", "o2\n", "o3"]
    assert list(log(where, stream=Stream.STDERR)) == ["e1\n", "e2\n"]
    Path(where.times).unlink()
    assert list(log(where)) == ["o1\n", "o2\n", "e1\n", "e2\n", "o3"]


def test_lines_are_found_by_their_time(tmp_path: Path) -> None:
    """`since` begins after what was written before; `until` ends there."""
    where = paths(tmp_path, "o1\no2\no3\n", "e1\n", "10 3 0\n20 6 3\n30 9 3\n")
    assert list(log(where, since=15.0)) == ["o2\n", "e1\n", "o3\n"]
    assert list(log(where, until=25.0)) == ["o1\n", "o2\n", "e1\n"]
    assert list(log(where, since=15.0, until=25.0)) == ["o2\n", "e1\n"]
    assert list(log(where, until=5.0)) == []
    assert list(log(where, since=datetime(2200, 1, 1).timestamp())) == []


def test_times_that_are_not_known_are_not_made_up(tmp_path: Path) -> None:
    """Without an index the query is rejected."""
    where = paths(tmp_path, "o1\n")
    where.times = ""
    with pytest.raises(NotSupportedError):
        list(log(where, since=5.0))
    assert list(log(where, regex=__import__("re").compile("1"))) == ["o1\n"]


@pytest.mark.parametrize("count", [0, 1, 2, 3, 5, 100])
def test_the_last_lines(tmp_path: Path, count: int) -> None:
    """The last N lines of both outputs together."""
    where = paths(tmp_path, "o1\no2\no3\n", "e1\ne2\n", "10 3 0\n11 6 3\n12 6 6\n13 9 6\n")
    whole = ["o1\n", "o2\n", "e1\n", "e2\n", "o3\n"]
    assert list(log(where).last(count)) == (whole[-count:] if count else [])


def test_the_end_of_a_long_log_is_found_without_reading_it(tmp_path: Path) -> None:
    """It reads a few blocks at the end, not the whole file."""
    lines = [f"line {i:07}\n" for i in range(200_000)]
    where = paths(tmp_path, "".join(lines))
    read: list[int] = []

    class Counting(LocalFiles):
        def read(self, path: str, offset: int = 0, size: int = -1) -> bytes | None:
            data = super().read(path, offset, size)
            read.append(len(data or b""))
            return data

    found = BatchLog(Counting(), where, LogQuery(), lambda: True).last(3)
    assert list(found) == lines[-3:]
    assert sum(read) < 400_000


def test_a_log_is_read_by_few_questions(tmp_path: Path) -> None:
    """One query for the times and two for each output, because over SSH each is a round trip."""
    where = paths(tmp_path, "o1\n", "e1\n", "10 3 3\n")
    asked: list[str] = []

    class Counting(LocalFiles):
        def read(self, path: str, offset: int = 0, size: int = -1) -> bytes | None:
            asked.append(Path(path).name)
            return super().read(path, offset, size)

    assert list(BatchLog(Counting(), where, LogQuery(), lambda: True)) == ["o1\n", "e1\n"]
    assert asked == ["times.idx", "stdout.log", "stderr.log", "stdout.log", "stderr.log"]


def test_following_ends_with_the_job(tmp_path: Path) -> None:
    """Lines appear as they are written; an incomplete last line appears at the end."""
    where = paths(tmp_path, "one\n")
    steps = iter([("two\nthr", False), ("ee\n", False), ("four", True), ("", True)])

    def over(*, patient: bool = True) -> bool:  # called either way
        text, ended = next(steps)
        with Path(where.stdout).open("a") as f:
            f.write(text)
        return ended

    followed = BatchLog(LocalFiles(), where, LogQuery(follow=True), over)
    followed._ended = over  # type: ignore[method-assign]  # without its pause
    assert list(followed) == ["one\n", "two\n", "three\n", "four"]


def test_followers_of_many_replicas_look_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One query covers all of them."""
    looks = []
    now = [0.0]
    monkeypatch.setattr(batch_logs, "time", SimpleNamespace(monotonic=lambda: now[0], time=time.time))

    class Counting(LocalFiles):
        def grown(self, offsets: Mapping[str, int], wait_s: float = 0) -> dict[str, bytes]:
            looks.append(len(offsets))
            return super().grown(offsets, wait_s)

    growth = Growth(Counting())
    logs = []
    for k in range(20):
        (tmp_path / str(k)).mkdir()
        where = paths(tmp_path / str(k), f"hello {k}\n")
        logs.append(BatchLog(growth, where, LogQuery(follow=True), lambda: False))
    first = [source.poll() for source in logs]
    assert [data for data in first if data] == [f"hello {k}\n".encode() for k in range(20)]
    for source in logs:
        source.poll()
    looks.clear()
    for _ in range(3):
        now[0] += 1
        assert [source.poll() for source in logs] == [b""] * 20
    assert len(looks) == 3


def test_many_whole_files_are_read_once(tmp_path: Path) -> None:
    """However much they contain together, only files that may have more are queried again."""
    looks = []

    class Counting(LocalFiles):
        def grown(self, offsets: Mapping[str, int], wait_s: float = 0) -> dict[str, bytes]:
            looks.append([*offsets])
            return super().grown(offsets, wait_s)

    made = {str(tmp_path / f"f{n}"): b"%d" % n * (MAX_GROWN // 2) for n in range(4)}
    made[str(tmp_path / "large")] = b"x" * (MAX_GROWN + 1)
    for path, data in made.items():
        Path(path).write_bytes(data)
    assert read_whole(Counting(), made) == made
    assert looks == [[*made], [str(tmp_path / "large")]]


def test_two_read_one_replica(tmp_path: Path) -> None:
    """A second reader does not disturb one that follows the log."""
    growth, where = Growth(LocalFiles()), paths(tmp_path, "one\n")
    follower = BatchLog(growth, where, LogQuery(follow=True), lambda: False)
    assert follower.poll() == b"one\n"
    assert list(BatchLog(growth, where, LogQuery(), lambda: False)) == ["one\n"]
    with Path(where.stdout).open("a") as f:
        f.write("two\n")
    growth.look()
    assert follower.poll() == b"two\n"


def test_a_line_without_end_is_passed_on_in_pieces(tmp_path: Path) -> None:
    """A progress bar of megabytes is not held in memory."""
    where = paths(tmp_path, "x" * (3 << 20))
    pieces = list(log(where))
    assert "".join(pieces) == "x" * (3 << 20)
    assert len(pieces) > 1
