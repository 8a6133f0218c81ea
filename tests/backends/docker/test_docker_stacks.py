"""`torchx stacks` in containers: ranks of two of them, read without any right beyond the container's own."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.backends import venvs
from tests.backends.distributed.rounds import RANKS, each_is_named
from tests.backends.docker.test_docker_training import python_mounts
from tests.backends.shell import ROOT, Shell

pytest.importorskip("torch")

HANGS = ROOT / "tests" / "backends" / "distributed" / "hangs.py"


ROUNDS = int(os.environ.get("HANG_ROUNDS", "1"))


@pytest.mark.timeout(3000)
def test_the_right_rank_is_named(
    docker_image: str, shell: Shell, tmp_path: Path, eventually: Callable[..., object]
) -> None:
    """In another collective, at least; with its container, by `faulthandler`: nobody in there may attach to a process."""
    mounts = [f"type=bind,src={tmp_path},dst=/out", f"type=bind,src={ROOT},dst={ROOT},readonly", *python_mounts()]
    env = {"PATH": f"{os.path.dirname(sys.executable)}:/usr/bin:/bin", "PYTHONPATH": str(ROOT), "OUT": "/out"}
    words = ["-s", "local_docker", "--workspace=", "dist.ddp", "-j", f"2x{RANKS // 2}", "--image", docker_image]
    words += ["--cpu", "1", "--memMB", "3000", "--mounts", ",".join(mounts), "--script", str(HANGS)]
    handle = shell.launch(*words, "--env", ",".join(f"{k}={v}" for k, v in env.items()), "--", "0", str(ROUNDS))

    def go_on(said: dict[str, Any]) -> None:
        replica = f"{handle}/hangs/{said['who'] // (RANKS // 2)}"
        shell.torchx("exec", replica, "--", "sh", "-c", f"kill -CONT {said['pid']}")

    try:
        for document in each_is_named(shell, handle, tmp_path, ROUNDS, go_on):
            assert {rank["read_by"] for rank in document["ranks"] if rank["state"] != "T"} == {"faulthandler"}
    finally:
        shell.torchx("cancel", handle)
        eventually(lambda: "CANCELLED" in shell.torchx("status", handle, check=False), timeout_s=120, every_s=0.5)
        shell.torchx("delete", handle)


def test_py_spy_of_the_laptop_is_sent_into_the_container(
    docker_image: str, shell: Shell, tmp_path: Path, eventually: Callable[..., object]
) -> None:
    """It may attach as the same user where nothing forbids it, and needs nothing of the program."""
    (tmp_path / "nap.py").write_text("import time\n\ndef nap():\n    time.sleep(600)\n\nnap()\n")
    mounts = [f"type=bind,src={tmp_path},dst=/out,readonly", *python_mounts()]
    env = {**shell.env, "PATH": f"{venvs.py_spy().parent}:{shell.env['PATH']}"}
    words = ["-s", "local_docker", "--workspace=", "utils.sh", "--image", docker_image]
    words += ["--env", f"PATH={os.path.dirname(sys.executable)}:/usr/bin:/bin", "--mounts", ",".join(mounts), "--"]
    handle = shell.launch(*words, "exec", "python3", "/out/nap.py")
    try:
        eventually(lambda: "RUNNING" in shell.torchx("status", handle), timeout_s=120, every_s=0.5)
        for _ in range(2):
            document = json.loads(Shell(tmp_path, env).torchx("stacks", handle, "--json"))
            assert [(r["read_by"], r["doing"]) for r in document["ranks"]] == [("py-spy", "is in nap.py:4")], document
        assert "755" in shell.torchx("exec", handle, "--", "stat", "-c", "%a", "/tmp/torchx-py-spy")
    finally:
        shell.torchx("cancel", handle)
        eventually(lambda: "CANCELLED" in shell.torchx("status", handle, check=False), timeout_s=120, every_s=0.5)
        shell.torchx("delete", handle)
