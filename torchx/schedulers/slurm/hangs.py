"""The watchdog of a Slurm job: its batch script runs this module beside the replicas, from the archive in its folder.

It sees silence by the files of the job, looks into replicas by steps beside them, as ``torchx stacks`` does, and leaves
what it saw in the folder. To the script it says ``hang``, with what is to be done, if anything is.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence

from torchx.schedulers.batch.folders import JobFolder, folder_name
from torchx.schedulers.slurm.events import EVENTS_FILE, JobEvents, parse_events
from torchx.schedulers.slurm.notices import NOTICES_FILE
from torchx.specs.watchdog import parse_watchdog
from torchx.supervisor.layout import STDERR_LOG, STDOUT_LOG
from torchx.supervisor.watchdog import Watchdog, put_down

TYPE_CHECKING = False
if TYPE_CHECKING:
    import subprocess

    from torchx.schedulers.inside.run import Ran
    from torchx.schedulers.stacks import Stacks

_LOOK = "look"
_KEPT = ("SLURM_CONF", "SLURM_JWT")


def main() -> None:
    """Watches the job whose folder is the current one, until the script has ended; or looks into it, once."""
    if sys.argv[1] == _LOOK:
        from torchx.schedulers.stacks.look import tell

        tell(_stacks)
        return
    wish, script = parse_watchdog(sys.argv[1]), os.getppid()
    program = [sys.executable, "-m", "torchx.schedulers.slurm.hangs", _LOOK]
    files = [f"{path}/{name}" for path in _events().replicas for name in (STDOUT_LOG, STDERR_LOG)]
    dog = Watchdog({"seconds": wish.seconds, "program": program, "files": ["progress", *files]}, dict(os.environ))
    dog.begin(time.monotonic())
    while os.getppid() == script:
        text = dog.turn(time.monotonic())
        if text is not None:
            put_down(".", dog)
            act = dog.silent and wish.action != "stacks"
            sys.stdout.write(f"hang {wish.action}\n" if act else "hang\n")
            sys.stdout.flush()
            sender = _tell() if dog.silent else None
            if act:  # the attempt is being ended
                if sender is not None:
                    sender.wait()
                return
        time.sleep(max((dog.due or 0.0) - time.monotonic(), 0.01))


def _tell() -> subprocess.Popen[bytes] | None:
    """Starts the program that sends the notices."""
    if not os.path.exists(NOTICES_FILE):
        return None
    import subprocess

    argv, nothing = [sys.executable, "-m", "torchx.schedulers.slurm.notices", "hang"], subprocess.DEVNULL
    return subprocess.Popen(argv, stdin=nothing, stdout=nothing)


def _events() -> JobEvents:
    with open(EVENTS_FILE, encoding="utf-8", errors="replace") as f:
        return parse_events(f.read())


def _stacks() -> Stacks:
    from torchx.schedulers.batch.inside import sign_of
    from torchx.schedulers.inside import not_running
    from torchx.schedulers.inside.run import run
    from torchx.schedulers.inside.spawned import SpawnedProcess
    from torchx.schedulers.kit.commands import LocalCommandRunner
    from torchx.schedulers.kit.files import LocalFiles
    from torchx.schedulers.slurm.inside import Step, component_of, step_words
    from torchx.schedulers.stacks.look import look

    folder, events, job_id = JobFolder(LocalFiles(), os.getcwd()), _events(), os.environ["SLURM_JOB_ID"]
    nodes = {
        n: os.environ[f"SLURM_JOB_NODELIST_HET_GROUP_{n}"] for n in range(int(os.environ.get("SLURM_HET_SIZE", "0")))
    }
    # What Slurm has told the script of its nodes is not for steps beside others.
    env = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_") or name in _KEPT}
    command = LocalCommandRunner().run
    there = [(role.name, k) for role in folder.roles() for k in range(role.num_replicas)]
    found = {replica: events.replicas.get(f"{folder_name(replica[0])}/{replica[1]}") for replica in there}
    hosts = {replica: e.host for replica, e in found.items() if e is not None and e.up and e.exit_code is None}

    def inside(words: Sequence[str], role: str, k: int) -> Ran:
        host = hosts[role, k]
        step = Step(
            lambda argv, tty: SpawnedProcess(argv, tty=tty, env=env),
            step_words(job_id, host, component=component_of(command, host, nodes), tty=False),
            sign_of(folder.replica(role, k)),
            words,
            None,
            run=command,
            ended=lambda: not_running(job_id, role, k, "RUNNING"),
        )
        return run(step)

    return look(inside, None, there, list(hosts) or None, hosts=hosts)


if __name__ == "__main__":
    main()
