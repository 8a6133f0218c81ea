"""A retry policy by cause on a real engine: the watcher judges each attempt, and nobody else is there."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path
from typing import Any

from tests.backends import leftovers
from tests.backends.docker.conftest import MEET, PATIENCE_S, at, lines, role_of, watcher_gone
from tests.backends.shell import Shell
from torchx.schedulers.api import DescribeAppResponse
from torchx.schedulers.docker_scheduler import DockerScheduler
from torchx.specs.api import AppDef, AppState, Resource, is_terminal
from torchx.specs.wishes.retries import RETRY

TRY = "echo >> /tmp/tries; try=$(wc -l < /tmp/tries); "
"""Shell: ``$try`` is the number of the attempt."""


def submit(scheduler: DockerScheduler, policy: str, command: str, n: int = 1, **fields: Any) -> str:
    return scheduler.submit(AppDef("job", [role_of(command, n, **fields)], metadata={RETRY: policy}), {})


def over(scheduler: DockerScheduler, app_id: str) -> DescribeAppResponse:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        found = scheduler.describe(app_id)
        assert found is not None
        if is_terminal(found.state):
            return found
        assert time.monotonic() < deadline, f"still {found}"
        time.sleep(0.1)


def test_a_container_that_ran_out_of_memory_gets_more(scheduler: DockerScheduler, docker_image: str) -> None:
    """The limit of the same container is raised until it suffices; the status shows each attempt."""
    program = 'exec python3 -c "x = bytearray(90 << 20); print(len(x))"'
    app_id = submit(scheduler, "oom:3:mem*2", program, image=docker_image, resource=Resource(cpu=1, gpu=0, memMB=32))
    found = over(scheduler, app_id)
    assert found.state is AppState.SUCCEEDED
    assert [(a.kind, a.again, a.memory) for a in found.attempts] == [("oom", True, 2.0), ("oom", True, 4.0)]
    assert all("its limit of" in a.cause for a in found.attempts)
    assert lines(scheduler, app_id) == [f"{90 << 20}\n"]
    watcher_gone(app_id)


def test_a_gang_starts_again_once_and_the_same_bug_ends_it(
    scheduler: DockerScheduler, docker_image: str, meet: Path
) -> None:
    """All replicas are ended and started together; the second time it is the same failure, whatever the budget."""
    command = (
        f"{MEET}{TRY}trap 'exit 0' TERM; meet try$try 2; "
        "case $(hostname) in *-1) echo no data in /data >&2; exit 3;; esac; sleep 600 & wait $!"
    )
    app_id = submit(scheduler, "error:5:differs", command, 2, image=docker_image, mounts=at(meet))
    found = over(scheduler, app_id)
    assert found.state is AppState.FAILED and found.num_restarts == 1
    assert found.msg == (
        "r/1: exit code 3: no data in /data; after 1 restart; not retried (error: the same failure twice in a row)"
    )
    assert [(a.kind, a.again, a.cause) for a in found.attempts] == [
        ("error", True, "r/1: exit code 3: no data in /data"),
        ("error", False, "r/1: exit code 3: no data in /data"),
    ]
    watcher_gone(app_id)


def test_progress_gives_the_budget_back(scheduler: DockerScheduler, docker_image: str) -> None:
    """A budget of one lasts for two failures of the memory, as the first attempt got further; not for three."""
    more = 'exec python3 -c "x = bytearray(90 << 20); print(len(x))"'
    command = f"{TRY}test $try = 1 && : > $TORCHX_PROGRESS; {more}"
    app_id = submit(scheduler, "oom:1", command, image=docker_image, resource=Resource(cpu=1, gpu=0, memMB=32))
    found = over(scheduler, app_id)
    assert [(a.kind, a.progress, a.again) for a in found.attempts] == [
        ("oom", True, True),
        ("oom", False, True),
        ("oom", False, False),
    ]
    assert found.state is AppState.FAILED and "not retried (oom: all 1 retries are used)" in found.msg
    watcher_gone(app_id)


def test_a_watcher_that_was_killed_is_replaced_by_who_looks_next(
    shell: Shell, scheduler: DockerScheduler, docker_image: str, meet: Path
) -> None:
    """The job runs on; `status` starts another watcher, which starts the job again when it fails."""
    command = f"{TRY}test $try = 2 && exit 0; : > /meet/on; until test -e /meet/go; do sleep 0.1; done; exit 3"
    handle = shell.launch(
        *("-s", "local_docker", "--workspace=", "--retry", "error:1", "utils.sh", "--image", docker_image),
        *("--mounts", f"type=bind,src={meet},dst=/meet", "--", command),
    )
    app_id = handle.rpartition("/")[2]
    deadline = time.monotonic() + PATIENCE_S
    while not (meet / "on").exists():
        assert time.monotonic() < deadline
        time.sleep(0.1)
    for process in leftovers.living(f"watcher.py {app_id}"):
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
    watcher_gone(app_id)
    (meet / "go").touch()
    found = over(scheduler, app_id)
    assert found.state is AppState.SUCCEEDED and [a.kind for a in found.attempts] == ["error"]
    assert "1. " in shell.torchx("status", handle) and "-> error: retry 1 of 1" in shell.torchx("status", handle)
    scheduler.delete(app_id)
