"""State changes of runs: the iterator that ``Runner.watch`` returns, and the news that waiting callers sleep on."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence

from torchx.errors import NotFoundError
from torchx.runner.ground.backends import Backends
from torchx.runner.ground.registry import read_run
from torchx.runner.watching.poller import Heartbeat, Poller
from torchx.runs import Run, RunRegistry
from torchx.runs.records import Change, RunQuery
from torchx.specs.api import AppState, AppStatus, is_terminal, parse_app_handle
from torchx.specs.tasks import TaskTable
from torchx.util.folder_watch import FolderWatch

TICK_S = 0.2
"""How often a reader checks for changes if the kernel does not report writes."""

_ASK_AGAIN_S = 2.0
_TASKS_EVERY_S, _TASKS_SHARE = 1.0, 10
"""Minimum time between two queries for the tasks of sweeps: in seconds, and in multiples of the last query's time."""
_LOOK_S = 2.0  # a watch checks for changes at least this often
_TRUST_S = 10.0  # without a beat for this long, no process polls: the home cannot be written
_ON_RECORD_S = 10.0  # interval at which to check for deleted jobs, which cause no change


class _Pollers:
    """A poller for each scheduler that :meth:`serve` was called with."""

    def __init__(self, registry: RunRegistry, backends: Backends) -> None:
        self._registry = registry
        self._backends = backends
        self._pollers: dict[str, Poller] = {}

    def serve(self, schedulers: Iterable[str] = ()) -> None:
        """Start pollers for these schedulers, and keep all pollers alive; must be called regularly."""
        for poller in self._pollers.values():
            poller.request_poll()
        for name in (*self._pollers, *schedulers):
            if name not in self._pollers or self._pollers[name].is_over():
                self._pollers[name] = Poller(name, self._registry, self._backends.another())

    def beats(self) -> dict[str, Heartbeat | None]:
        """Return the last beat for each scheduler; None if there is none, or it is late."""
        return {name: poller.read_heartbeat() for name, poller in self._pollers.items()}

    def status(self, handle: str) -> AppStatus | None:
        """Return the whole status of a job as recorded by a poller; None if the scheduler must be queried."""
        status = self._registry.status(handle)
        if status is None or status.is_terminal():
            return status
        name, _, app_id = parse_app_handle(handle)
        poller = self._pollers.get(name)
        beat = None if poller is None else poller.read_heartbeat()
        return None if beat is None or beat.error or app_id in beat.unknown else status

    def close(self) -> None:
        while self._pollers:
            self._pollers.popitem()[1].close()

    def __del__(self) -> None:  # for a loop over a watch that was left with `break`
        for poller in self._pollers.values():
            poller.stop()


class _Cursor:
    """The position of one reader in the sequence of changes."""

    def __init__(self, registry: RunRegistry) -> None:
        self._registry = registry
        self._folder: FolderWatch | None = None
        self._seq = registry.last_change()

    def sleep(self, most_s: float) -> None:
        """Sleeps until the registry is written, or for at most ``most_s`` seconds; it may return early."""
        if self._folder is None:
            self._folder = FolderWatch(os.path.dirname(self._registry.path), tick_s=TICK_S)
            return  # earlier writes are not reported
        self._folder.wait(most_s)

    def close(self) -> None:
        if self._folder is not None:
            self._folder.close()

    def read(self, *, mine: bool = False) -> list[Change]:
        """Return the changes since the last call."""
        last = self._registry.last_change()
        if last == self._seq:
            return []
        found = self._registry.changes(self._seq, until=last, mine=mine)
        self._seq = last  # smaller than before if the file was set aside
        return found


