"""Paced sweeps: a limited number of single jobs at a time; their pacer may be killed without losing a task."""

from __future__ import annotations

import os
import re
import resource
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from torchx.errors import BackendError, ConfigError, NotFoundError, SpecError, TransientError
from torchx.runner import Runner, get_runner
from torchx.runner.jobs.paced import tasks as paced
from torchx.runner.jobs.paced.pacer import Pacer, build
from torchx.runner.jobs.paced.sweeps import PacedSweeps, unbuilt
from torchx.runner.jobs.paced.tasks import ENDED, SUBMITTED, WAITING, Tasks
from torchx.schedulers.api import DescribeAppResponse, ListAppResponse, Scheduler
from torchx.schedulers.kit.logs import LogQuery
from torchx.settings import torchx_home
from torchx.specs import AppDef, AppDryRunInfo, AppState, Role, Workspace
from torchx.specs.failures import Failure
from torchx.specs.serialize import appdef_to_dict
from torchx.specs.tasks import TaskList, TaskTable


def gang(script: str, replicas: int = 2, **env: str) -> AppDef:
    return AppDef("gang", [Role("w", "", entrypoint="sh", args=["-c", script], num_replicas=replicas, env=env)])


def pacers(handle: str) -> list[int]:
    """The pacers of a sweep."""
    folder = os.fsencode(torchx_home("sweeps", handle.rpartition("/")[2]))
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            state = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0]
        except OSError:
            continue
        if folder in words and state not in b"ZX":
            found.append(int(pid))
    return found


def becomes(what: Callable[[], Any], expected: Any) -> None:
    """Waits until a condition is true."""
    deadline = time.monotonic() + 120
    while (seen := what()) != expected:
        assert time.monotonic() < deadline, seen
        time.sleep(0.02)


class Sweeps:
    """Sweeps of ``local_cwd``, whose pacers are killed at the end of the test."""

    def __init__(self, runner: Runner) -> None:
        self.runner = runner
        self.made: list[str] = []

    def __call__(self, app: AppDef, count: int, width: int = 2) -> str:
        info = self.runner.dryrun(app, "local_cwd")
        tasks = TaskList(names=["k"], points=[(str(k),) for k in range(count)], max_parallel=width)
        self.made.append(self.runner.schedule_sweep(info, tasks))
        return self.made[-1]

    def table(self, handle: str) -> TaskTable:
        status = self.runner.status(handle)
        assert status is not None
        assert status.tasks is not None
        return status.tasks

    def ended(self, handle: str) -> TaskTable:
        status = self.runner.wait(handle)
        assert status is not None
        assert status.tasks is not None
        return status.tasks

    def lines(self, handle: str) -> list[str]:
        replicas = self.runner.log_replicas(handle)
        return [line for lines in self.runner.open_logs(handle, replicas, LogQuery()) for line in lines]


@pytest.fixture
def sweeps() -> Iterator[Sweeps]:
    with get_runner("paced") as runner:
        made = Sweeps(runner)
        yield made
        for handle in made.made:
            if paced.folder_of(handle.rpartition("/")[2]):
                runner.cancel(handle)
                runner.wait(handle)
            becomes(partial(pacers, handle), [])


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs /proc")
def test_a_task_can_be_entered(sweeps: Sweeps) -> None:
    """By its handle, or as a replica of the sweep; a waiting or cancelled task cannot."""
    handle = sweeps(gang("exec sleep 1000"), 3)
    say = ["sh", "-c", "echo $TORCHX_TASK"]
    becomes(lambda: [state.name for state in sweeps.table(handle).states], ["RUNNING", "RUNNING", "PENDING"])
    assert sweeps.runner.exec(f"{handle}/1", say, k=1).stdout == b"1\n"
    assert sweeps.runner.exec(handle, say, "1", 0).stdout == b"1\n"
    with pytest.raises(NotFoundError, match=r"/2` is not running: it is PENDING"):
        sweeps.runner.exec(handle, say, "2", 0)
    sweeps.runner.cancel(handle)
    sweeps.ended(handle)
    with pytest.raises(NotFoundError, match=r"/2` is not running: it is CANCELLED"):
        sweeps.runner.exec(handle, say, "2", 0)


