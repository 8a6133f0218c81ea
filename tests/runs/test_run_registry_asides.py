"""A newer registry is left alone; what an older torchx has set aside as newer is taken back, once and whole."""

from __future__ import annotations

import contextlib
import glob
import os
import shutil
import sqlite3
import threading
from contextlib import closing

import pytest

from torchx.runs import NewRun, RunRegistry, asides, schema
from torchx.specs import AppState

from .run_rows import add, ids, warnings_of
from .test_run_registry_schema import file_of_version


@pytest.fixture(autouse=True)
def _at_once(monkeypatch):
    monkeypatch.setattr(asides, "SETTLES_S", 0.0)


def set_aside(registry: RunRegistry, second: int = 0) -> str:
    """What an older torchx does with a file that it does not know."""
    registry.close()
    target = f"{registry.path}.newer-20261129T1200{second:02}-4711"
    for suffix in ("", "-wal", "-shm"):
        if os.path.exists(registry.path + suffix):
            os.rename(registry.path + suffix, target + suffix)
    return target


def left(registry: RunRegistry) -> list[str]:
    return [path for path in glob.glob(f"{registry.path}.*") if not path.endswith((".lock", ".merged"))]


def of_an_older(registry: RunRegistry, version: int = 3) -> None:
    """Its file, with the runs `old-1` and `old-2`."""
    file_of_version(registry.path, version)


def test_a_newer_file_is_left_where_it_is(registry, caplog):
    """One line, and this process works without a record; the file is unchanged, for the newer torchx."""
    add(registry, "a")
    registry.close()
    with closing(sqlite3.connect(registry.path)) as db:
        db.execute(f"PRAGMA user_version = {schema.VERSION + 1}")
    with open(registry.path, "rb") as file:
        before = file.read()
    older = RunRegistry(registry.path)
    assert (older.begin(NewRun(scheduler="x", session="s", name="b")), older.list()) == (0, [])
    older.saw("local_cwd://torchx/a", AppState.FAILED)
    older.close()
    with open(registry.path, "rb") as file:
        assert file.read() == before
    (said,) = warnings_of(caplog)
    newer = f"was written by a newer torchx (schema {schema.VERSION + 1}, here {schema.VERSION})"
    assert said == f"the run registry `{registry.path}` {newer}: this command works without it; upgrade this torchx"
    assert left(registry) == []


def test_new_columns_need_no_new_version(registry, monkeypatch, caplog):
    """A version that does not know them reads, writes and forgets; the newer one has all runs, with defaults."""
    with monkeypatch.context() as tomorrow:
        more = (
            "ALTER TABLE runs ADD COLUMN mood TEXT NOT NULL DEFAULT 'good'",
            "ALTER TABLE statuses ADD COLUMN mood TEXT",
            "ALTER TABLE specs ADD COLUMN mood TEXT",
            "CREATE TABLE moods (run_id, mood)",
        )
        tomorrow.setattr(schema, "ADDITIONS", (*schema.ADDITIONS, more))
        add(registry, "a")
        add(registry, "b")
        registry.close()
        with closing(sqlite3.connect(registry.path)) as db:
            db.execute("UPDATE runs SET mood = 'bad'")
            db.commit()
    today = RunRegistry(registry.path)
    today.saw_many([("local_cwd://torchx/a", AppState.RUNNING, "", None)], {"local_cwd://torchx/a": "{}"})
    today.forget("local_cwd://torchx/b")
    add(today, "c")
    assert ids(today.list()) == ["c", "a"]
    today.close()
    with closing(sqlite3.connect(registry.path)) as db:
        assert db.execute("SELECT app_id, mood FROM runs").fetchall() == [("a", "bad"), ("c", "good")]
        assert schema.additions_of(db) == len(schema.ADDITIONS) + 1
    assert warnings_of(caplog) == []


