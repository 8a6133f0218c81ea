"""The tasks of a paced sweep and their states, in an SQLite file that its pacer and cancelling processes write."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import time
from collections.abc import Sequence
from typing import Any

from torchx.errors import BackendError
from torchx.schedulers.kit.names import FILE_NAME
from torchx.schedulers.kit.tasks import check_numbers
from torchx.settings import make_private, torchx_home
from torchx.specs.api import AppState
from torchx.specs.tasks import TaskTable
from torchx.util.records import dataclass

PREFIX = "sweep-"
"""Prefix of the app id of a paced sweep. App ids of Slurm's sweeps have it, too, followed by a number."""

_FILE = "sweep.db"
_BUSY_S = 30.0

WAITING, IN_DOUBT, SUBMITTED, ENDED = range(4)
"""Phases of a task. In doubt: it is about to be submitted, or the answer to its submission was lost."""

_SCHEMA = """
CREATE TABLE sweep (head TEXT NOT NULL, problem TEXT NOT NULL DEFAULT '');
CREATE TABLE tasks (k INTEGER PRIMARY KEY, point TEXT NOT NULL, phase INTEGER NOT NULL DEFAULT 0,
    state TEXT NOT NULL DEFAULT 'PENDING', app_id TEXT NOT NULL DEFAULT '', token TEXT NOT NULL DEFAULT '',
    since REAL NOT NULL DEFAULT 0, code INTEGER, ended REAL NOT NULL DEFAULT 0, msg TEXT NOT NULL DEFAULT '',
    stop INTEGER NOT NULL DEFAULT 0);
CREATE INDEX by_phase ON tasks (phase, k);
"""
_COLUMNS = "k, point, phase, state, app_id, token, since, ended, msg, stop"


@dataclass
class Task:
    """One task.

    Attributes:
        point: the values of the task.
        app_id: app id of its job; empty if it is not known yet.
        token: token by which the scheduler finds its submission.
        since: Unix time of its submission.
        msg: reason for its state.
        stop: the task was cancelled.
    """

    k: int
    point: list[str]
    phase: int
    state: AppState
    app_id: str
    token: str
    since: float
    ended: float
    msg: str
    stop: bool


def folder_of(app_id: str) -> str:
    """Return the folder of a paced sweep; empty if there is none with this app id."""
    if not app_id.startswith(PREFIX) or not FILE_NAME.obeys(app_id):
        return ""
    folder = torchx_home("sweeps", app_id)
    return folder if os.path.exists(os.path.join(folder, _FILE)) else ""


def create(app_id: str, head: dict[str, Any], points: Sequence[Sequence[str]]) -> str:
    """Create the folder of a new sweep atomically and return it; raise BackendError if that is not possible."""
    import shutil

    folder = torchx_home("sweeps", app_id)
    made = f"{folder}.new"
    try:
        make_private(made)
        with contextlib.closing(_connect(made)) as db, db:
            db.executescript(_SCHEMA)
            db.execute("BEGIN")
            db.execute("INSERT INTO sweep (head) VALUES (?)", (json.dumps(head),))
            rows = ((k, json.dumps(list(point))) for k, point in enumerate(points))
            db.executemany("INSERT INTO tasks (k, point) VALUES (?, ?)", rows)
        os.rename(made, folder)
    except (OSError, sqlite3.Error) as e:
        shutil.rmtree(made, ignore_errors=True)
        raise BackendError(
            f"the sweep cannot be kept in `{folder}`: {e}", hint="set TORCHX_HOME to a writable folder"
        ) from e
    return folder


def _connect(folder: str) -> sqlite3.Connection:
    db = sqlite3.connect(os.path.join(folder, _FILE), timeout=_BUSY_S, isolation_level=None)
    db.execute("PRAGMA synchronous = NORMAL")
    return db


def opened(app_id: str) -> Tasks | None:
    """Return the tasks of a sweep; None if there is no paced sweep with this app id."""
    folder = folder_of(app_id)
    return Tasks(folder) if folder else None


