"""The registry's file: damaged, newer, read-only, full, and written by many processes at once."""

from __future__ import annotations

import glob
import os
import sqlite3
import stat
import subprocess
import sys
import threading

import pytest

from torchx.errors import NotFoundError
from torchx.runs import NewRun, RunRegistry, schema, store
from torchx.specs import AppState

from .run_rows import add, ids, warnings_of

# -- files that are not what they should be --------------------------------------------------------


def test_the_file_is_private(registry):
    """Only its owner can read it and SQLite's companion files: it contains command lines."""
    add(registry, "a")
    modes = {stat.S_IMODE(os.stat(path).st_mode) for path in glob.glob(registry.path + "*")}
    assert modes == {0o600}


def test_a_new_file_is_in_wal_mode_and_leaves_nothing_beside_it(registry):
    """Readers never wait for writers, and the draft is removed."""
    add(registry, "a")
    with sqlite3.connect(registry.path) as db:
        assert db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert db.execute("PRAGMA user_version").fetchone() == (schema.VERSION,)
    db.close()
    assert glob.glob(registry.path + ".new-*") == []


@pytest.mark.parametrize("size", [0, 1, 15, 99, 100, 1000, 4096, 5000, 8192, 12288, 20000])
def test_a_file_that_was_cut_off_is_set_aside(registry, caplog, size):
    """Wherever it was truncated: one warning, the old file is kept, and the next run is recorded."""
    for i in range(40):
        add(registry, f"old-{i}", argv=["x" * 500])
    registry.close()
    with open(registry.path, "r+b") as file:
        file.truncate(size)
    again = RunRegistry(registry.path)
    add(again, "new")
    assert again.find("@last").app_id == "new"
    assert ids(again.list())[0] == "new"
    for _ in range(3):
        add(again, "more")
    again.close()
    [text] = warnings_of(caplog)
    [aside] = glob.glob(registry.path + ".damaged-*")
    assert aside in text
    assert os.stat(aside).st_size == size


def test_a_file_cut_off_within_its_last_page_is_set_aside(registry, caplog):
    """SQLite would read the missing part as zeros, and return wrong rows."""
    for i in range(40):
        add(registry, f"old-{i}", argv=["x" * 500])
    registry.close()
    os.truncate(registry.path, os.path.getsize(registry.path) - 1)
    assert registry.list() == []
    [text] = warnings_of(caplog)
    assert "it was cut off" in text


def test_a_file_of_noise_is_set_aside_even_by_a_reader(registry, caplog):
    """The list is empty, with a warning instead of an error."""
    with open(registry.path, "wb") as file:
        file.write(os.urandom(9000))
    assert registry.list() == []
    assert "damaged" in warnings_of(caplog)[0]


def test_a_file_that_was_damaged_before_this_process_came_is_set_aside_by_one_only(registry):
    """The second process does not touch its successor."""
    with open(registry.path, "wb") as file:
        file.write(b"x" * 5000)
    inode = os.stat(registry.path).st_ino
    assert schema.set_aside(registry.path, inode, "damaged")
    assert schema.set_aside(registry.path, inode, "damaged") == ""
    schema.create(registry.path)
    assert schema.set_aside(registry.path, inode, "damaged") == "" or os.stat(registry.path).st_ino == inode


@pytest.mark.parametrize("how", ["file-in-the-way", "no-permission"])
def test_a_home_that_cannot_be_written_warns_once(tmp_path, caplog, how):
    """Nothing is recorded, and nothing fails: one warning per process."""
    home = tmp_path / "home"
    if how == "file-in-the-way":
        home.write_text("")
    else:
        home.mkdir(mode=0o500)
        if os.access(home, os.W_OK):
            pytest.skip("this user may write everywhere")
    registry = RunRegistry(str(home / "runs.db"))
    run_id = registry.begin(NewRun(scheduler="x", session="s", name="a"))
    assert run_id == 0
    registry.submitted(run_id, "x://s/a")
    registry.abandoned(run_id, "no")
    registry.amend(run_id, git_commit="", git_dirty=None)
    registry.saw("x://s/a", AppState.FAILED)
    registry.lost(["x://s/a"])
    assert registry.list() == []
    assert registry.get("x://s/a") is None
    with pytest.raises(NotFoundError):
        registry.find("a")
    [text] = warnings_of(caplog)
    assert str(home) in text


