"""Starts a process beside a local replica: in its folder, with its environment and limits."""

from __future__ import annotations

import os
from collections.abc import Sequence

from torchx.errors import NotSupportedError
from torchx.schedulers.kit.inside import InsideProcess, Tty, not_running
from torchx.schedulers.kit.inside.spawned import SpawnedProcess
from torchx.schedulers.local.jobs import LocalJob
from torchx.supervisor.proctree import ENV_JOB, ENV_REPLICA, boot_id, environment
from torchx.supervisor.statefile import RUNNING


def enter(job: LocalJob, role: str, k: int, argv: Sequence[str], tty: Tty | None) -> InsideProcess:
    """Start ``argv`` beside a replica that runs on this machine. It has the marks of the job's processes."""
    job.replica_folder(role, k)
    state = job.read()
    if state is None:
        raise not_running(os.path.basename(job.folder), role, k, "gone")
    app_id = state.facts.get("app_id", "")
    index = state.positions().index((role, k))
    line = state.replicas[index]
    if line.state != RUNNING:
        raise not_running(app_id, role, k, line.state)
    here = boot_id()
    if not here or state.facts.get("boot") != here:
        host = state.facts.get("host")
        raise NotSupportedError(
            f"replica {role}/{k} of `{app_id}` runs on host `{host}`: no process can be started in it from here",
            hint="run this there" if here else "this needs /proc, which this system does not have",
        )
    env = environment(line.pid)
    if env.get(ENV_JOB) != job.folder or env.get(ENV_REPLICA) != str(index):  # the pid may have been reused
        raise not_running(app_id, role, k, "just ending, or starting again")
    if tty is not None:
        env["TERM"] = tty.term
    try:
        return SpawnedProcess(argv, tty=tty, env=env, cwd=f"/proc/{line.pid}/cwd", beside=line.pid)
    except FileNotFoundError:  # the folder in `/proc`
        raise not_running(app_id, role, k, "just ending, or starting again") from None
