"""`s` in `torchx top`: a shell in a container, and on a node of a cluster; the screen comes back when it ends."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("textual")
pytest.importorskip("pyte")

from tests.backends.docker.conftest import docker_image
from tests.backends.shell import Shell
from tests.backends.slurm.conftest import slurm
from tests.ui.terminal import Terminal, shell_and_back

__all__ = ["docker_image", "slurm"]


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    home = str(tmp_path / "home")
    path = f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"
    shell = Shell(tmp_path, {**os.environ, "HOME": home, "TORCHX_HOME": home, "PATH": path})
    yield shell
    shell.torchx("cancel", "--all", "--yes", check=False)


def _tries(shell: Shell, is_here: str) -> None:
    """A replica of a job, and then a task of a sweep: the newest run is the first line."""
    terminal = Terminal(100, env=shell.env, cwd=shell.cwd)
    terminal.until(r"● running +\S.*\n.*● running +sh\b")
    terminal.press("\r")
    terminal.until(r"1 +● running")
    terminal.press("j")
    shell_and_back(terminal, r"\b1 +● running", f"{is_here} && test $TORCHX_TASK = 1")
    terminal.press("qj\r")
    terminal.until(r"sh/1 +● running")
    terminal.press("j")
    shell_and_back(terminal, r"sh/1 +● running", f'{is_here} && test "$WHO" = of-1')
    terminal.press("qq")
    assert terminal.end() == 0


def _launch(shell: Shell, backend: str, *options: str) -> None:
    """A job of two replicas, and a sweep of two tasks."""
    small = ["utils.sh", "--memMB", "100", *options]
    shell.launch("-s", backend, *small, "--num_replicas", "2", "--env", "WHO=of-${replica_id}", "--", "sleep 1000")
    shell.torchx("sweep", "-s", backend, "--max-parallel", "2", "--grid", "n=0,1", *small, "--", ": {n}; sleep 1000")


def test_in_containers(shell: Shell, docker_image: str) -> None:
    """Of Docker: in that of the replica that was chosen."""
    _launch(shell, "local_docker", "--image", docker_image)
    _tries(shell, "test -e /.dockerenv")


def test_on_nodes(shell: Shell, slurm: None) -> None:
    """Of Slurm: inside of the job that was chosen."""
    _launch(shell, "slurm")
    _tries(shell, 'test -n "$SLURM_JOB_ID"')
