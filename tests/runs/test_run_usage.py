"""What runs have used: hours from the record, by group, however many runs there are."""

from __future__ import annotations

import time

import pytest

from torchx.errors import SpecError
from torchx.runs import NewRun, RunQuery, usage
from torchx.specs import AppState

from .run_rows import add

GPUS = {"roles": [{"num_replicas": 2, "resource": {"gpu": 8, "cpu": 16}}]}
T = 1_795_900_000.0


def used(registry, by="name", since=None, now=T):
    found = usage.used(registry, by, since, now=now)
    return {row.key: (row.runs, round(row.gpu_hours, 6), row.unseen) for row in found}


def sql(registry, text, *values):
    registry.store().execute(text, values)


def run(registry, app_id, *, begun, ended=None, state=AppState.SUCCEEDED, submitted=None, **fields):
    """A run that was observed to run, and to end, at these times."""
    handle = add(registry, app_id, app=GPUS, scheduler="slurm", **fields)
    registry.saw_many([(handle, state, "", ended)], None, {handle: begun})
    sql(registry, "UPDATE runs SET created_at = ? WHERE handle = ?", submitted or (begun or T) - 600, handle)
    return handle


@pytest.mark.parametrize(
    ("begun", "ended", "state", "hours"),
    [
        (T - 3600, T - 1800, AppState.SUCCEEDED, 8.0),
        (T - 3600, T - 1800, AppState.CANCELLED, 8.0),
        (T - 3600, None, AppState.RUNNING, 16.0),
        (None, None, AppState.PENDING, None),
        (None, T - 1800, AppState.CANCELLED, None),
    ],
    ids=["succeeded", "cancelled", "running", "pending", "cancelled in the queue"],
)
def test_the_queue_does_not_count(registry, begun, ended, state, hours):
    run(registry, "a", begun=begun, ended=ended, state=state)
    assert used(registry) == ({} if hours is None else {"a": (1, hours, 0)})


def test_a_start_that_nobody_saw(registry):
    """The run counts from its submission, and the answer says so."""
    run(registry, "a", begun=None, ended=T, submitted=T - 3600)
    assert used(registry) == {"a": (1, 16.0, 1)}


def test_attempts_count_without_the_time_between(registry):
    handle = run(registry, "a", begun=T - 7200, ended=T)
    usage.worked(registry, handle, 3600.0)
    assert used(registry)["a"][1] == 16.0
    assert used(registry, since=T - 3600)["a"][1] == 8.0


def test_days(registry, monkeypatch):
    """A run of several days is part of each, local time; other groups have it once."""
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    midnight = time.mktime((2026, 11, 20, 0, 0, 0, 0, 0, 0))
    run(registry, "a", begun=midnight - 1800, ended=midnight + 86400 + 3600, name="long")
    assert used(registry, "day", now=midnight + 200_000) == {
        "2026-11-19": (1, 8.0, 0),
        "2026-11-20": (0, 16 * 24.0, 0),
        "2026-11-21": (0, 16.0, 0),
    }
    assert used(registry, now=midnight + 200_000) == {"long": (1, 16 * 25.5, 0)}
    monkeypatch.undo()
    time.tzset()


def test_since_cuts_off(registry):
    run(registry, "a", begun=T - 7200, ended=T - 1800)
    run(registry, "b", begun=T - 9000, ended=T - 8000)
    assert used(registry, since=T - 3600) == {"a": (1, 8.0, 0)}


def test_runs_that_an_older_torchx_recorded(registry):
    """They have no size in a column yet: it is read from their definitions, once."""
    handle = run(registry, "a", begun=T - 3600, ended=T)
    run(registry, "b", begun=T - 3600, ended=T)
    sql(registry, "UPDATE runs SET gpus = NULL, cpus = NULL")
    sql(registry, "UPDATE specs SET app = '{\"roles\": 3' WHERE run_id = (SELECT id FROM runs WHERE app_id = 'b')")
    assert used(registry) == {"a": (1, 16.0, 0), "b": (1, 0.0, 0)}
    assert registry.store().rows("SELECT gpus FROM runs WHERE handle = ?", (handle,)) == [(16.0,)]


