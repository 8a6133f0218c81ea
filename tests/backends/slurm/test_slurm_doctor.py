"""`torchx doctor -s slurm` and `run --check` on a real cluster: what its controller says of mistakes, and of good jobs."""

from __future__ import annotations

from typing import Any

import pytest

from tests.backends.slurm.conftest import Job
from torchx.runner import get_runner
from torchx.schedulers.kit.findings import BAD, GOOD, UNKNOWN, Finding
from torchx.schedulers.slurm_scheduler import SlurmScheduler
from torchx.specs import AppDef, Resource, Role

SMALL = Resource(cpu=1, gpu=0, memMB=100)


def check(scheduler: SlurmScheduler, resource: Resource = SMALL, n: int = 1, **cfg: Any) -> Finding:
    role = Role("r", "", entrypoint="sh", args=["-c", "true"], num_replicas=n, resource=resource)
    (asked,) = scheduler.diagnose(cfg, scheduler.submit_dryrun(AppDef("a", [role]), cfg))
    (found,) = asked.findings()
    return found


def test_a_cluster_that_works() -> None:
    """Nothing is bad; a small job runs there, and its log comes back."""
    with get_runner() as runner:
        found = {f.what: f for f in runner.doctor("slurm", deep=True, image="")}
    assert [f for f in found.values() if f.verdict == BAD] == []
    assert {found[what].verdict for what in ("Slurm", "partition", "sbatch", "probe job")} == {GOOD}, found


@pytest.mark.parametrize(
    "cfg",
    [
        {"partition": "no-such"},
        {"nodelist": "n99"},
        {"constraint": "no-such-feature"},
        {"reservation": "no-such"},
        {"gres": "no-such:1"},
        {"licenses": "no-such:1"},
        {"qos": "no-such"},
    ],
    ids=lambda cfg: next(iter(cfg)),
)
def test_mistakes_in_options(scheduler: SlurmScheduler, cfg: dict[str, Any]) -> None:
    """What `sbatch` would refuse is bad; where this cluster accepts it (test only), it is not."""
    found = check(scheduler, **cfg)
    try:
        app = AppDef("a", [Role("r", "", entrypoint="true", resource=SMALL)])
        scheduler.cancel(scheduler.submit(app, cfg))
        taken = True
    except Exception:
        taken = False
    assert found.verdict == (GOOD if taken else BAD), found


@pytest.mark.parametrize(
    "resource", [Resource(5000, 0, 100), Resource(1, 64, 100), Resource(1, 0, 10**9)], ids=["cpu", "gpu", "mem"]
)
def test_more_than_a_node_has(scheduler: SlurmScheduler, resource: Resource) -> None:
    """No node will ever have it."""
    assert check(scheduler, resource).verdict == BAD


def test_good_jobs(scheduler: SlurmScheduler, submit: Job) -> None:
    """Of several shapes; nothing is submitted, also while the cluster is busy."""
    submit("sleep 60", 2)
    before = {job.app_id for job in scheduler.list()}
    shapes: list[tuple[Resource, int, dict[str, Any]]] = [
        (SMALL, 1, {}),
        (SMALL, 4, {}),
        (SMALL, 2, {"replicas_per_node": 2}),
        (SMALL, 1, {"time": "10", "comment": "it's $5"}),
        (Resource(-1, -1, -1), 1, {}),
        (SMALL, 1, {"exclusive": True}),
    ]
    assert [check(scheduler, resource, n, **cfg).verdict for resource, n, cfg in shapes] == [GOOD] * len(shapes)
    assert {job.app_id for job in scheduler.list()} == before


def test_two_roles(scheduler: SlurmScheduler) -> None:
    """A heterogeneous job is tried as a whole."""
    roles = [Role(name, "", entrypoint="true", resource=Resource(cpu, 0, 100)) for name, cpu in (("a", 1), ("b", 2))]
    (asked,) = scheduler.diagnose({}, scheduler.submit_dryrun(AppDef("a", roles), {}))
    (found,) = asked.findings()
    assert found.verdict in (GOOD, UNKNOWN), found
