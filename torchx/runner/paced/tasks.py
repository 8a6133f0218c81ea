"""What becomes of the tasks of a paced sweep, in one SQLite file: its pacer writes it, and whoever cancels."""

from __future__ import annotations

import os
import time

from torchx.errors import BackendError
from torchx.schedulers.kit.names import FILE_NAME
from torchx.settings import make_private, torchx_home
from torchx.specs.api import AppState
from torchx.specs.tasks import TaskList, TaskTable
from torchx.util.records import dataclass

TYPE_CHECKING = False
if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterable, Sequence
    from typing import Any

PREFIX = "sweep-"
"""How the app id of a paced sweep begins. Those of Slurm's begin so, too, and a number follows."""

HEAD_FILE, LOCK_FILE, LOG_FILE = "sweep.json", "lock", "pacer.log"
_TASKS_FILE = "tasks.db"
_BUSY_S = 30.0

WAITING, IN_DOUBT, SUBMITTED, ENDED = range(4)
"""Phases of a task. In doubt: it is about to be submitted, or its submission was not answered."""

_SCHEMA = """
CREATE TABLE tasks (k INTEGER PRIMARY KEY, point TEXT NOT NULL, phase INTEGER NOT NULL DEFAULT 0,
    state TEXT NOT NULL DEFAULT 'PENDING', app_id TEXT NOT NULL DEFAULT '', token TEXT NOT NULL DEFAULT '',
    since REAL NOT NULL DEFAULT 0, code INTEGER, ended REAL NOT NULL DEFAULT 0, msg TEXT NOT NULL DEFAULT '',
    stop INTEGER NOT NULL DEFAULT 0);
CREATE INDEX by_phase ON tasks (phase, k);
CREATE TABLE problem (text TEXT NOT NULL);
"""


@dataclass(kw_only=True)
class Task:
    """One task.

    Attributes:
        app_id: of its job; empty before it is known.
        token: by which the scheduler finds its submission.
        since: Unix time of its submission.
        msg: why it is in its state.
        stop: it is to be ended.
    """

    k: int
    phase: int
    state: AppState
    app_id: str
    token: str
    since: float
    code: int | None
    ended: float
    msg: str
    stop: bool


_COLUMNS = "k, phase, state, app_id, token, since, code, ended, msg, stop"


def folder_of(app_id: str) -> str:
    """Where a paced sweep is; empty where there is none of that id."""
    if not app_id.startswith(PREFIX) or not FILE_NAME.obeys(app_id):
        return ""
    folder = torchx_home("sweeps", app_id)
    return folder if os.path.exists(os.path.join(folder, _TASKS_FILE)) else ""


