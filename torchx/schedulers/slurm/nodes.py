"""What is free on a Slurm cluster, and when a job would start: https://slurm.schedmd.com/sbatch.html#OPT_test-only."""

from __future__ import annotations

import calendar
import re
import time
from collections.abc import Callable, Sequence

from torchx.errors import BackendError, NotFoundError
from torchx.schedulers.kit.commands import Completed, last_line
from torchx.schedulers.kit.nodes import Node, Pool, pools_of
from torchx.schedulers.slurm.options import SlurmOpts, node_options
from torchx.specs.api import Resource, Role

Run = Callable[..., Completed]
_FIELDS = ("PartitionName", "Available", "StateLong", "CPUsState", "Memory", "AllocMem", "Gres", "GresUsed")
_GONE = re.compile(r"down|drain|fail|maint|unk|inval|boot|power|no_respond|\*$|reserved|planned_off", re.IGNORECASE)
_SEPARATOR = "|"
AUTO = "auto"
"""Value of the option ``partition``: the one in which the job starts first."""


def nodes(run: Run) -> list[Node]:
    """Return each node once for each of its partitions."""
    form = ",".join(f"{name}:{_SEPARATOR}" for name in _FIELDS)
    done = run(["sinfo", "--noheader", "--Node", f"--Format={form}"]).check()
    return [_node(cells) for line in done.stdout.splitlines() if len(cells := line.split(_SEPARATOR)) > len(_FIELDS)]


def _node(cells: Sequence[str]) -> Node:
    partition, up, state, cpus, memory, taken, gres, used = (cell.strip() for cell in cells[: len(_FIELDS)])
    usable = up == "up" and not _GONE.search(state)
    counts = [int(n) if n.isdigit() else 0 for n in cpus.split("/")] or [0]  # allocated, idle, other, total
    gpus, kind = gpus_in(gres)
    total = int(memory) if memory.isdigit() else -1
    free_mb = total - int(taken) if total > 1 and taken.isdigit() else -1  # 1: the memory is not configured
    return Node(
        partition,
        counts[-1],
        total if total > 1 else -1,
        gpus,
        kind,
        counts[1] if len(counts) == 4 else -1,
        free_mb,
        gpus - gpus_in(used)[0],
        usable,
    )


def gpus_in(gres: str) -> tuple[int, str]:
    """Return the number and the type of the GPUs in a list of generic resources.

    >>> gpus_in("gpu:h100:8(S:0-1),nvme:1"), gpus_in("gpu:4"), gpus_in("(null)"), gpus_in("gpu:a100:2,gpu:v100:1")
    ((8, 'h100'), (4, ''), (0, ''), (3, 'a100, v100'))
    """
    found = re.findall(r"(?:^|,)gpu(?::([A-Za-z][\w.-]*))?(?::(\d+))?", re.sub(r"\([^)]*\)", "", gres))
    return sum(int(count or 1) for _, count in found), ", ".join(dict.fromkeys(kind for kind, _ in found if kind))


def pools(run: Run, opts: SlurmOpts, need: Resource | None, count: int) -> list[Pool]:
    """Return what is free in each partition, with the start of a job of ``count`` nodes of the size ``need``."""
    found = pools_of(nodes(run), need)
    if opts.partition not in (None, AUTO):
        found = [pool for pool in found if pool.name in str(opts.partition).split(",")]
        if not found:
            raise NotFoundError(f"there is no partition `{opts.partition}`", hint="`sinfo` shows the partitions")
    starts: dict[str, tuple[float | None, str]] = {}
    for pool in found:
        if need is None:
            break
        if pool.name not in starts:
            starts[pool.name] = _start(run, opts, need, count, pool.name)
        pool.start, pool.why = starts[pool.name]
        if not pool.usable:  # Slurm would name a time for a partition that is down
            pool.start, pool.why = None, pool.why or "takes no jobs now"
    return found


def first_to_start(run: Run, opts: SlurmOpts, roles: Sequence[Role], spares: int = 0) -> str:
    """Return the partition in which a job starts first; BackendError, with the reasons, if none takes it."""
    count = sum(role.min_replicas or role.num_replicas for role in roles) + spares * opts.replicas_per_node
    largest = max(roles, key=lambda role: (role.resource.gpu, role.resource.cpu, role.resource.memMB)).resource
    names = dict.fromkeys(node.pool for node in nodes(run) if node.usable)
    found = {name: _start(run, opts, largest, count, name) for name in names}
    best = min(((at, name) for name, (at, _) in found.items() if at is not None), default=None)
    if best is None:
        why = "; ".join(f"{name}: {said}" for name, (_, said) in found.items()) or "all nodes are down"
        raise BackendError(f"no partition takes this job: {why}", hint="`torchx nodes -s slurm` shows what there is")
    return best[1]


def _start(run: Run, opts: SlurmOpts, need: Resource, count: int, partition: str) -> tuple[float | None, str]:
    """Return the time at which a job would start in a partition, or why it never does."""
    options, _ = node_options(Role("nodes", "", resource=need), opts, nomem=need.memMB < 0 or opts.nomem)
    options.update(partition=partition, nodes=str(-(-count // opts.replicas_per_node)))
    words = [f"--{name}" if value is None else f"--{name}={value}" for name, value in options.items()]
    argv = ["env", "TZ=UTC", "SLURM_TIME_FORMAT=%Y-%m-%dT%H:%M:%S", "sbatch", "--test-only", *words]
    done = run(argv, stdin="#!/bin/sh\ntrue\n")
    if done.returncode:
        return None, re.sub(r"^(?:sbatch: |error: |allocation failure: )+", "", last_line(done.stderr))
    when = re.search(r"to start at (\d{4}-\d\d-\d\dT[\d:]{8})", done.stderr)
    return (float(calendar.timegm(time.strptime(when[1], "%Y-%m-%dT%H:%M:%S"))) if when else None), ""
