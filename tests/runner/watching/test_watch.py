"""Watches: each change is reported once and in order, whichever process polls the scheduler."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import threading
import time
from collections import Counter, deque
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from tests.runner.memory_backend import MemoryScheduler, UnreachableScheduler, echo_app
from torchx.errors import BackendError, NotFoundError
from torchx.runner import Runner
from torchx.runner.watching import changes, poller
from torchx.runner.watching.poller import Heartbeat, _Files
from torchx.runs import NewRun, default_registry
from torchx.schedulers.api import DescribeAppResponse
from torchx.schedulers.kit.caps import Capabilities
from torchx.specs import AppState, AppStatus

PENDING, RUNNING, SUCCEEDED, FAILED = AppState.PENDING, AppState.RUNNING, AppState.SUCCEEDED, AppState.FAILED


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Pollers with intervals of hundredths of a second."""
    monkeypatch.setattr(poller, "LEAST_S", 0.02)
    monkeypatch.setattr(poller, "_STANDBY_S", 0.01)
    monkeypatch.setattr(poller, "_LOOK_S", 0.0)
    monkeypatch.setattr(changes, "TICK_S", 0.005)


def states(found):
    return [(change.handle.rpartition("/")[2], change.was, change.state) for change in found]


def test_a_status_needs_the_beat_of_its_scheduler_alone():
    """Those of others are not read."""
    beat = Heartbeat(pid=1, due=0.0, error="", unknown=("b",), idle=False, every=1.0)
    registry: Any = SimpleNamespace(status=lambda handle: AppStatus(RUNNING))
    named: Any = {
        "memory": SimpleNamespace(read_heartbeat=lambda: beat, stop=lambda: None),
        "other": SimpleNamespace(read_heartbeat=pytest.fail, stop=lambda: None),
    }
    pollers = changes._Pollers(registry, registry)
    pollers._pollers = named
    assert pollers.status("memory://s/a") == AppStatus(RUNNING)
    assert pollers.status("memory://s/b") is None
    assert pollers.status("unpolled://s/a") is None


def test_named_jobs_until_they_have_ended(runner, jobs):
    """First the current states, then each change; the watch stops when the last job has ended."""
    one, two = (runner.run(echo_app(), "memory") for _ in "12")
    runner.run(echo_app(), "memory")
    found = []
    with runner.watch(one, two) as watch:
        for change in watch:
            found.append(change)
            if [c.state for c in found].count(RUNNING) == 2 and change.state is RUNNING:
                jobs["echo-1"].state = FAILED
            elif change.state is FAILED:
                jobs["echo-2"].state = SUCCEEDED
    # The first question finds all of them running.
    assert states(c for c in found if c.state is not RUNNING) == [
        ("echo-1", None, AppState.SUBMITTED),
        ("echo-2", None, AppState.SUBMITTED),
        ("echo-1", RUNNING, FAILED),
        ("echo-2", RUNNING, SUCCEEDED),
    ]
    assert [change.seq for change in found][:2] == [0, 0]
    assert found[-1].is_terminal() and found[-1].at <= time.time()


def test_async(runner, jobs):
    """`async for` yields the same as `for`, without blocking the event loop."""

    async def main():
        handle = runner.run(echo_app(), "memory")
        turns = 0

        async def others():
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        task = asyncio.create_task(others())
        found = []
        with runner.watch(handle) as watch:
            async for change in watch:
                found.append(change.state)
                if change.state is RUNNING:
                    jobs["echo-1"].state = SUCCEEDED
        task.cancel()
        return found, turns

    found, turns = asyncio.run(main())
    assert found == [AppState.SUBMITTED, RUNNING, SUCCEEDED]
    assert turns > 1


def test_all_runs_and_those_to_come(runner, jobs):
    """A watch of all runs does not stop; a job that is submitted later is reported, and its scheduler polled."""
    with runner.watch() as watch:
        assert watch.within(0) is None
        runner.run(echo_app(), "memory")
        assert next(watch).state is AppState.SUBMITTED
        assert next(watch).state is RUNNING
        jobs["echo-1"].state = SUCCEEDED
        assert next(watch).state is SUCCEEDED
    with pytest.raises(StopIteration):
        next(watch)


