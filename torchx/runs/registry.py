"""The run registry: all submitted runs, in an SQLite file in the torchx home directory."""

from __future__ import annotations

import functools
import os
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from torchx.runs import schema
from torchx.runs.records import Change, NewRun, Run, RunQuery, size_of
from torchx.runs.store import Store, storable
from torchx.settings import torchx_home
from torchx.specs.api import AppState, AppStatus, is_terminal, parse_app_handle
from torchx.specs.handles import FOREIGN
from torchx.util.secrets import mask_text

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterable, Mapping, Sequence

    from torchx.specs.tasks import TaskList

    _Strings = list[str]
    _Changes = list[Change]  # `list` is a method below

SWEEP = "sweep"
"""The tag of a sweep: the names of its values, and how many tasks may run at the same time, as JSON."""

_COLUMNS = (
    "id, handle, scheduler, session, app_id, name, state, msg, created_at, updated_at, ended_at,"
    " user, host, cwd, image, workspace, git_commit, git_dirty, parent_run_id"
)
_NAMES = _COLUMNS.replace(",", " ").split()
_STATES = dict(AppState.__members__)
_KEEP_STATUS = (
    "REPLACE INTO statuses (run_id, status) SELECT max(id), ?1 FROM runs WHERE handle = ?2 HAVING max(id) IS NOT NULL"
)
_BY_AGENT = f"id IN (SELECT run_id FROM specs WHERE {schema.BY_AGENT})"  # noqa: S608  # ours
_STATUSES = 20_000  # whole statuses are kept for this many of the newest runs
_IS_NEWS = "id = (SELECT max(id) FROM runs WHERE handle = ? AND phase < 2) AND (state <> ? OR msg <> ?)"
_MAX_ROWS = 2**63 - 1  # the largest integer of SQLite
_SPECS = "argv, app, cfg, tags, image_digests, workspace_hashes, submission"