def test_a_read_only_file_can_still_be_read(registry, monkeypatch):
    """Runs are listed although SQLite cannot create its companion files."""
    add(registry, "a")
    registry.close()
    refused = sqlite3.OperationalError("unable to open database file")
    monkeypatch.setattr(schema, "version_of", lambda db: (_ for _ in ()).throw(refused))
    again = RunRegistry(registry.path)
    assert ids(again.list()) == ["a"]
    again.close()


def test_what_was_opened_on_a_full_disk_is_written_once_there_is_room(registry, monkeypatch, caplog):
    """Reading on a full disk opens the file read-only; a later deletion is still recorded."""
    add(registry, "a")
    registry.close()
    again = RunRegistry(registry.path)
    with monkeypatch.context() as full:
        full.setattr(schema, "version_of", lambda db: (_ for _ in ()).throw(sqlite3.OperationalError("disk I/O error")))
        [run] = again.list()
    again.forget(run.handle)
    assert again.list() == []
    assert warnings_of(caplog) == []
    again.close()


_FULL = """
import resource, signal, sys
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
from torchx.runs import NewRun, RunRegistry
registry = RunRegistry(sys.argv[1])
first = registry.begin(NewRun(scheduler="x", session="s", name="a"))
registry.submitted(first, "x://s/first")
resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))
for _ in range(20):
    run_id = registry.begin(NewRun(scheduler="x", session="s", name="a", argv=["x" * 3000]))
    registry.submitted(run_id, "x://s/more")
print(run_id)
"""