@pytest.mark.parametrize("writes", [False, True])
def test_what_was_set_aside_is_taken_back(registry, caplog, writes):
    """If the older torchx recorded nothing since, for whoever reads and whoever writes."""
    add(registry, "a")
    set_aside(registry)
    if writes:
        add(registry, "b")
    assert ids(registry.list()) == ["b", "a"][not writes :]
    assert (left(registry), warnings_of(caplog)) == ([], [])


@pytest.mark.parametrize("version", range(1, schema.VERSION + 1), ids="schema {}".format)
def test_runs_of_an_older_torchx_follow(registry, caplog, version):
    """Runs on record before keep their numbers; the others come after them, whole, and are found by all references."""
    add(registry, "a", argv=["a"])
    add(registry, "b", argv=["b"])
    before = {run.app_id: run.id for run in registry.list()}
    set_aside(registry)
    of_an_older(registry, version)
    assert ids(registry.list()) == ["old-2", "old-1", "b", "a"]
    assert {run.app_id: run.id for run in registry.list()} == {**before, "old-1": 3, "old-2": 4}
    assert (registry.find("a").argv, registry.find("@last").argv) == (["a"], ["torchx"])
    assert ids(registry.list(unfinished=True)) == ["old-2", "b", "a"]
    add(registry, "c")
    assert registry.find("@last").app_id == "c"
    assert (left(registry), warnings_of(caplog)) == ([], [])


def test_all_that_was_set_aside(registry):
    """The oldest file takes the place; sweeps, changes and statuses go with their runs."""
    from torchx.specs.tasks import TaskList

    tasks = TaskList(names=("x",), points=[("1",), ("2",)], max_parallel=1)
    for second, name in enumerate("abc"):
        with_tasks = {"tasks": tasks} if name == "b" else {}
        add(registry, name, state=AppState.RUNNING, **with_tasks)
        registry.saw_many([(f"local_cwd://torchx/{name}", AppState.FAILED, name, 5.0)])
        set_aside(registry, second)
    of_an_older(registry)
    assert ids(registry.list()) == ["old-2", "old-1", "c", "b", "a"]
    assert registry.tasks(registry.find("b")).points == [("1",), ("2",)]
    changes = registry.changes(0, until=registry.last_change())
    assert [(c.handle[-1], c.state) for c in changes if c.is_terminal()] == [(n, AppState.FAILED) for n in "abc"]
    assert left(registry) == []


def test_a_process_that_is_killed_meanwhile(registry, monkeypatch):
    """The next one continues, whatever was done: no run is lost, none appears twice."""
    real = os.rename
    for killed_at in range(1, 4):
        for path in glob.glob(f"{registry.path}*"):
            os.unlink(path)
        add(registry, "a")
        set_aside(registry)
        of_an_older(registry)
        calls: list[str] = []

        def rename(source, target, calls=calls, killed_at=killed_at):
            calls.append(source)
            if len(calls) == killed_at:
                raise KeyboardInterrupt
            real(source, target)

        with monkeypatch.context() as patch, contextlib.suppress(KeyboardInterrupt):
            patch.setattr(os, "rename", rename)
            registry.list()
        assert calls
        assert ids(RunRegistry(registry.path).list()) == ["old-2", "old-1", "a"], killed_at


def test_one_that_is_killed_between_two_files(registry, tmp_path):
    """The runs are in both files then: they are moved once."""
    add(registry, "a")
    aside = set_aside(registry)
    of_an_older(registry)
    shutil.copy(registry.path, tmp_path / "copy")
    registry.list()
    set_aside(registry)
    shutil.copy(tmp_path / "copy", registry.path)
    assert os.path.exists(aside)
    assert ids(registry.list()) == ["old-2", "old-1", "a"]


