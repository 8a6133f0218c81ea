"""Spare nodes (``--spares``): a job gets more nodes than it needs, and starts on those that pass their checks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchx.errors import NotSupportedError, SpecError
from torchx.schedulers.kit.setup import shell_function
from torchx.schedulers.kit.shell import quote, read_script

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torchx.schedulers.slurm.request import SlurmBatchRequest
    from torchx.specs.api import Role
    from torchx.specs.wishes import Wishes

_OF_ONE_NODE = ("gpus", "disk")


def add_spares(request: SlurmBatchRequest, roles: Sequence[Role], wishes: Wishes) -> None:
    """Let a request ask for spare nodes.

    Raises:
        NotSupportedError: the replicas do not all need the same kind of node, or some of them are optional.
        SpecError: no check looks at a single node.
    """
    if len({str(replica.sbatch_opts) for replica in request.replicas.values()}) > 1:
        raise NotSupportedError("`--spares`: the roles need different nodes", hint="omit `--spares`")
    if any(role.min_replicas is not None for role in roles):
        raise NotSupportedError(
            "`--spares`: an elastic job starts with fewer nodes anyway", hint="omit `--spares`, or the minimum"
        )
    checks = [check for check in wishes.check_nodes if check in _OF_ONE_NODE]
    if not checks:
        raise SpecError("`--spares` needs a check of single nodes", hint="add `gpus` or `disk` to `--check-nodes`")
    request.spares = wishes.spares
    gpus = max(role.resource.gpu for role in roles)
    check = f"check_node {','.join(checks)} 0 1 {max(gpus, 0)} TORCHX_RANK0_HOST 0"
    first = next(iter(request.replicas.values()))
    options = [quote(f"--{k}" if v is None else f"--{k}={v}") for k, v in first.srun_opts.items()]
    lines = [f"spares={request.spares} probe_options=({' '.join(options)})"]
    lines.append("probe=" + quote(shell_function("check_node") + "\n" + check))
    request.probe = "\n".join([*lines, read_script(__file__, "spares.sh").strip()])
