"""The watchdog of a Slurm job: its batch script sees silence on the node, and looks into ranks by steps beside them."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.backends.shell import ROOT, Shell
from tests.backends.slurm.conftest import becomes

HANGS = ROOT / "tests" / "backends" / "distributed" / "hangs.py"
BEATS = HANGS.parent / "beats"
SLEEPS = "2"
"""The seed of a first round in which a rank sleeps."""

TWO = """
from torchx.specs import AppDef, Resource, Role

def two() -> AppDef:
    def role(name: str, n: int, cpu: int) -> Role:
        return Role(name, "", entrypoint="sleep", args=["600"], num_replicas=n, resource=Resource(cpu, 0, 100 * cpu))

    return AppDef("two", [role("a", 2, 1), role("b", 1, 2)])
"""


@pytest.fixture
def own(tmp_path: Path) -> Shell:
    path = f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"
    return Shell(tmp_path, {**os.environ, "PATH": path, "TORCHX_HOME": str(tmp_path / "home"), "HOME": str(tmp_path)})


@pytest.fixture
def clean(own: Shell) -> Iterator[list[str]]:
    handles: list[str] = []
    yield handles
    for handle in handles:
        own.torchx("cancel", handle, check=False)
        ends(own, handle)


def status(shell: Shell, handle: str) -> Any:
    return json.loads(shell.torchx("status", handle, "--json", check=False))


def ends(shell: Shell, handle: str) -> Any:
    becomes(lambda: status(shell, handle)["state"] in ("PENDING", "RUNNING"), False)
    return status(shell, handle)


def training(shell: Shell, out: Path, *more: str) -> str:
    words = ["-s", "slurm", "--workspace=", *more, "dist.ddp", "-j", "2x1", "--cpu", "1", "--memMB", "1500"]
    passed = f"OUT={out},PYTHONPATH={BEATS}:{ROOT},OMP_NUM_THREADS=1"
    return shell.launch(*words, "--script", str(HANGS), "--env", passed, "--", SLEEPS, "2")


def test_a_training_that_hangs_is_looked_into(own: Shell, clean: list[str], tmp_path: Path) -> None:
    """The page says which rank sleeps, with its node, and nobody touches the job."""
    pytest.importorskip("torch")
    clean.append(handle := training(own, tmp_path, "--watchdog", "8s"))
    becomes((tmp_path / "round-0").exists, True)
    who = json.loads((tmp_path / "round-0").read_text())["who"]
    becomes(lambda: bool(status(own, handle)["hang"]), True)
    found = status(own, handle)
    assert found["state"] == "RUNNING"
    assert re.fullmatch(
        rf"no output for \d+ s: hangs/\d rank \d \(node n\d\) waits in all_reduce( #\d+)? at hangs\.py:\d+; "
        rf"hangs/\d rank {who} \(node n\d\) is in hangs\.py:\d+",
        found["hang"],
    ), found


def test_a_training_that_hangs_is_started_again(own: Shell, clean: list[str], tmp_path: Path) -> None:
    """As the policy says; when that has had enough, the job has failed for what the ranks were doing."""
    pytest.importorskip("torch")
    clean.append(handle := training(own, tmp_path, "--watchdog", "8s:retry", "--retry", "timeout:1"))
    found = ends(own, handle)
    assert (found["state"], found["cause"]["class"], len(found["attempts"])) == ("FAILED", "timeout", 2), found
    for attempt in found["attempts"]:
        assert attempt["class"] == "timeout", found
        assert attempt["cause"].startswith("no output for "), found
        assert "all_reduce" in attempt["cause"], found


def shell_job(shell: Shell, wish: str, script: str, *more: str) -> str:
    words = ["-s", "slurm", "--workspace=", "--watchdog", wish, *more, "utils.sh", "--num_replicas", "2", "--"]
    return shell.launch(*words, "sh", "-c", script)


def test_a_silent_job_is_ended(own: Shell, clean: list[str]) -> None:
    """What it says when it is told to end is not the cause."""
    clean.append(handle := shell_job(own, "3s:cancel", "trap 'exit 3' TERM; sleep 600 & wait"))
    found = ends(own, handle)
    assert (found["state"], found["cause"]["class"]) == ("FAILED", "timeout"), found
    assert found["hang"].startswith("no output for "), found
    assert found["hang"] in found["msg"], found
    (path,) = Path(own.env["TORCHX_HOME"], "slurm").glob("*/stacks.txt")
    sentence, *stacks = path.read_text().splitlines()
    assert sentence == found["hang"]
    assert {"sh/0", "sh/1"} <= {line.partition(" ")[0] for line in stacks}, stacks


def test_a_heterogeneous_job(own: Shell, clean: list[str], tmp_path: Path) -> None:
    """Roles that ask for different resources are two components: the steps beside their replicas find both."""
    (tmp_path / "two.py").write_text(TWO)
    clean.append(handle := own.launch("-s", "slurm", "--workspace=", "--watchdog", "3s:cancel", "two.py:two"))
    found = ends(own, handle)
    assert (found["state"], found["cause"]["class"]) == ("FAILED", "timeout"), found
    assert re.fullmatch(
        r"no output for \d+ s: all 3 ranks cannot be read: it runs `sleep`, not Python", found["hang"]
    ), found
    (path,) = Path(own.env["TORCHX_HOME"], "slurm").glob("*/stacks.txt")
    stacks = path.read_text().splitlines()[1:]
    assert {"a/0", "a/1", "b/0"} <= {line.partition(" ")[0] for line in stacks}, stacks


@pytest.mark.parametrize("does", ["echo $i", 'touch "$TORCHX_PROGRESS"'], ids=["lines", "marks"])
def test_signs_of_life(own: Shell, clean: list[str], does: str) -> None:
    """Lines, and marks of progress without any."""
    clean.append(handle := shell_job(own, "4s:cancel", f"for i in 1 2 3 4 5 6 7 8; do {does}; sleep 1; done"))
    found = ends(own, handle)
    assert (found["state"], found["hang"]) == ("SUCCEEDED", None), found
