"""Rows of the registry: times, ends, and runs with missing parts."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest

from torchx.errors import HandleError
from torchx.runs import NewRun, RunQuery, schema
from torchx.runs import registry as registry_module
from torchx.runs.references import ambiguous, no_such_run
from torchx.specs import AppState

from .run_rows import add, ids


@pytest.fixture
def clock(monkeypatch) -> Iterator[list[float]]:
    now = [1000.0]
    with monkeypatch.context() as patch:
        patch.setattr(time, "time", lambda: now[0])
        yield now


def test_when_it_happened(registry, clock) -> None:
    """Created at the intent, updated at each change; ended at the first terminal state, unless the scheduler reports a time."""
    run_id = registry.begin(NewRun(scheduler="x", session="s", name="a"))
    [(intent, _)] = registry.intents()
    assert (intent.created_at, intent.updated_at, intent.ended_at) == (1000.0, 1000.0, None)
    clock[0] = 1001.0
    registry.submitted(run_id, "x://s/a")
    clock[0] = 1002.0
    registry.saw("x://s/a", AppState.RUNNING, ended_at=5.0)
    run = registry.get("x://s/a")
    assert (run.created_at, run.updated_at, run.ended_at) == (1000.0, 1002.0, None)
    assert registry.store().rows("SELECT phase FROM runs") == [(schema.SUBMITTED,)]
    clock[0] = 1003.0
    registry.saw("x://s/a", AppState.RUNNING)
    assert registry.get("x://s/a").updated_at == 1002.0
    registry.saw("x://s/a", AppState.RUNNING, msg="a word")
    assert registry.get("x://s/a").updated_at == 1003.0
    registry.saw("x://s/a", AppState.SUCCEEDED)
    assert registry.get("x://s/a").ended_at == 1003.0


def test_an_abandoned_row(registry, clock) -> None:
    """It has the reason and the time, and is not an unfinished run."""
    run_id = registry.begin(NewRun(scheduler="x", session="s", name="a"))
    clock[0] = 1001.0
    registry.abandoned(run_id, "refused")
    rows = registry.store().rows("SELECT phase, unfinished, msg, updated_at, ended_at FROM runs")
    assert rows == [(schema.ABANDONED, 0, "refused", 1001.0, 1001.0)]
    assert registry._begun == {}


def test_a_submission_that_nobody_waits_for(registry) -> None:
    """It stays an intent without a submitter, so that the next process asks the scheduler."""
    run_id = registry.begin(NewRun(scheduler="x", session="s", name="a"))
    registry.unanswered(run_id)
    [(run, who)] = registry.intents()
    assert run.id == run_id and "|gone|0|" in who
    assert registry._begun == {}


def test_what_was_begun_is_not_kept_in_memory(registry) -> None:
    """The memory of a long-running program does not grow."""
    run_id = registry.begin(NewRun(scheduler="x", session="s", name="a"))
    assert list(registry._begun) == [run_id]
    registry.submitted(run_id, "x://s/a")
    assert registry._begun == {}


def test_an_answer_to_a_row_of_another_process(registry) -> None:
    """If the row is gone and the run is not known, no row is created."""
    registry.begin(NewRun(scheduler="x", session="s", name="a"))
    registry.submitted(77, "x://s/b")
    assert registry.list() == []


def test_an_answer_does_not_undo_what_was_seen(registry) -> None:
    """The job may be observed running before the submission returns."""
    run_id = registry.begin(NewRun(scheduler="x", session="s", name="a", handle="x://s/a"))
    registry.saw("x://s/a", AppState.RUNNING)
    registry.submitted(run_id, "x://s/a")
    assert registry.get("x://s/a").state is AppState.RUNNING


def test_lost_runs(registry, clock) -> None:
    """Only unfinished runs are marked; they are not queried again."""
    ended, running = add(registry, "a", state=AppState.SUCCEEDED), add(registry, "b", state=AppState.RUNNING)
    clock[0] = 1001.0
    registry.lost([ended, running])
    assert [run.state for run in registry.list()] == [AppState.UNKNOWN, AppState.SUCCEEDED]
    assert [run.updated_at for run in registry.list()] == [1001.0, 1000.0]
    assert registry.list(unfinished=True) == []


def test_what_is_asked_for_nothing_asks_nothing(registry) -> None:
    """An empty list of changes neither creates nor locks a file."""
    registry.saw_many([])
    registry.lost([])
    registry.submitted(0, "x://s/a")
    registry.abandoned(0, "")
    registry.unanswered(0)
    registry.amend(0, git_commit="", git_dirty=None)
    assert not os.path.exists(registry.path)


@pytest.mark.parametrize(("limit", "found"), [(None, ["b", "a"]), (1, ["b"]), (0, []), (-1, []), (2**70, ["b", "a"])])
def test_limits(registry, limit, found) -> None:
    """At most this many of the newest runs; none for zero or less."""
    add(registry, "a")
    add(registry, "b")
    assert ids(registry.list(RunQuery(limit=limit))) == found


def test_since_is_from_that_moment_on(registry, clock) -> None:
    """A run of exactly that time matches."""
    add(registry, "a")
    assert ids(registry.list(RunQuery(since=1000.0))) == ["a"]
    assert ids(registry.list(RunQuery(since=1000.1))) == []


def test_unfinished_runs(registry) -> None:
    """The matching runs that have not ended."""
    add(registry, "a", state=AppState.SUCCEEDED)
    add(registry, "b", state=AppState.RUNNING)
    add(registry, "c", scheduler="slurm")
    assert ids(registry.list(unfinished=True)) == ["c", "b"]
    assert ids(registry.list(RunQuery(scheduler="slurm"), unfinished=True)) == ["c"]


def test_a_row_without_its_bulk(registry) -> None:
    """A run with missing or damaged specs is still listed; an unknown state is UNKNOWN."""
    handle = add(registry, "a", argv=["x"])
    registry.store().execute("UPDATE specs SET cfg = '{'")
    assert registry.get(handle).argv == []
    registry.store().execute("DELETE FROM specs")
    registry.store().execute("UPDATE runs SET state = 'FROZEN', git_dirty = 0")
    run = registry.get(handle)
    assert (run.argv, run.state, run.git_dirty) == ([], AppState.UNKNOWN, False)
    registry.submitted(run.id, handle, image_digests={"r": "1"})
    assert registry.get(handle).image_digests == {}


def test_forgetting_removes_all_of_it(registry) -> None:
    """Large columns, too, of all runs with that handle."""
    handle = add(registry, "a")
    add(registry, "a")
    other = add(registry, "b", argv=["y"])
    registry.forget(handle)
    assert registry.store().rows("SELECT count(*) FROM specs") == [(1,)]
    assert registry.get(other).argv == ["y"]


def test_forgotten_while_it_is_looked_up(registry, monkeypatch) -> None:
    """Between the two queries of a lookup: the run is not found."""
    add(registry, "echo-1")
    monkeypatch.setattr(registry, "get", lambda handle: None)
    with pytest.raises(LookupError, match="no run on record is called `echo`"):
        registry.find("echo")


def test_a_user_without_a_name(monkeypatch) -> None:
    """In a container with an arbitrary uid: $USER, else the number."""
    import pwd

    def unknown(uid: int) -> None:
        raise KeyError(uid)

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    monkeypatch.setenv("USER", "me")
    assert registry_module.user_name.__wrapped__() == "me"
    monkeypatch.delenv("USER")
    assert registry_module.user_name.__wrapped__() == str(os.getuid())


@pytest.mark.parametrize(("count", "shown", "more"), [(2, 2, False), (5, 5, False), (6, 5, True)])
def test_how_many_candidates_are_named(registry, count, shown, more) -> None:
    """Five, and an ellipsis."""
    for number in range(count):
        add(registry, f"echo-{number}")
    with pytest.raises(HandleError) as e:
        registry.find("echo")
    assert e.value.message.count("local_cwd://") == shown
    assert e.value.message.endswith(", ...") is more
    assert str(ambiguous("e", ["a"] * 6)).count("a, ") >= 5


def test_what_is_said_of_no_run() -> None:
    """For `@last`, another reference with @, a similar name, and an unknown name."""
    assert no_such_run("@last", []).message == "there is no run on record"
    assert no_such_run("@first", []).message == "`@first` is not a reference to a run"
    assert "`@last`" in str(no_such_run("@first", []).hint)
    assert "echo-1" in str(no_such_run("ecko-1", ["echo-1"]).hint)
    assert "torchx list" in str(no_such_run("zzz", ["echo-1"]).hint)


def test_names_of_files_that_are_not_utf8(registry) -> None:
    """A run in a folder whose name is not UTF-8 is on record, and any text can be looked up and reported."""
    odd = os.fsdecode(b"caf\xe9")
    handle = add(registry, "a", name=odd, cwd=f"/work/{odd}", workspace=odd)
    assert (registry.get(handle).cwd, registry.find(f"@{odd}").handle) == ("/work/caf?", handle)
    registry.saw(handle, AppState.FAILED, msg=odd)
    assert registry.get(handle).msg == "caf?"
    registry.abandoned(registry.begin(NewRun(scheduler="x", session="s", name="b")), odd)
    assert registry.list(RunQuery(name=odd)) == registry.list()


def test_tags_of_a_run(registry) -> None:
    """They are added to those that it has; a run that is not on record gets none, which is no error."""
    handle = add(registry, "a", tags={"k": "v"})
    registry.tag(handle, {"more": "1"})
    assert registry.get(handle).tags == {"k": "v", "more": "1"}
    registry.tag("x://s/nobody", {"more": "2"})
    assert registry.get("x://s/nobody") is None
