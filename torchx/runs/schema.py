"""The tables of the registry: creates new files, upgrades older ones, and sets unusable ones aside."""

from __future__ import annotations

import os
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from torchx.settings import make_private

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterator

# The phase of a row, independent of the state of the job.
INTENT = 0
"""Written before the submission; its answer is not recorded yet."""
SUBMITTED = 1
ABANDONED = 2
"""The submission failed: there is no job."""

# One entry per schema version: the statements that upgrade from the previous version. Released entries are never
# changed; a change of the schema is a new entry. `specs` holds large columns that are rarely read, so that a list of
# runs reads few pages.
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

_COMPANIONS = ("-wal", "-shm", "-journal")  # files that SQLite creates next to a database

# File systems that cannot share the memory map that WAL needs between hosts (https://sqlite.org/wal.html).
_SHARED_FILE_SYSTEMS = frozenset(
    ["nfs", "nfs4", "lustre", "gpfs", "beegfs", "ceph", "cifs", "smb3", "smbfs", "afs", "9p", "orangefs", "fuse.sshfs"]
)


def create(path: str) -> None:
    """Creates a new, empty registry file with mode 0600, unless another process was faster.

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
        _publish(draft, path)
    finally:
        for suffix in ("", *_COMPANIONS):
            if os.path.lexists(draft + suffix):
                os.unlink(draft + suffix)


def version_of(db: sqlite3.Connection) -> int:
    """The schema version of the file; 0 for an empty file."""
    return int(db.execute("PRAGMA user_version").fetchone()[0])


def upgrade(db: sqlite3.Connection) -> None:
    """Upgrades an older file to :data:`VERSION`, in one transaction; does nothing if it has that version."""
    db.execute("BEGIN IMMEDIATE")
    try:
        for statements in MIGRATIONS[version_of(db) :]:
            for statement in statements:
                db.execute(statement)
        db.execute(f"PRAGMA user_version = {VERSION}")
    except BaseException:
        db.execute("ROLLBACK")
        raise
    db.execute("COMMIT")


def set_aside(path: str, inode: int, why: str) -> str:
    """Renames an unusable file, which is kept for inspection; ``why`` is a word for the new name.

    Returns the new path. If another file than the one with this inode has taken its place, nothing happens, and it
    is empty.
    """
    with _names(path):
        try:
            if os.stat(path).st_ino != inode:
                return ""
        except FileNotFoundError:
            return ""
        target = f"{path}.{why}-{time.strftime('%Y%m%dT%H%M%S')}-{os.getpid()}"
        os.rename(path, target)
        for suffix in _COMPANIONS:
            if os.path.lexists(path + suffix):
                os.rename(path + suffix, target + suffix)
        return target


def _publish(draft: str, path: str) -> None:
    with _names(path):
        if os.path.exists(path):
            return
        for suffix in _COMPANIONS:  # left over from a file that was removed: SQLite would use them for the new one
            if os.path.lexists(path + suffix):
                os.unlink(path + suffix)
        try:
            os.link(draft, path)
        except FileExistsError:
            pass
        except OSError:  # a file system without hard links
            os.rename(draft, path)


@contextmanager
def _names(path: str) -> Iterator[None]:
    """Locks the names of a registry file and its companions, while a file is published or set aside.

    Otherwise the log of a new file could be renamed with its predecessor, and its data would be lost.
    """
    import fcntl

    file = os.open(f"{path}.lock", os.O_CREAT | os.O_RDWR, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
    finally:
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
