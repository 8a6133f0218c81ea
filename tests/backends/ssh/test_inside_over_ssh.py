"""Processes inside replicas of Slurm jobs behind a login node, over the connection that is there, and when it is cut."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.backends.inside import CutContract, InsideContract, Place
from tests.backends.slurm import cluster
from tests.backends.ssh.conftest import Serve
from tests.backends.ssh.sshd import Keys, Link, Sshd
from torchx.runner import Runner, get_runner
from torchx.specs.api import AppDef, Resource, Role

ENV = {"GREETING": "hello, 世界", "MARK_FILE": "mark"}
PATH = f"{os.path.dirname(sys.executable)}:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"

Eventually = Callable[..., object]


@pytest.fixture(scope="module", autouse=True)
def _slurm() -> Iterator[None]:
    """A cluster that runs. One that ran before goes on after the tests; another is taken down."""
    was_up = cluster.is_up()
    try:
        cluster.up()
    except cluster.NoClusterHereError as e:
        pytest.skip(f"no Slurm here: {e}")
    yield
    if not was_up:
        cluster.down()


@pytest.fixture
def node(serve: Serve, keys: Keys) -> Sshd:
    """A login node whose login scripts have something to say."""
    return serve("behind", host=False, env=f"PATH={PATH}")


@pytest.fixture
def link(node: Sshd, keys: Keys) -> Iterator[Link]:
    """The network between us and the login node ``far``."""
    between = Link(node.port)
    keys.knows(node, between.port)
    keys.host("far", between.port)
    yield between
    between.close()


@pytest.fixture
def runner(link: Link, monkeypatch: pytest.MonkeyPatch) -> Iterator[Runner]:
    """On a machine where Slurm's own commands lead nowhere."""
    monkeypatch.setenv("SLURM_CONF", "/nowhere")
    with get_runner() as made:
        yield made


@pytest.fixture
def place(runner: Runner, there: Path, eventually: Eventually) -> Iterator[Place]:
    (there / "code").mkdir()
    script = f"cd {there}/code; : >mark; exec sleep 1000"
    role = Role("r", "", entrypoint="sh", args=["-c", script], env=ENV, resource=Resource(1, 0, 100))
    handle = runner.run(AppDef("inside", [role]), "slurm", {"ssh": "far", "time": "00:10:00"})
    eventually((there / "code/mark").exists, timeout_s=300)

    def end() -> None:
        runner.cancel(handle)
        runner.wait(handle)

    yield Place(runner._scheduler("slurm"), handle.rpartition("/")[2], "r", end)
    end()


class TestInsideOverSsh(InsideContract):
    """The contract, over one login."""

    def test_one_login_for_all(self, place: Place, node: Sshd) -> None:
        """Nobody is asked for a password, or a second factor, again."""
        for _ in range(3):
            assert place.run("true").exit_code == 0
        assert node.logins() == 1


class TestCutSsh(CutContract):
    """The contract of links that are cut."""

    @pytest.fixture
    def far(self, place: Place) -> Place:
        return place
