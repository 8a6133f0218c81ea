"""Monarch's command line creates jobs by a component of its own, read and rendered by torchx."""

from __future__ import annotations

import pytest

from tests.backends.clients.conftest import Client

pytestmark = pytest.mark.timeout(1200)  # most of it for the environment


def test_create_on_slurm(monarch: Client) -> None:
    """A dry run of `monarch create` prints the script for sbatch, with the option that was given."""
    said = monarch("monarch", "create", "-s", "slurm", "-cfg", "partition=debug", "--dryrun")
    assert "#SBATCH" in said
    assert "--partition=debug" in said
