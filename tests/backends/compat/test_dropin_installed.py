"""A program of others (``tests/compat/dropin``), installed beside torchx's wheel, runs jobs here, on Docker and on Slurm."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator

import pytest

from tests.backends.shell import Shell

pytestmark = pytest.mark.timeout(1200)  # most of it for the environment


@pytest.fixture(scope="session")
def docker_image() -> Iterator[str]:
    """An image with a shell, on the engine of this machine; an engine that these tests start is stopped again."""
    pytest.importorskip("docker")
    from tests.backends.docker import engine

    try:
        started = engine.up()
        tag = engine.image()
    except engine.Unavailable as e:
        pytest.skip(f"no Docker engine can be had: {e}")
    yield tag
    if started:
        engine.down()


@pytest.fixture(scope="session")
def slurm_cluster() -> Iterator[None]:
    """A cluster that runs; one that these tests start is taken down again."""
    from tests.backends.slurm import cluster

    was_up = cluster.is_up()
    try:
        cluster.up()
    except cluster.NoClusterHereError as e:
        pytest.skip(f"no Slurm here: {e}")
    yield
    if not was_up:
        cluster.down()


def program(others: Shell, *args: str) -> None:
    """Every check of a part passes, and the program is the one that was installed."""
    done = subprocess.run(
        ["python", "-m", "acme_dropin", *args],
        cwd=others.cwd,
        env=others.env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    outcomes = json.loads(done.stdout.splitlines()[-1])
    assert outcomes
    wrong = {name: said for name, said in outcomes.items() if said != "ok"}
    assert not wrong, "\n".join(wrong.values())


@pytest.mark.parametrize("part", ["names", "calls", "local", "docker", "slurm"])
def test_checks(part: str, others: Shell) -> None:
    """What needs no engine and no cluster; jobs run as local processes."""
    program(others, part)


def test_docker(docker_image: str, others: Shell) -> None:
    """A job of its Docker scheduler runs in containers, to which its override has added what it adds."""
    program(others, "docker", "run", docker_image)


def test_slurm(slurm_cluster: None, others: Shell) -> None:
    """A job by its addition to the Slurm scheduler, and one by its scheduler with a tunnel of its own."""
    program(others, "slurm", "run")


def test_command_line(others: Shell) -> None:
    """Its schedulers are found by name, and the command line takes them like any other."""
    assert "acme_local" in others.torchx("plugins")
    said = others.torchx("run", "-s", "acme_local", "--wait", "utils.echo", "--msg", "hello")
    assert "acme_local://torchx/echo-" in said
    assert "SUCCEEDED" in others.torchx("status", "@last")
    assert "team" in others.torchx("runopts", "acme_docker")
    assert "acme_slurm" in others.torchx("plugins")
