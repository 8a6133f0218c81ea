"""What containers use, as an engine answers: of those that run, and not of one that ends meanwhile."""

from __future__ import annotations

from typing import Any

import pytest

from tests.schedulers.docker.fake_docker import refusal
from tests.schedulers.docker.test_gangs import OK, R, job
from torchx.schedulers.docker.metrics import read, usage

# Docker 20.10 on cgroup v1, shortened.
STATS = {
    "cpu_stats": {
        "cpu_usage": {"total_usage": 9_000_000_000, "percpu_usage": [1, 2]},
        "system_cpu_usage": 104_000_000_000,
        "online_cpus": 2,
    },
    "precpu_stats": {"cpu_usage": {"total_usage": 8_000_000_000}, "system_cpu_usage": 100_000_000_000},
    "memory_stats": {"usage": 5000, "max_usage": 9000, "limit": 10_000, "stats": {"total_inactive_file": 1000}},
}


class Client:
    """Its one method is the engine's answer, or refusal."""

    def __init__(self, answer: Any) -> None:
        self.api = self
        self.asked: list[str] = []
        self._answer = answer

    def stats(self, container: str, *, stream: bool) -> Any:
        self.asked.append(container)
        assert stream is False
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer


def test_containers_that_run() -> None:
    """The engine is asked of these alone."""
    of = job(("r-0", R), ("r-1", OK))
    client = Client(STATS)
    first, second = read(client, of)
    assert client.asked == [next(c.id for c in of.containers if c.k == 0)]
    assert (first.samples[0].cpu, first.samples[0].memory, first.cpus) == (0.5, 4000, 2)
    assert (first.memory_limit, first.memory_peak(), second.samples, second.memory_peak()) == (10_000, 9000, [], None)


def test_one_that_is_removed_meanwhile() -> None:
    """It uses nothing any more; another refusal is an error."""
    import docker.errors

    assert read(Client(refusal(404, "No such container")), job(("r-0", R)))[0].samples == []
    with pytest.raises(docker.errors.APIError):
        read(Client(refusal(500, "broken")), job(("r-0", R)))


def test_cgroup_v2_and_a_first_look() -> None:
    """There is no peak, files have another name, and nothing to compare processors with."""
    memory = {"usage": 5000, "limit": 10_000, "stats": {"inactive_file": 500}}
    found = usage("r", 0, {**STATS, "precpu_stats": {"cpu_usage": {"total_usage": 0}}, "memory_stats": memory}, 1.0)
    assert [(s.at, s.cpu, s.memory) for s in found.samples] == [(1.0, None, 4500)]
    assert found.memory_peak() == 4500
