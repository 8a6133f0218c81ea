"""Resource usage in answers of an engine; ``tests/backends/docker`` has those of a real one."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.schedulers.docker.test_plain_http import Server
from torchx.schedulers.docker.evidence import tar_of, text_in
from torchx.schedulers.docker.metrics import usage
from torchx.schedulers.docker.plain_http import EngineHttp

# Docker 20.10 on cgroup v1, and on v2, shortened.
READ = {"read": "1970-01-01T00:01:40.5Z"}
CPU = {"cpu_usage": {"total_usage": 9_000_000_000}, "online_cpus": 2}
V1 = {"usage": 5000, "max_usage": 9000, "limit": 10_000, "stats": {"total_inactive_file": 1000}}
V2 = {"usage": 5000, "limit": 10_000, "stats": {"inactive_file": 500}}


@pytest.mark.parametrize(("memory", "resident"), [(V1, 4000), (V2, 4500)])
@pytest.mark.parametrize(("details", "cpus"), [({}, 2), ({"HostConfig": {"NanoCpus": 1_500_000_000}}, 1.5)])
def test_an_answer(memory: dict[str, Any], resident: int, details: dict[str, Any], cpus: float) -> None:
    """CPUs since the last sample, by the engine's clock; the page cache does not count."""
    found = usage(details, {**READ, "cpu_stats": CPU, "memory_stats": memory}, (98.5, 8.0), 50.0)
    assert found is not None
    head, row, before = found
    assert (head, before) == ({"memory_limit": 10_000, "cpus": cpus}, (100.5, 9.0))
    assert row == {"t": 100.5, "a": 0, "cpu": 0.5, "mem": resident, "gpu": []}


def test_counters_begin_anew() -> None:
    """After a restart since the last sample."""
    found = usage({}, {**READ, "cpu_stats": CPU, "memory_stats": V2}, (70.0, 8000.0), 90.5)
    assert found is not None
    assert found[1]["cpu"] == 0.9


def test_an_engine_that_stops_while_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a file is an error of the connection, which the watcher survives, and is not taken for the samples."""
    monkeypatch.chdir(tmp_path)
    path = "/proc/self/cwd/s"  # a socket's path has 108 characters at most
    head, whole = b"HTTP/1.0 200 OK\r\n\r\n", tar_of({"f": "x" * 2000})
    with closing(Server(path, [head + whole, head + whole[:700], head])):
        engine = EngineHttp({"DOCKER_HOST": f"unix://{path}"})
        assert text_in(engine, "c", "f") == "x" * 2000
        for _ in range(2):
            with pytest.raises(ConnectionError, match="cut off"):
                text_in(engine, "c", "f")
