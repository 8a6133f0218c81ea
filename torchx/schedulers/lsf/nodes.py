"""What is free on the hosts of an LSF cluster; ``bhosts`` shows slots, and GPUs since 10.1.0.6."""

from __future__ import annotations

from torchx.schedulers.batch.sites import Run
from torchx.schedulers.kit.nodes import Node


def nodes(run: Run) -> list[Node]:
    """Return the hosts, which belong to the pool of their status: queues share them."""
    head, *rows = [line.split() for line in run(["bhosts", "-w"]).check().stdout.splitlines() if line.strip()] or [[]]
    told = run(["bhosts", "-noheader", "-o", "host_name ngpus ngpus_alloc"])
    gpus = {words[0]: words[1:] for line in told.stdout.splitlines() if len(words := line.split()) == 3}
    found = []
    for row in rows:
        cells = dict(zip(head, row, strict=False))
        host, status, slots, used = (cells.get(name, "-") for name in ("HOST_NAME", "STATUS", "MAX", "NJOBS"))
        total, taken = (int(number) if number.isdigit() else 0 for number in (*gpus.get(host, ("-", "-")),))
        cpus = int(slots) if slots.isdigit() else -1
        free = max(cpus - int(used), 0) if cpus >= 0 and used.isdigit() else -1
        usable = status.startswith(("ok", "closed_Full", "closed_Excl", "closed_Busy"))
        found.append(Node("hosts", cpus, -1, total, "", free, -1, total - taken, usable))
    return found
