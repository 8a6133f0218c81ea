"""The watchdog of a Slurm job: its batch script runs this module beside the replicas, see ``batch/hangs.py``.

It inspects replicas by steps on their nodes, as ``torchx stacks`` does, and prints ``hang`` with the action to take, if
any, for the script.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from torchx.schedulers.batch import hangs
from torchx.schedulers.batch.folders import JobFolder, folder_name
from torchx.schedulers.slurm.events import EVENTS_FILE, JobEvents, parse_events
from torchx.schedulers.slurm.notices import NOTICES_FILE
from torchx.util.procs import own_program

if TYPE_CHECKING:
    from torchx.schedulers.kit.inside import InsideProcess
    from torchx.schedulers.kit.stacks import Stacks
    from torchx.supervisor.watchdog import Watchdog


def main() -> None:
    """See :func:`torchx.schedulers.batch.hangs.main`."""
    hangs.main("torchx.schedulers.slurm.hangs", lambda: [*_events().replicas], _news, _stacks)


def _news(dog: Watchdog, action: str) -> None:
    sys.stdout.write(f"hang {action}".strip() + "\n")
    sys.stdout.flush()
    if not dog.silent or not os.path.exists(NOTICES_FILE):
        return
    import subprocess

    argv, nothing = own_program("torchx.schedulers.slurm.notices", "hang"), subprocess.DEVNULL
    sender = subprocess.Popen(argv, stdin=nothing, stdout=nothing)
    if action:  # the attempt is being ended
        sender.wait()


def _events() -> JobEvents:
    with open(EVENTS_FILE, encoding="utf-8", errors="replace") as f:
        return parse_events(f.read())


def _stacks() -> Stacks:
    from torchx.schedulers.batch.inherit import environ
    from torchx.schedulers.batch.inside import sign_of
    from torchx.schedulers.kit.commands import LocalCommandRunner
    from torchx.schedulers.kit.files import LocalFiles
    from torchx.schedulers.kit.inside import not_running
    from torchx.schedulers.kit.inside.spawned import SpawnedProcess
    from torchx.schedulers.slurm.inside import Step, component_of, step_words

    folder, events, job_id = (
        JobFolder(LocalFiles(), os.getcwd()),
        _events(),
        os.environ["SLURM_JOB_ID"].partition(".")[0],
    )
    nodes = {
        n: os.environ[f"SLURM_JOB_NODELIST_HET_GROUP_{n}"] for n in range(int(os.environ.get("SLURM_HET_SIZE", "0")))
    }
    env = environ("slurm")  # Slurm's variables for the script would change what the extra steps request
    command = LocalCommandRunner(lambda: env).run
    found = {
        (role.name, k): f"{folder_name(role.name)}/{k}" for role in folder.roles() for k in range(role.num_replicas)
    }
    up = {replica: events.replicas[path] for replica, path in found.items() if path in events.replicas}
    hosts = {replica: e.host for replica, e in up.items() if e.up and e.exit_code is None}

    def enter(words: Sequence[str], role: str, k: int) -> InsideProcess:
        host = hosts[role, k]
        step = step_words(job_id, host, component=component_of(command, host, nodes), tty=False)
        return Step(
            lambda argv: SpawnedProcess([*step, *argv], tty=None, env=env),
            sign_of(folder.replica(role, k)),
            words,
            None,
            run=command,
            ended=lambda: not_running(job_id, role, k, "RUNNING"),
        )

    return hangs.stacks_of(folder, hosts, enter)
