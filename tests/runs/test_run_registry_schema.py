"""Registry files of earlier versions are upgraded with all their runs."""

from __future__ import annotations

import sqlite3
from typing import Any

import pytest

from torchx.runs import RunRegistry, schema
from torchx.specs import AppState

from .run_rows import add, ids


def file_of_version(path: str, version: int) -> None:
    """A file of that schema version, with two runs, the second one unfinished."""
    db = sqlite3.connect(path, isolation_level=None)
    for statements in schema.MIGRATIONS[:version]:
        for statement in statements:
            db.execute(statement)
    for i, state, unfinished in ((1, "SUCCEEDED", 0), (2, "RUNNING", 1)):
        handle = f"local_cwd://torchx/old-{i}"
        row: tuple[Any, ...] = (
            i,
            handle,
            "local_cwd",
            "torchx",
            f"old-{i}",
            "old",
            1,
            state,
            unfinished,
            "",
            1.0,
            1.0,
            None,
        )
        row += ("u", "h", "/", "img", "", "", None, "", "h|b|1|1")
        db.execute(f"INSERT INTO runs VALUES ({', '.join('?' * len(row))})", row)
        db.execute(
            "INSERT INTO specs (run_id, argv, app, cfg, tags) VALUES (?, ?, ?, ?, ?)",
            (i, '["torchx"]', '{"name":"old"}', "{}", "{}"),
        )
    db.execute(f"PRAGMA user_version = {version}")
    db.close()


@pytest.mark.parametrize("version", range(1, schema.VERSION), ids="schema {}".format)
def test_an_older_file_is_brought_up_to_date(tmp_path, caplog, version):
    """Its runs are complete, new columns are empty, and new runs can be added."""
    path = str(tmp_path / "runs.db")
    file_of_version(path, version)
    registry = RunRegistry(path)
    old = registry.find("old-1")
    assert (old.state, old.argv, old.app, old.image) == (AppState.SUCCEEDED, ["torchx"], {"name": "old"}, "img")
    assert (old.image_digests, old.workspace_hashes, old.submission) == ({}, {}, "")
    add(registry, "new", image_digests={"r": "sha256:1"}, workspace_hashes={"r": "sha256:2"})
    new = registry.find("new")
    assert (new.image_digests, new.workspace_hashes) == ({"r": "sha256:1"}, {"r": "sha256:2"})
    assert ids(registry.list()) == ["new", "old-2", "old-1"]
    registry.close()
    assert caplog.records == []
    with sqlite3.connect(path) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (schema.VERSION,)
        tables = {name: [row[1:4] for row in db.execute(f"PRAGMA table_info({name})")] for name in ("runs", "specs")}
    db.close()
    fresh = RunRegistry(str(tmp_path / "fresh.db"))
    add(fresh, "a")
    fresh.close()
    with sqlite3.connect(fresh.path) as db:
        for name, columns in tables.items():
            assert [row[1:4] for row in db.execute(f"PRAGMA table_info({name})")] == columns
    db.close()


def test_two_who_bring_it_up_to_date_at_once(tmp_path):
    """The second upgrade has nothing to do."""
    path = str(tmp_path / "runs.db")
    file_of_version(path, 1)
    db = sqlite3.connect(path, isolation_level=None)
    schema.upgrade(db)
    schema.upgrade(db)
    assert schema.version_of(db) == schema.VERSION
    db.close()


def test_what_a_scheduler_reports_is_added(registry):
    """Digests in the answer override earlier ones of the same role, and keep the others."""
    from torchx.runs import NewRun

    run_id = registry.begin(NewRun(scheduler="x", session="s", name="a", image_digests={"a": "1", "b": "1"}))
    registry.submitted(run_id, "x://s/a", image_digests={"b": "2", "c": "2"}, workspace_hashes={"a": "3"})
    assert registry.get("x://s/a").image_digests == {"a": "1", "b": "2", "c": "2"}
    assert registry.get("x://s/a").workspace_hashes == {"a": "3"}
