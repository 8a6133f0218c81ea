"""A process inside a replica of a Slurm job: a step of its own on the replica's node, sharing the job's resources.

https://slurm.schedmd.com/srun.html#OPT_overlap, of Slurm 20.11 and later.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping
from typing import TYPE_CHECKING

from torchx.errors import BackendError
from torchx.schedulers.batch.folders import JobFolder, folder_name
from torchx.schedulers.batch.inside import Entered, sign_of
from torchx.schedulers.batch.sites import Run
from torchx.schedulers.slurm.events import EVENTS_FILE, parse_events
from torchx.specs.tasks import replica_of

if TYPE_CHECKING:
    from torchx.schedulers.slurm.sweeps import Sweep


def host_of(folder: JobFolder, role: str, k: int) -> str:
    """Return the node on which a replica runs, from the job's events; empty if it does not run."""
    events = parse_events(folder.text(EVENTS_FILE))
    found = events.replicas.get(f"{folder_name(role)}/{k}")
    over = found is None or found.exit_code is not None or events.exit_code is not None
    return "" if found is None or over else found.host


def of_task(sweep: Sweep, run: Run, task: int | None, role: str, k: int) -> tuple[str, str, str]:
    """Slurm's id, node (empty if not running) and sign of a sweep's task; without ``task``, ``k`` counts all."""
    if whole := sweep.is_whole():
        if task is None:
            task, (role, k) = replica_of(sweep.folder.roles(), (role, k))
        folder = sweep.task_folder(task)
        host, sign = host_of(folder, role, k), sign_of(folder.replica(role, k))
    else:
        task = k if task is None else task
        host, sign = "", f"TORCHX_TASK={task}"
    element = sweep.element(task)
    asked = ["squeue", "--noheader", "--states=running", "--format=%A %B", f"--jobs={element}"]
    said = run(asked).stdout.split() if element else []
    if len(said) != 2:
        return "", "", sign
    return said[0], host if whole else said[1], sign


def component_of(run: Run, host: str, nodes: Mapping[int, str]) -> int | None:
    """Return the component of a heterogeneous job whose node list contains a host; None for a single component."""
    if len(nodes) < 2:
        return None
    found = {component: run(["scontrol", "show", "hostnames", some]) for component, some in nodes.items()}
    return next((component for component, done in found.items() if host in done.stdout.split()), None)


def step_words(app_id: str, host: str, *, component: int | None, tty: bool) -> list[str]:
    """Return the command that starts a step on a job's node; silent, because the script reports how it ended."""
    words = ["srun", f"--jobid={app_id}", "--overlap", "--nodes=1", "--ntasks=1", f"--nodelist={host}", "--mem=0"]
    words += ["--export=ALL", "--chdir=/", "-QQ", "--unbuffered"]
    words += [f"--het-group={component}"] if component is not None else []
    return [*words, "--pty"] if tty else words


class Step(Entered):
    """A step, seen through its ``srun``."""

    def _signal(self, who: str, number: int | None) -> None:
        how = [f"--signal={signal.Signals(number).name.removeprefix('SIG')}"] if number else []
        self._run(["scancel", *how, who])

    def _failed(self, code: int) -> BackendError:
        return BackendError(
            f"`srun` could not start a step in the job: exit code {code}",
            hint="check with `torchx status` that the job runs; a step needs Slurm 20.11 or later",
        )
