"""Requests for checkpoints before a job is ended, and reports of progress.

In the loop of each rank, once a step::

    from torchx import distributed

    for step in range(first_step, last_step):
        train(step)
        if distributed.should_checkpoint():
            save(step)  # on all ranks in the same step
            distributed.progress()

Before a job is ended by a time limit or a preemption, the file ``$TORCHX_CHECKPOINT_NOW`` appears or changes. Programs
that do not import torchx can check it themselves, once a second.
"""

from __future__ import annotations

import os
import time

from torchx.distributed.ranks import process_group, world_size
from torchx.settings import ENV_CHECKPOINT, ENV_JOB_ID, ENV_PROGRESS
from torchx.util.any import Any

_CHECK_S = 0.2
_MAX_CALLS = 100
_MARK_S = 1.0
_LEAVE_S = 5


class _Requests:
    """The requests that this process has seen, and the ranks' agreement on the newest one."""

    def __init__(self) -> None:
        self.answered = self.seen = 0  # the file of an earlier attempt is removed before this one starts
        self._checked = 0.0
        self._group: Any = None
        self._flags: Any = None  # the newest request seen, and after how many calls to exchange again
        self._work: Any = None
        self._calls = self._next = 0
        self._exchanged = 0.0

    def newest(self) -> int:
        """Return the newest request that this rank has seen; read the file five times a second."""
        now = time.monotonic()
        if now - self._checked > _CHECK_S:
            self._checked = now
            self.seen = max(self.seen, _requested_at())
        return self.seen

    def agreed(self, dist: Any) -> int:
        """Return the newest request that any rank had seen at the previous exchange, the same on all ranks.

        The ranks exchange the newest request about five times a second, after a number of calls that they agree on. The
        exchange is asynchronous: it runs while steps are computed.
        """
        self._calls += 1
        if self._calls < self._next:
            return self.answered
        import torch

        now = time.monotonic()
        if self._group is None:
            import atexit

            self._group = dist.new_group(backend="gloo")
            atexit.register(self._leave, dist)
        newest, stride = 0, 1
        if self._work is not None:
            self._work.wait()
            newest, stride = self._flags.tolist()
        call_s = (now - self._exchanged) / self._calls if self._exchanged else _CHECK_S
        calls = min(max(int(_CHECK_S / max(call_s, 1e-6)), 1), _MAX_CALLS)
        self._flags = torch.tensor([self.newest(), calls], dtype=torch.int64)
        self._work = dist.all_reduce(self._flags, op=dist.ReduceOp.MAX, group=self._group, async_op=True)
        self._calls, self._next, self._exchanged = 0, stride, now
        return newest

    def _leave(self, dist: Any) -> None:
        """Finishes the current exchange: PyTorch aborts a process that exits during a collective."""
        from datetime import timedelta

        try:
            self._work.wait(timedelta(seconds=_LEAVE_S))
            dist.destroy_process_group(self._group)
        except (RuntimeError, ValueError, AssertionError):
            pass  # a rank has died, or the program has destroyed all groups itself


_requests: _Requests | None = None


def should_checkpoint() -> bool:
    """Return whether to write a checkpoint now, because the job is about to be ended. True once for each request.

    All ranks must call it once a step. They get the same answer in the same step, within a second of the request, or
    within two steps if these are longer. A call takes some microseconds; five times a second, when the ranks exchange
    requests, it takes about half a millisecond.
    """
    global _requests
    if not os.environ.get(ENV_CHECKPOINT):
        return False
    _requests = _requests or _Requests()
    dist = process_group()
    newest = _requests.agreed(dist) if dist is not None and world_size() > 1 else _requests.newest()
    if newest <= _requests.answered:
        return False
    _requests.answered = newest
    return True


def progress(step: int | None = None, total: int | None = None, **metrics: float) -> None:
    """Report the step of this rank, or, without arguments, that a failure would no longer lose the work.

    ``progress(step, total)``, once a step on each rank, lets ``torchx status`` show the rate, the time left, and a rank
    that is slower than the others. It takes about a microsecond: a thread writes the newest step once a second.

    ``progress()``, for example after a checkpoint, gives the next failure its full budget of retries. It touches the
    file ``$TORCHX_PROGRESS``, at most once a second. Outside of a job, both do nothing.

    Args:
        step: number of steps done, from 0.
        total: number of steps of the whole job.
        metrics: numbers to show beside the step, for example ``loss=0.3``.

    >>> progress(7, total=100, loss=0.3)
    """
    global _pace
    if step is None:
        _mark_progress()
    elif _pace is not None:
        _pace.step, _pace.total, _pace.metrics = step, total, metrics
    elif os.environ.get(ENV_JOB_ID):
        from torchx.distributed.pace import Pace

        _pace = Pace()
        _pace.step, _pace.total, _pace.metrics = step, total, metrics


def _mark_progress() -> None:
    global _marked
    path = os.environ.get(ENV_PROGRESS)
    if not path or time.monotonic() - _marked < _MARK_S:
        return
    _marked = time.monotonic()
    try:
        with open(path, "a"):
            os.utime(path)
    except OSError:
        pass  # an unwritable file must not fail the job


_pace: Any = None
_marked = float("-inf")


def _requested_at() -> int:
    """Return the time of the latest request in nanoseconds; 0 if there was none."""
    try:
        return os.stat(os.environ[ENV_CHECKPOINT]).st_mtime_ns
    except (KeyError, OSError):
        return 0
