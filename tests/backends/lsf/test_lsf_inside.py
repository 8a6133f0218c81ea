"""Processes inside replicas on hosts of the look-alike, each of which a real sshd answers for."""

from __future__ import annotations

import functools
import os
import sys
from pathlib import Path

import pytest

from tests.backends.inside import InsideContract, Place
from tests.backends.lsf.conftest import Job, ended, eventually
from tests.backends.lsf.lookalike.config import Config
from tests.backends.shell import Shell
from tests.backends.ssh import sshd
from tests.backends.ssh.conftest import Serve, keys, serve, there  # noqa: F401  # fixtures
from tests.backends.ssh.sshd import Keys, Sshd
from torchx.errors import BackendError
from torchx.schedulers.lsf_scheduler import LsfScheduler
from torchx.specs.api import AppState

if sys.platform != "linux" or os.geteuid() != 0:
    pytest.skip("needs root on Debian or Ubuntu: it installs and starts an OpenSSH server", allow_module_level=True)

ENV = {"GREETING": "hello, 世界", "MARK_FILE": "mark"}


@pytest.fixture
def hosts(cluster: Config, keys: Keys, serve: Serve) -> Sshd:  # noqa: F811  # fixtures
    """All hosts of the cluster: one server, as all of them are this machine."""
    sshd.install()
    server = serve("hosts", host=False)
    keys.host("127.0.0.1?", server.port)
    return server


@pytest.fixture
def place(hosts: Sshd, scheduler: LsfScheduler, submit: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    code = tmp_path / "code"
    code.mkdir()
    monkeypatch.chdir(code)
    app_id = submit(": >mark; exec sleep 1000", 2, env=ENV)
    monkeypatch.chdir(tmp_path)
    eventually((code / "mark").exists)

    def end() -> None:
        scheduler.cancel(app_id)
        ended(scheduler, app_id)

    return Place(scheduler, app_id, "r", end)


class TestInsideLsf(InsideContract):
    """The contract."""


def test_each_replica_is_entered_by_its_number(place: Place) -> None:
    """Its environment is that of the replica, and not of whoever asks."""
    for k in (0, 1):
        eventually(lambda: states(place)[k] is AppState.RUNNING)  # noqa: B023
        words = ["sh", "-c", "echo $TORCHX_REPLICA_ID ${LSB_JOBNAME##*-} $GREETING"]
        said = place._replace(k=k).run(*words).stdout.decode()
        assert said.endswith(f"{k} hello, 世界\n"), said


def states(place: Place) -> list[AppState]:
    found = place.scheduler.describe(place.app_id)
    return [r.state for r in found.roles_statuses[0].replicas]


def test_a_host_that_lets_nobody_in(place: Place, hosts: Sshd) -> None:
    """What ssh says is shown, and then who must let whom in."""
    hosts.stop()
    with (
        place.open("true") as process,
        pytest.raises(BackendError, match=r"`ssh 127\.0\.0\.1\d` ended with exit code 255"),
    ):
        while process.read():
            pass
        process.wait()


def test_a_session(hosts: Sshd, lsf_shell: Shell) -> None:
    """A shell on a host, and a job that ends with it."""
    handle = lsf_shell.session("-s", "lsf", "--workspace=", "utils.session", "--memMB", "100")
    eventually(lambda: "CANCELLED" in lsf_shell.torchx("status", handle, check=False))


def test_a_task_of_a_sweep(hosts: Sshd, lsf_shell: Shell) -> None:
    """By its number."""
    words = ("utils.sh", "--memMB", "100", "--", "sleep", "{t}")
    sweep = lsf_shell.torchx("sweep", "-s", "lsf", "--workspace=", "--grid", "t=1000,1001", *words).split()[-1]
    for task in (0, 1):
        asked = ("exec", f"{sweep}/{task}", "--", "sh", "-c", "echo $TORCHX_JOB_ID")
        eventually(functools.partial(lsf_shell.torchx, *asked, check=False))
        assert lsf_shell.torchx(*asked) == f"{asked[1]}\n"
    lsf_shell.torchx("cancel", sweep)
    eventually(lambda: "CANCELLED" in lsf_shell.torchx("status", sweep, check=False))