def test_tasks_of_several_replicas(sweeps: Sweeps) -> None:
    """Each is a job with all its replicas; a failed one has its own cause, and does not end the others."""
    handle = sweeps(gang("echo {k} $TORCHX_TASK ${replica_id}; test {k} != 1 -o ${replica_id} != 0 || exit 3"), 3)
    assert re.fullmatch(r"local_cwd://paced/sweep-gang-\w+", handle)
    table = sweeps.ended(handle)
    assert [state.name for state in table.states] == ["SUCCEEDED", "FAILED", "SUCCEEDED"]
    assert (table.exit_codes[1], table.max_parallel) == (3, 2)
    assert sweeps.lines(f"{handle}/2") == ["2 2 0\n", "2 2 1\n"]
    assert {f"{k} {k} {n}\n" for k in (0, 2) for n in (0, 1)} < set(sweeps.lines(handle))
    status = sweeps.runner.status(f"{handle}/1")
    assert status is not None
    assert (status.state, status.num_restarts) == (AppState.FAILED, 0)
    assert "w/0" in status.msg
    (group,) = sweeps.runner.sweep_failures(handle, table)
    assert group.tasks == [1]
    assert [run.handle for run in sweeps.runner.runs()] == [handle]


def test_retries_and_a_time_limit(sweeps: Sweeps, tmp_path: Path) -> None:
    """A task may have retries and a time limit, like a single job."""
    app = gang(f"mkdir {tmp_path}/once-{{k}} 2>/dev/null && exit 1; exec sleep 1000", 1)
    app.roles[0].max_retries = 1
    app.metadata["torchx/timeout"] = "2s"
    handle = sweeps(app, 1)
    table = sweeps.ended(handle)
    assert table.states == [AppState.FAILED]
    status = sweeps.runner.status(f"{handle}/0")
    assert status is not None
    assert "time limit" in status.msg
    assert status.num_restarts == 1


def test_no_more_at_a_time_than_was_said(sweeps: Sweeps, tmp_path: Path) -> None:
    """The third task starts when one of two has ended; cancelling ends all, also waiting ones."""
    script = f"touch {tmp_path}/began-{{k}}; until test -e {tmp_path}/go-{{k}}; do sleep 0.02; done"
    handle = sweeps(gang(script), 5)

    def began() -> list[str]:
        return sorted(path.name for path in tmp_path.glob("began-*"))

    becomes(began, ["began-0", "began-1"])
    becomes(lambda: [s.name for s in sweeps.table(handle).states], ["RUNNING"] * 2 + ["PENDING"] * 3)
    (tmp_path / "go-1").touch()
    becomes(began, ["began-0", "began-1", "began-2"])
    waiting = sweeps.runner.status(f"{handle}/4")
    assert waiting is not None
    assert (waiting.state, waiting.msg) == (AppState.PENDING, "waits until other tasks of the sweep have ended")
    sweeps.runner.cancel(handle)
    names = [state.name for state in sweeps.ended(handle).states]
    assert names == ["CANCELLED", "SUCCEEDED", "CANCELLED", "CANCELLED", "CANCELLED"]
    assert began() == ["began-0", "began-1", "began-2"]


def test_one_task_is_cancelled(sweeps: Sweeps, tmp_path: Path) -> None:
    """A running and a waiting task; the others continue. Task 4 does not exist, and a task cannot be deleted alone."""
    handle = sweeps(gang(f"until test -e {tmp_path}/go; do sleep 0.02; done"), 4)
    becomes(lambda: sweeps.table(handle).states[:2], [AppState.RUNNING] * 2)
    sweeps.runner.cancel(f"{handle}/0")
    sweeps.runner.cancel(f"{handle}/3")
    becomes(lambda: sweeps.table(handle).states[::3], [AppState.CANCELLED] * 2)
    (tmp_path / "go").touch()
    assert sweeps.ended(handle).counts() == {AppState.CANCELLED: 2, AppState.SUCCEEDED: 2}
    with pytest.raises(NotFoundError, match="no task `4`"):
        sweeps.runner.status(f"{handle}/4")


