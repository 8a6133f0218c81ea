"""Fault injection for local jobs: the supervisor ends an attempt, or replicas get a signal."""

from __future__ import annotations

import signal
from functools import partial

from torchx.errors import BackendError
from torchx.schedulers.kit.simulations import Simulation, cannot
from torchx.schedulers.local.jobs import LocalJob
from torchx.supervisor import proctree
from torchx.supervisor.reader import send_command

_SIGNALS = {"kill": signal.SIGKILL, "hang": signal.SIGSTOP}
_WORDS = {
    "preempt": ("preempt", "the supervisor ends all processes of the job, as if it were preempted"),
    "timeout": ("expire", "the supervisor ends the attempt, as if it had reached its time limit"),
}


def simulation(job: LocalJob, fault: str, replica: tuple[str, int]) -> Simulation:
    """Prepare a fault; see :class:`torchx.schedulers.kit.abilities.Simulates`."""
    if fault in _WORDS:
        word, says = _WORDS[fault]
        return Simulation(says, partial(_send, job, word))
    if fault == "oom":
        raise cannot("local_cwd", fault, "the memory of a local job is not limited", instead="kill")
    if fault == "node":
        raise cannot("local_cwd", fault, "it would be this machine that fails", instead="kill")
    number = _SIGNALS[fault]
    role, k = replica
    says = f"replica {role}/{k} and its processes get {number.name}"
    return Simulation(says, partial(_signal, job, replica, number))


def _send(job: LocalJob, word: str) -> None:
    if not send_command(job.folder, word):
        raise BackendError(
            "the job has no supervisor here: it has ended or runs on another machine", hint="see `torchx status JOB`"
        )


def _signal(job: LocalJob, replica: tuple[str, int], number: signal.Signals) -> None:
    """Signals the replica's first process, or all of its processes with SIGSTOP."""
    state = job.read()
    line = dict(zip(state.positions(), state.replicas, strict=True)).get(replica) if state else None
    processes = proctree.snapshot()
    root = processes.get(line.pid) if line else None
    if root is None or line is None or root.ticks != line.ticks:
        raise BackendError(f"replica {replica[0]}/{replica[1]} is not running on this machine")
    family = proctree.descendants(processes, {root.pid}) if number is signal.SIGSTOP else [root]
    for process in family:
        proctree.send(process, number)