class StatusFeed:
    """Sleeps until one of some jobs must be queried, so that callers that wait need not poll the scheduler."""

    def __init__(self, registry: RunRegistry, backends: Backends, handles: Iterable[str]) -> None:
        self._registry = registry
        self._pollers = _Pollers(registry, backends)
        self._cursor = _Cursor(registry)
        self._unfinished: dict[str, bool] = {}
        self._next_query: dict[str, float] = {}
        self._last_beat: dict[str, float] = {}
        self._next_check = time.monotonic() + _ON_RECORD_S
        self.add(handles)

    def add(self, handles: Iterable[str]) -> None:
        """Add jobs to wait for."""
        for handle in handles:
            if self._unfinished.get(handle):
                continue
            run = self._registry.get(handle)
            self._unfinished[handle] = run is not None and not run.is_terminal()
            self._last_beat.setdefault(parse_app_handle(handle)[0], time.monotonic())
        self._pollers.serve(self._last_beat)

    def wait(self, handles: Iterable[str], most_s: float) -> list[str]:
        """Wait until some of these jobs must be queried and return them; return an empty list after ``most_s``.

        A job must be queried if it has ended according to the registry. It must be queried every other second if it is
        not on record, its scheduler cannot be queried or no longer knows it, or no process polls.
        """
        deadline = time.monotonic() + most_s
        while not (found := self.look(handles)) and (left := deadline - time.monotonic()) > 0:
            self._cursor.sleep(left)
        return found

    def look(self, handles: Iterable[str]) -> list[str]:
        """Return the jobs that must be queried now; see :meth:`wait`."""
        for change in self._cursor.read():
            if change.handle in self._unfinished:
                self._unfinished[change.handle] = not change.is_terminal() and change.state is not AppState.UNKNOWN
        now = time.monotonic()
        if now >= self._next_check:
            self._next_check = now + _ON_RECORD_S
            on_record = {run.handle for run in self._registry.list(unfinished=True)}
            self._unfinished = {handle: was and handle in on_record for handle, was in self._unfinished.items()}
        self._pollers.serve()
        beats = self._pollers.beats()
        self._last_beat.update({name: now for name, beat in beats.items() if beat is not None})
        found = []
        for handle in handles:
            name, _, app_id = parse_app_handle(handle)
            beat = beats.get(name)
            failing = beat is not None and (bool(beat.error) or app_id in beat.unknown)
            unpolled = now - self._last_beat[name] > _TRUST_S
            is_due = now >= self._next_query.get(handle, 0.0)
            if (not self._unfinished[handle] or failing or unpolled) and is_due:
                self._next_query[handle] = now + _ASK_AGAIN_S
                found.append(handle)
        return found

    def status(self, handle: str) -> AppStatus | None:
        """Return the whole status of a job as recorded by a poller; None if the scheduler must be queried."""
        return self._pollers.status(handle)

    def close(self) -> None:
        """End its own pollers; other watches of this process keep theirs."""
        self._cursor.close()
        self._pollers.close()

    def __enter__(self) -> StatusFeed:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Watch:
    """Iterates over the changes of runs, oldest first: ``for change in watch``, or ``async for change in watch``.

    The first changes report the current states; their ``seq`` is 0. A watch of given jobs stops when all of them have
    ended, or were deleted. Any other watch continues until it is closed, for example by the end of a ``with`` block.
    """

    def __init__(
        self,
        registry: RunRegistry,
        backends: Backends,
        handles: Sequence[str] | None,
        *,
        mine: bool = False,
        tasks: TaskChanges | None = None,
    ) -> None:
        self._tasks = tasks
        self._registry = registry
        self._mine = mine
        self._handles = None if handles is None else set(handles)
        self._pollers = _Pollers(registry, backends)
        self._cursor = _Cursor(registry)
        self._seen: dict[str, tuple[AppState, str]] = {}
        self._ready: deque[Change] = deque()
        self._closed = False
        self._next_check = time.monotonic() + _ON_RECORD_S
        for run in self._now(handles):
            self._add([Change(0, run.handle, run.name, None, run.state, run.msg, run.updated_at)])
        self._serve()

    def problems(self) -> dict[str, str]:
        """Schedulers that could not be queried the last time, each with the reason."""
        beats = self._pollers.beats()
        return {name: beat.error for name, beat in beats.items() if beat is not None and beat.error}

    def status(self, handle: str) -> AppStatus | None:
        """Return the whole status of a job as recorded by a poller; None if the scheduler must be queried."""
        return self._pollers.status(handle)

    def close(self) -> None:
        """End the watch; jobs keep running."""
        self._closed = True
        self._cursor.close()
        self._pollers.close()

    def __iter__(self) -> Iterator[Change]:
        return self

    def __next__(self) -> Change:
        while (change := self._next()) is None:
            self._cursor.sleep(_LOOK_S)
        return change

    def __aiter__(self) -> AsyncIterator[Change]:
        return self

    async def __anext__(self) -> Change:
        import asyncio

        try:
            while (change := self._next()) is None:
                await asyncio.sleep(TICK_S)
        except StopIteration:
            raise StopAsyncIteration from None
        return change

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def within(self, most_s: float) -> Change | None:
        """Wait up to ``most_s`` seconds for the next change; None if there is none. StopIteration ends the watch."""
        deadline = time.monotonic() + most_s
        while (change := self._next()) is None and (left := deadline - time.monotonic()) > 0:
            self._cursor.sleep(min(left, _LOOK_S))
        return change

    def _next(self) -> Change | None:
        """Return the next change, without waiting; None if there is none yet. StopIteration ends the watch."""
        if not self._ready:
            over = self._closed or (self._handles is not None and self._is_over())
            self._read()
            if self._tasks is not None and not self._closed:
                self._ready += self._tasks.look(now=over)
            if over and not self._ready:
                self.close()
                raise StopIteration
        return self._ready.popleft() if self._ready else None

    def _read(self) -> None:
        self._pollers.serve()
        if found := self._cursor.read(mine=self._mine):
            self._add(found)
            self._serve()

    def _add(self, changes: Iterable[Change]) -> None:
        for change in changes:
            now = (change.state, change.msg)
            wanted = self._handles is None or change.handle in self._handles
            if wanted and self._seen.get(change.handle) != now:
                self._seen[change.handle] = now
                if change.msg:
                    read_run(change.handle)
                self._ready.append(change)

    def _is_over(self) -> bool:
        open_handles = {handle for handle, (state, _) in self._seen.items() if not is_terminal(state)}
        now = time.monotonic()
        if now < self._next_check and any(self._seen[handle][0] is not AppState.UNKNOWN for handle in open_handles):
            return False
        self._next_check = now + _ON_RECORD_S
        # UNKNOWN is final for a job that its scheduler lost, but not for a state that only the scheduler understands.
        return not open_handles or open_handles.isdisjoint(run.handle for run in self._registry.list(unfinished=True))

    def _serve(self) -> None:
        handles = self._handles
        if self._closed:
            return
        names = self._registry.unfinished() if handles is None else {parse_app_handle(h)[0] for h in handles}
        self._pollers.serve(names)

    def _now(self, handles: Sequence[str] | None) -> list[Run]:
        if handles is None:
            return self._registry.list(RunQuery(mine=self._mine), unfinished=True)[::-1]
        runs = []
        for handle in handles:
            run = self._registry.get(handle)
            if run is None:
                raise NotFoundError(f"`{handle}` is not on record", hint="`torchx list` shows the runs on record")
            runs.append(run)
        return runs