def test_many_take_it_back_at_once(registry):
    """Each sees every run once."""
    add(registry, "a")
    set_aside(registry)
    of_an_older(registry)
    seen: list[list[str]] = []

    def look() -> None:
        mine = RunRegistry(registry.path)
        seen.append(ids(mine.list()))
        mine.close()

    threads = [threading.Thread(target=look) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [["old-2", "old-1", "a"]] * 8


@pytest.mark.parametrize("kind", ["garbage", "cut off", "empty", "of a page"])
def test_a_damaged_file_that_was_set_aside(registry, caplog, kind):
    """It is named once, kept, and does no harm to what is there."""
    add(registry, "a", argv=["x" * 9000])
    aside = set_aside(registry)
    with open(aside, "r+b") as file:
        if kind == "garbage":
            file.write(b"no database" * 10)
        elif kind == "of a page":
            file.seek(2 * 4096)
            file.write(b"\xff" * 4096)
        else:
            file.truncate(5000 if kind == "cut off" else 0)
    of_an_older(registry)
    for _ in range(2):
        again = RunRegistry(registry.path)
        assert ids(again.list()) == ["old-2", "old-1"]
        again.close()
    damaged = aside.replace("newer", "damaged")
    (said,) = warnings_of(caplog)
    assert said.startswith(f"`{damaged}`, which an older torchx has set aside, is damaged")
    assert left(registry) == [damaged]


def test_a_file_that_is_too_new_stays_aside(registry, caplog):
    """For the torchx that knows it."""
    add(registry, "a")
    registry.close()
    with closing(sqlite3.connect(registry.path)) as db:
        db.execute(f"PRAGMA user_version = {schema.VERSION + 1}")
    aside = set_aside(registry)
    of_an_older(registry)
    assert ids(registry.list()) == ["old-2", "old-1"]
    assert (left(registry), warnings_of(caplog)) == ([aside], [])


def test_a_file_that_is_damaged_itself(registry, caplog):
    """It is set aside, and what was set aside before is taken back."""
    add(registry, "a")
    set_aside(registry)
    with open(registry.path, "wb") as file:
        file.write(b"no database" * 1000)
    assert ids(registry.list()) == ["a"]
    assert ["damaged" in path for path in left(registry)] == [True]


def test_an_answer_that_an_older_torchx_wrote_elsewhere(registry):
    """The intent of a submission and its answer are in two files: there is one run, and no intent."""
    known = NewRun(scheduler="x", session="s", name="k", handle="x://s/k")
    for run in (known, NewRun(scheduler="x", session="s", name="t", submission="token")):
        registry.begin(run)
    waiting = registry.begin(NewRun(scheduler="x", session="s", name="w", submission="other"))
    aside = set_aside(registry)
    for run, handle in (
        (known, "x://s/k"),
        (NewRun(scheduler="x", session="s", name="t", submission="token"), "x://s/t"),
    ):
        with closing(RunRegistry(f"{aside}-other.db")) as other:
            other.submitted(other.begin(run), handle)
    os.rename(f"{aside}-other.db", registry.path)
    with closing(sqlite3.connect(registry.path)) as db:
        db.execute("PRAGMA application_id = 0")
    assert sorted(run.handle for run in registry.list()) == ["x://s/k", "x://s/t"]
    assert [run.id for run, _ in registry.intents()] == [waiting]


def test_a_row_of_another_run_is_not_taken(registry):
    """A number that means another run by now: the answer is recorded as a run of its own."""
    first = registry.begin(NewRun(scheduler="x", session="s", name="a", handle="x://s/a"))
    registry._begun[first] = NewRun(scheduler="x", session="s", name="b")
    registry.submitted(first, "x://s/b")
    assert {run.handle for run in registry.list()} == {"x://s/b"}
    assert [run.handle for run, _ in registry.intents()] == ["x://s/a"]


def test_a_home_that_cannot_be_written(registry, monkeypatch, caplog):
    """What is there is read; nothing is taken back, and nothing is said."""
    add(registry, "a")
    aside = set_aside(registry)
    of_an_older(registry, schema.VERSION)
    real = os.open

    def refused(path, *rest, **more):
        if str(path).endswith(".lock"):
            raise PermissionError(13, "no")
        return real(path, *rest, **more)

    monkeypatch.setattr(os, "open", refused)
    assert ids(registry.list()) == ["old-2", "old-1"]
    os.unlink(registry.path)
    assert registry.list() == []
    assert (os.path.exists(aside), warnings_of(caplog)) == (True, [])