def create(app_id: str, head: dict[str, Any], points: Sequence[Sequence[str]]) -> str:
    """Makes the folder of a new sweep, whole or not at all; returns it.

    Raises:
        BackendError: it cannot be made.
    """
    import contextlib
    import json
    import shutil

    folder = torchx_home("sweeps", app_id)
    made = f"{folder}.new"
    try:
        make_private(made)
        fd = os.open(os.path.join(made, HEAD_FILE), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(fd, "w", encoding="utf-8") as f:
            json.dump(head, f)
        with contextlib.closing(_connect(made)) as db, db:
            db.executescript(_SCHEMA)
            db.execute("BEGIN")
            rows = ((k, json.dumps(list(point))) for k, point in enumerate(points))
            db.executemany("INSERT INTO tasks (k, point) VALUES (?, ?)", rows)
        os.rename(made, folder)
    except OSError as e:
        shutil.rmtree(made, ignore_errors=True)
        raise BackendError(
            f"the sweep cannot be kept in `{folder}`: {e}", hint="set TORCHX_HOME to a writable folder"
        ) from e
    return folder


def _connect(folder: str) -> sqlite3.Connection:
    import sqlite3

    db = sqlite3.connect(os.path.join(folder, _TASKS_FILE), timeout=_BUSY_S, isolation_level=None)
    db.execute("PRAGMA synchronous = NORMAL")
    return db


class Tasks:
    """The tasks of one sweep. Each method is a transaction of its own.

    Args:
        folder: of the sweep; it exists.
    """

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self._db = _connect(folder)

    def close(self) -> None:
        """Closes the file."""
        self._db.close()

    def __enter__(self) -> Tasks:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def head(self) -> dict[str, Any]:
        """What all tasks have in common, as it was given to :func:`create`."""
        import json

        with open(os.path.join(self.folder, HEAD_FILE), encoding="utf-8") as f:
            found: dict[str, Any] = json.load(f)
        return found

    def version(self) -> int:
        """A number that is another one when somebody else has written."""
        return int(self._db.execute("PRAGMA data_version").fetchone()[0])

    def table(self, max_parallel: int) -> TaskTable:
        """What became of all of them."""
        rows = self._db.execute("SELECT state, code, ended FROM tasks ORDER BY k").fetchall()
        states = {name: AppState[name] for name in {row[0] for row in rows}}
        return TaskTable(
            states=[states[row[0]] for row in rows],
            exit_codes=[row[1] for row in rows],
            ended=[row[2] for row in rows],
            max_parallel=max_parallel,
        )

    def all(self, phase: int) -> list[Task]:
        """Those in a phase, in order."""
        return self._tasks("phase = ? ORDER BY k", (phase,))

    def some(self, numbers: Iterable[int]) -> list[Task]:
        """Those of these numbers, in this order."""
        return [task for k in numbers for task in self._tasks("k = ?", (k,))]

    def next(self) -> Task | None:
        """The first that waits."""
        return next(iter(self._tasks("phase = 0 ORDER BY k LIMIT 1", ())), None)

    def point(self, k: int) -> list[str]:
        """Its values."""
        import json

        found: list[str] = json.loads(self._db.execute("SELECT point FROM tasks WHERE k = ?", (k,)).fetchone()[0])
        return found

    def count(self) -> int:
        """How many there are."""
        return int(self._db.execute("SELECT count(*) FROM tasks").fetchone()[0])

    def claim(self, k: int, app_id: str, token: str) -> bool:
        """Notes that a task is about to be submitted; False where it was cancelled meanwhile."""
        sql = "UPDATE tasks SET phase = 1, app_id = ?, token = ?, since = ? WHERE k = ? AND phase = 0"
        return bool(self._db.execute(sql, (app_id, token, time.time(), k)).rowcount)

    def withdraw(self, k: int) -> None:
        """It was not submitted after all: it waits, or is over where it is to be ended."""
        sql = "UPDATE tasks SET phase = 0, state = 'PENDING', app_id = '', token = '' WHERE k = ?"
        with self._db:
            self._db.execute("BEGIN IMMEDIATE")
            self._db.execute(sql, (k,))
            self._end_stopped()

    def submitted(self, k: int, app_id: str) -> None:
        """Its job is there."""
        self._db.execute("UPDATE tasks SET phase = 2, app_id = ? WHERE k = ? AND phase = 1", (app_id, k))

    def saw(self, seen: Iterable[tuple[int, AppState, str]]) -> None:
        """How some are that go on, and why."""
        sql = "UPDATE tasks SET state = ?, msg = ? WHERE k = ? AND phase = 2"
        with self._db:
            self._db.execute("BEGIN IMMEDIATE")
            self._db.executemany(sql, [(state.name, msg, k) for k, state, msg in seen])

    def end(self, k: int, state: AppState, *, code: int | None = None, msg: str = "", ended: float = 0.0) -> None:
        """How one has ended."""
        sql = "UPDATE tasks SET phase = 3, state = ?, code = ?, msg = ?, ended = ? WHERE k = ?"
        self._db.execute(sql, (state.name, code, msg, ended or time.time(), k))

    def stop(self, k: int | None = None) -> None:
        """Notes that a task, or each, is to be ended; one that waits has ended by that."""
        which, values = ("", ()) if k is None else (" AND k = ?", (k,))
        with self._db:
            self._db.execute("BEGIN IMMEDIATE")
            self._db.execute(f"UPDATE tasks SET stop = 1 WHERE phase < 3{which}", values)  # noqa: S608  # ours
            self._end_stopped()

    def problem(self, text: str | None = None) -> str:
        """Why nothing is submitted just now; with a text, that is noted."""
        if text is not None:
            with self._db:
                self._db.execute("BEGIN IMMEDIATE")
                self._db.execute("DELETE FROM problem")
                if text:
                    self._db.execute("INSERT INTO problem VALUES (?)", (text,))
            return text
        found = self._db.execute("SELECT text FROM problem").fetchone()
        return str(found[0]) if found else ""

    def _end_stopped(self) -> None:
        sql = "UPDATE tasks SET phase = 3, state = 'CANCELLED', ended = ? WHERE phase = 0 AND stop = 1"
        self._db.execute(sql, (time.time(),))

    def _tasks(self, where: str, values: Sequence[object]) -> list[Task]:
        rows = self._db.execute(f"SELECT {_COLUMNS} FROM tasks WHERE {where}", values)  # noqa: S608  # ours
        names = _COLUMNS.split(", ")
        found = [Task(**dict(zip(names, row, strict=True))) for row in rows]
        for task in found:
            task.state, task.stop = AppState[str(task.state)], bool(task.stop)
        return found


def tasks_of(head: dict[str, Any], points: Sequence[Sequence[str]]) -> TaskList:
    """The values of some tasks by their names."""
    return TaskList(names=head["names"], points=points, max_parallel=head["width"])


def lock(folder: str) -> int | None:
    """The lock of the sweep's pacer: whoever has this file open is it. None where there is one."""
    import fcntl

    fd = os.open(os.path.join(folder, LOCK_FILE), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    return fd
