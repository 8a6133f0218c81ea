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
_MARK_S = 1.0
_LEAVE_S = 5


class _Asker:
    """The requests that this process has seen, and the ranks' agreement on the newest of them."""

    def __init__(self) -> None:
        self.answered = self.seen = 0  # who starts another attempt takes the old request away
        self._looked = 0.0
        self._group: Any = None
        self._flag: Any = None
        self._work: Any = None

    def look(self) -> int:
        now = time.monotonic()
        if now - self._looked > _LOOK_S:
            self._looked = now
            self.seen = max(self.seen, _asked())
        return self.seen

    def agreed(self, dist: Any) -> int:
        """The newest request that any rank had seen one call ago; all ranks get the same.

        The ranks' flags travel while the step is computed: nobody waits for them but the first time.
        """
        import torch

        if self._group is None:
            import atexit

            self._group = dist.new_group(backend="gloo")
            atexit.register(self._leave, dist)
        newest = 0
        if self._work is not None:
            self._work.wait()
            newest = int(self._flag.item())
        self._flag = torch.tensor([self.look()], dtype=torch.int64)
        self._work = dist.all_reduce(self._flag, op=dist.ReduceOp.MAX, group=self._group, async_op=True)
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

    All ranks have to call it, once a step. They get the same answer in the same step, one step after the first of them
    has seen the request. Costs some 50 microseconds; in a job of one process, or that nobody asks, less than one.
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