class RunRegistry:
    """Records runs and their states.

    If the file cannot be written, jobs run nevertheless: there is one warning, and nothing is recorded.

    Args:
        path: the file; None: ``runs.db`` in the torchx home directory. It is created when the first run begins.

    >>> import tempfile
    >>> registry = RunRegistry(tempfile.mkdtemp() + "/runs.db")
    >>> run_id = registry.begin(NewRun(scheduler="local_cwd", session="torchx", name="echo"))
    >>> registry.submitted(run_id, "local_cwd://torchx/echo-x1")
    >>> registry.find("echo").handle
    'local_cwd://torchx/echo-x1'
    >>> registry.close()
    """

    def __init__(self, path: str | None = None) -> None:
        self._path = path
        self._stores: dict[str, Store] = {}
        self._begun: dict[int, NewRun] = {}

    @property
    def path(self) -> str:
        """The path of the file."""
        return self._path or torchx_home("runs.db")

    # -- a submission ----------------------------------------------------------------------------

    def begin(self, run: NewRun) -> int:
        """Record the intent, before anything is submitted.

        Returns:
            The row number; 0 if it could not be written.
        """
        specs = _specs_of(run)
        run_id = self.store().write(lambda db: _insert(db, run, specs), 0)
        if run_id:
            self._begun[run_id] = run
        return run_id

    def submitted(
        self,
        run_id: int,
        handle: str,
        *,
        image_digests: Mapping[str, str] | None = None,
        workspace_hashes: Mapping[str, str] | None = None,
    ) -> None:
        """Record that the scheduler has accepted the run, and its handle.

        Args:
            image_digests: image digests from the scheduler, see :attr:`Run.image_digests`; they override earlier ones.
            workspace_hashes: hashes of the code from the scheduler; they override earlier ones.
        """
        run = self._begun.pop(run_id, None)
        if not run_id:
            return

        def work(db: sqlite3.Connection) -> None:
            row = run_id
            if not _mark_submitted(db, row, handle) and run is not None:
                # The file was replaced meanwhile: write the row again.
                row = _insert(db, run, _specs_of(run))
                _mark_submitted(db, row, handle)
            for column, more in (("image_digests", image_digests), ("workspace_hashes", workspace_hashes)):
                if more:
                    _add(db, row, column, more)

        self.store().write(work, None)

    def abandoned(self, run_id: int, reason: str) -> None:
        """Record that the submission failed: there is no job."""
        self._begun.pop(run_id, None)
        if run_id:
            now = time.time()
            sql = "UPDATE runs SET phase = 2, unfinished = 0, msg = ?, updated_at = ?, ended_at = ? WHERE id = ?"
            self.store().execute(sql, (reason, now, now, run_id))

    def unanswered(self, run_id: int) -> None:
        """Record that the answer to the submission was lost: there may be a job."""
        self._begun.pop(run_id, None)
        if run_id:
            from torchx.runs import submitter

            self.store().execute("UPDATE runs SET submitter = ? WHERE id = ?", (submitter.nobody(), run_id))

    def amend(self, run_id: int, *, git_commit: str, git_dirty: bool | None) -> None:
        """Add the state of the source code, which becomes known only after the submission."""
        if run_id:
            sql = "UPDATE runs SET git_commit = ?, git_dirty = ? WHERE id = ?"
            self.store().execute(sql, (git_commit, git_dirty, run_id))

    def tag(self, handle: str, tags: Mapping[str, str]) -> None:
        """Add tags to a run; see :attr:`Run.tags`."""
        run = self.get(handle)
        if run is not None:
            self.store().write(lambda db: _add(db, run.id, "tags", tags), None)

    def intents(self) -> list[tuple[Run, str]]:
        """Submissions without a recorded answer, each with the identity of the submitting process."""
        sql = (
            f"SELECT submitter, {_COLUMNS}, {_SPECS} FROM runs LEFT JOIN specs ON specs.run_id = runs.id"  # noqa: S608
            " WHERE phase = 0 ORDER BY id"
        )
        return [(_run(row[1:]), row[0]) for row in self.store().rows(sql)]

    # -- lookup ----------------------------------------------------------------------------------

    def get(self, handle: str) -> Run | None:
        """Return the run with this handle, with all attributes; the newest one, if a backend used the handle twice."""
        return self._one("runs.handle = ? AND phase < 2", (handle,))

    def find(self, reference: str) -> Run:
        """Resolve a reference to a run.

        Args:
            reference: a handle, an app id, an unambiguous prefix of an app id, ``@last``, ``@last~1`` (the one before),
                ``@NAME`` (the newest run of that name), or ``@NAME~1``.

        Raises:
            NotFoundError: no run matches.
            HandleError: several runs match.
        """
        from torchx.runs.references import ambiguous, no_such_run, place

        if reference.startswith("@"):
            name, newer = place(reference) or ("", 0)
            launched, named = ("session <> ?", FOREIGN), ("name = ?", name)  # `@last` never means an adopted run
            condition, value = launched if name is None else named
            run = self._one(f"phase = 1 AND {condition}", (value,), newer)
            if run is None:
                raise no_such_run(reference, [])
            return run
        column = "handle" if "://" in reference else "app_id"
        run = self.get(reference) if column == "handle" else None
        if run is not None:
            return run
        matches = self._matches(column, reference) if reference else []
        if not matches:
            sql = "SELECT app_id FROM runs WHERE phase < 2 AND app_id <> '' ORDER BY id DESC LIMIT 200"
            raise no_such_run(reference, [row[0] for row in self.store().rows(sql)])
        if len(matches) > 1:
            raise ambiguous(reference, matches)
        found = self.get(matches[0])
        if found is None:  # forgotten between the two queries
            raise no_such_run(reference, [])
        return found

    def list(self, query: RunQuery | None = None, *, unfinished: bool = False) -> list[Run]:
        """Return the matching runs, newest first, without large attributes; see :class:`Run`.

        Args:
            unfinished: only runs that have not ended.
        """
        where, values = _conditions(query or RunQuery())
        if unfinished:
            where += " AND unfinished = 1"
        limit = -1 if query is None or query.limit is None else min(max(query.limit, 0), _MAX_ROWS)
        sql = f"SELECT {_COLUMNS} FROM runs WHERE {where} ORDER BY id DESC LIMIT ?"  # noqa: S608  # constants only
        return [_run(row) for row in self.store().rows(sql, (*values, limit))]

    def tasks(self, run: Run | None) -> TaskList | None:
        """Return the tasks of a sweep; None if the run is not a sweep, or not on record."""
        if run is None or SWEEP not in run.tags:
            return None
        import json

        from torchx.specs.tasks import TaskList

        rows = self.store().rows("SELECT point FROM tasks WHERE run_id = ? ORDER BY k", (run.id,))
        points = [tuple(json.loads(row[0])) for row in rows]
        names, max_parallel, *pack = json.loads(run.tags[SWEEP])  # an earlier version did not record `pack`
        return TaskList(names=names, points=points, max_parallel=max_parallel, pack=pack[0] if pack else 1)

    # -- states ----------------------------------------------------------------------------------

    def saw(
        self,
        handle: str,
        state: AppState,
        *,
        msg: str = "",
        ended_at: float | None = None,
        started_at: float | None = None,
        whole: AppStatus | None = None,
    ) -> bool:
        """Record an observed state of a run and return True, if it differs; otherwise no lock is waited for.

        Args:
            whole: the whole status, with what a cluster forgets: a job that has ended need not be queried again.
        """
        sql = f"SELECT 1 FROM runs WHERE {_IS_NEWS}"  # noqa: S608  # ours
        if not self.store().rows(sql, (handle, state.name, mask_text(msg))):
            return False
        from torchx.runs.statuses import to_text

        text = to_text(whole) if whole is not None else None
        self.saw_many([(handle, state, msg, ended_at)], {handle: text} if text else None, {handle: started_at})
        return True

    def saw_many(
        self,
        seen: Iterable[tuple[str, AppState, str, float | None]],
        statuses: Mapping[str, str] | None = None,
        started: Mapping[str, float | None] | None = None,
    ) -> None:
        """Record observed states of several runs in one transaction.

        Args:
            seen: handle, state, message, and end time in seconds since the epoch of each run.
            statuses: whole statuses by handle, as :func:`torchx.runs.statuses.to_text` writes them.
            started: start times by handle; else a run has started when it is first seen to run.
        """
        now = time.time()
        rows = []
        for handle, state, msg, ended in seen:
            over = is_terminal(state)
            start = (started or {}).get(handle) or (now if state is AppState.RUNNING else None)
            row = (state.name, mask_text(msg), not over, now, (ended or now) if over else None, start, handle)
            rows.append(storable(row))

        def work(db: sqlite3.Connection) -> None:
            for row in rows:
                _mark_seen(db, row)
            if statuses:
                db.executemany(_KEEP_STATUS, [(text, handle) for handle, text in statuses.items()])
                db.execute("DELETE FROM statuses WHERE run_id <= (SELECT max(run_id) FROM statuses) - ?", (_STATUSES,))

        if rows or statuses:
            self.store().write(work, None)

    def status(self, handle: str, *, outdated: bool = False) -> AppStatus | None:
        """Return the last recorded whole status of a run; None if there is none, or the run has ended since.

        Args:
            outdated: return it although the run has ended since.
        """
        sql = (
            "SELECT status, unfinished FROM statuses JOIN runs ON runs.id = run_id"
            " WHERE run_id = (SELECT max(id) FROM runs WHERE handle = ? AND phase < 2)"
        )
        if not (rows := self.store().rows(sql, (handle,))):
            return None
        from torchx.runs.statuses import from_text

        status = from_text(rows[0][0])
        return status if status is None or status.is_terminal() or rows[0][1] or outdated else None

    def lost(self, handles: Iterable[str]) -> None:
        """Record that the schedulers no longer know these runs, so that they are not queried again."""
        now = time.time()
        rows = [(now, handle) for handle in handles]
        sql = "UPDATE runs SET state = 'UNKNOWN', unfinished = 0, updated_at = ? WHERE handle = ? AND unfinished = 1"
        if rows:
            self.store().write(lambda db: db.executemany(sql, rows).rowcount, 0)

    # -- changes ---------------------------------------------------------------------------------

    def last_change(self) -> int:
        """Return the number of the last change of any run; 0 if there was none. This takes about ten microseconds."""
        rows = self.store().rows("SELECT max(seq) FROM changes")
        return int(rows[0][0] or 0) if rows else 0

    def changes(self, after: int, *, until: int, mine: bool = False) -> _Changes:
        """Return the changes with numbers from ``after + 1`` to ``until``, oldest first, without those of forgotten
        runs.

        Args:
            mine: only changes of the current user's runs.
        """
        sql = (
            "SELECT seq, handle, name, was, changes.state, changes.msg, at FROM changes JOIN runs ON runs.id = run_id"
            " WHERE seq > ? AND seq <= ? AND (user = ? OR ? = '') ORDER BY seq"
        )
        user = user_name() if mine else ""
        found = self.store().rows(sql, (after, until, user, user))
        return [
            Change(seq, handle, name, _STATES.get(was), _STATES.get(state, AppState.UNKNOWN), msg, at)
            for seq, handle, name, was, state, msg, at in found
        ]

    def unfinished(self) -> dict[str, int]:
        """Return the number of unfinished runs of each scheduler."""
        sql = "SELECT scheduler, count(*) FROM runs WHERE unfinished = 1 AND phase = 1 GROUP BY scheduler"
        return dict(self.store().rows(sql))

    def forget(self, handle: str) -> None:
        """Remove the runs with this handle."""

        def work(db: sqlite3.Connection) -> None:
            for table in ("specs", "changes", "tasks", "statuses", "unkept"):
                ids = "SELECT id FROM runs WHERE handle = ?"
                db.execute(f"DELETE FROM {table} WHERE run_id IN ({ids})", (handle,))  # noqa: S608  # ours
            db.execute("DELETE FROM runs WHERE handle = ?", (handle,))

        store = self.store()
        if os.path.exists(store.path):
            store.write(work, None)

    def close(self) -> None:
        """Close the file; it is opened again on next use."""
        for store in [*self._stores.values()]:  # a copy, since other threads may open another file meanwhile
            store.close()

    def store(self) -> Store:
        """Return the file."""
        path = self.path  # a program may change TORCHX_HOME while it runs
        if path not in self._stores:
            self._stores.setdefault(path, Store(path))
        return self._stores[path]

    def _one(self, condition: str, values: tuple[object, ...], newer: int = 0) -> Run | None:
        sql = (
            f"SELECT {_COLUMNS}, {_SPECS} FROM runs LEFT JOIN specs ON specs.run_id = runs.id"  # noqa: S608
            f" WHERE {condition} ORDER BY id DESC LIMIT 1 OFFSET ?"
        )
        rows = self.store().rows(sql, (*values, newer))
        return _run(rows[0]) if rows else None

    def _matches(self, column: str, beginning: str) -> _Strings:
        """Handle of the runs whose column equals ``beginning``, or else starts with it; newest first."""
        exact = f"SELECT DISTINCT handle FROM runs WHERE {column} = ? AND phase < 2 AND handle <> '' ORDER BY id DESC"  # noqa: S608
        first = (
            f"SELECT DISTINCT handle FROM runs WHERE {column} >= ? AND {column} < ? AND phase < 2 AND handle <> ''"  # noqa: S608
            " ORDER BY id DESC LIMIT 6"
        )
        store = self.store()
        found = store.rows(exact, (beginning,)) or store.rows(first, (beginning, beginning + "\U0010ffff"))
        return [row[0] for row in found]


