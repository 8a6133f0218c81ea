"""What the ranks of a silent local job are doing: its supervisor runs this module, which writes down a sentence."""

from __future__ import annotations

import os
import sys

from torchx.supervisor.watchdog import BUSY

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from torchx.schedulers.inside.run import Ran


def main() -> None:
    """Looks into the job of a folder, and writes the sentence."""
    from torchx.errors import TorchXError

    folder, answer = sys.argv[1:]
    try:
        said = _sentence(folder)
    except TorchXError as e:
        said = f"it could not be looked into: {e}"
    with open(f"{answer}.new", "w", encoding="utf-8") as f:
        f.write(said)
    os.replace(f"{answer}.new", answer)


def _sentence(folder: str) -> str:
    from torchx.schedulers.inside.run import run
    from torchx.schedulers.local.inside import enter
    from torchx.schedulers.local.jobs import LocalJob
    from torchx.schedulers.stacks.look import look
    from torchx.supervisor.statefile import RUNNING

    job = LocalJob(folder)
    state = job.read()
    if state is None:
        return ""
    there = [(role, k) for role, count in state.roles for k in range(count)]
    running = [replica for replica, line in zip(there, state.replicas, strict=True) if line.state == RUNNING]

    def inside(words: Sequence[str], role: str, k: int) -> Ran:
        return run(enter(job, role, k, words, None))

    found = look(inside, None, there, running or None)
    return f"{BUSY}\n{found.sentence}" if found.busy else found.sentence
