"""The tables of the registry: creates new files, upgrades older ones, and sets unusable ones aside."""

from __future__ import annotations

import os
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from torchx.settings import make_private

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Iterator

BUSY_TIMEOUT_S = 10.0
"""How long SQLite waits for transactions of other processes, per try. A transaction takes less than a millisecond, but
may have to wait for a busy processor, and SQLite's locks are not fair. Several tries allow Ctrl-C in between."""

# The phase of a row, independent of the state of the job.
INTENT = 0
"""Written before the submission; its answer is not recorded yet."""
SUBMITTED = 1
ABANDONED = 2
"""The submission failed: there is no job."""

# One entry per schema version: the statements that upgrade from the previous version. Released entries are never
# changed. A version that does not know a new entry cannot use the file: what it can ignore belongs to `ADDITIONS`.
# `specs` holds large columns that are rarely read, so that a list of runs reads few pages.
MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        """
        CREATE TABLE runs (
            id INTEGER PRIMARY KEY,
            handle TEXT NOT NULL,
            scheduler TEXT NOT NULL,
            session TEXT NOT NULL,
            app_id TEXT NOT NULL,
            name TEXT NOT NULL,
            phase INTEGER NOT NULL,
            state TEXT NOT NULL,
            unfinished INTEGER NOT NULL,
            msg TEXT NOT NULL,
            created_at REAL NOT NULL,
            updated_at REAL NOT NULL,
            ended_at REAL,
            user TEXT NOT NULL,
            host TEXT NOT NULL,
            cwd TEXT NOT NULL,
            image TEXT NOT NULL,
            workspace TEXT NOT NULL,
            git_commit TEXT NOT NULL,
            git_dirty INTEGER,
            parent_run_id TEXT NOT NULL,
            submitter TEXT NOT NULL
        )
        """,
        "CREATE TABLE specs (run_id INTEGER PRIMARY KEY, argv TEXT NOT NULL, app TEXT NOT NULL,"
        " cfg TEXT NOT NULL, tags TEXT NOT NULL)",
        "CREATE INDEX runs_by_handle ON runs (handle)",
        "CREATE INDEX runs_by_app_id ON runs (app_id)",
        "CREATE INDEX runs_unfinished ON runs (id) WHERE unfinished = 1",
        "CREATE INDEX runs_intents ON runs (id) WHERE phase = 0",
    ),
    # The image and the code that each role really ran: digests and content hashes by role.
    (
        "ALTER TABLE specs ADD COLUMN image_digests TEXT NOT NULL DEFAULT '{}'",
        "ALTER TABLE specs ADD COLUMN workspace_hashes TEXT NOT NULL DEFAULT '{}'",
    ),
    # The token by which a scheduler finds the job if the answer to its submission was lost; JSON, like all of `specs`.
    ("ALTER TABLE specs ADD COLUMN submission TEXT NOT NULL DEFAULT '\"\"'",),
    # Changes of runs, one row each, for watchers; a trigger inserts them, whichever process writes.
    (
        """
        CREATE TABLE changes (
            seq INTEGER PRIMARY KEY AUTOINCREMENT,
            run_id INTEGER NOT NULL,
            at REAL NOT NULL,
            was TEXT NOT NULL,
            state TEXT NOT NULL,
            msg TEXT NOT NULL
        )
        """,
        """
        CREATE TRIGGER runs_changed AFTER UPDATE OF phase, state, msg ON runs
        WHEN new.phase = 1 AND (old.phase <> 1 OR old.state <> new.state OR old.msg <> new.msg)
        BEGIN
            INSERT INTO changes (run_id, at, was, state, msg) VALUES (
                new.id, new.updated_at, CASE old.phase WHEN 1 THEN old.state ELSE '' END, new.state, new.msg);
            DELETE FROM changes WHERE seq <= last_insert_rowid() - 100000;
        END
        """,
    ),
    # The tasks of a sweep, which is one row of `runs`: the values of each task, as a JSON list.
    (
        "CREATE TABLE tasks (run_id INTEGER NOT NULL, k INTEGER NOT NULL, point TEXT NOT NULL,"
        " PRIMARY KEY (run_id, k)) WITHOUT ROWID",
    ),
    # The whole statuses of jobs on clusters, as recorded by pollers; see torchx.runs.statuses.
    ("CREATE TABLE statuses (run_id INTEGER PRIMARY KEY, status TEXT NOT NULL)",),
)
VERSION = len(MIGRATIONS)

