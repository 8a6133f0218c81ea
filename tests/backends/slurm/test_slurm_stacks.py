"""`torchx stacks` on Slurm: ranks on several nodes, each read by a step of its own beside them."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import pytest

from tests.backends.shell import ROOT, Shell
from tests.backends.slurm.conftest import becomes

pytest.importorskip("torch")

HANGS = ROOT / "tests" / "backends" / "distributed" / "hangs.py"


def test_the_rank_in_another_collective(tmp_path: Path) -> None:
    """It is named with its node."""
    path = f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"
    env = {**os.environ, "PATH": path, "TORCHX_HOME": str(tmp_path / "home"), "HOME": str(tmp_path)}
    shell = Shell(tmp_path, env)
    words = ["-s", "slurm", "--workspace=", "dist.ddp", "-j", "2x2", "--cpu", "2", "--memMB", "1500"]
    passed = f"OUT={tmp_path},PYTHONPATH={ROOT},OMP_NUM_THREADS=1"
    handle = shell.launch(*words, "--script", str(HANGS), "--env", passed, "--", "0", "1")
    try:
        becomes((tmp_path / "round-0").exists, True)
        who = json.loads((tmp_path / "round-0").read_text())["who"]
        seen: list[dict[str, object]] = []

        def named() -> bool:
            document = json.loads(shell.torchx("stacks", handle, "--json"))
            seen.append(document)
            return any(rank["suspect"] for rank in document["ranks"])

        becomes(named, True)
        assert re.fullmatch(
            rf"3 of 4 ranks wait in all_reduce #\d+ at hangs\.py:\d+; "
            rf"hangs/[01] rank {who} \(node n\d\) waits in broadcast #\d+ at hangs\.py:\d+",
            str(seen[-1]["sentence"]),
        ), seen[-1]
    finally:
        shell.torchx("cancel", handle)
        becomes(lambda: "CANCELLED" in shell.torchx("status", handle, check=False), True)
