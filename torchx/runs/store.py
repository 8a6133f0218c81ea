"""An SQLite file, opened on first use, whose failures do not raise errors."""

from __future__ import annotations

import atexit
import os
from _thread import allocate_lock
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from torchx.runs import schema
from torchx.util.notices import logger

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Sequence

    T = TypeVar("T")

_TRIES = 6

_warned: set[tuple[str, str]] = set()
_inherited: list[object] = []


class Store:
    """The file at ``path``; safe to use from several threads, and after a fork.

    If the file cannot be read or written, or a newer torchx has written it, there is one warning, and the caller's
    default is returned. A damaged file is set aside.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._pid = os.getpid()
        self._locks: dict[int, Any] = {}
        self._db: sqlite3.Connection | None = None
        self._inode = -1
        self._immutable = False  # opened read-only, because the file system cannot be written
        atexit.register(self.close)

    @property
    def _lock(self) -> Any:
        """The lock of this process: in a fork, that of the parent may be held for ever."""
        return self._locks.setdefault(os.getpid(), allocate_lock())

    def write(self, work: Callable[[sqlite3.Connection], T], default: T) -> T:
        """Return the result of ``work`` in a write transaction; ``default`` if that fails."""
        return self._guarded(lambda db: _in_transaction(db, work), default, create=True)

    def read(self, work: Callable[[sqlite3.Connection], T], default: T) -> T:
        """Return the result of ``work``, or ``default`` if the file is missing or unreadable."""
        return self._guarded(work, default, create=False)

    def rows(self, sql: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Return the rows of a query; empty if the file cannot be read."""
        nothing: list[tuple[Any, ...]] = []
        return self.read(lambda db: db.execute(sql, storable(values)).fetchall(), nothing)

    def execute(self, sql: str, values: Sequence[object] = ()) -> None:
        """Execute one statement in a transaction."""
        self.write(lambda db: db.execute(sql, storable(values)).rowcount, 0)

    def close(self) -> None:
        """Close the file; it is opened again on next use."""
        if self._pid == os.getpid() and self._db is not None:
            with self._lock:
                self._drop()

    def _guarded(self, work: Callable[[sqlite3.Connection], T], default: T, *, create: bool) -> T:
        import sqlite3

        with self._lock:
            if self._pid != os.getpid():
                # After a fork, a connection must neither be used nor closed.
                _inherited.append(self._db)
                self._pid, self._db = os.getpid(), None
            for tries_left in reversed(range(_TRIES)):  # other processes may set the file aside at the same time
                try:
                    db = self._connected(create=create)
                    return default if db is None else work(db)
                except (sqlite3.Error, OSError, _NewerSchemaError) as e:
                    if not tries_left or not self._recover(e):
                        self._warn(e, writing=create)
                        return default
        return default

    def _connected(self, *, create: bool) -> sqlite3.Connection | None:
        try:
            inode = os.stat(self.path).st_ino
        except FileNotFoundError:
            self._drop()
            if create:
                from torchx.runs.asides import take_back

                schema.create(self.path, take_back)
            else:
                self._take_back()
                if not os.path.exists(self.path):
                    return None
            inode = os.stat(self.path).st_ino
        if self._db is not None and inode == self._inode and not (create and self._immutable):
            return self._db
        self._drop()
        self._inode, self._immutable = inode, False
        self._db = self._open(writable=create)
        return self._db

    def _open(self, *, writable: bool) -> sqlite3.Connection:
        import sqlite3

        try:
            self._db = db = self._checked()
            for _ in range(_TRIES):  # an older torchx may set it aside again
                if schema.is_current(db):
                    break
                self._drop()
                self._take_back()
                self._db = db = self._checked()
            if schema.missing(db):
                raise sqlite3.OperationalError("it cannot be upgraded")
        except sqlite3.OperationalError as e:
            self._drop()
            if writable or "locked" in str(e):
                raise
            # A read-only or full file system: the companion files of WAL cannot be created, but the file can be read.
            self._immutable = True
            return schema.connect(self.path, immutable=True)
        return db

    def _checked(self) -> sqlite3.Connection:
        """Open the file while nobody renames it, so that its log is its own."""
        import sqlite3

        with schema.locked(self.path, needed=False):
            self._inode = os.stat(self.path).st_ino
            db = schema.connect(self.path)
            try:
                version = schema.version_of(db)
                if version > schema.VERSION:
                    raise _NewerSchemaError(version)
                if version == 0:
                    raise sqlite3.DatabaseError("it is empty")
                if schema.is_cut_off(db, self.path):
                    raise sqlite3.DatabaseError("it was cut off")
                db.execute("PRAGMA synchronous = NORMAL")
            except BaseException:
                db.close()
                raise
        return db

    def _take_back(self) -> None:
        """Take back what an older torchx has set aside, unless the home cannot be written."""
        from torchx.runs.asides import take_back

        with suppress(OSError), schema.locked(self.path):
            take_back(self.path)

    def _recover(self, error: Exception) -> bool:
        """Whether to retry: the file was locked, or was damaged and has been set aside."""
        import sqlite3

        if isinstance(error, sqlite3.OperationalError) and "locked" in str(error):
            return True
        if isinstance(error, (sqlite3.OperationalError, FileNotFoundError)) and self._has_moved():
            self._drop()
            return True  # another process has set it aside, or taken one back, meanwhile
        missing = isinstance(error, sqlite3.OperationalError) and str(error).startswith("no such ")
        if not (type(error) is sqlite3.DatabaseError or missing) or self._immutable:
            return False
        self._drop()
        try:
            target = schema.set_aside(self.path, self._inode, "damaged")
        except OSError:
            return False
        if target:
            text = f"the run registry `{self.path}` is damaged ({error}): set aside as `{target}`"
            _warn_once(self.path, "damaged", text)
        return True

    def _has_moved(self) -> bool:
        try:
            return os.stat(self.path).st_ino != self._inode
        except OSError:
            return True

    def _warn(self, error: Exception, *, writing: bool) -> None:
        self._drop()
        if isinstance(error, _NewerSchemaError):
            text = f"the run registry `{self.path}` {error}: this command works without it; upgrade this torchx"
            _warn_once(self.path, "newer", text)
            return
        effect = (
            "new runs will not be in `torchx list`, and deleted ones stay there"
            if writing
            else "runs on record cannot be shown"
        )
        text = f"the run registry `{self.path}` cannot be {'written' if writing else 'read'} ({error}): {effect}"
        _warn_once(self.path, "io", text)

    def _drop(self) -> None:
        if self._db is not None:
            with schema.locked(self.path, needed=False):  # SQLite removes its log, by its name
                self._db.close()
            self._db = None


class _NewerSchemaError(Exception):
    def __init__(self, version: int) -> None:
        super().__init__(f"was written by a newer torchx (schema {version}, here {schema.VERSION})")


def storable(values: Sequence[object]) -> list[object]:
    """Return the values as SQLite can store them: in names of files, bytes that are not UTF-8 become question marks.

    >>> storable(["caf\\udce9", 1])
    ['caf?', 1]
    """
    return [value.encode(errors="replace").decode() if isinstance(value, str) else value for value in values]


def _in_transaction(db: sqlite3.Connection, work: Callable[[sqlite3.Connection], T]) -> T:
    db.execute("BEGIN IMMEDIATE")
    try:
        answer = work(db)
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise
    return answer


def _warn_once(path: str, kind: str, text: str) -> None:
    if (path, kind) not in _warned:
        _warned.add((path, kind))
        logger("torchx.runs").warning(text)