def _specs_of(run: NewRun) -> tuple[str, ...]:
    import json

    # Options of plugins may have values of any type: what JSON cannot express is recorded as text.
    tags = run.tags
    if run.tasks is not None:
        tags = {**tags, SWEEP: json.dumps([list(run.tasks.names), run.tasks.max_parallel, run.tasks.pack])}
    parts = (run.argv, run.app, run.cfg, tags, run.image_digests, run.workspace_hashes, run.submission)
    return tuple([json.dumps(part, separators=(",", ":"), default=str) for part in parts])


def _insert(db: sqlite3.Connection, run: NewRun, specs: tuple[str, ...]) -> int:
    from torchx.runs import submitter

    now = time.time()
    app_id = parse_app_handle(run.handle).app_id if run.handle else ""
    row = (
        *(run.handle, run.scheduler, run.session, app_id, run.name),
        *(schema.INTENT, AppState.UNSUBMITTED.name, 1, "", now, now, None),
        *(user_name(), os.uname().nodename, run.cwd, run.image, run.workspace),
        *(run.git_commit, run.git_dirty, run.parent_run_id, submitter.identity(), *size_of(run.app)),
    )
    cursor = db.execute(
        "INSERT INTO runs (handle, scheduler, session, app_id, name, phase, state, unfinished, msg, created_at,"
        " updated_at, ended_at, user, host, cwd, image, workspace, git_commit, git_dirty, parent_run_id, submitter,"
        " gpus, cpus) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        storable(row),
    )
    run_id = cursor.lastrowid or 0
    db.execute(f"INSERT INTO specs (run_id, {_SPECS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)", (run_id, *specs))  # noqa: S608  # constants only
    if run.tasks is not None:
        import json

        rows = [(run_id, k, json.dumps(list(point))) for k, point in enumerate(run.tasks.points)]
        db.executemany("INSERT INTO tasks (run_id, k, point) VALUES (?, ?, ?)", rows)
    return run_id


