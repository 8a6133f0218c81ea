"""From a laptop: the cluster's commands are on a login node, and nothing but SSH leads there."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.backends.lsf.lookalike.config import Config
from tests.backends.shell import Shell
from tests.backends.ssh import sshd
from tests.backends.ssh.conftest import keys, serve, there  # noqa: F401  # fixtures

from .conftest import eventually

if sys.platform != "linux" or os.geteuid() != 0:
    pytest.skip("needs root on Debian or Ubuntu: it installs and starts an OpenSSH server", allow_module_level=True)


@pytest.fixture
def laptop(cluster: Config, serve, shell: Shell, tmp_path: Path) -> Shell:  # noqa: F811  # a fixture
    """A shell in a project, on a machine without LSF; `login` has it."""
    sshd.install()
    serve("login", env=f"LSF_ENVDIR={cluster.envdir} PATH={cluster.bindir}:/usr/local/bin:/usr/bin:/bin")
    project = tmp_path / "project"
    project.mkdir()
    (project / "hello.sh").write_text("echo version 1 of $1; echo bad >&2; exit $2\n")
    (project / ".torchxconfig").write_text("[cli:run]\nworkspace = .\n")
    path = ":".join(p for p in os.environ["PATH"].split(":") if p != cluster.bindir)
    env = {k: v for k, v in shell.env.items() if k != "LSF_ENVDIR"}
    return Shell(project, {**env, "PATH": path, "TORCHX_HOME": str(tmp_path / "home")})


def test_jobs_from_a_laptop(laptop: Shell) -> None:
    """The workspace is brought there, the job runs, fails with its cause, is listed, shows its log, and is cancelled."""
    on = ("-s", "lsf", "-cfg", "ssh=login")
    good = laptop.launch(*on, "utils.sh", "--num_replicas", "2", "sh", "hello.sh", "a", "0")
    bad = laptop.launch(*on, "utils.sh", "sh", "hello.sh", "b", "3")
    eventually(lambda: "SUCCEEDED" in laptop.torchx("status", good, check=False))
    assert "version 1 of a" in laptop.torchx("log", "--no-prefix", good)
    eventually(lambda: "FAILED" in laptop.torchx("status", bad, check=False))
    assert "exit code 3: bad" in laptop.torchx("status", bad, check=False)
    sleeps = laptop.launch(*on, "utils.sh", "sleep", "1000")
    laptop.torchx("cancel", sleeps)
    eventually(lambda: "CANCELLED" in laptop.torchx("status", sleeps, check=False))
    listed = laptop.torchx("list")
    assert all(handle in listed for handle in (good, bad, sleeps))
