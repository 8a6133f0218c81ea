"""Batch scripts of Slurm that people have, as jobs: see :mod:`torchx.specs.sbatch_scripts`."""

from __future__ import annotations

from collections.abc import Iterable

from torchx.specs.api import Role

SBATCH = "torchx/sbatch"
"""The key of a role's metadata that has the script; of an app's, why it cannot run anywhere but on Slurm."""


def is_script(roles: Iterable[Role]) -> bool:
    """Whether a job is such a script."""
    return any(SBATCH in role.metadata for role in roles)