def test_a_job_that_has_ended(runner, jobs):
    """Only its final state is reported; a job that is not on record is an error."""
    handle = runner.run(echo_app(), "memory")
    default_registry().saw(handle, FAILED, msg="exit code 3")
    (change,) = runner.watch("@last")
    assert (change.state, change.msg, change.was) == (FAILED, "exit code 3", None)
    with pytest.raises(NotFoundError, match="not on record"):
        runner.watch("memory://test/nobody")


def test_one_of_many_asks(jobs, tmp_path, monkeypatch):
    """Of five watches, one polls and the others stand by; when it ends, another takes over, and none misses a change."""
    asked: list[Counting] = []

    class Counting(MemoryScheduler):
        def describe_many(self, app_ids):
            asked.append(self)
            return super().describe_many(app_ids)

    def factory(session_name, **params):
        return Counting(session_name, jobs=jobs)

    monkeypatch.chdir(tmp_path)
    with Runner("test", {"memory": factory}) as runner, ExitStack() as stack:
        handle = runner.run(echo_app(), "memory")
        watches = [stack.enter_context(runner.watch(handle)) for _ in range(5)]
        for watch in watches:
            while next(watch).state is not RUNNING:
                pass
        assert len(set(map(id, asked))) == 1  # each poller has a scheduler of its own
        (first,) = (w for w in watches if any(p._files._lock_fd for p in w._pollers._pollers.values()))
        (asking,) = first._pollers._pollers.values()
        first.close()
        asking._thread.join(60)  # a question that takes long is not waited for when a watch is closed
        jobs["echo-1"].state = SUCCEEDED
        assert [next(watch).state for watch in watches if watch is not first] == [SUCCEEDED] * 4
        assert len(set(map(id, asked)) - {id(asked[0])}) == 1


def test_a_loop_that_is_left(runner, jobs):
    """The poller of a watch ends even if the watch is not closed."""
    runner.run(echo_app(), "memory")
    watch = runner.watch()
    (poller,) = watch._pollers._pollers.values()
    assert poller._thread.is_alive()
    for _ in watch:
        break
    del watch
    poller._thread.join(30)
    assert not poller._thread.is_alive()


def test_a_scheduler_that_cannot_be_asked(tmp_path, monkeypatch):
    """`problems` reports it while the outage lasts; the watch continues."""
    broken = [True]

    class Shaky(UnreachableScheduler):
        def describe_many(self, app_ids):
            if broken:
                raise BackendError("connection refused")
            return {app_id: self.jobs[app_id] for app_id in app_ids}

    jobs = {}
    monkeypatch.chdir(tmp_path)
    with Runner("test", {"shaky": lambda session_name, **params: Shaky(session_name, jobs=jobs)}) as runner:
        handle = runner.run(echo_app(), "shaky")
        with runner.watch(handle) as watch:
            next(watch)
            while not watch.problems():
                assert watch.within(0.01) is None
            assert "connection refused" in watch.problems()["shaky"]
            broken.clear()
            assert next(watch).state is RUNNING
            while watch.problems():
                assert watch.within(0.01) is None


def test_a_scheduler_that_is_not_installed(runner):
    """A run of a plugin that was removed: `problems` reports it, and its poller continues."""
    registry = default_registry()
    registry.submitted(registry.begin(NewRun(scheduler="gone", session="test", name="a")), "gone://test/a")
    with runner.watch() as watch:
        while not watch.problems():
            watch.within(0.01)
        assert "`gone` is not known" in watch.problems()["gone"]
        assert not watch._pollers._pollers["gone"].is_over()


