"""Simulated faults of Slurm jobs, by Slurm's own commands. Slurm rejects what the user may not do.

https://slurm.schedmd.com/scontrol.html, https://slurm.schedmd.com/scancel.html
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence
from functools import partial

from torchx.errors import BackendError, NotSupportedError
from torchx.schedulers.batch.sites import Run
from torchx.schedulers.kit.files import Files
from torchx.schedulers.kit.simulations import Simulation, cannot
from torchx.schedulers.slurm.request import SCRIPT_FILE
from torchx.schedulers.slurm.scripts.sbatch import seconds

_Replica = tuple[str, int]

# By default scancel signals all nodes of the job, and fails if one has no such step. With --ctld the controller finds
# the right node, but it records a killed step as cancelled.
_SIGNALS = {"kill": ["--signal=KILL"], "hang": ["--ctld", "--signal=STOP"]}


def simulation(
    run: Run, job_id: str, fault: str, replica: _Replica, *, replicas: Sequence[_Replica], files: Files
) -> Simulation:
    """Return the simulation of a fault on one of ``replicas``;
    see :class:`torchx.schedulers.kit.abilities.Simulates`.
    """
    if fault == "oom":
        why = "Slurm limits the memory of each step, and the memory of a replica cannot be filled from outside"
        raise cannot("slurm", fault, why, instead="kill")
    said = run(["scontrol", "show", "job", "--oneliner", job_id]).check().stdout
    shown = dict(re.findall(r"(\w+)=(\S*)", said))
    if fault == "preempt":
        if shown.get("Requeue") == "0":
            raise NotSupportedError(
                "Slurm may not requeue this job, so preemption would end it",
                hint="submit it with `--retry standard` or `-cfg requeue=yes`",
            )
        says = f"`scontrol requeue {job_id}`: Slurm ends the job and puts it back into its queue, as preemption does"
        return Simulation(says, partial(_do, run, ["scontrol", "requeue", job_id]))
    if fault == "timeout":
        if _is_warned(files, shown.get("WorkDir", "")):
            argv = ["scancel", "--batch", "--signal=USR1", job_id]
            says = f"`{' '.join(argv)}`: its script is warned of the time limit, and ends this attempt"
            return Simulation(says, partial(_do, run, argv))
        argv = ["scontrol", "update", f"JobId={job_id}", f"TimeLimit={_sooner(shown)}"]
        return Simulation(f"`{' '.join(argv)}`: Slurm enforces it within a minute or two", partial(_do, run, argv))
    step, host = _step(run, job_id, list(replicas).index(replica))
    if fault == "node":
        return _node_fails(run, host)
    argv = ["scancel", *_SIGNALS[fault], step]
    do = partial(_kill if fault == "kill" else _do, run, argv)
    signal = argv[-2].replace("--signal=", "SIG")
    says = f"`{' '.join(argv)}`: the processes of replica {replica[0]}/{replica[1]} on {host} get {signal}"
    return Simulation(says, do)


def _kill(run: Run, argv: list[str]) -> None:
    """Kill all processes of a step at once: Slurm kills one by one, and a shell goes on when its command has ended."""
    run(["scancel", "--signal=STOP", argv[-1]])
    _do(run, argv)


def _do(run: Run, argv: list[str]) -> None:
    run(argv).check()


def _sooner(shown: dict[str, str]) -> int:
    """Return a time limit in minutes that ends the job soon. Raises BackendError if the job's own limit is as near."""
    ran_s = seconds(shown.get("RunTime", "")) or 0
    limit = max(1, ran_s // 60)
    own_s = seconds(shown.get("TimeLimit", "")) or 0
    if own_s and limit * 60 >= own_s:
        raise BackendError(f"it is about to reach its time limit: it has run for {ran_s} s of {own_s} s")
    return limit


def _is_warned(files: Files, folder: str) -> bool:
    """Whether the job's script is warned before the limit and handles it.

    Then the limit must not be lowered, because that would apply to all attempts: only operators can raise it again.
    """
    script = files.read(posixpath.join(folder, SCRIPT_FILE)) if folder else None
    return re.search(rb"^early=[1-9]", script or b"", re.MULTILINE) is not None


def _step(run: Run, job_id: str, index: int) -> tuple[str, str]:
    """Return the step of a replica, which is named after its number, and its host.

    Raises BackendError if it does not run.
    """
    rows = run(["squeue", "--steps", f"--jobs={job_id}", "--noheader", "--format=%i|%N|%j"]).check().stdout
    for row in rows.splitlines():
        step, host, name = (*row.strip().split("|", 2), "", "")[:3]
        if name == f"replica.{index}":
            return step, host
    raise BackendError("the replica is not running: Slurm has no step for it")


def _node_fails(run: Run, host: str) -> Simulation:
    """Take a node down and resumes it. Raises NotSupportedError if other users have jobs there."""
    users = run(["squeue", "--noheader", f"--nodelist={host}", "--format=%u"]).check().stdout.split()
    me = run(["id", "-un"]).check().stdout.strip()
    if others := sorted({user for user in users if user != me}):
        raise NotSupportedError(f"node `{host}` cannot fail: jobs of {', '.join(others)} run there")

    def make() -> None:
        down = run(["scontrol", "update", f"NodeName={host}", "State=DOWN", "Reason=torchx simulate node"])
        if down.returncode:
            raise NotSupportedError(
                f"`node` cannot be simulated: Slurm lets only its operators take a node down ({down.stderr.strip()})",
                hint="`torchx simulate preempt` comes closest",
            )
        back = run(["scontrol", "update", f"NodeName={host}", "State=RESUME"])
        state = run(["sinfo", "--noheader", f"--nodes={host}", "--format=%t"]).stdout
        if back.returncode and state.startswith(("down", "drain")):  # otherwise it has recovered by itself
            back.check()

    says = f"`scontrol update NodeName={host} State=DOWN`, and RESUME: all jobs there lose their node; operators may"
    return Simulation(says, make)
