"""Submissions: what is recorded, and what happens if a submission fails."""

from __future__ import annotations

import os
import sys
from typing import Any

import pytest

from tests.runner.memory_backend import Killed, MemoryScheduler, backend, echo_app
from torchx.errors import (
    BackendError,
    HandleError,
    SpecError,
    TransientError,
    Unsent,
)
from torchx.runner import Runner
from torchx.runs import NewRun, default_registry
from torchx.schedulers.api import DescribeAppResponse
from torchx.specs import (
    AppState,
    Workspace,
)

# -- submission ------------------------------------------------------------------------------------


def test_a_run_is_on_record_with_where_everything_came_from(runner, tmp_path):
    """Handle, app, options with sources, directory, command line, parent; no secrets."""
    (tmp_path / ".torchxconfig").write_text("[memory]\nqueue = from-file\n")
    app = echo_app(
        env={"HF_TOKEN": "s3cret", "A": "b"}, args=["--api-key", "s3cret", "x"], workspace=Workspace({"/w": ""})
    )
    handle = runner.run(app, "memory", {"priority": 2, "api_key": "s3cret"}, parent_run_id="p")
    run = runner.recorded(handle)
    assert (run.handle, run.scheduler, run.session, run.name) == (handle, "memory", "test", "echo")
    assert run.state is AppState.SUBMITTED
    assert run.cfg["queue"] == {"value": "from-file", "source": ".torchxconfig:2"}
    assert run.cfg["priority"] == {"value": 2, "source": "code"}
    assert run.cfg["tags"] == {"value": None, "source": "default"}
    assert (run.cwd, run.argv[-1], run.parent_run_id) == (str(tmp_path), sys.argv[-1], "p")
    assert (run.image, run.workspace) == ("/tmp", "/w")
    assert run.appdef().roles[0].env["A"] == "b"
    with open(default_registry().path, "rb") as file, open(default_registry().path + "-wal", "rb") as wal:
        assert b"s3cret" not in file.read() + wal.read()


def test_the_commit_is_on_record(runner, tmp_path, monkeypatch):
    """In a git repository, the commit, and whether files differed from it."""
    import subprocess

    def git(*words):
        env = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
        who = ("-c", "user.name=x", "-c", "user.email=x@y")
        return subprocess.run(["git", *who, *words], cwd=tmp_path, env=env, check=True, capture_output=True, text=True)

    git("init", "-q")
    (tmp_path / "file").write_text("1")
    git("add", "file")
    git("commit", "-qm", "one")
    (tmp_path / "file").write_text("2")
    monkeypatch.setattr("torchx.runner.launch.record.GIT_TIMEOUT_S", 100.0)
    handle = runner.run(echo_app(), "memory")
    assert runner.recorded(handle).git_commit == git("rev-parse", "HEAD").stdout.strip()
    runner.close()
    assert runner.recorded(handle).git_dirty is True
    again = runner.run(echo_app(), "memory")
    assert runner.recorded(again).git_dirty is True


def test_a_submission_that_is_refused_leaves_no_run(runner):
    """The scheduler's error is raised, and no run is listed."""
    backend(runner).refuses = BackendError("no quota")
    with pytest.raises(BackendError, match="no quota"):
        runner.run(echo_app(), "memory")
    assert runner.runs() == []
    assert default_registry().intents() == []


@pytest.mark.parametrize("name", ["my session", "a/b", "a\n"], ids=["blank", "slash", "line"])
def test_a_session_that_no_handle_can_contain(jobs, name):
    """The error comes before anything is submitted."""
    with Runner(name, {"memory": lambda session_name, **params: MemoryScheduler(session_name, jobs=jobs)}) as runner:
        with pytest.raises(HandleError, match="not a valid session name"):
            runner.run(echo_app(), "memory")
        assert not jobs
        assert not runner.runs(refresh=False)


@pytest.mark.parametrize("error", [TransientError("timed out"), KeyboardInterrupt()], ids=["timeout", "Ctrl-C"])
def test_a_submission_whose_answer_was_lost_is_settled_by_asking(runner, jobs, error):
    """After a transient failure or an interrupt, the job is recorded once its scheduler knows it."""
    backend(runner).refuses = error
    with pytest.raises(type(error)):
        runner.run(echo_app(), "memory")
    assert runner.runs() == []
    assert len(default_registry().intents()) == 1
    jobs["echo-1"] = DescribeAppResponse("echo-1", AppState.RUNNING)
    assert [run.handle for run in runner.runs()] == ["memory://test/echo-1"]


def test_an_interrupted_submission_that_started_nothing_never_shows(runner, monkeypatch):
    """If the submitter is gone and the scheduler does not know the job, there is no run."""
    default_registry().begin(NewRun(scheduler="memory", session="test", name="a", handle="memory://test/a-1"))
    default_registry().begin(NewRun(scheduler="memory", session="test", name="a"))
    assert runner.runs() == []
    monkeypatch.setattr("torchx.runs.submitter.may_be_alive", lambda submitter: False)
    assert runner.runs() == []
    assert len(default_registry().intents()) == 2  # so young that the scheduler may not have heard of it
    monkeypatch.setattr(MemoryScheduler, "submission_s", -1.0)
    assert runner.runs() == []
    assert default_registry().intents() == []


class TokenScheduler(MemoryScheduler):
    """Finds a job by the token of its request, as a cluster does by a job's name; `found` is its answer."""

    def __init__(self, session_name, *, found, **params):
        super().__init__(session_name, ids_known=False, **params)
        self.found = found

    def submission_token(self, dryrun_info):
        return f"token-of-{dryrun_info.request.app.name}"

    def find_submission(self, token, cfg, *, age_s):
        self.asked.append((token, cfg["queue"]))
        if isinstance(self.found, Exception):
            raise self.found
        return self.found


