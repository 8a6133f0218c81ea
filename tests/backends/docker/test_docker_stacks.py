"""`torchx stacks` in containers: ranks of two of them, read without any right beyond the container's own."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.backends.docker.test_docker_training import python_mounts
from tests.backends.shell import ROOT, Shell

pytest.importorskip("torch")

HANGS = ROOT / "tests" / "backends" / "distributed" / "hangs.py"


@pytest.mark.timeout(600)
def test_the_rank_in_another_collective(
    docker_image: str, shell: Shell, tmp_path: Path, eventually: Callable[..., object]
) -> None:
    """It is named with its container, by `faulthandler`: nobody in there may attach to a process."""
    mounts = [f"type=bind,src={tmp_path},dst=/out", f"type=bind,src={ROOT},dst={ROOT},readonly", *python_mounts()]
    env = {"PATH": f"{os.path.dirname(sys.executable)}:/usr/bin:/bin", "PYTHONPATH": str(ROOT), "OUT": "/out"}
    words = ["-s", "local_docker", "--workspace=", "dist.ddp", "-j", "2x2", "--image", docker_image, "--cpu", "1"]
    words += ["--memMB", "3000", "--mounts", ",".join(mounts), "--script", str(HANGS)]
    handle = shell.launch(*words, "--env", ",".join(f"{k}={v}" for k, v in env.items()), "--", "0", "1")
    try:
        begun = tmp_path / "round-0"
        eventually(begun.exists, timeout_s=300, every_s=0.5)
        who = json.loads(begun.read_text())["who"]
        seen: list[dict[str, object]] = []

        def named() -> bool:
            document = json.loads(shell.torchx("stacks", handle, "--json"))
            seen.append(document)
            return any(rank["suspect"] for rank in document["ranks"])

        eventually(named, timeout_s=60, every_s=0.5)
        assert re.fullmatch(
            rf"3 of 4 ranks wait in all_reduce #\d+ at hangs\.py:\d+; "
            rf"hangs/[01] rank {who}( \(node [^)]+\))? waits in broadcast #\d+ at hangs\.py:\d+",
            str(seen[-1]["sentence"]),
        ), seen[-1]
        assert {rank["read_by"] for rank in seen[-1]["ranks"]} == {"faulthandler"}  # type: ignore[attr-defined]
    finally:
        shell.torchx("cancel", handle)
        eventually(lambda: "CANCELLED" in shell.torchx("status", handle, check=False), timeout_s=120, every_s=0.5)
        shell.torchx("delete", handle)