def test_pacers_are_killed(sweeps: Sweeps, tmp_path: Path) -> None:
    """The next process that looks starts a new one; no task is lost or runs twice."""
    handle = sweeps(gang(f"echo {{k}} >> {tmp_path}/witness", 1, X="{k}"), 30, 3)

    def succeeded(n: int) -> bool:
        return sweeps.table(handle).counts().get(AppState.SUCCEEDED, 0) >= n

    for seen in range(0, 30, 5):
        becomes(partial(succeeded, seen), True)
        for pid in pacers(handle):
            os.kill(pid, signal.SIGKILL)
    assert sweeps.ended(handle).counts() == {AppState.SUCCEEDED: 30}
    assert sorted(map(int, (tmp_path / "witness").read_text().split())) == list(range(30))


def test_secrets_are_nowhere_written(sweeps: Sweeps, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new pacer takes them from the environment of the process that starts it."""
    script = f"echo $HF_TOKEN | md5sum > {tmp_path}/seen-{{k}}; until test -e {tmp_path}/go; do sleep 0.02; done"
    handle = sweeps(gang(script, HF_TOKEN="hf_planted9Qz"), 2, 1)
    becomes((tmp_path / "seen-0").exists, True)
    for pid in pacers(handle):
        os.kill(pid, signal.SIGKILL)
    folder = Path(torchx_home("sweeps", handle.rpartition("/")[2]))
    assert not [path for path in folder.rglob("*") if path.is_file() and b"planted9Qz" in path.read_bytes()]
    (tmp_path / "go").touch()

    def said() -> bool:
        status = sweeps.runner.status(handle)
        return status is not None and "`HF_TOKEN`" in status.msg

    becomes(said, True)
    becomes(lambda: sweeps.table(handle).states, [AppState.SUCCEEDED, AppState.PENDING])
    becomes(partial(pacers, handle), [])
    before = (folder / "lock").stat().st_mtime
    started = {(sweeps.table(handle).states[1], (folder / "lock").stat().st_mtime) for _ in range(5)}
    assert len(started) <= 2, (before, started)  # who waits does not start one at each look
    monkeypatch.setenv("HF_TOKEN", "hf_planted9Qz")
    assert sweeps.ended(handle).counts() == {AppState.SUCCEEDED: 2}
    assert (tmp_path / "seen-0").read_text() == (tmp_path / "seen-1").read_text()


def test_again_those_that_failed(sweeps: Sweeps, tmp_path: Path) -> None:
    """A new sweep of only the failed tasks."""
    first = sweeps(gang(f"test {{k}} = 0 || mkdir {tmp_path}/{{k}}-${{replica_id}} 2>/dev/null && exit 1; exit 0"), 3)
    sweeps.ended(first)
    info, tasks = sweeps.runner.retry_sweep(first)
    failed = [k for k, state in enumerate(sweeps.table(first).states) if state is AppState.FAILED]
    assert [int(point[0]) for point in tasks.points] == failed
    sweeps.made.append(sweeps.runner.schedule_sweep(info, tasks))
    assert len(sweeps.ended(sweeps.made[-1]).states) == len(failed)


def test_delete(sweeps: Sweeps) -> None:
    """The files of the sweep and the jobs of its tasks are removed."""
    handle = sweeps(gang("true"), 2)
    sweeps.ended(handle)
    assert os.listdir(torchx_home("local", "paced"))
    sweeps.runner.delete(handle)
    assert not os.listdir(torchx_home("local", "paced"))
    assert not os.listdir(torchx_home("sweeps"))
    assert sweeps.runner.status(handle) is None


def test_delete_where_the_tasks_do_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the host of the sweep cancels its tasks: if it does not, that is an error after a while, and the sweep stays."""
    monkeypatch.setattr("torchx.runner.jobs.paced.sweeps._DELETE_S", 0.0)
    app = AppDef("job", [Role("w", "", entrypoint="p")])
    head = {"host": "elsewhere", "width": 1, "app": appdef_to_dict(app), "cwd": "/"}
    folder = paced.create("sweep-test", head, [("1",), ("2",)])
    with Tasks(folder) as tasks:
        tasks.change(0, WAITING, phase=SUBMITTED, app_id="job-0")
    with pytest.raises(BackendError, match="its tasks are submitted by `elsewhere`"):
        PacedSweeps(Unreliable(lambda *_: None)).delete("sweep-test")
    with Tasks(folder) as tasks:
        assert tasks.table(1).states == [AppState.PENDING, AppState.CANCELLED]


class Unreliable(Scheduler[Mapping[str, Any]]):
    """An in-memory scheduler that can raise an error for each call."""

    wait_hint = 0.01
    submission_s = 0.0

    def __init__(self, refuse: Callable[[str, int], Exception | None], *, lost: bool = True) -> None:
        super().__init__("unreliable", "test")
        self.refuse, self.lost = refuse, lost
        self.jobs: dict[str, AppDef] = {}
        self.tries: dict[str, int] = {}

    def _submit_dryrun(self, app: AppDef, cfg: Mapping[str, Any]) -> AppDryRunInfo[str]:
        return AppDryRunInfo(app.name, str)

    def expected_id(self, dryrun_info: AppDryRunInfo[str]) -> str:
        return dryrun_info.request

    def schedule(self, dryrun_info: AppDryRunInfo[str]) -> str:
        name = dryrun_info.request
        self.tries[name] = self.tries.get(name, 0) + 1
        error = self.refuse(name, self.tries[name])
        if error is None or (isinstance(error, TransientError) and self.lost):
            assert name not in self.jobs
            assert dryrun_info._app is not None
            self.jobs[name] = dryrun_info._app
        if error is not None:
            raise error
        return name

    def describe(self, app_id: str) -> DescribeAppResponse | None:
        if app_id not in self.jobs:
            return None
        failed = self.jobs[app_id].roles[0].args == ["fails"]
        failure = Failure("no data", exit_code=4, role="w", replica=0).to_structured_msg()
        return DescribeAppResponse(
            app_id=app_id,
            state=AppState.FAILED if failed else AppState.SUCCEEDED,
            structured_error_msg=failure if failed else "<NONE>",
        )

    def list(self, cfg: Mapping[str, Any] | None = None) -> list[ListAppResponse]:
        return []

    def _cancel_existing(self, app_id: str) -> None:
        raise AssertionError(app_id)


def pace(backend: Unreliable, values: list[str], monkeypatch: pytest.MonkeyPatch) -> tuple[TaskTable, list[str]]:
    """The states and messages of tasks with these values as arguments."""
    monkeypatch.setattr("torchx.runner.jobs.paced.pacer._FIRST_PAUSE_S", 0.001)
    app = AppDef("job", [Role("w", "", entrypoint="p", args=["{v}"])])
    head = {"cfg": {}, "names": ["v"], "width": 2, "scheduler": "fake", "session": "me"}
    folder = paced.create("sweep-test", head, [(value,) for value in values])
    with Tasks(folder) as tasks:
        Pacer(tasks, backend, app, head).run()
        return tasks.table(2), [task.msg for task in tasks.all(ENDED)]


class Builds(Unreliable):
    """A scheduler that builds workspaces; tests set the hash of the code."""

    hash = "h1"

    def build_workspaces(self, roles: list[Role], cfg: Mapping[str, Any]) -> None:
        for role in roles:
            if role.workspace:
                role.image, role.env["TORCHX_WORKSPACE_HASH"] = f"{role.image}+code", self.hash


def test_code_is_built_in_where_the_tasks_are_submitted() -> None:
    """Once, onto the base image; but not if it has changed since the launch."""
    app = AppDef("job", [Role("w", "base", workspace=Workspace.from_str("file:///code")), Role("plain", "base")])
    backend = Builds(lambda *_: None)
    head: dict[str, Any] = {"cfg": {}, "hashes": {"w": "h1"}}
    build(app, backend, head)
    assert [role.image for role in app.roles] == ["base+code", "base"]
    backend.hash = "h2"
    with pytest.raises(ConfigError, match="has changed since the launch"):
        build(app, backend, head)


def test_a_folder_with_the_code_serves_all_tasks(tmp_path: Path) -> None:
    """The copy of the launch is used by all tasks; an image is built again."""
    code = Workspace.from_str("file:///code")
    info: AppDryRunInfo[str] = AppDryRunInfo("", str)
    env = {"TORCHX_WORKSPACE_HASH": "h1"}
    roles = [Role("a", str(tmp_path), env=dict(env), workspace=code), Role("b", "b:1", env=dict(env), workspace=code)]
    info._app, info.submission.tags = AppDef("job", roles), {"image.a": "", "image.b": "base"}
    app, hashes = unbuilt(info)
    assert [(role.image, role.workspace is None, role.env) for role in app.roles] == [
        (str(tmp_path), True, env),
        ("base", False, {}),
    ]
    assert hashes == {"b": "h1"}


@pytest.mark.parametrize("lost", [True, False], ids=["the job is there", "it is not"])
def test_an_answer_that_was_lost(lost: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The scheduler is asked: each task runs once, whether or not the submission succeeded."""
    backend = Unreliable(lambda _, n: TransientError("cut off") if n == 1 else None, lost=lost)
    table, _ = pace(backend, ["a", "fails", "c"], monkeypatch)
    assert [state.name for state in table.states] == ["SUCCEEDED", "FAILED", "SUCCEEDED"]
    assert table.exit_codes == [0, 4, 0]
    assert backend.tries == dict.fromkeys(["job-0", "job-1", "job-2"], 1 if lost else 2)


def test_a_scheduler_that_refuses_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """The submission is retried; no task fails because the scheduler is full."""
    backend = Unreliable(lambda _, n: BackendError("too many jobs") if n < 4 else None)
    assert pace(backend, ["a", "b"], monkeypatch)[0].counts() == {AppState.SUCCEEDED: 2}


def test_a_job_that_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """An invalid job fails at once, one that the scheduler rejects after some tries; the others run."""

    def refuse(name: str, _: int) -> Exception | None:
        return {"job-0": SpecError("no such name"), "job-1": BackendError("no such partition")}.get(name)

    backend = Unreliable(refuse)
    table, said = pace(backend, ["a", "b", "c"], monkeypatch)
    assert [state.name for state in table.states] == ["FAILED", "FAILED", "SUCCEEDED"]
    assert "no such name" in said[0]
    assert "no such partition" in said[1]
    assert backend.tries["job-0"] == 1


def test_jobs_that_are_all_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first is retried, the others are tried once, so that a thousand of them end quickly."""
    backend = Unreliable(lambda *_: BackendError("no such partition"))
    table, _ = pace(backend, ["a"] * 5, monkeypatch)
    assert table.counts() == {AppState.FAILED: 5}
    assert backend.tries == {"job-0": 6, **{f"job-{k}": 1 for k in range(1, 5)}}


@contextmanager
def full_disk() -> Iterator[None]:
    """Files cannot grow."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk() -> None:
    """A new sweep leaves nothing behind, and one that exists stays as it is; both errors name the folder."""
    with full_disk(), pytest.raises(BackendError, match="sweep-new"):
        paced.create("sweep-new", {}, [["1"]])
    assert os.listdir(torchx_home("sweeps")) == []
    folder = paced.create("sweep-old", {}, [["1"]])
    with pytest.raises(BackendError, match="sweep-old"), full_disk(), Tasks(folder) as tasks:
        tasks.stop(None)
    with Tasks(folder) as tasks:
        assert tasks.table(1).states == [AppState.PENDING]
