"""The registry's file while other processes create, set aside, lock, replace or truncate it."""

from __future__ import annotations

import atexit
import contextlib
import errno
import glob
import io
import os
import sqlite3
import stat
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from torchx.runs import NewRun, RunRegistry, schema, store
from torchx.specs.api import AppState

from .run_rows import add, ids, warnings_of


def _waits_for_a_lock(pid: int) -> bool:
    with open("/proc/locks", encoding="utf-8") as f:
        return any("->" in line and f" {pid} " in line for line in f)


def _while_locked(path: str, work: Callable[[], object], nothing_yet: Callable[[], object]) -> None:
    """Runs the work in a fork while the lock of the names is held: it waits, and has no effect until then."""
    import fcntl

    lock = os.open(f"{path}.lock", os.O_CREAT | os.O_RDWR, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    pid = os.fork()
    if not pid:
        os.close(lock)
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    deadline = time.monotonic() + 60
    while not _waits_for_a_lock(pid):
        assert os.waitpid(pid, os.WNOHANG) == (0, 0), "it did not wait for the lock"
        assert time.monotonic() < deadline
        os.sched_yield()
    nothing_yet()
    os.close(lock)
    assert os.waitpid(pid, 0)[1] == 0


def test_a_new_file_gets_its_name_under_the_lock(tmp_path) -> None:
    """Otherwise it could appear while its predecessor is set aside, and lose its log to it."""
    path = str(tmp_path / "runs.db")

    def nothing_yet() -> None:
        assert not os.path.exists(path)

    _while_locked(path, lambda: schema.create(path), nothing_yet)
    assert os.path.exists(path)
    assert stat.S_IMODE(os.stat(f"{path}.lock").st_mode) == 0o600


def test_a_file_is_set_aside_under_the_lock(tmp_path) -> None:
    """With its companions, and only if it still is the unusable file."""
    path = str(tmp_path / "runs.db")
    schema.create(path)
    for suffix in ("-wal", "-shm"):
        (tmp_path / f"runs.db{suffix}").write_text(suffix)
    inode = os.stat(path).st_ino

    def nothing_yet() -> None:
        assert os.stat(path).st_ino == inode

    _while_locked(path, lambda: schema.set_aside(path, inode, "damaged"), nothing_yet)
    [aside] = [p for p in glob.glob(f"{path}.damaged-*") if not p.endswith(("-wal", "-shm"))]
    assert os.stat(aside).st_ino == inode
    for suffix in ("-wal", "-shm"):
        with open(aside + suffix, encoding="utf-8") as f:
            assert f.read() == suffix
    assert not glob.glob(f"{path}-*")


def test_the_lock_is_let_go(tmp_path) -> None:
    """Another caller in the same process need not wait, also after an error."""
    path = str(tmp_path / "runs.db")
    before = os.listdir("/proc/self/fd")
    with pytest.raises(ZeroDivisionError), schema.locked(path):
        raise ZeroDivisionError
    schema.create(path)
    assert os.listdir("/proc/self/fd") == before


def test_what_is_there_is_never_replaced(tmp_path, monkeypatch) -> None:
    """A slower process does not replace an existing file, with or without hard links."""
    path = tmp_path / "runs.db"
    path.write_text("mine")
    schema.create(str(path))
    assert path.read_text() == "mine"

    def no_links(*_: object) -> None:
        raise OSError(errno.EPERM, "no links here")

    monkeypatch.setattr(os, "link", no_links)
    schema.create(str(path))
    assert path.read_text() == "mine"
    path.unlink()
    schema.create(str(path))
    assert sorted(os.listdir(tmp_path)) == ["runs.db", "runs.db.lock"]
    with sqlite3.connect(path) as db:
        assert schema.version_of(db) == schema.VERSION
    db.close()


def test_a_file_that_could_not_be_made_leaves_nothing(tmp_path, monkeypatch) -> None:
    """No draft after any error; the folder of a new home is accessible only to its owner."""
    path = str(tmp_path / "home" / "runs.db")

    def fails(db: sqlite3.Connection) -> None:
        db.execute("CREATE TABLE x (a)")
        raise sqlite3.OperationalError("disk I/O error")

    monkeypatch.setattr(schema, "upgrade", fails)
    with pytest.raises(sqlite3.OperationalError):
        schema.create(path)
    assert os.listdir(tmp_path / "home") == []
    assert stat.S_IMODE(os.stat(tmp_path / "home").st_mode) == 0o700


def test_an_upgrade_that_fails_leaves_the_file_as_it_was(tmp_path, monkeypatch) -> None:
    """All statements or none, and no transaction stays open."""
    db = sqlite3.connect(tmp_path / "runs.db", isolation_level=None)
    monkeypatch.setattr(schema, "MIGRATIONS", (("CREATE TABLE a (x)",), ("nonsense",)))
    with pytest.raises(sqlite3.OperationalError):
        schema.upgrade(db)
    assert not db.in_transaction
    assert schema.version_of(db) == 0
    assert db.execute("SELECT name FROM sqlite_master").fetchall() == []
    db.close()


@pytest.mark.parametrize(
    ("directory", "shared"),
    [
        ("/home/x", True),
        ("/home", True),
        ("/homestead", False),
        ("/home/local/x", False),
        ("/a b/c", True),
        ("/", False),
        ("/tmp", False),
    ],
)
def test_which_directories_are_shared(monkeypatch, directory, shared) -> None:
    """By the innermost mount that contains the folder; a mount with a similar name does not count."""
    mounts = [
        "1 0 8:1 / / rw shared:1 - ext4 /dev/sda rw",
        "2 1 0:1 / /home rw - nfs4 server:/home rw",
        "3 2 8:2 / /home/local rw - xfs /dev/sdb rw",
        "4 1 0:2 / /a\\040b rw shared:7 master:2 - lustre mds:/x rw",
        "5 1 0:3 / /tmp rw - nfs x rw",
        "6 1 0:4 / /tmp rw - tmpfs tmpfs rw",
    ]
    monkeypatch.setattr(schema, "open", lambda path: io.StringIO("\n".join(mounts) + "\n"), raising=False)
    monkeypatch.setattr(os.path, "realpath", lambda path: path)
    assert schema._is_shared(directory) is shared


@pytest.mark.parametrize("mounts", [None, "short line - x\n", "1 0 8:1 / / rw -"])
def test_where_mounts_cannot_be_read(monkeypatch, mounts) -> None:
    """No folder counts as shared."""

    def read(path: str) -> io.StringIO:
        if mounts is None:
            raise FileNotFoundError(path)
        return io.StringIO(mounts)

    monkeypatch.setattr(schema, "open", read, raising=False)
    assert schema._is_shared("/home") is False


def test_on_a_shared_file_system_there_is_no_memory_map(tmp_path, monkeypatch) -> None:
    """WAL needs a memory map, which hosts cannot share: the file has a rollback journal."""
    monkeypatch.setattr(schema, "_is_shared", lambda directory: directory == str(tmp_path))
    schema.create(str(tmp_path / "runs.db"))
    with sqlite3.connect(tmp_path / "runs.db") as db:
        assert db.execute("PRAGMA journal_mode").fetchone() == ("delete",)
    db.close()


# -- one connection ------------------------------------------------------------------------------


def test_work_that_fails_is_undone(registry) -> None:
    """A failed transaction is rolled back, and the next one finds none open."""
    add(registry, "a")

    def half(db: sqlite3.Connection) -> None:
        db.execute("UPDATE runs SET name = 'half'")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        registry.store().write(half, None)
    add(registry, "b")
    assert [run.name for run in registry.list()] == ["b", "a"]


def test_a_file_that_was_replaced_is_opened_anew(registry, tmp_path) -> None:
    """The file that has the name now is read and written."""
    add(registry, "old")
    other = RunRegistry(str(tmp_path / "other.db"))
    add(other, "new")
    other.close()
    registry.close()
    assert ids(registry.list()) == ["old"]
    os.replace(other.path, registry.path)
    assert ids(registry.list()) == ["new"]


def test_a_file_that_is_gone_is_let_go(registry) -> None:
    """After its removal nothing is listed, the next run creates a new file, and the old one is closed."""
    add(registry, "a")
    os.unlink(registry.path)
    assert registry.list() == []
    assert not [fd for fd in os.listdir("/proc/self/fd") if _target(fd).startswith(registry.path)]
    add(registry, "b")
    assert ids(registry.list()) == ["b"]


def test_the_log_of_a_file_that_was_removed_is_not_read_into_the_next(registry) -> None:
    """Removing only `runs.db` neither restores old runs nor mixes two files."""
    add(registry, "old")
    log = _bytes(registry.path + "-wal")
    assert log
    registry.close()
    os.unlink(registry.path)
    for suffix in ("-wal", "-journal"):
        with open(registry.path + suffix, "wb") as f:
            f.write(log)
    add(registry, "new")
    assert ids(registry.list()) == ["new"]
    assert not os.path.exists(registry.path + "-journal")


def _bytes(path: str) -> bytes:
    with open(path, "rb") as f:
        return f.read()


def _target(fd: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except OSError:
        return ""


def test_a_closed_registry_can_be_used(registry) -> None:
    """`close` can be called twice; a fork does not close the connection of its parent."""
    add(registry, "a")
    assert [fd for fd in os.listdir("/proc/self/fd") if _target(fd).startswith(registry.path)]
    found = registry.store()
    found._pid += 1
    registry.close()
    assert found._db is not None
    found._pid -= 1
    registry.close()
    registry.close()
    assert not [fd for fd in os.listdir("/proc/self/fd") if _target(fd).startswith(registry.path)]
    assert ids(registry.list()) == ["a"]


def test_another_thread_opens_a_file_while_one_is_closed(monkeypatch, tmp_path) -> None:
    """A program that changes TORCHX_HOME has a registry of several files."""
    registry = RunRegistry()
    add(registry, "a")
    first, close = registry.store(), store.Store.close

    def close_meanwhile(self: store.Store) -> None:
        monkeypatch.setenv("TORCHX_HOME", str(tmp_path / "another"))
        registry.store()
        close(self)

    monkeypatch.setattr(store.Store, "close", close_meanwhile)
    registry.close()
    assert first._db is None
    assert registry.store() is not first


def test_the_file_is_closed_at_the_end_of_the_program(monkeypatch, tmp_path) -> None:
    """So that its log is merged into it."""
    registered: list[Any] = []
    monkeypatch.setattr(atexit, "register", registered.append)
    registry = RunRegistry(str(tmp_path / "runs.db"))
    add(registry, "a")
    for work in registered:
        work()
    assert registry.store()._db is None


def _errors() -> Iterator[Any]:
    locked = sqlite3.OperationalError("database is locked")
    yield pytest.param(locked, True, True, id="locked")
    yield pytest.param(sqlite3.OperationalError("disk I/O error"), True, False, id="disk")
    yield pytest.param(sqlite3.OperationalError("disk I/O error"), False, True, id="gone")
    yield pytest.param(sqlite3.OperationalError("no such table: runs"), True, True, id="no table")
    yield pytest.param(sqlite3.DatabaseError("file is not a database"), True, True, id="damaged")
    yield pytest.param(sqlite3.DatabaseError("is locked"), True, True, id="damaged, and says locked")
    yield pytest.param(sqlite3.IntegrityError("locked"), True, False, id="other")
    yield pytest.param(OSError("full"), True, False, id="system")


@pytest.mark.parametrize(("error", "there", "again"), list(_errors()))
def test_when_it_is_worth_trying_again(registry, error, there, again) -> None:
    """If the file was locked, or was set aside by this or another process; a full disk stays full."""
    add(registry, "a")
    found = registry.store()
    found._connected(create=True)
    damaged = type(error) is sqlite3.DatabaseError or "no such" in str(error)
    if not there:
        os.unlink(registry.path)
    assert found._recover(error) is again
    assert bool(glob.glob(registry.path + ".damaged-*")) == damaged
    if not there:
        assert found._db is None


def test_a_file_that_cannot_be_set_aside(registry, monkeypatch) -> None:
    """In a folder that cannot be written: one warning, and no retry."""
    add(registry, "a")

    def refused(*_: object) -> str:
        raise PermissionError("no")

    monkeypatch.setattr(schema, "set_aside", refused)
    assert registry.store()._recover(sqlite3.DatabaseError("x")) is False
    monkeypatch.setattr(schema, "set_aside", lambda *_: "")
    assert registry.store()._recover(sqlite3.DatabaseError("x")) is True


def test_of_two_who_find_damage_one_speaks(registry, caplog, monkeypatch) -> None:
    """Only the process that sets the file aside warns, once per file."""
    add(registry, "a")
    found = registry.store()
    monkeypatch.setattr(schema, "set_aside", lambda *_: "")
    found._recover(sqlite3.DatabaseError("x"))
    assert warnings_of(caplog) == []
    monkeypatch.setattr(schema, "set_aside", lambda *_: "/aside")
    found._recover(sqlite3.DatabaseError("x"))
    found._recover(sqlite3.DatabaseError("x"))
    assert len(warnings_of(caplog)) == 1 and "set aside as `/aside`" in warnings_of(caplog)[0]


def test_six_tries(registry, monkeypatch, caplog) -> None:
    """A locked file is tried six times, a permanent failure once."""
    add(registry, "a")
    tries = []

    def work(text: str):
        def fails(db: sqlite3.Connection) -> None:
            tries.append(1)
            raise sqlite3.OperationalError(text)

        return fails

    assert registry.store().read(work("database is locked"), "default") == "default"
    assert len(tries) == 6
    tries.clear()
    assert registry.store().read(work("disk I/O error"), "default") == "default"
    assert len(tries) == 1
    assert "cannot be read (database is locked): runs on record cannot be shown" in warnings_of(caplog)[0]
    assert registry.store()._db is None


def test_how_long_a_locked_file_is_waited_for(registry, monkeypatch) -> None:
    """Ten seconds per try, by SQLite itself."""
    add(registry, "a")
    with registry.store()._lock:
        db = registry.store()._connected(create=True)
    assert db is not None
    assert db.execute("PRAGMA busy_timeout").fetchone() == (10_000,)
    assert db.execute("PRAGMA synchronous").fetchone() == (1,)


def test_a_state_on_record_waits_for_no_lock(registry, monkeypatch, caplog) -> None:
    """While another process writes, a status that is no news is not held up; one that is news is."""
    handle = add(registry, "a-1", state=AppState.RUNNING)
    registry.close()
    monkeypatch.setattr(schema, "BUSY_TIMEOUT_S", 0.0)
    with contextlib.closing(sqlite3.connect(registry.path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        registry.saw(handle, AppState.RUNNING)
        assert warnings_of(caplog) == []
        registry.saw(handle, AppState.RUNNING, msg="news")
        assert "cannot be written (database is locked)" in warnings_of(caplog)[0]


def test_a_locked_file_is_not_taken_for_a_read_only_one(registry, monkeypatch) -> None:
    """Read without its lock, a file may be half written: the lock is waited for."""
    add(registry, "a")
    registry.close()
    opened = []
    real = schema.connect

    def connect(path: str, *, immutable: bool = False) -> sqlite3.Connection:
        opened.append(immutable)
        return real(path, immutable=immutable)

    def locked(db: sqlite3.Connection) -> int:
        raise sqlite3.OperationalError("database is locked")

    monkeypatch.setattr(schema, "connect", connect)
    monkeypatch.setattr(schema, "version_of", locked)
    assert registry.list() == []
    assert opened == [False] * 6


def test_a_file_that_cannot_be_written_is_no_place_for_a_run(registry, monkeypatch, caplog) -> None:
    """A writer never gets a read-only connection."""
    add(registry, "a")
    registry.close()

    def refused(db: sqlite3.Connection) -> int:
        raise sqlite3.OperationalError("attempt to write a readonly database")

    monkeypatch.setattr(schema, "version_of", refused)
    assert registry.begin(NewRun(scheduler="x", session="s", name="b")) == 0
    assert "cannot be written" in warnings_of(caplog)[0]


@pytest.mark.parametrize("name", ["a?b", "a#b", "a%20b", "a b"])
def test_any_path_is_that_path(tmp_path, name) -> None:
    """Special characters of URLs in the path of the home are taken literally."""
    registry = RunRegistry(str(tmp_path / name / "runs.db"))
    add(registry, "x")
    assert ids(registry.list()) == ["x"]
    registry.close()
    assert os.listdir(tmp_path) == [name]


@pytest.mark.parametrize("page", [512, 4096, 8192])
def test_whole_pages_are_a_whole_file(tmp_path, page) -> None:
    """For any page size; a file that is one byte shorter is truncated."""
    path = str(tmp_path / "x.db")
    db = sqlite3.connect(path, isolation_level=None)
    db.execute(f"PRAGMA page_size = {page}")
    db.execute("CREATE TABLE a (x)")
    assert schema.is_cut_off(db, path) is False
    os.truncate(path, os.path.getsize(path) - 1)
    assert schema.is_cut_off(db, path) is True
    db.close()


def test_threads_wait_for_one_another(registry) -> None:
    """While one thread uses the connection, no other uses or closes it."""
    add(registry, "a")
    inside, go = threading.Event(), threading.Event()
    order: list[str] = []

    def work(db: sqlite3.Connection) -> None:
        inside.set()
        go.wait(60)
        order.append("worked")

    def close() -> None:
        registry.close()
        order.append("closed")

    threads = [threading.Thread(target=lambda: registry.store().read(work, None))]
    threads[0].start()
    assert inside.wait(60)
    threads.append(threading.Thread(target=close))
    threads[1].start()
    assert registry.store()._lock.acquire(blocking=False) is False
    go.set()
    for thread in threads:
        thread.join()
    assert order == ["worked", "closed"]
