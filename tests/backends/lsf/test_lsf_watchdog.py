"""The watchdog on the look-alike: a replica's script sees that the whole job is silent, and looks into it by ssh."""

from __future__ import annotations

import json
import os
import re
import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.backends.lsf.lookalike.config import Config
from tests.backends.shell import Shell
from tests.backends.ssh import sshd
from tests.backends.ssh.conftest import Serve, keys, serve, there  # noqa: F401  # fixtures
from tests.backends.ssh.sshd import Keys
from torchx.schedulers.lsf_scheduler import LsfScheduler
from torchx.specs.api import AppDef, AppState, Resource, Role, macros
from torchx.specs.wishes.retries import RETRY
from torchx.specs.wishes.watchdog import WATCHDOG

from .conftest import ended, eventually

WAITS = "exec sleep 1000"
ALL = r"no output for \d+ s: all {} ranks cannot be read: it runs `sleep`, not Python"

Watched = Callable[..., str]


@pytest.fixture
def watched(scheduler: LsfScheduler) -> Watched:
    """Submits a shell in ``n`` replicas with a watchdog."""

    def submit(wish: str, script: str, n: int = 1, *, retry: str = "", cfg: dict | None = None, **role: Any) -> str:
        role = {
            "resource": Resource(1, 0, 256),
            "env": {"TORCHX_JOB_ID": uuid.uuid4().hex},
            **role,
        }  # as the runner does
        roles = [Role("r", "", entrypoint="sh", args=["-c", script], num_replicas=n, **role)]
        metadata = {WATCHDOG: wish, **({RETRY: retry} if retry else {})}
        return scheduler.submit(AppDef("w", roles, metadata=metadata), cfg or {})

    return submit


@pytest.fixture
def hosts(cluster: Config, keys: Keys, serve: Serve) -> None:  # noqa: F811  # fixtures
    """All hosts of the cluster let their jobs in."""
    if sys.platform != "linux" or os.geteuid() != 0:
        pytest.skip("needs root on Debian or Ubuntu: it installs and starts an OpenSSH server")
    sshd.install()
    keys.host("127.0.0.1?", serve("hosts", host=False).port)


def folder_of(scheduler: LsfScheduler) -> Path:
    (path,) = Path(os.environ["TORCHX_HOME"], "lsf").glob("w-*")
    return path


def test_a_silent_job_is_looked_into_and_goes_on(scheduler: LsfScheduler, watched: Watched, tmp_path: Path) -> None:
    """One replica, on the host of the watchdog: no ssh is needed. When it writes again that is said, too."""
    app_id = watched("2s", f"until [ -e {tmp_path}/go ]; do sleep 0.1; done; echo on; {WAITS}")
    eventually(lambda: scheduler.describe(app_id).hang)
    found = scheduler.describe(app_id)
    assert re.fullmatch(r"no output for \d+ s: r/0.* cannot be read: it runs `\w*sh`, not Python", found.hang), found
    assert found.state is AppState.RUNNING
    (tmp_path / "go").touch()
    eventually(lambda: scheduler.describe(app_id).hang.startswith("it continued after "))
    scheduler.cancel(app_id)
    assert ended(scheduler, app_id).state is AppState.CANCELLED


def test_a_silent_job_is_ended(hosts: None, scheduler: LsfScheduler, watched: Watched) -> None:
    """Replicas on two hosts are looked into; what they say when they are told to end is not the cause, nor are counted
    retries used up."""
    script = "trap 'exit 3' TERM; sleep 1000 & wait"
    app_id = watched("3s:cancel", script, 2, max_retries=2, resource=Resource(5, 0, 256))
    found = ended(scheduler, app_id)
    assert found.state is AppState.FAILED, found
    assert found.hang.startswith("no output for "), found
    assert found.hang in found.msg, found
    sentence, *stacks = (folder_of(scheduler) / "stacks.txt").read_text().splitlines()
    assert sentence == found.hang
    assert re.search(r"all 2 ranks cannot be read: it runs `\w*sh`", sentence), (sentence, stacks)
    assert {"r/0", "r/1"} <= {line.partition(" ")[0] for line in stacks}, stacks
    assert found.num_restarts == 0