def test_a_job_that_nobody_knows_is_seldom_asked_for(runner, jobs, monkeypatch):
    """The configuration may point to another cluster: the job stays on record, and is queried every ten minutes."""
    handle = runner.run(echo_app(), "memory")
    store = default_registry().store()
    store.execute("UPDATE runs SET created_at = created_at - 3600, state = 'RUNNING'")
    del jobs["echo-1"]
    asked = []

    def describe_many(self, ids):
        asked.append(self)
        return dict.fromkeys(ids)

    monkeypatch.setattr(MemoryScheduler, "describe_many", describe_many)
    with runner.watch(handle) as watch:
        next(watch)
        while not asked:
            assert watch.within(0.01) is None
        assert watch.within(0.2) is None
        (beat,) = watch._pollers.beats().values()
        assert beat.idle or beat.unknown == ("echo-1",)
        backends = watch._pollers._pollers["memory"]._backends
        ours = backends.get("memory", handle.split("/")[2])  # a poller of an earlier test may take a while to end
        assert asked.count(ours) == 1


# -- the lock and the beat -------------------------------------------------------------------------


def test_the_next_question_is_due_when_the_last_poller_said(runner, monkeypatch):
    """Pollers that are killed again and again poll no more often than a single one."""
    runner.run(echo_app(), "memory")
    due = time.monotonic() + 0.3
    files = _Files("memory")
    assert files.is_ours()
    files.write(Heartbeat(1, due))
    files.release()
    asked_at = []
    describe_many = MemoryScheduler.describe_many
    monkeypatch.setattr(
        MemoryScheduler,
        "describe_many",
        lambda self, ids: asked_at.append(time.monotonic()) or describe_many(self, ids),
    )
    with runner.watch() as watch:
        assert next(watch).state is AppState.SUBMITTED
        assert next(watch).state is RUNNING
    assert asked_at[0] >= due


def test_a_holder_that_was_stopped_is_stood_in_for():
    """If the poller was stopped (Ctrl-Z) and its next query is overdue, one other process polls."""
    sleeper = subprocess.Popen(["sleep", "600"])
    try:
        holder, other, third = (_Files("x") for _ in range(3))
        assert holder.is_ours()
        holder.write(Heartbeat(sleeper.pid, time.monotonic() - 1))
        assert not other.is_ours()
        os.kill(sleeper.pid, signal.SIGSTOP)
        os.waitpid(sleeper.pid, os.WUNTRACED)
        assert other.is_ours()
        other.write(Heartbeat(os.getpid(), time.monotonic() + 60))
        assert other.is_ours()
        holder.write(Heartbeat(sleeper.pid, time.monotonic() + 60))  # it goes on
        os.kill(sleeper.pid, signal.SIGCONT)
        assert not other.is_ours()
        assert not third.is_ours()
        holder.release()
        assert third.is_ours()
    finally:
        sleeper.kill()
        sleeper.wait()


@pytest.mark.parametrize(
    ("due_in", "late"),
    [(5.0, False), (-5.0, False), (-100.0, True), (1e6, True)],
    ids=["soon", "asking", "hung", "old boot"],
)
def test_a_late_beat(due_in, late):
    """A poller may take long to answer; a beat from before the last boot is ignored."""
    assert Heartbeat(os.getpid(), time.monotonic() + due_in).is_late() is late


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"pid": "x", "due": 0, "error": "", "unknown": [], "idle": 0, "every": 1}']
)
def test_a_beat_that_cannot_be_read(text):
    """It is ignored."""
    files = _Files("x")
    assert files.is_ours()
    with open(f"{files._path}.json", "w", encoding="utf-8") as file:
        file.write(text)
    assert files.read_heartbeat() is None
    files.release()


def test_a_beat_is_read_once():
    """Each of a thousand awaited jobs looks at it five times a second: only a new one is parsed."""
    files, reader = _Files("x"), _Files("x")
    assert files.is_ours()
    files.write(Heartbeat(1, 2.0, unknown=("echo-1",)))
    first = reader.read_heartbeat()
    assert first == Heartbeat(1, 2.0, unknown=("echo-1",))
    assert reader.read_heartbeat() is first
    files.write(Heartbeat(1, 3.0))
    assert reader.read_heartbeat() == Heartbeat(1, 3.0)
    files.release()


