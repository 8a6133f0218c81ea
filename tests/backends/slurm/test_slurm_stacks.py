"""`torchx stacks` on Slurm: ranks on several nodes, each read by a step of its own beside them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.backends import venvs
from tests.backends.distributed.rounds import RANKS, each_is_named
from tests.backends.shell import ROOT, Shell
from tests.backends.slurm.conftest import becomes

pytest.importorskip("torch")

HANGS = ROOT / "tests" / "backends" / "distributed" / "hangs.py"


ROUNDS = int(os.environ.get("HANG_ROUNDS", "1"))


@pytest.mark.timeout(3000)
def test_the_right_rank_is_named(tmp_path: Path) -> None:
    """In another collective, at least; with its node."""
    path = f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"
    env = {**os.environ, "PATH": path, "TORCHX_HOME": str(tmp_path / "home"), "HOME": str(tmp_path)}
    shell, per = Shell(tmp_path, env), RANKS // 2
    words = ["-s", "slurm", "--workspace=", "dist.ddp", "-j", f"2x{per}", "--cpu", "2", "--memMB", str(750 * per)]
    passed = f"OUT={tmp_path},PYTHONPATH={ROOT},OMP_NUM_THREADS=1"
    handle = shell.launch(*words, "--script", str(HANGS), "--env", passed, "--", "0", str(ROUNDS))

    def go_on(said: dict[str, Any]) -> None:
        shell.torchx("exec", f"{handle}/hangs/{said['who'] // per}", "--", "kill", "-CONT", str(said["pid"]))

    try:
        *_, last = each_is_named(shell, handle, tmp_path, ROUNDS, go_on)
        assert re.fullmatch(
            rf"{RANKS - 1} of {RANKS} ranks wait in all_reduce #\d+ at hangs\.py:\d+; "
            r"hangs/[01] rank \d \(node n\d\) waits in broadcast #\d+ at hangs\.py:\d+",
            last["sentence"],
        ), last
    finally:
        shell.torchx("cancel", handle)
        becomes(lambda: "CANCELLED" in shell.torchx("status", handle, check=False), True)


def test_py_spy_of_the_laptop_is_sent_to_the_nodes(tmp_path: Path) -> None:
    """Which do not see its file, and have a program to read that offers nothing; the second look finds it there."""
    spy, there = venvs.py_spy(), Path("/tmp/torchx-py-spy")
    (tmp_path / "nap.py").write_text("import time\n\ndef nap():\n    time.sleep(600)\n\nnap()\n")
    bins = f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"
    env = {**os.environ, "PATH": bins, "TORCHX_HOME": str(tmp_path / "home"), "HOME": str(tmp_path)}
    shell = Shell(tmp_path, env)
    words = ["-s", "slurm", "--workspace=", "utils.sh", "--num_replicas", "2", "--cpu", "1", "--memMB", "200", "--"]
    handle = shell.launch(*words, "exec", "python3", str(tmp_path / "nap.py"))
    there.unlink(missing_ok=True)
    try:
        becomes(lambda: "RUNNING" in shell.torchx("status", handle, check=False), True)
        for _ in range(2):  # a file system of the client alone has the program
            look = f'mount -t tmpfs none /mnt && cp {spy} /mnt/ && chmod 775 /mnt/py-spy && PATH="/mnt:$PATH" exec torchx stacks'
            asked = ["unshare", "-m", "sh", "-c", f"{look} {handle} --json"]
            done = subprocess.run(asked, env=env, cwd=tmp_path, capture_output=True, text=True, check=True)
            document = json.loads(done.stdout)
            assert [(r["read_by"], r["doing"]) for r in document["ranks"]] == [("py-spy", "is in nap.py:4")] * 2, (
                document
            )
            assert there.stat().st_mode & 0o777 == 0o755
    finally:
        there.unlink(missing_ok=True)
        shell.torchx("cancel", handle)
        becomes(lambda: "CANCELLED" in shell.torchx("status", handle, check=False), True)