class Tasks:
    """The tasks of one sweep. Each method is a transaction.

    A ``with`` block ends with a BackendError if one of them failed, for example because the disk is full.
    """

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self._db = _connect(folder)

    def __enter__(self) -> Tasks:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._db.close()
        if isinstance(error, sqlite3.Error):
            raise BackendError(f"the sweep in `{self.folder}` cannot be read or changed: {error}") from error

    # -- reading ---------------------------------------------------------------------------------

    def head(self) -> dict[str, Any]:
        """Return the ``head`` given to :func:`create`, and ``problem``: why no task is submitted at the moment."""
        head, problem = self._db.execute("SELECT head, problem FROM sweep").fetchone()
        return {**json.loads(head), "problem": problem}

    def version(self) -> int:
        """Return a number that changes when another process writes."""
        return int(self._db.execute("PRAGMA data_version").fetchone()[0])

    def table(self, max_parallel: int) -> TaskTable:
        rows = self._db.execute("SELECT state, code, ended FROM tasks ORDER BY k").fetchall()
        states = AppState.__members__
        return TaskTable(
            states=[states.get(row[0], AppState.UNKNOWN) for row in rows],  # a newer torchx may know more
            exit_codes=[row[1] for row in rows],
            ended=[row[2] for row in rows],
            max_parallel=max_parallel,
        )

    def all(self, *phases: int) -> list[Task]:
        """Return the tasks in the given phases, in order."""
        return self._tasks(f"phase IN ({', '.join(map(str, phases))}) ORDER BY k")

    def __len__(self) -> int:
        return int(self._db.execute("SELECT count(*) FROM tasks").fetchone()[0])

    def some(self, *numbers: int) -> list[Task]:
        """Return the tasks with these numbers, in this order; raises NotFoundError if there is no such task."""
        check_numbers(os.path.basename(self.folder), numbers, len(self))
        return [task for k in numbers for task in self._tasks("k = ?", k)]

    def next(self) -> Task | None:
        return next(iter(self._tasks("phase = 0 ORDER BY k LIMIT 1")), None)

    def _tasks(self, where: str, *values: object) -> list[Task]:
        found = []
        for row in self._db.execute(f"SELECT {_COLUMNS} FROM tasks WHERE {where}", values):  # noqa: S608  # ours
            task = Task(*row)
            task.point, task.stop = json.loads(row[1]), bool(task.stop)
            task.state = AppState.__members__.get(row[3], AppState.UNKNOWN)
            found.append(task)
        return found

    # -- writing ---------------------------------------------------------------------------------

    def change(self, k: int, phase: int, /, **columns: object) -> bool:
        """Set columns of a task, unless it is in a later phase because it was cancelled meanwhile: then False."""
        names = ", ".join(f"{name} = ?" for name in columns)
        sql = f"UPDATE tasks SET {names} WHERE k = ? AND phase <= ?"  # noqa: S608  # ours
        return self._db.execute(sql, (*columns.values(), k, phase)).rowcount > 0

    def withdraw(self, k: int) -> None:
        """Record that a task was not submitted after all: it waits again, or is cancelled if that was requested."""
        sql = """UPDATE tasks SET phase = 3 * stop, app_id = '', token = '', ended = ? * stop,
            state = CASE stop WHEN 0 THEN 'PENDING' ELSE 'CANCELLED' END WHERE k = ? AND phase < 2"""
        self._db.execute(sql, (time.time(), k))

    def end(self, k: int, state: AppState, msg: str, *, code: int | None = None, ended: float = 0.0) -> None:
        """Record how a task has ended."""
        values = {"state": state.name, "msg": msg, "code": code, "ended": ended or time.time()}
        self.change(k, SUBMITTED, phase=ENDED, **values)

    def stop(self, number: int | None) -> None:
        """Request the cancellation of one task, or of all (None); a waiting task is CANCELLED at once."""
        sql = """UPDATE tasks SET stop = 1, phase = CASE phase WHEN 0 THEN 3 ELSE phase END,
            state = CASE phase WHEN 0 THEN 'CANCELLED' ELSE state END,
            ended = CASE phase WHEN 0 THEN ? ELSE ended END WHERE phase < 3 AND coalesce(?, k) = k"""
        self._db.execute(sql, (time.time(), number))

    def say(self, problem: str) -> None:
        """Record why no task can be submitted at the moment; empty: tasks are submitted."""
        self._db.execute("UPDATE sweep SET problem = ?", [problem])