def test_replicas_on_one_host_are_told_apart(scheduler: LsfScheduler, watched: Watched) -> None:
    """Each is an LSF job, and that is what its ranks are known by: no ssh, as the watchdog is there, too."""
    program = f"exec env RANK={macros.replica_id} {sys.executable} -c 'import time; time.sleep(1000)'"
    app_id = watched("2s", program, 2, cfg={"hosts": "127.0.0.11"})
    eventually(lambda: scheduler.describe(app_id).hang)
    stacks = (folder_of(scheduler) / "stacks.txt").read_text().splitlines()
    seen = [found[0] for line in stacks if (found := re.match(r"r/\d ranks? [\d-]+", line))]
    assert seen == ["r/0 rank 0", "r/1 rank 1"], stacks


def test_one_that_does_not_end_is_made_to(scheduler: LsfScheduler, watched: Watched) -> None:
    """Thirty seconds after the word comes force; a success that comes of the word is none."""
    app_id = watched("2s:cancel", "trap '' TERM; while :; do sleep 1; done")
    assert ended(scheduler, app_id).state is AppState.FAILED
    assert "no output for" in ended(scheduler, app_id).msg
    kind = watched("2s:cancel", "trap 'exit 0' TERM; sleep 1000 & wait")
    assert ended(scheduler, kind).state is AppState.FAILED


def test_each_attempt_is_watched_and_the_policy_asked(hosts: None, scheduler: LsfScheduler, watched: Watched) -> None:
    """All replicas start again; when the policy has had enough, the job has failed for its silence."""
    app_id = watched("3s:retry", WAITS, 2, retry="timeout:1", resource=Resource(5, 0, 256))
    found = ended(scheduler, app_id)
    assert [(a.kind, a.again) for a in found.attempts] == [("timeout", True), ("timeout", False)], found
    assert all(re.match(ALL.format(2), a.cause) for a in found.attempts), found.attempts
    assert found.state is AppState.FAILED, found
    assert re.search(ALL.format(2), found.msg), found


def test_the_class_of_its_cause(lsf_shell: Shell) -> None:
    """As `status --json` has it, with what was seen."""
    words = ("-s", "lsf", "--workspace=", "--watchdog", "2s:cancel", "utils.sh", "--memMB", "64", "--", "sleep", "1000")
    handle = lsf_shell.launch(*words)
    eventually(lambda: json.loads(lsf_shell.torchx("status", "--json", handle, check=False))["state"] == "FAILED")
    found = json.loads(lsf_shell.torchx("status", "--json", handle, check=False))
    assert found["cause"]["class"] == "timeout", found
    assert re.fullmatch(r"no output for \d+ s: sh/0.* cannot be read: it runs `\w+`, not Python", found["hang"]), found


@pytest.mark.parametrize("does", ["echo $i", 'touch "$TORCHX_PROGRESS"'], ids=["lines", "marks"])
def test_signs_of_life(scheduler: LsfScheduler, watched: Watched, does: str) -> None:
    """Lines of one replica of two, and marks of progress without any."""
    script = f"[ {macros.replica_id} = 0 ] || exit 0; for i in 1 2 3 4 5 6 7 8; do {does}; sleep 1; done"
    found = ended(scheduler, watched("4s:cancel", script, 2))
    assert (found.state, found.hang) == (AppState.SUCCEEDED, ""), found


def test_who_waits_for_room_is_not_silent(scheduler: LsfScheduler, watched: Watched) -> None:
    """A replica that LSF has not started yet: the other one waits for it, and no clock runs."""
    script = f"[ {macros.replica_id} = 1 ] || exec sleep 8"
    app_id = watched("2s:cancel", script, 2, resource=Resource(8, 0, 64), cfg={"hosts": "127.0.0.11"})  # one at a time
    found = ended(scheduler, app_id)
    assert (found.state, found.hang) == (AppState.SUCCEEDED, ""), found