def test_a_home_that_cannot_be_written(monkeypatch):
    """No process polls there: waiting callers query the scheduler themselves."""
    monkeypatch.setenv("TORCHX_HOME", "/proc/nowhere")
    files = _Files("x")
    assert not files.is_ours()
    files.write(Heartbeat(1, 0.0))
    assert files.read_heartbeat() is None


class Cluster(MemoryScheduler):
    """Describes many jobs with one query; queries are counted."""

    capabilities = Capabilities(describe_many=True)
    questions: ClassVar[Counter[str]] = Counter()

    def describe(self, app_id):
        self.questions["one"] += 1
        return super().describe(app_id)

    def describe_many(self, app_ids):
        self.questions["many"] += 1
        ids = list(app_ids)
        return {app_id: super(Cluster, self).describe(app_id) for app_id in ids}


def cluster(jobs):
    Cluster.questions.clear()
    return {"memory": lambda session_name, **params: Cluster(session_name, jobs=jobs)}


def test_waiting_is_reading(jobs, tmp_path, monkeypatch):
    """Each waiting caller queries at most once, before a poller runs; the end and its cause come from the registry."""
    monkeypatch.chdir(tmp_path)
    factories = cluster(jobs)
    found = []

    def wait():
        with Runner("test", factories) as mine:
            found.append(mine.wait("@last", timeout=60))

    with Runner("test", factories) as runner:
        handle = runner.run(echo_app(), "memory")
        with runner.watch(handle) as watch:
            while next(watch).state is not RUNNING:
                pass
            while None in watch._pollers.beats().values():  # the change is recorded before the beat
                watch.within(0.01)
            Cluster.questions.clear()
            threads = [threading.Thread(target=wait) for _ in range(5)]
            for thread in threads:
                thread.start()
            while Cluster.questions["many"] < 5:
                watch.within(0.05)
            assert Cluster.questions["one"] == 0
            jobs["echo-1"].state, jobs["echo-1"].msg = FAILED, "exit code 3"
            for thread in threads:
                thread.join(60)
            assert [(s.state, s.msg) for s in found] == [(FAILED, "exit code 3")] * 5
            assert Cluster.questions["one"] == 0
            assert runner.wait(handle, timeout=0).msg == "exit code 3"
            assert Cluster.questions["one"] == 0


def test_a_wait_alone_polls(jobs, tmp_path, monkeypatch):
    """Without a watch, a waiting caller queries once, then is the poller; a timeout reports the state."""
    monkeypatch.chdir(tmp_path)
    with Runner("test", cluster(jobs)) as runner:
        handle = runner.run(echo_app(), "memory")
        with pytest.raises(TimeoutError, match="is RUNNING after"):
            runner.wait(handle, timeout=0.3)
        assert (asked := Cluster.questions["one"]) <= 1
        assert Cluster.questions["many"] > 1
        jobs["echo-1"].state = SUCCEEDED
        assert runner.wait(handle).state is SUCCEEDED
        assert Cluster.questions["one"] == asked
        # A job that is not on record is asked for, as ever.
        jobs["foreign"] = DescribeAppResponse("foreign", FAILED)
        assert runner.wait("memory://test/foreign").state is FAILED
        assert Cluster.questions["one"] == asked + 1


def test_a_wait_hears_that_nobody_can_be_asked(tmp_path, monkeypatch):
    """If the poller fails, waiting callers query the scheduler themselves, and get its error."""
    monkeypatch.chdir(tmp_path)

    class Away(Cluster):
        down = False

        def describe(self, app_id):
            return self._tried(super().describe, app_id)

        def describe_many(self, app_ids):
            return self._tried(super().describe_many, app_ids)

        def _tried(self, ask, what):
            if Away.down:
                raise BackendError("connection refused")
            return ask(what)

    jobs = {}
    with Runner("test", {"memory": lambda session_name, **params: Away(session_name, jobs=jobs)}) as runner:
        handle = runner.run(echo_app(), "memory")
        with pytest.raises(TimeoutError):
            runner.wait(handle, timeout=0.2)
        Away.down = True
        with pytest.raises(BackendError, match="connection refused"):
            runner.wait(handle, timeout=60)


