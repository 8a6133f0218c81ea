"""Takes back the files that an older torchx has set aside, because a newer one had written them."""

from __future__ import annotations

import os
import re
import sqlite3
import time
from contextlib import ExitStack, closing

from torchx.runs import schema
from torchx.util.notices import logger

SETTLES_S = 0.3
"""Age at which a file may be replaced: an older torchx opens what it has just created, without a lock."""


def take_back(path: str) -> None:
    """Brings the registry at ``path`` up to date, together with what was set aside: the oldest file takes its place.

    The runs of the others follow in it, with new numbers, so that runs on record before keep theirs. A damaged file
    stays where it is, and so does one that is too new for this version.

    The caller holds :func:`torchx.runs.schema.locked`.

    Raises:
        OSError, sqlite3.Error: nothing has changed, or a part: the next call continues.
    """
    there = os.path.exists(path)
    found = [file for file in _set_aside(path) if _is_sound(file)]
    if found and there and not _is_sound(path):
        return  # the store reports it, sets it aside if it is damaged, and comes back
    if found and there and 0 <= (age := time.time() - os.stat(path).st_ctime) < SETTLES_S:
        time.sleep(SETTLES_S - age)
    first, *later = [*found, *([path] if there else [])] or [""]
    if not first:
        return
    with ExitStack() as opened:
        for (
            file
        ) in later:  # Until all is renamed: an older torchx that closes a file last removes its log, by its name.
            schema.version_of(opened.enter_context(closing(schema.connect(file))))
        with closing(schema.connect(first)) as db:
            schema.upgrade(db)
            for file in later:
                _move_runs(db, file)
            # Other processes may keep the log of a file that is to be renamed: it must not contain anything.
            if db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]:
                raise sqlite3.OperationalError("it is locked")
        for file in later:
            # An older torchx knows a file by its inode, which no other file gets as long as this one is there.
            schema.rename(file, f"{path}.merged", arrives=False)
        if first != path:
            schema.rename(first, path, arrives=True)


def _set_aside(path: str) -> list[str]:
    """Return the files that an older torchx has renamed, oldest first."""
    folder, name = os.path.split(path)
    aside = re.compile(re.escape(name) + r"\.newer-\d{8}T\d{6}-\d+")
    return [os.path.join(folder, file) for file in sorted(os.listdir(folder)) if aside.fullmatch(file)]


def _is_sound(file: str) -> bool:
    try:
        with closing(schema.connect(file)) as db:
            version, said = schema.version_of(db), str(db.execute("PRAGMA quick_check(1)").fetchone()[0])
            if said == "ok" and version and not schema.is_cut_off(db, file):
                return version <= schema.VERSION
    except sqlite3.DatabaseError as e:
        if "locked" in str(e):
            raise
    if ".newer-" in file:
        target = file.replace(".newer-", ".damaged-")
        schema.rename(file, target, arrives=False)
        logger("torchx.runs").warning("`%s`, which an older torchx has set aside, is damaged", target)
    return False


def _move_runs(db: sqlite3.Connection, file: str) -> None:
    """Move the runs of a file to the end of ``db``, in one transaction.

    A process that was about to write to it then finds no table, and looks for the file that has taken its place.
    """
    db.execute("ATTACH ? AS later", (schema.url_of(file),))
    try:
        db.execute("BEGIN IMMEDIATE")
        if _columns(db, "later", "runs"):  # else this process follows one that was killed afterwards
            _copy_runs(db)
            db.execute("DROP TABLE later.runs")
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise
    db.execute("DETACH later")


def _copy_runs(db: sqlite3.Connection) -> None:
    # An older torchx records the answer to a submission as another run if its file was replaced meanwhile.
    same = "other.handle = main.runs.handle"
    if "submission" in _columns(db, "later", "specs"):
        mine = "SELECT submission FROM main.specs WHERE run_id = main.runs.id AND submission <> '\"\"'"
        same += f" OR other.id IN (SELECT run_id FROM later.specs WHERE submission = ({mine}))"  # noqa: S608  # ours
    db.execute(
        "UPDATE main.runs SET phase = 2, unfinished = 0 WHERE phase = 0"  # noqa: S608  # ours
        f" AND EXISTS (SELECT 1 FROM later.runs other WHERE other.phase = 1 AND ({same}))"
    )
    last = db.execute("SELECT coalesce(max(id), 0) FROM main.runs").fetchone()[0]
    for (table,) in db.execute("SELECT name FROM later.sqlite_master WHERE type = 'table' ORDER BY name").fetchall():
        key = "id" if table == "runs" else "run_id"
        shared = [name for name in _columns(db, "later", table) if name in _columns(db, "main", table)]
        if key in shared:
            rest = "".join(f", {name}" for name in shared if name not in (key, "seq"))
            db.execute(
                f"REPLACE INTO main.{table} ({key}{rest}) SELECT {key} + {last}{rest} FROM later.{table} WHERE {key}"  # noqa: S608  # ours
                # Unless a process was killed between the two files' parts of the transaction.
                " IN (SELECT id FROM later.runs WHERE (created_at, name, host) NOT IN"
                f" (SELECT created_at, name, host FROM main.runs WHERE id <= {last}))"
            )


def _columns(db: sqlite3.Connection, place: str, table: str) -> list[str]:
    return [row[0] for row in db.execute("SELECT name FROM pragma_table_info(?, ?)", (table, place))]