class TaskChanges:
    """Finds changes of the tasks of sweeps, by comparing successive statuses; other jobs are queried once."""

    def __init__(self, status: Callable[[str], AppStatus | None], handles: Iterable[str]) -> None:
        self._status = status
        self._seen: dict[str, list[AppState]] = {handle: [] for handle in handles}
        self._due = 0.0

    def look(self, *, now: bool = False) -> list[Change]:
        """Return the changes since the last query, if one is due or wanted ``now``; at first, of started tasks."""
        began = time.monotonic()
        if not self._seen or (began < self._due and not now):
            return []
        found: list[Change] = []
        for handle in list(self._seen):
            status = self._status(handle)
            if status is not None and status.tasks is not None:
                found += self._compare(handle, status.tasks)
            elif not self._seen[handle] and (status is None or status.error is None):
                del self._seen[handle]
        ended = time.monotonic()
        self._due = ended + max(_TASKS_EVERY_S, _TASKS_SHARE * (ended - began))
        return found

    def _compare(self, handle: str, table: TaskTable) -> Iterator[Change]:
        before, self._seen[handle] = self._seen[handle], list(table.states)
        name = parse_app_handle(handle).app_id
        for k, state in enumerate(table.states):
            was = before[k] if before else None
            if state is not was and (before or state is not AppState.PENDING):
                code = table.exit_codes[k]
                msg = f"exit code {code}" if code else ""
                yield Change(0, f"{handle}/{k}", f"{name}/{k}", was, state, msg, table.ended[k] or time.time())