def lost_submission(runner, jobs, found):
    """A Runner whose process was killed between submission and record, and the next Runner."""
    factory: Any = {"memory": lambda session_name: TokenScheduler(session_name, jobs=jobs, found=found)}
    killed = Runner("test", factory)
    backend(killed).refuses = Killed()
    with pytest.raises(Killed):
        killed.run(echo_app(), "memory", {"queue": "gpu"})
    return Runner("test", factory)


def test_a_submitter_that_was_killed_leaves_its_token(runner, jobs, monkeypatch, caplog):
    """The next Runner asks for the token, with the recorded options, and records the job with a warning."""
    runner = lost_submission(runner, jobs, "17")
    jobs["17"] = DescribeAppResponse("17", AppState.RUNNING)
    assert runner.runs() == []  # it may be at it still
    monkeypatch.setattr("torchx.runs.submitter.may_be_alive", lambda submitter: False)
    assert runner.resolve("@last") == "memory://test/17"
    assert backend(runner).asked == [("token-of-echo", "gpu")]
    assert [(run.handle, run.state) for run in runner.runs()] == [("memory://test/17", AppState.RUNNING)]
    assert runner.recorded("17").appdef().roles[0].name == "echo"
    assert "led to `memory://test/17`, which is on record now" in caplog.text


@pytest.mark.parametrize(
    ("found", "said", "left"),
    [
        ("", "led to no job", 0),
        (None, "is not known yet: `memory` will be asked again", 1),
        (BackendError("no route to host"), "is not known yet", 1),
    ],
    ids=["nothing was submitted", "not known yet", "cannot be asked"],
)
def test_a_submitter_that_was_killed_before(runner, jobs, monkeypatch, caplog, found, said, left):
    """No run is listed, but the intent is dropped only once the scheduler denies the job."""
    runner = lost_submission(runner, jobs, found)
    monkeypatch.setattr("torchx.runs.submitter.may_be_alive", lambda submitter: False)
    assert runner.runs() == []
    assert said in caplog.text
    assert len(default_registry().intents()) == left


def test_a_submitter_of_another_host(runner, jobs, monkeypatch):
    """It may be alive: an existing job is recorded, but "no job" is not trusted."""
    runner = lost_submission(runner, jobs, "")
    monkeypatch.setattr("torchx.runs.submitter.is_elsewhere", lambda submitter: True)
    assert runner.runs() == []
    assert backend(runner).asked == []  # it is young
    monkeypatch.setattr(MemoryScheduler, "submission_s", -1.0)
    assert runner.runs() == []
    assert len(default_registry().intents()) == 1
    backend(runner).found = "17"
    jobs["17"] = DescribeAppResponse("17", AppState.RUNNING)
    assert [run.app_id for run in runner.runs()] == ["17"]


def test_a_slow_cluster_does_not_hold_up_the_list(runner, jobs, monkeypatch):
    """The search for lost submissions ends at its time limit."""
    import threading

    runner = lost_submission(runner, jobs, "17")
    monkeypatch.setattr("torchx.runs.submitter.may_be_alive", lambda submitter: False)
    go = threading.Event()
    monkeypatch.setattr(TokenScheduler, "find_submission", lambda *_, **__: go.wait(600) and "17")
    assert runner.runs(timeout_s=0.05) == []
    go.set()


def test_a_run_goes_through_dryrun_and_schedule(jobs):
    """Programs override `dryrun`, `run` and `schedule`, some with fewer parameters: only given arguments are passed."""
    calls = []

    class MyRunner(Runner):
        def dryrun(self, app, scheduler, cfg=None):  # type: ignore[override]  # as old programs do
            calls.append("dryrun")
            info = self._scheduler(scheduler).submit_dryrun(app, cfg or {})
            info._scheduler = scheduler
            return info

        def schedule(self, dryrun_info):
            calls.append("schedule")
            return super().schedule(dryrun_info)

        def run(self, app, scheduler, cfg=None, workspace=None, parent_run_id=None):
            calls.append("run")
            return super().run(app, scheduler, cfg)

    factories: Any = {"memory": lambda session_name: MemoryScheduler(session_name, jobs=jobs)}
    with MyRunner("mine", factories) as runner:
        handle = runner.run(echo_app(), "memory", {"queue": "x"}, workspace="/src")
        assert calls == ["run", "dryrun", "schedule"]
        assert runner.status(handle).state is AppState.RUNNING
        assert runner.recorded(handle).cfg["queue"] == {"value": "x", "source": "code"}
        runner.run_component("utils.echo", [], "memory")
        assert calls[3:] == ["dryrun", "schedule"]


def test_what_was_not_dried_cannot_be_scheduled(runner):
    """An AppDryRunInfo without a scheduler is rejected."""
    info = backend(runner)._submit_dryrun(echo_app(), {})
    with pytest.raises(SpecError, match="does not name a scheduler"):
        runner.schedule(info)


def test_what_fails_before_anything_is_sent_leaves_no_doubt(runner, jobs, monkeypatch):
    """An unreachable server at an earlier question is no lost answer: later commands need not ask about the job."""

    def schedule(info):
        with Unsent():
            raise TransientError("no answer", hint="is the network up?")

    monkeypatch.setattr(backend(runner), "schedule", schedule)
    with pytest.raises(BackendError, match="no answer") as e:
        runner.run(echo_app(), "memory")
    assert not isinstance(e.value, TransientError) and e.value.hint == "is the network up?"
    assert default_registry().intents() == [] and not jobs
