"""What containers use, on a real engine: sampled by a process that nobody waits for, and known when all is over."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from tests.backends import leftovers
from tests.backends.docker.conftest import PATIENCE_S, Job, put_file, watcher_gone
from tests.backends.shell import Shell
from torchx.schedulers.docker.containers import LABEL_APP_ID
from torchx.schedulers.docker.metrics import ContainersSampler
from torchx.schedulers.docker.plain_http import EngineHttp
from torchx.schedulers.docker_scheduler import DockerScheduler
from torchx.specs import RetryPolicy

Eventually = Callable[..., object]
MIB = 1 << 20
EATS = (
    "x=$(head -c 33554432 /dev/zero | tr '\\0' x); i=0; while [ $i -lt 40000 ]; do i=$((i+1)); : ${#i}; done; sleep 16"
)


def test_nobody_watches(docker_image: str, shell: Shell, tmp_path: Path) -> None:
    """The command that submitted is gone; what the job has used is there when it is over, and when it is deleted."""
    (tmp_path / ".torchxconfig").write_text("[metrics]\nevery = 1\n")
    mine = replace(shell, cwd=tmp_path)
    words = ("--image", docker_image, "--memMB", "200", "--cpu", "2", "--", EATS)
    handle = mine.launch("-d", "-s", "local_docker", "--workspace=", "utils.sh", *words)
    mine.torchx("wait", handle)
    watcher_gone(handle.rpartition("/")[2])
    (used,) = json.loads(mine.torchx("metrics", "--json", handle))["replicas"]
    assert (used["memory_limit"], used["cpus"]) == (200 * MIB, 2)
    assert 32 * MIB < used["memory_peak"] < 150 * MIB
    assert len(used["samples"]) > 3
    assert 0 < used["attempts"][0]["cpu"] < 2
    assert re.search(r"\[0\] SUCCEEDED .* peak memory [\d.]+ MiB of 200 MiB", mine.torchx("status", handle))
    assert re.search(r"used: +[\d.]+ MiB of 200 MiB memory, [01]\.\d of 2 CPUs", mine.torchx("status", handle))
    EngineHttp(os.environ).call("DELETE", f"/containers/{handle.rpartition('/')[2]}-sh-0")
    (left,) = json.loads(mine.torchx("metrics", "--json", handle))["replicas"]
    assert (left["samples"], left["attempts"], left["memory_peak"]) == ([], used["attempts"], used["memory_peak"])


def test_who_takes_over(scheduler: DockerScheduler, submit: Job, eventually: Eventually) -> None:
    """Another watcher adds to the samples of one that was killed; attempts are told apart, be they the engine's own."""
    script = "until rm /tmp/go 2>/dev/null; do sleep 0.1; done; exit 1"
    app_id = submit(script, max_retries=1, retry_policy=RetryPolicy.REPLICA)
    for process in leftovers.living(f"watcher.py {app_id}"):
        os.kill(process.pid, signal.SIGKILL)
    engine = EngineHttp(os.environ)

    def seen() -> list[tuple[int, bool]]:
        (found,) = scheduler.metrics(app_id) or []
        assert found.memory_limit == 128 * MIB
        return [(s.attempt, 0 <= (s.cpu or 0) < 3 and 0 < s.memory < 100 * MIB) for s in found.samples]

    def look() -> bool:
        job = scheduler._on_engine.listed(f"{LABEL_APP_ID}={app_id}")[app_id]
        ContainersSampler(engine).look(job)
        return bool(seen())

    eventually(look, timeout_s=PATIENCE_S)
    before = seen()
    assert set(before) == {(0, True)}
    (container,) = scheduler._on_engine.listed(f"{LABEL_APP_ID}={app_id}")[app_id].containers
    put_file(scheduler, container.id, "go")
    eventually(lambda: look() and seen()[-1][0] == 1, timeout_s=PATIENCE_S)
    assert seen()[: len(before)] == before
    assert seen()[-1] == (1, True)
