"""The watchdog of a batch job: a program on a node, beside the replicas, that inspects the job when it is silent.

The job's script runs ``retry.pyz hangs WISH [IDLE EVERY PLAIN STARTED]`` in the job's folder, which starts ``hangs.py``
of its backend. WISH may be empty; with IDLE, such as ``30m:cancel``, it also detects an idle job, by samples that are
taken every EVERY seconds. PLAIN is not empty if :meth:`torchx.specs.wishes.Wishes.is_plain`, and STARTED is the Unix
time at which the attempt started. Findings are written to that folder.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from torchx.schedulers.batch.folders import JobFolder
from torchx.specs.wishes.watchdog import parse_watchdog
from torchx.supervisor.layout import METRICS_FILE, STDERR_LOG, STDOUT_LOG, STEPS_FILE
from torchx.supervisor.watchdog import Watchdog, marks, put_down
from torchx.util.procs import own_program

if TYPE_CHECKING:
    from torchx.schedulers.kit.inside import InsideProcess
    from torchx.schedulers.kit.stacks import Stacks
    from torchx.supervisor.layout import WatchdogRequest

    Enter = Callable[[Sequence[str], str, int], InsideProcess]

_ACTIONS = ("cancel", "retry", "checkpoint")
_LOOK = "look"
_MAX_S = 1.0  # delay before the end of the script is noticed


def main(
    module: str,
    folders: Callable[[], Sequence[str]],
    news: Callable[[Watchdog, str], None],
    stacks: Callable[[], Stacks],
    up: Callable[[], bool] = lambda: True,
) -> None:
    """Watches the job in the current folder until its script ends; as ``hangs look``, inspects it once.

    Args:
        news: called when there are findings, with the action to take: one of ``_ACTIONS`` or empty.
        up: whether all required replicas run; while some are missing, the job does not count as silent.
    """
    if sys.argv[1] == _LOOK:
        from torchx.schedulers.kit.stacks.look import tell

        tell(stacks)
        return
    script, waited = os.getppid(), 0
    files = ["progress", *(f"{path}/{name}" for path in folders() for name in (STDOUT_LOG, STDERR_LOG, STEPS_FILE))]

    def signs() -> object:
        nonlocal waited
        waited += not up()
        return waited, marks(files)

    dogs: list[tuple[Watchdog, str]] = []
    if sys.argv[1]:
        wish = parse_watchdog(sys.argv[1])
        asked: WatchdogRequest = {"seconds": wish.seconds, "program": own_program(module, _LOOK)}
        dogs.append((Watchdog(asked, dict(os.environ), signs), wish.action))
    if sys.argv[2:]:
        dogs.append(_idle(folders(), *sys.argv[2:6]))
    for dog, _ in dogs:
        dog.begin(time.monotonic())
    while os.getppid() == script:
        for dog, action in dogs:
            now = time.monotonic()
            text = dog.turn(now) if dog.due is not None and now >= dog.due else None
            if text is not None:
                put_down(".", dog)
                act = dog.silent and action in _ACTIONS
                news(dog, action if act else "")
                if act:  # the attempt is being ended
                    return
        due = min(dog.due or 0.0 for dog, _ in dogs)
        time.sleep(min(max(due - time.monotonic(), 0.01), _MAX_S))


def _idle(folders: Sequence[str], text: str, every: str, plain: str, started: str) -> tuple[Watchdog, str]:
    from torchx.specs.wishes.idle import parse_idle
    from torchx.supervisor.idle import Idle

    wish = parse_idle(text)
    files = [f"{path}/{METRICS_FILE}" for path in folders]
    options: WatchdogRequest = {"seconds": wish.seconds, "files": files, "plain": bool(plain)}
    return Idle(options, [f"{path}/{STEPS_FILE}" for path in folders], float(every), float(started)), wish.action


def stacks_of(folder: JobFolder, hosts: Mapping[tuple[str, int], str], enter: Enter) -> Stacks:
    """Return what the ranks of a job do, whose replicas run on these hosts;
    ``enter`` starts a command inside a replica.
    """
    from torchx.schedulers.kit.inside.run import run
    from torchx.schedulers.kit.stacks.look import look

    there = [(role.name, k) for role in folder.roles() for k in range(role.num_replicas)]
    return look(lambda words, role, k: run(enter(words, role, k)), None, there, list(hosts) or None, hosts=hosts)
