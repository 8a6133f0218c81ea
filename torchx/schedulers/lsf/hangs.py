"""The watchdog of an LSF job: the script of one replica runs this module beside it, see ``batch/hangs.py``.

It inspects replicas by ``ssh`` to their hosts, as ``torchx stacks`` does, and without ``ssh`` on its own host. To end
an attempt it creates ``silent`` in the job's folder, upon which the scripts end their replicas.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from torchx.schedulers.batch import hangs
from torchx.schedulers.batch.folders import JobFolder, folder_name
from torchx.schedulers.kit.files import LocalFiles
from torchx.schedulers.lsf.replicas import ATTEMPT_FILE, EXIT_FILE, SILENT_FILE, UP_FILE
from torchx.specs.api import RetryPolicy, Role
from torchx.supervisor.layout import private

if TYPE_CHECKING:
    from torchx.schedulers.kit.inside import InsideProcess
    from torchx.schedulers.kit.stacks import Stacks
    from torchx.supervisor.watchdog import Watchdog


def main() -> None:
    """See :func:`torchx.schedulers.batch.hangs.main`."""
    hangs.main("torchx.schedulers.lsf.hangs", _folders, _news, _stacks, _complete)


def _news(dog: Watchdog, action: str) -> None:  # noqa: ARG001  # the contract's signature
    if not action:
        return
    with open(f"{SILENT_FILE}.new", "w", encoding="utf-8", opener=private) as f:
        f.write(f"{action}\n")
    os.replace(f"{SILENT_FILE}.new", SILENT_FILE)


@functools.cache
def _roles() -> list[Role]:
    return JobFolder(LocalFiles(), os.getcwd()).roles()


def _folders() -> list[str]:
    return [f"{folder_name(role.name)}/{k}" for role in _roles() for k in range(role.num_replicas)]


def _complete() -> bool:
    """Whether all replicas of this attempt have started; for an elastic role, the minimum."""
    hosts = _hosts()
    started = [sum(name == role.name for name, _ in hosts) for role in _roles()]
    least = [role.num_replicas if role.min_replicas is None else role.min_replicas for role in _roles()]
    return all(n >= needed for n, needed in zip(started, least, strict=True))


def _hosts() -> dict[tuple[str, int], str]:
    """Return the hosts of the replicas that run or have succeeded."""
    found = {}
    for role in _roles():
        folder = folder_name(role.name)
        attempt = _words(ATTEMPT_FILE if role.retry_policy is RetryPolicy.APPLICATION else f"{folder}/{ATTEMPT_FILE}")
        for k in range(role.num_replicas):
            up = _words(f"{folder}/{k}/{UP_FILE}")
            if up[:1] == (attempt or ["0"]):
                found[role.name, k] = up[-1]
    return found


def _words(path: str) -> list[str]:
    try:
        with open(path, encoding="utf-8", errors="replace") as f:
            return f.read().split()
    except OSError:
        return []


def _stacks() -> Stacks:
    from torchx.schedulers.kit.commands import LocalCommandRunner
    from torchx.schedulers.kit.inside import not_running
    from torchx.schedulers.kit.inside.spawned import SpawnedProcess
    from torchx.schedulers.lsf.inside import OnHost, refuse_container

    folder, command, job_id = JobFolder(LocalFiles(), os.getcwd()), LocalCommandRunner().run, os.environ["LSB_JOBID"]
    known = _hosts()
    hosts = {who: host for who, host in known.items() if not os.path.exists(f"{folder.replica(*who)}/{EXIT_FILE}")}
    here = os.environ.get("LSB_MCPU_HOSTS", "").split()[:1]

    def enter(words: Sequence[str], role: str, k: int) -> InsideProcess:
        host = hosts[role, k]
        refuse_container(folder, job_id, role, k, host)
        return OnHost(
            lambda argv, tty: SpawnedProcess(argv, tty=tty),
            "" if here == [host] else host,
            folder.replica(role, k),
            words,
            None,
            run=command,
            ended=lambda: not_running(job_id, role, k, "RUNNING"),
        )

    return hangs.stacks_of(folder, hosts, enter)