def test_a_full_disk_warns_once_and_keeps_what_was_there(tmp_path):
    """One warning on stderr, and existing runs can still be read."""
    path = str(tmp_path / "runs.db")
    done = subprocess.run([sys.executable, "-c", _FULL, path], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "0"
    assert done.stderr.count("cannot be written") == 1, done.stderr
    registry = RunRegistry(path)
    assert "first" in ids(registry.list())
    registry.close()


# -- many at once ----------------------------------------------------------------------------------

_WRITER = """
import os, sys
import torchx.runs.schema
from torchx.runs import NewRun, RunRegistry
from torchx.specs import AppState
torchx.runs.schema.BUSY_TIMEOUT_S = 300.0  # whoever is in the way may be held up for long on a busy machine
path, count = sys.argv[1], int(sys.argv[2])
children = []
for i in range(count):
    pid = os.fork()
    if pid == 0:
        registry = RunRegistry(path)
        for k in range(4):
            handle = f"x://s/job-{i}-{k}"
            run_id = registry.begin(NewRun(scheduler="x", session="s", name="a", handle=handle))
            registry.submitted(run_id, handle)
            registry.saw(handle, AppState.FAILED)
        os._exit(0 if run_id else 1)
    children.append(pid)
sys.exit(max(os.waitpid(pid, 0)[1] for pid in children) != 0)
"""


@pytest.mark.parametrize("found", ["nothing", "a-damaged-file"])
def test_fifty_processes_at_once_lose_nothing(tmp_path, found):
    """50 processes create or set aside the file and write at the same time: each run is there once."""
    path = str(tmp_path / "home" / "runs.db")
    if found == "a-damaged-file":
        os.mkdir(tmp_path / "home")
        with open(path, "wb") as file:
            file.write(b"not a database" * 1000)
    argv = [sys.executable, "-c", _WRITER, path, "50"]
    done = subprocess.run(argv, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "locked" not in done.stderr
    registry = RunRegistry(path)
    runs = registry.list()
    registry.close()
    assert sorted(run.app_id for run in runs) == sorted(f"job-{i}-{k}" for i in range(50) for k in range(4))
    assert {run.state for run in runs} == {AppState.FAILED}
    assert len(glob.glob(path + ".damaged-*")) == (1 if found == "a-damaged-file" else 0)


@pytest.mark.parametrize("comes_free", [True, False])
def test_a_file_that_is_locked_for_long(registry, caplog, monkeypatch, comes_free):
    """Longer than SQLite waits: after several tries, a run is not recorded, with a warning."""
    add(registry, "old")
    monkeypatch.setattr(schema, "BUSY_TIMEOUT_S", 0.0)
    registry.close()
    holder = sqlite3.connect(registry.path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    tries = []

    def in_transaction(*args, real=store._in_transaction):
        tries.append(1)
        if comes_free and len(tries) == 5:
            holder.execute("ROLLBACK")
        return real(*args)

    monkeypatch.setattr(store, "_in_transaction", in_transaction)
    add(registry, "new")
    holder.close()
    if comes_free:
        assert (len(tries), set(ids(registry.list())), warnings_of(caplog)) == (5 + 1, {"old", "new"}, [])
    else:
        [text] = warnings_of(caplog)
        assert "database is locked" in text and "new runs will not be in" in text
        assert ids(registry.list()) == ["old"]


def test_threads_share_a_registry(registry):
    """Many threads write through one registry."""

    def work(i):
        for k in range(10):
            add(registry, f"{i}-{k}")

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(ids(registry.list()))) == 80


def test_a_forked_child_opens_its_own_connection(registry):
    """After a fork, the child has its own connection, and the parent's still works."""
    add(registry, "parent")
    pid = os.fork()
    if pid == 0:
        add(registry, "child")
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    add(registry, "parent-2")
    assert sorted(ids(registry.list())) == ["child", "parent", "parent-2"]


def test_ten_thousand_runs_are_looked_up_by_index(registry):
    """The queries of all commands use an index."""
    add(registry, "a")
    with sqlite3.connect(registry.path) as db:
        for sql in (
            "SELECT * FROM runs WHERE handle = ?",
            "SELECT * FROM runs WHERE app_id >= ? AND app_id < 'x'",
            "SELECT * FROM runs WHERE phase = 0 AND ? = ?",
            "SELECT * FROM runs WHERE unfinished = 1 AND phase = 1 AND ? = ? ORDER BY id DESC",
        ):
            values = ("a",) * sql.count("?")
            plan = " ".join(str(row[-1]) for row in db.execute("EXPLAIN QUERY PLAN " + sql, values))
            assert "USING INDEX" in plan, (sql, plan)
            assert "TEMP B-TREE" not in plan
    db.close()


def test_the_registry_follows_the_home_directory(tmp_path, monkeypatch):
    """After a change of TORCHX_HOME, the file in the new home is used."""
    registry = RunRegistry()
    add(registry, "one")
    monkeypatch.setenv("TORCHX_HOME", str(tmp_path / "other"))
    assert registry.list() == []
    add(registry, "two")
    assert ids(registry.list()) == ["two"]
    registry.close()


def test_a_submitter_that_is_gone_is_known_to_be_gone():
    """An ended process, or a reused pid, is not mistaken for the submitter; one on another host may be alive."""
    from torchx.runs.submitter import identity, may_be_alive

    host, boot, pid, start = identity().rsplit("|", 3)
    assert may_be_alive(identity())
    assert not may_be_alive(f"{host}|{boot}|{pid}|1")
    assert not may_be_alive(f"{host}|another|{pid}|{start}")
    assert may_be_alive(f"elsewhere|{boot}|{pid}|{start}")
    assert not may_be_alive("")


def test_importing_the_registry_does_not_import_sqlite():
    """The status of a local job does not need it."""
    code = "import sys, torchx.runs; sys.exit('sqlite3' in sys.modules or 'json' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
