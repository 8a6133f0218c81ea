"""Copies the logs of runs that have ended to the archive, in one process at a time; what fails is tried again."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

from torchx.errors import NotFoundError, NotSupportedError, TorchXError
from torchx.runner.ground.registry import run_registry
from torchx.runner.launch.log_place import place
from torchx.runs import unkept
from torchx.settings import make_private, torchx_home
from torchx.specs.api import UnknownAppException
from torchx.util.notices import logger
from torchx.util.procs import own_program
from torchx.util.redaction import redact

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torchx.runs import RunRegistry

_AGAIN_S = 60.0
_WAIT_S = 2.0
_LONGEST_S = 3600
_GONE = (UnknownAppException, NotFoundError, NotSupportedError)
_awaited: set[str] = set()
_started: list[Any] = []  # reaped when the next one starts


def keep_later(registry: RunRegistry, handle: str) -> None:
    """Let a process copy the logs of a run that has ended, if the config file says so; does not wait for it."""
    if place()[1]:
        unkept.add(registry, handle)
        _awaited.add(handle)
        _start()


def settle(registry: RunRegistry, ended: Iterable[str]) -> None:
    """Try again what could not be kept, and report it: at the end of a command, which waits for two seconds at most.

    Args:
        ended: handles of runs whose ends the command has seen, if it was the first or not.
    """
    if not place()[1]:
        return
    now = time.time()
    due = _due(registry, now)
    _awaited.update(ended)
    if due and _start():
        _awaited.update(due)
    while _awaited.intersection(run.handle for run in unkept.read(registry) if run.tried_at < now - _AGAIN_S):
        if time.time() > now + _WAIT_S:
            break
        time.sleep(0.02)
    _awaited.clear()
    news = [run for run in unkept.read(registry) if run.why and not run.told]
    if not news:
        return
    whose = f"{len(news):,} runs, such as {news[0].handle}," if len(news) > 1 else news[0].handle
    again = "" if all(run.final for run in news) else "; a later command tries again"
    text = f"the logs of {whose} are not in the archive: {news[0].why}{again}"
    logger("torchx.runner").warning("%s", redact(text))
    for run in news:
        unkept.told(registry, run.handle)


def work(keep: Callable[[str], object], lock: int) -> None:
    """Keep the logs of all runs that are due, in the process that has inherited the lock.

    Args:
        keep: keeps the logs of the run with that handle.
        lock: file descriptor of the lock.
    """
    import fcntl
    import signal

    began = time.time()
    registry = run_registry()
    while True:
        for handle in _due(registry, began):
            signal.alarm(_LONGEST_S)  # a file system that hangs must not hold the lock for ever
            _keep_one(keep, handle)
        fcntl.flock(lock, fcntl.LOCK_UN)  # who could not take it before has recorded its run
        if not _due(registry, began):
            return
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return


def _due(registry: RunRegistry, now: float) -> list[str]:
    return [run.handle for run in unkept.read(registry) if not run.final and run.tried_at < now - _AGAIN_S]


def _keep_one(keep: Callable[[str], object], handle: str) -> None:
    try:
        keep(handle)
    except Exception as e:  # of any file system
        text = (str(e) or type(e).__name__).strip().splitlines()[0][:300]
        if isinstance(e, OSError) and not isinstance(e, TorchXError) and e.strerror:
            text = f"`{place()[0]}`: {e.strerror}"
        unkept.failed(run_registry(), handle, redact(text), final=isinstance(e, _GONE))
    else:
        unkept.done(run_registry(), handle)


def _start() -> bool:
    """Start the process, unless there is one: it looks again before it ends."""
    import fcntl
    import subprocess

    _started[:] = [process for process in _started if process.poll() is None]
    null, lock = subprocess.DEVNULL, -1
    try:
        make_private(torchx_home())
        lock = os.open(torchx_home("archive.lock"), os.O_CREAT | os.O_RDWR, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        argv = own_program("torchx.cli.main", "__archive", str(lock))
        process = subprocess.Popen(argv, stdin=null, stdout=null, stderr=null, start_new_session=True, pass_fds=[lock])
    except OSError:  # it runs already; or there are too many processes: a later command tries again
        return False
    finally:
        if lock >= 0:
            os.close(lock)
    _started.append(process)
    return True
