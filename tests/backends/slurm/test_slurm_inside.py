"""Processes inside replicas of Slurm jobs."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

from tests.backends.inside import InsideContract, Place
from tests.backends.shell import Shell
from tests.backends.slurm.conftest import Job, becomes, ended, running
from torchx.schedulers.slurm_scheduler import SlurmScheduler
from torchx.specs.api import AppDef, Resource, Role

ENV = {"GREETING": "hello, 世界", "MARK_FILE": "mark"}


@pytest.fixture
def place(scheduler: SlurmScheduler, submit: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    code = tmp_path / "code"
    code.mkdir()
    monkeypatch.chdir(code)
    app_id = submit(": >mark; exec sleep 1000", 2, env=ENV)
    monkeypatch.chdir(tmp_path)
    running(scheduler, app_id)
    becomes((code / "mark").exists, True)

    def end() -> None:
        scheduler.cancel(app_id)
        ended(scheduler, app_id)

    return Place(scheduler, app_id, "r", end)


class TestInsideSlurm(InsideContract):
    """The contract."""


def test_each_replica_is_entered_on_its_node(place: Place) -> None:
    """By its number; and the program has the environment of the replica, not of whoever asks."""
    for k in (0, 1):
        done = place._replace(k=k).run(
            "sh", "-c", "echo $SLURMD_NODENAME; pgrep -cx sleep >/dev/null; echo ${GREETING}"
        )
        host = place.scheduler.describe(place.app_id).roles_statuses[0].replicas[k].hostname
        assert done == (0, f"{host}\nhello, 世界\n".encode(), b"")


def test_roles_of_a_heterogeneous_job(scheduler: SlurmScheduler, tmp_path: Path) -> None:
    """Each role is a component of its own."""
    script = f": >{tmp_path}/$TORCHX_ROLE_NAME; exec sleep 1000"
    small, large = Resource(1, 0, 100), Resource(1, 0, 200)
    roles = [
        Role(name, "", entrypoint="sh", args=["-c", script], env={"WHO": name, "TORCHX_ROLE_NAME": name}, resource=size)
        for name, size in (("reader", small), ("trainer", large))
    ]
    app_id = scheduler.submit(AppDef("het", roles), {})
    try:
        becomes(lambda: sorted(p.name for p in tmp_path.iterdir()), ["reader", "trainer"])
        for name in ("reader", "trainer"):
            place = Place(scheduler, app_id, name, lambda: None)
            assert place.run("sh", "-c", "echo $WHO") == (0, f"{name}\n".encode(), b"")
    finally:
        scheduler.cancel(app_id)
        ended(scheduler, app_id)


def test_a_session(shell: Shell) -> None:
    """A shell on a node, and a job that ends with it."""
    handle = shell.session("-s", "slurm", "--workspace=", "utils.session", "--memMB", "100")
    becomes(lambda: "CANCELLED" in shell.torchx("status", handle, check=False), True)


@pytest.mark.parametrize("width", ["1", "2"])
def test_tasks_of_a_sweep(shell: Shell, width: str) -> None:
    """Each is entered by its number: one process, or a whole job."""
    size = ("--memMB", "100", "--num_replicas", width)
    sweep = shell.torchx(
        *("sweep", "-s", "slurm", "--workspace=", "--grid", "who=ann,bob"),
        *("utils.sh", *size, "--", "sh", "-c", "exec sleep 1000", "{who}"),
    ).split()[-1]
    try:
        for task in (0, 1):
            words = ["exec", f"{sweep}/{task}", "--", "sh", "-c", "echo $TORCHX_JOB_ID"]
            becomes(functools.partial(shell.torchx, *words, check=False), f"{sweep}/{task}\n")
    finally:
        shell.torchx("cancel", sweep)
    becomes(lambda: "CANCELLED" in shell.torchx("status", sweep, check=False), True)
    _, said = shell.start("exec", f"{sweep}/0", "--", "true").communicate(timeout=60)
    assert "is not running: it is CANCELLED" in said