BY_AGENT = """instr(tags, '"launched_by":"mcp ') > 0"""
"""The condition of :data:`torchx.runs.records.LAUNCHED_BY`, in the same words as in its index."""

# Statements that add what versions without them can ignore, since all name the columns that they read and write:
# tables, indexes, and columns with a default. `application_id` counts them. Released entries are never changed.
ADDITIONS: tuple[tuple[str, ...], ...] = (
    # From here on, the files that an older torchx set aside have been taken back; see torchx.runs.asides.
    (),
    # What was used; see torchx.runs.usage. Lists of the runs of a name, a state or a time read these only.
    (
        "ALTER TABLE runs ADD COLUMN gpus REAL",
        "ALTER TABLE runs ADD COLUMN cpus REAL",
        "ALTER TABLE runs ADD COLUMN started_at REAL",
        "ALTER TABLE runs ADD COLUMN busy_s REAL",
        "CREATE INDEX runs_by_name ON runs (name)",
        "CREATE INDEX runs_by_state ON runs (state)",
        "CREATE INDEX runs_by_time ON runs (created_at)",
        f"CREATE INDEX specs_by_agent ON specs (run_id) WHERE {BY_AGENT}",
    ),
    # Runs whose logs are not in the archive yet; see torchx.runs.unkept.
    (
        "CREATE TABLE unkept (run_id INTEGER PRIMARY KEY, why TEXT NOT NULL DEFAULT '',"
        " tried_at REAL NOT NULL DEFAULT 0, final INTEGER NOT NULL DEFAULT 0, told INTEGER NOT NULL DEFAULT 0)",
    ),
)

COMPANIONS = ("-wal", "-shm", "-journal")  # files that SQLite creates next to a database

# File systems that cannot share the memory map that WAL needs between hosts (https://sqlite.org/wal.html).
_SHARED_FILE_SYSTEMS = frozenset(
    ["nfs", "nfs4", "lustre", "gpfs", "beegfs", "ceph", "cifs", "smb3", "smbfs", "afs", "9p", "orangefs", "fuse.sshfs"]
)