def _add(db: sqlite3.Connection, run_id: int, column: str, more: Mapping[str, str]) -> None:
    import json

    found = db.execute(f"SELECT {column} FROM specs WHERE run_id = ?", (run_id,)).fetchone()  # noqa: S608  # ours
    if found:
        text = json.dumps({**json.loads(found[0]), **more}, separators=(",", ":"))
        db.execute(f"UPDATE specs SET {column} = ? WHERE run_id = ?", (text, run_id))  # noqa: S608  # as above


def _mark_submitted(db: sqlite3.Connection, run_id: int, handle: str) -> bool:
    sql = (
        "UPDATE runs SET phase = 1, handle = ?, app_id = ?, updated_at = ?,"
        " state = CASE state WHEN 'UNSUBMITTED' THEN 'SUBMITTED' ELSE state END WHERE id = ? AND handle IN ('', ?)"
    )
    return db.execute(sql, (handle, parse_app_handle(handle).app_id, time.time(), run_id, handle)).rowcount > 0


def _mark_seen(db: sqlite3.Connection, row: Sequence[object]) -> None:
    state, msg, *_ = row
    columns = "phase = 1, state = ?, msg = ?, unfinished = ?, updated_at = ?, ended_at = ?,"
    columns += " started_at = coalesce(started_at, ?)"
    db.execute(f"UPDATE runs SET {columns} WHERE {_IS_NEWS}", (*row, state, msg))  # noqa: S608  # ours