def test_nobody_looks_and_nobody_polls(jobs, tmp_path, monkeypatch):
    """A notebook that waited once does not poll forever; the next wait starts a new poller."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(poller, "_UNWANTED_S", 0.05)
    with Runner("test", cluster(jobs)) as runner:
        handle = runner.run(echo_app(), "memory")
        with pytest.raises(TimeoutError):
            runner.wait(handle, timeout=0.01)
        (first,) = runner._news._pollers._pollers.values()
        first._thread.join(30)
        assert first.is_over()
        jobs["echo-1"].state = SUCCEEDED
        assert runner.wait(handle, timeout=60).state is SUCCEEDED


class Heard(Cluster):
    """Reports the changed jobs that a test names."""

    hears_all = True
    news: ClassVar[deque[set[str] | None]] = deque()
    asked_for: ClassVar[list[list[str]]] = []

    def changed(self, app_ids, most_s):
        deadline = time.monotonic() + most_s
        while not self.news:
            if time.monotonic() >= deadline:
                return set()
            time.sleep(0.001)
        return self.news.popleft()

    def describe_many(self, app_ids):
        ids = list(app_ids)
        self.asked_for.append(ids)
        return super().describe_many(ids)


@pytest.fixture
def heard(jobs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Heard.news.clear()
    Heard.asked_for.clear()
    with Runner("test", {"memory": lambda session_name, **params: Heard(session_name, jobs=jobs)}) as runner:
        yield runner


def test_only_what_has_changed_is_asked_for(heard, jobs, monkeypatch):
    """Only jobs that the scheduler reports as changed are queried, once more a moment later, and new ones."""
    monkeypatch.setattr(poller, "_ONCE_MORE_S", 0.01)
    handles = [heard.run(echo_app(), "memory") for _ in range(3)]
    with heard.watch(*handles) as watch:
        while Heard.asked_for != [["echo-3", "echo-2", "echo-1"]] or len(watch._seen) < 3:
            watch.within(0.01)
        del Heard.asked_for[:]
        jobs["echo-2"].msg = "soon"
        Heard.news.append({"echo-2", "foreign"})
        while next(watch).msg != "soon":
            pass
        deadline = time.monotonic() + 60
        while len(Heard.asked_for) < 2 and time.monotonic() < deadline:
            time.sleep(0.001)
        assert Heard.asked_for == [["echo-2"], ["echo-2"]]
        jobs["echo-2"].state = SUCCEEDED
        Heard.news.append({"echo-2"})
        while next(watch).state is not SUCCEEDED:
            pass
        assert all(ids == ["echo-2"] for ids in Heard.asked_for)
        heard.run(echo_app(), "memory")
        while ["echo-4", "echo-3", "echo-1"] not in Heard.asked_for:
            assert time.monotonic() < deadline
            time.sleep(0.001)


def test_who_has_missed_something_asks_for_all(heard, jobs):
    """When the stream of changes ends or begins, changes may have been missed."""
    handle = heard.run(echo_app(), "memory")
    with heard.watch(handle) as watch:
        while next(watch).state is not RUNNING:
            pass
        jobs["echo-1"].state = FAILED
        Heard.news.append(None)
        assert next(watch).state is FAILED


def test_an_ear_that_hears_nothing_at_all(heard, jobs):
    """If streams end at once, the scheduler is polled at its interval, not in a busy loop."""
    handle = heard.run(echo_app(), "memory")
    Heard.news.extend([None] * 10_000)
    with heard.watch(handle) as watch:
        deadline = time.monotonic() + 0.5
        while time.monotonic() < deadline:
            watch.within(0.05)
        assert 2 <= len(Heard.asked_for) <= 100
        jobs["echo-1"].state = SUCCEEDED
        while next(watch).state is not SUCCEEDED:
            pass
