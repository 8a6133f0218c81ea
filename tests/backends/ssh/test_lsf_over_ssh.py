"""The second scheduler over SSH: the project's own look-alike of LSF, which is no LSF but runs real processes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.backends.lsf.lookalike.cluster import running
from tests.backends.lsf.lookalike.config import Config
from tests.backends.shell import Shell
from tests.backends.ssh.conftest import Serve
from tests.backends.ssh.sshd import Sshd


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Config]:
    with running(str(tmp_path / "lsf")) as config:
        yield config


@pytest.fixture
def node(serve: Serve, cluster: Config) -> Sshd:
    path = f"{cluster.bindir}:{os.path.dirname(sys.executable)}:/usr/bin:/bin"
    return serve("login", env=f"PATH={path} LSF_ENVDIR={cluster.envdir}")


@pytest.fixture
def laptop(node: Sshd, shell: Shell, tmp_path: Path) -> Shell:
    """A shell in a project; LSF's commands are not on its PATH."""
    project = tmp_path / "project"
    project.mkdir()
    (project / "hello.py").write_text("print('hello from the workspace')\n")
    return Shell(project, shell.env)


def ended(laptop: Shell, handle: str) -> str:
    deadline = time.monotonic() + 300
    while not re.search(
        r"^state: +(SUCCEEDED|FAILED|CANCELLED)", said := laptop.torchx("status", handle), re.MULTILINE
    ):
        assert time.monotonic() < deadline, said
        time.sleep(0.5)
    return said


def test_a_job_with_its_workspace(laptop: Shell, node: Sshd) -> None:
    """Run, status, log and cancel through the login node, over one login."""
    handle = laptop.launch("-s", "lsf", "-cfg", "ssh=login", "utils.sh", "--num_replicas", "2", "python", "hello.py")
    assert "SUCCEEDED" in ended(laptop, handle)
    log = laptop.torchx("log", handle)
    assert sorted(log.splitlines()) == [f"sh/{k} hello from the workspace" for k in range(2)]
    sleeper = laptop.launch("-s", "lsf", "-cfg", "ssh=login", "utils.sh", "sleep", "600")
    laptop.torchx("cancel", sleeper)
    assert "CANCELLED" in ended(laptop, sleeper)
    assert node.logins() == 1


@pytest.mark.parametrize("job_dir", [False, True])
def test_again(laptop: Shell, node: Sshd, there: Path, job_dir: bool) -> None:
    """With the code as it is now, or as it was then; a folder for the code is a new one beside that of the run."""
    git = ["git", "-c", "user.name=n", "-c", "user.email=n@example.org"]
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "one"]):
        subprocess.run([*git, *words], cwd=laptop.cwd, check=True)
    (laptop.cwd / "hello.py").write_text("print('then')\n")
    cfg = f"ssh=login{f',jobdir={there}/code' if job_dir else ''}"
    first = laptop.launch("-s", "lsf", "-cfg", cfg, "utils.sh", "python", "hello.py")
    assert "SUCCEEDED" in ended(laptop, first)
    (laptop.cwd / "hello.py").write_text("print('now')\n")
    for code in ("now", "then"):
        handle = laptop.torchx("rerun", first, "--code", code).split()[-1]
        assert "SUCCEEDED" in ended(laptop, handle)
        assert laptop.torchx("log", "--no-prefix", handle) == f"{code}\n"
    again = laptop.torchx("rerun", handle).split()[-1]  # a rerun of a rerun, from where the first was launched
    assert "SUCCEEDED" in ended(laptop, again)
    assert laptop.torchx("log", "--no-prefix", again) == "now\n"
    assert len([path for path in there.iterdir() if path.name.startswith("code")]) == (4 if job_dir else 0)


def test_a_cut_while_submitting(laptop: Shell, node: Sshd, there: Path, eventually: Callable[..., object]) -> None:
    """One job, and its answer."""
    process = laptop.start("run", "-s", "lsf", "-cfg", "ssh=login", "utils.sh", "python", "hello.py")
    eventually((there / ".torchx" / "submissions").exists, every_s=0.005)
    node.cut()
    out, err = process.communicate(timeout=400)
    assert process.returncode == 0, err
    handle = next(line for line in out.splitlines() if "://" in line).split()[-1]
    assert "SUCCEEDED" in ended(laptop, handle)
    assert laptop.torchx("log", "--no-prefix", handle) == "hello from the workspace\n"
    listed = laptop.torchx("list", "-s", "lsf", "-cfg", "ssh=login")
    assert [line.split()[0] for line in listed.splitlines() if "://" in line] == [handle]
