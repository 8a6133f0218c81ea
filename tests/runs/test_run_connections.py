"""The connection to the registry's file: in other threads, after a fork, and when the file is set aside."""

from __future__ import annotations

import os
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from typing import NoReturn

import pytest

from torchx.runs import RunRegistry, schema, store

from .run_rows import add, ids, warnings_of


def _opened(path: str) -> int:
    """How many files of this process are the registry's file or one of its companions."""
    found = 0
    for fd in os.listdir("/proc/self/fd"):
        try:
            found += os.readlink(f"/proc/self/fd/{fd}").startswith(path)
        except OSError:
            continue
    return found


def _read_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a folder that cannot be written, where SQLite cannot create its companion files."""

    def refused(db: sqlite3.Connection) -> NoReturn:
        raise sqlite3.OperationalError("unable to open database file")

    monkeypatch.setattr(schema, "version_of", refused)


def test_threads_share_a_read_only_file(registry: RunRegistry, monkeypatch, caplog) -> None:
    """All of them list its runs, whichever has opened it, and none warns."""
    add(registry, "a")
    registry.close()
    _read_only(monkeypatch)
    assert ids(registry.list()) == ["a"]
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(lambda: ids(registry.list())).result() == ["a"]
        pool.submit(registry.close).result()
    assert warnings_of(caplog) == []
    assert ids(registry.list()) == ["a"]


def test_a_read_only_file_is_opened_once(registry: RunRegistry, monkeypatch) -> None:
    """The connection that could not be used is closed, and the other one is kept for further reads."""
    add(registry, "a")
    registry.close()
    _read_only(monkeypatch)
    for _ in range(3):
        assert ids(registry.list()) == ["a"]
        assert _opened(registry.path) == 1
    registry.close()
    assert _opened(registry.path) == 0


def test_an_inherited_connection_is_left_alone(registry: RunRegistry) -> None:
    """After a fork it is neither used nor closed: closing it could remove the log that the parent still writes."""
    add(registry, "a")
    found, before = registry.store(), _opened(registry.path)
    found._pid += 1  # as a child sees it
    assert ids(registry.list()) == ["a"]
    assert _opened(registry.path) > before
    inherited = store._inherited.pop()
    assert isinstance(inherited, sqlite3.Connection)
    assert inherited.execute("SELECT app_id FROM runs").fetchall() == [("a",)]
    inherited.close()


def test_threads_of_a_fork_share_a_connection(registry: RunRegistry, monkeypatch) -> None:
    """One of them gives up the parent's while the others wait, so that none gives up that of another thread."""
    add(registry, "a")
    found = registry.store()
    found._pid += 1
    locked = []

    class Inherited(list[object]):
        def append(self, connection: object) -> None:
            locked.append(found._lock.locked())
            connection.close()  # type: ignore[attr-defined]  # SQLite's

    monkeypatch.setattr(store, "_inherited", Inherited())
    assert ids(registry.list()) == ids(registry.list()) == ["a"]
    assert locked == [True]


def test_a_damaged_file_is_closed_before_it_is_renamed(registry: RunRegistry, monkeypatch) -> None:
    """Otherwise SQLite would later remove a log by its old name, which may be that of the successor."""
    add(registry, "a")
    assert _opened(registry.path)
    when: list[int] = []

    def set_aside(path: str, inode: int, why: str) -> str:
        when.append(_opened(registry.path))
        return ""

    monkeypatch.setattr(schema, "set_aside", set_aside)
    assert registry.store()._recover(sqlite3.DatabaseError("file is not a database"))
    assert when == [0]