def _conditions(query: RunQuery) -> tuple[str, list[object]]:
    where = ["phase = 1"]
    values: list[object] = []
    states = None if query.states is None else [AppState(state).name for state in query.states]
    if states is not None:
        where.append(f"state IN ({', '.join('?' * len(states))})")
        values += states
    for condition, value in (
        ("scheduler = ?", query.scheduler),
        ("name GLOB ?" if set(query.name or "") & set("*?[") else "name = ?", query.name),
        ("id IN (SELECT id FROM runs WHERE created_at >= ?)", query.since),  # else all are read, for their order
        ("user = ?", user_name() if query.mine else None),
        (f"{_BY_AGENT} AND 1 = ?", 1 if query.by_agent else None),
    ):
        if value is not None:
            where.append(condition)
            values.append(value)
    return " AND ".join(where), values


def _run(row: tuple[Any, ...]) -> Run:
    run = Run(**dict(zip(_NAMES, row)))  # noqa: B905  # a row of a whole run has more columns
    # A file of a newer torchx, or a damaged one, may contain any name of a state.
    run.state = _STATES.get(str(run.state), AppState.UNKNOWN)
    run.git_dirty = None if run.git_dirty is None else bool(run.git_dirty)
    extra = row[len(_NAMES) :]
    if extra and extra[0] is not None:
        import json

        with suppress(ValueError):
            parts = [json.loads(text) for text in extra]
            run.argv, run.app, run.cfg, run.tags, run.image_digests, run.workspace_hashes, run.submission = parts
    return run


@functools.cache
def user_name() -> str:
    """Return the name of the current user, as recorded in runs."""
    import pwd

    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # a container that runs with an arbitrary uid
        return os.environ.get("USER") or str(os.getuid())


_default = RunRegistry()


def default_registry() -> RunRegistry:
    """Return the registry in the torchx home directory; the process has one, so that its file is opened only once."""
    return _default
