"""Prints what the ranks of a silent local job are doing. Its supervisor runs this module."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from torchx.errors import BackendError
from torchx.schedulers.kit.inside.run import Ran, run
from torchx.schedulers.kit.stacks import Stacks
from torchx.schedulers.kit.stacks.look import look, tell
from torchx.schedulers.local.inside import enter
from torchx.schedulers.local.jobs import LocalJob
from torchx.supervisor.statefile import RUNNING


def main() -> None:
    """Inspects the job whose folder is the first argument, and prints the result."""
    tell(lambda: _stacks(sys.argv[1]))


def _stacks(folder: str) -> Stacks:
    job = LocalJob(folder)
    state = job.read()
    if state is None:
        raise BackendError(f"the state of the job in `{folder}` cannot be read")
    there = state.positions()
    running = [replica for replica, line in zip(there, state.replicas, strict=True) if line.state == RUNNING]

    def inside(words: Sequence[str], role: str, k: int) -> Ran:
        return run(enter(job, role, k, words, None))

    return look(inside, None, there, running or None)
