"""SIGTERM on a real engine: a container's first process gets it once, whoever else looks after the job."""

from __future__ import annotations

import pytest

from tests.backends.docker.conftest import Job, ended, wrote
from torchx.schedulers.docker_scheduler import DockerScheduler
from torchx.specs import macros

# Replica 0 saves for two seconds; the watcher sees meanwhile that replica 1 has ended.
_SCRIPT = """
loop() { n=0; while [ $n -lt $1 ]; do sleep 0.1; n=$((n + 1)); done; }
if [ KK = 0 ]; then trap 'echo term; loop 20; echo saved; over=1' TERM; else trap 'exit 0' TERM; fi
echo up
while [ -z "$over" ]; do loop 5; if [ KK = 1 ] && [ -n "$1" ]; then exit 3; fi; done
"""


@pytest.mark.parametrize("how", ["cancel", "gang"])
def test_a_handler_is_called_once(scheduler: DockerScheduler, submit: Job, how: str) -> None:
    """Also of a job of several containers, of which the first one to end wakes the watcher."""
    script = _SCRIPT.replace("KK", macros.replica_id)
    wait = f"set -- {'fails' if how == 'gang' else ''};"
    app_id = submit(f"{wait}{script}", 2, cfg={"cancel_grace_s": 30})
    wrote(scheduler, app_id, ["up\n"], k=1)
    if how == "cancel":
        wrote(scheduler, app_id, ["up\n"])
        scheduler.cancel(app_id)
    ended(scheduler, app_id)
    wrote(scheduler, app_id, ["up\n", "term\n", "saved\n"])