def test_the_first_time_that_it_is_seen_to_run_is_the_start(registry):
    handle = add(registry, "a", app=GPUS)
    registry.saw(handle, AppState.RUNNING)
    registry.saw(handle, AppState.SUCCEEDED)
    [(begun, ended)] = registry.store().rows("SELECT started_at, ended_at FROM runs")
    assert time.time() - 60 < begun <= ended


def fill(registry, count, newest=0):
    times = (T - i * 60 for i in reversed(range(newest, newest + count)))
    of_name = [NewRun(scheduler="slurm", session="s", name=f"n{i}") for i in range(50)]
    rows = [(of_name[i % 50], at) for i, at in enumerate(times)]

    def work(db):
        first = db.execute("SELECT coalesce(max(id), 0) + 1 FROM runs").fetchone()[0]
        db.executemany(
            "INSERT INTO runs (id, handle, scheduler, session, app_id, name, phase, state, unfinished, msg, created_at,"
            " updated_at, started_at, ended_at, user, host, cwd, image, workspace, git_commit, parent_run_id,"
            " submitter, gpus, cpus) VALUES (?, ?, ?, ?, ?, ?, 1, 'SUCCEEDED', 0, '', ?, ?, ?, ?, 'me', '', '', '', '',"
            " '', '', '', 16, 32)",
            (
                (first + k, f"slurm://s/{k}", one.scheduler, one.session, f"{k}", one.name, at, at, at, at + 600)
                for k, (one, at) in enumerate(rows)
            ),
        )
        db.executemany(
            "INSERT INTO specs (run_id, argv, app, cfg, tags) VALUES (?, '[]', '{}', '{}', '{}')",
            ((first + k,) for k in range(len(rows))),
        )

    registry.store().write(work, None)


def steps(registry, query):
    """How many hundreds of SQLite's instructions a list takes."""
    count = 0

    def one():
        nonlocal count
        count += 1

    registry.store().read(lambda db: db.set_progress_handler(one, 100), None)
    registry.list(query)
    registry.store().read(lambda db: db.set_progress_handler(None, 0), None)
    return count


def test_a_list_of_many_costs_as_little_as_of_few(registry):
    """Of the newest, and by each thing that it is searched for."""
    queries = [
        RunQuery(limit=51),
        RunQuery(since=T - 6000),
        RunQuery(states=[AppState.FAILED]),
        RunQuery(name="n7", limit=51),
        RunQuery(name="none*"),
        RunQuery(by_agent=True),
    ]
    fill(registry, 3_000)
    few = [steps(registry, query) for query in queries]
    fill(registry, 27_000, newest=3_000)
    many = [steps(registry, query) for query in queries]
    assert [query for query, before, now in zip(queries, few, many, strict=True) if now > before + 2] == []


def test_a_hundred_thousand_runs(registry):
    """Sums take less than half a second of CPU time, by each group."""
    fill(registry, 100_000)
    for by in usage.GROUPS:
        began = time.process_time()
        found = usage.used(registry, by, None, now=T + 10_000)
        assert time.process_time() - began < 0.5
        assert sum(row.runs for row in found) == 100_000
        assert sum(row.gpu_hours for row in found) == pytest.approx(100_000 * 16 / 6)


@pytest.mark.parametrize("by", ["week", "", "no_such_column", "name, user"])
def test_an_unknown_group_leaves_the_record_alone(registry, by):
    """It is refused by name; SQLite would say that a column is missing, as of a damaged file."""
    run(registry, "a", begun=T - 3600, ended=T)
    with pytest.raises(SpecError, match=f"cannot be grouped by `{by}`"):
        usage.used(registry, by, None, now=T)
    assert used(registry) == {"a": (1, 16.0, 0)}