def create(path: str, instead: Callable[[str], None] = lambda _: None) -> None:
    """Create a new, empty registry file with mode 0600, unless another process was faster, or ``instead`` does it.

    The file is created under another name and renamed, so that no process sees an incomplete schema.
    """
    import sqlite3

    directory = os.path.dirname(path)
    make_private(directory)
    draft = f"{path}.new-{os.getpid()}-{os.urandom(4).hex()}"
    os.close(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    try:
        db = sqlite3.connect(draft, isolation_level=None)
        try:
            # No need to sync: the file has no data yet, and an incomplete one would be set aside.
            db.execute("PRAGMA synchronous = OFF")
            if not _is_shared(directory):
                db.execute("PRAGMA journal_mode = WAL")
            upgrade(db)
        finally:
            db.close()
        with locked(path):
            instead(path)
            _publish(draft, path)
    finally:
        for suffix in ("", *COMPANIONS):
            if os.path.lexists(draft + suffix):
                os.unlink(draft + suffix)


def connect(path: str, *, immutable: bool = False) -> sqlite3.Connection:
    """Open a file, for all threads: :class:`torchx.runs.store.Store` holds its lock during each use."""
    import sqlite3

    return sqlite3.connect(
        url_of(path, "immutable=1" if immutable else "mode=rw"),
        uri=True,
        timeout=BUSY_TIMEOUT_S,
        isolation_level=None,
        check_same_thread=False,
    )


def url_of(path: str, how: str = "mode=rw") -> str:
    """Return the URL of a file. It is never created: an empty one would take the place of one in the making."""
    return "file:" + os.path.abspath(path).replace("%", "%25").replace("?", "%3f").replace("#", "%23") + f"?{how}"


def is_cut_off(db: sqlite3.Connection, path: str) -> bool:
    """Whether the file ends within a page; SQLite itself would read the missing part as zeros."""
    return os.stat(path).st_size % int(db.execute("PRAGMA page_size").fetchone()[0]) != 0


def version_of(db: sqlite3.Connection) -> int:
    """Return the schema version of the file; 0 for an empty file."""
    return int(db.execute("PRAGMA user_version").fetchone()[0])


def additions_of(db: sqlite3.Connection) -> int:
    """How many of the additions the file has; it may have more than this version knows."""
    return int(db.execute("PRAGMA application_id").fetchone()[0])


def is_current(db: sqlite3.Connection) -> bool:
    """Whether a file that is not newer has everything of this version."""
    return version_of(db) == VERSION and additions_of(db) >= len(ADDITIONS)


def missing(db: sqlite3.Connection) -> list[str]:
    """Return the statements that bring a file up to date."""
    steps = (*MIGRATIONS[version_of(db) :], *ADDITIONS[additions_of(db) :])
    return [statement for statements in steps for statement in statements]


def upgrade(db: sqlite3.Connection) -> None:
    """Upgrades an older file to :data:`VERSION`, in one transaction; does nothing if it has that version."""
    db.execute("BEGIN IMMEDIATE")
    try:
        for statement in missing(db):
            db.execute(statement)
        db.execute(f"PRAGMA user_version = {max(version_of(db), VERSION)}")
        db.execute(f"PRAGMA application_id = {max(additions_of(db), len(ADDITIONS))}")
    except BaseException:
        db.execute("ROLLBACK")
        raise
    db.execute("COMMIT")


def set_aside(path: str, inode: int, why: str) -> str:
    """Rename an unusable file, which is kept for inspection; ``why`` is a word for the new name.

    Returns the new path. If another file than the one with this inode has taken its place, nothing happens, and it
    is empty.
    """
    with locked(path):
        try:
            if os.stat(path).st_ino != inode:
                return ""
        except FileNotFoundError:
            return ""
        target = f"{path}.{why}-{time.strftime('%Y%m%dT%H%M%S')}-{os.getpid()}"
        rename(path, target, arrives=False)
        return target


def rename(source: str, target: str, *, arrives: bool) -> None:
    """Rename a file with its companions, within :func:`locked`.

    Processes open a file by its usual name, without a lock: its companions must be complete while it has that name. So
    they are renamed first if the file ``arrives`` there, else last.
    """
    for suffix in (*COMPANIONS, "") if arrives else ("", *COMPANIONS):
        if os.path.lexists(source + suffix):
            os.rename(source + suffix, target + suffix)
        elif os.path.lexists(target + suffix):
            os.unlink(target + suffix)  # of another file, which SQLite would use for this one


def _publish(draft: str, path: str) -> None:
    if os.path.exists(path):
        return
    for suffix in COMPANIONS:  # left over from a file that was removed: SQLite would use them for the new one
        if os.path.lexists(path + suffix):
            os.unlink(path + suffix)
    try:
        os.link(draft, path)
    except FileExistsError:
        pass
    except OSError:  # a file system without hard links
        os.rename(draft, path)


@contextmanager
def locked(path: str, *, needed: bool = True) -> Iterator[None]:
    """Locks the names of a registry file and its companions, while a file is opened, closed, published or set aside.

    Otherwise the log of a new file could be renamed with its predecessor, and its data would be lost. If it is
    ``needed``, raises OSError if that is not possible, for example in a read-only home.
    """
    import fcntl

    file = -1
    try:
        try:
            file = os.open(f"{path}.lock", os.O_CREAT | os.O_RDWR, 0o600)
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError:
            if needed:
                raise
        yield
    finally:
        if file >= 0:
            os.close(file)


def _is_shared(directory: str) -> bool:
    """Whether other hosts may have mounted the same directory; False if that is not known."""
    real = os.path.realpath(directory)
    best, kind = "", ""
    try:
        with open("/proc/self/mountinfo") as file:
            for line in file:
                fields, _, rest = line.partition(" - ")
                point = fields.split()[4].replace("\\040", " ")
                inside = real == point or real.startswith(point.rstrip("/") + "/")
                if inside and len(point) >= len(best):
                    best, kind = point, rest.split()[0]
    except (OSError, IndexError):
        return False
    return kind in _SHARED_FILE_SYSTEMS
