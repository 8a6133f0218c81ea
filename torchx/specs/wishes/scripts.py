"""Recognizes jobs that were made from batch scripts; see :mod:`torchx.schedulers.slurm.scripts.sbatch`."""

from __future__ import annotations

from collections.abc import Iterable

from torchx.specs.api import Role

SBATCH = "torchx/sbatch"
"""Metadata key: in a role, the script; in an app, why it can run on Slurm only."""


def is_script(roles: Iterable[Role]) -> bool:
    """Whether a job was made from a batch script."""
    return any(SBATCH in role.metadata for role in roles)
