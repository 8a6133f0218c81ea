"""What is free on a real cluster, and the partition in which a job starts first."""

from __future__ import annotations

from torchx.runner import get_runner
from torchx.specs import AppDef, Resource, Role


def test_partitions_and_the_first_to_start() -> None:
    """`sinfo` and `sbatch --test-only` are understood; a job with `partition=auto` runs."""
    role = Role("r", "", entrypoint="true", resource=Resource(1, 0, 50))
    with get_runner() as runner:
        pools = runner.nodes("slurm", None, Resource(1, 0, 50), 1)
        assert all(pool.name and pool.nodes and pool.cpus > 0 and pool.free_cpus >= 0 for pool in pools)
        assert any(pool.start is not None and pool.fitting for pool in pools)
        assert all(pool.why for pool in runner.nodes("slurm", None, Resource(1, 64, 50), 1))
        at = {pool.name: pool for pool in pools}
        assert at["main"].start is not None  # the default partition, which `sinfo` marks
        assert (at["closed"].start, at["closed"].usable) == (None, 0)
        handle = runner.run(AppDef("auto", [role]), "slurm", {"partition": "auto"})
        status = runner.wait(handle, 0.2)
        assert status is not None and str(status.state) == "SUCCEEDED"
