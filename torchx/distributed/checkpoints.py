"""A job and what it leaves behind when it is about to end: whether to write a checkpoint, and that there is progress.

In the loop of each rank, once a step::

    from torchx import distributed

    for step in range(first_step, last_step):
        train(step)
        if distributed.should_checkpoint():
            save(step)  # on all ranks in the same step
            distributed.progress()

Who ends a job (a time limit, a preemption) asks for a checkpoint first: the file ``$TORCHX_CHECKPOINT_NOW`` appears, or
changes. Programs that do without torchx look at it themselves; once a second is enough.
"""

from __future__ import annotations

import os
import time

from torchx.settings import ENV_CHECKPOINT, ENV_PROGRESS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["progress", "should_checkpoint"]

_LOOK_S = 0.2
_MOST_CALLS = 100
_MARK_S = 1.0
_LEAVE_S = 5


class _Asker:
    """The requests that this process has seen, and the ranks' agreement on the newest of them."""

    def __init__(self) -> None:
        self.answered = self.seen = 0  # who starts another attempt takes the old request away
        self._looked = 0.0
        self._group: Any = None
        self._flags: Any = None  # the newest request seen, and after how many calls to exchange again
        self._work: Any = None
        self._calls = self._next = 0
        self._exchanged = 0.0

    def look(self) -> int:
        now = time.monotonic()
        if now - self._looked > _LOOK_S:
            self._looked = now
            self.seen = max(self.seen, _asked())
        return self.seen

    def agreed(self, dist: Any) -> int:
        """The newest request that any rank had seen at the exchange before; all ranks get the same in the same call.

        The ranks exchange what they have seen some five times a second, after as many calls as they agree on. It
        travels while steps are computed: nobody waits for it.
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
        a_call = (now - self._exchanged) / self._calls if self._exchanged else _LOOK_S
        wanted = min(max(int(_LOOK_S / max(a_call, 1e-6)), 1), _MOST_CALLS)
        self._flags = torch.tensor([self.look(), wanted], dtype=torch.int64)
        self._work = dist.all_reduce(self._flags, op=dist.ReduceOp.MAX, group=self._group, async_op=True)
        self._calls, self._next, self._exchanged = 0, stride, now
        return newest

    def _leave(self, dist: Any) -> None:
        """Ends what is under way: PyTorch aborts a process that ends with a collective in the air."""
        from datetime import timedelta

        try:
            self._work.wait(timedelta(seconds=_LEAVE_S))
            dist.destroy_process_group(self._group)
        except (RuntimeError, ValueError, AssertionError):
            pass  # a rank has died, or the program has destroyed all groups itself


_asker: _Asker | None = None


def should_checkpoint() -> bool:
    """Whether to write a checkpoint now, because the job is about to be ended. True once for each request.

    All ranks have to call it, once a step. They get the same answer in the same step, within a second of the request,
    or two steps where these are longer. A call takes some microseconds, and five times a second, when the ranks tell
    each other what they have seen, about half a millisecond.
    """
    global _asker
    if not os.environ.get(ENV_CHECKPOINT):
        return False
    _asker = _asker or _Asker()
    from torchx.distributed import _group, world_size

    dist = _group()
    newest = _asker.agreed(dist) if dist is not None and world_size() > 1 else _asker.look()
    if newest <= _asker.answered:
        return False
    _asker.answered = newest
    return True


def progress() -> None:
    """Says that the job has got further, so that the next failure gets its full budget of retries.

    Call it where losing the job would no longer lose the work: after a checkpoint was written. It touches the file
    ``$TORCHX_PROGRESS``, at most once a second; without that variable it does nothing.
    """
    global _marked
    path = os.environ.get(ENV_PROGRESS)
    if not path or time.monotonic() - _marked < _MARK_S:
        return
    _marked = time.monotonic()
    try:
        with open(path, "a"):
            os.utime(path)
    except OSError:
        pass  # a mark that cannot be left must not end the job


_marked = float("-inf")


def _asked() -> int:
    """When a checkpoint was asked for last, in nanoseconds; 0: never."""
    try:
        return os.stat(os.environ[ENV_CHECKPOINT]).st_mtime_ns
    except (KeyError, OSError):
        return 0
