"""`torchx stacks` in a pod, without any right beyond the container's own."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.backends.docker.test_docker_training import python_mounts
from tests.backends.shell import ROOT

pytest.importorskip("torch")

HANGS = ROOT / "tests" / "backends" / "distributed" / "hangs.py"


@pytest.mark.timeout(600)
def test_the_rank_that_sleeps(torchx: Any, image: str, tmp_path: Path, eventually: Callable[..., object]) -> None:
    """The other three wait for it."""
    out = tmp_path / "out"
    out.mkdir()
    mounts = [f"type=bind,src={out},dst=/out", f"type=bind,src={ROOT},dst={ROOT},readonly", *python_mounts()]
    env = {"PATH": f"{os.path.dirname(sys.executable)}:/usr/bin:/bin", "PYTHONPATH": str(ROOT), "OUT": "/out"}
    words = ["dist.ddp", "-j", "1x4", "--image", image, "--cpu", "1", "--memMB", "3000", "--mounts", ",".join(mounts)]
    words += ["--env", ",".join(f"{k}={v}" for k, v in env.items()), "--script", str(HANGS)]
    handle = torchx("run", *words, "--", "6", "2").stdout.split()[-1]
    try:
        begun = out / "round-0"
        eventually(begun.exists, timeout_s=300, every_s=0.5)
        said = json.loads(begun.read_text())
        assert said["kind"] == "sleep"
        seen: list[dict[str, Any]] = []

        def named() -> bool:
            seen.append(json.loads(torchx("stacks", handle, "--json").stdout))
            return any(rank["suspect"] for rank in seen[-1]["ranks"])

        eventually(named, timeout_s=60, every_s=0.5)
        assert re.fullmatch(
            rf"3 of 4 ranks wait in all_reduce( #\d+)? at hangs\.py:\d+; "
            rf"hangs/0 rank {said['who']}( \(node [^)]+\))? is in hangs\.py:\d+",
            seen[-1]["sentence"],
        ), seen[-1]
    finally:
        torchx("cancel", handle)
        eventually(lambda: "CANCELLED" in torchx("status", handle, code=None).stdout, every_s=0.5)
