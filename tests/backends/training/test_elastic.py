"""An elastic job loses a node in the middle of the training, and goes on with the other."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path

from tests.backends.shell import Shell

SCRIPT = "examples/ddp_digits/train.py"


def test_goes_on_without_a_killed_node(shell: Shell, eventually: Callable[..., object], tmp_path: Path) -> None:
    """Of `-j 1:2x2`, one node is killed after some epochs: the other goes on from the checkpoint with two workers."""
    checkpoint = tmp_path / "digits.pt"
    # torchrun waits for more nodes for as long as `last_call_timeout` once it has enough.
    handle = shell.launch(
        *("dist.ddp", "-j", "1:2x2", "--rdzv_conf", "last_call_timeout=3", "--script", SCRIPT),
        *("--", "--epochs", "40", "--checkpoint", str(checkpoint)),
    )
    eventually(lambda: re.search(r"4 workers; from epoch 1\b", shell.torchx("log", handle)))
    eventually(lambda: re.search(r"epoch +3/40", shell.torchx("log", handle)))

    kill_node_of_worker(3, shell.torchx("log", handle))

    log = shell.torchx("log", "-f", handle, timeout_s=240)
    status = json.loads(shell.torchx("status", "--json", handle))
    assert status["state"] == "SUCCEEDED", shell.torchx("status", handle)
    resumed = re.search(r"2 workers; from epoch (\d+)", log)
    assert resumed, log[-3000:]
    assert 3 < int(resumed[1]) <= 40
    assert "epoch 40/40" in log
    final = re.findall(r"final test accuracy: ([\d.]+)", log)
    assert len(final) == 1
    assert float(final[0]) > 0.94


def kill_node_of_worker(rank: int, log: str) -> None:
    """SIGKILL the whole of the node that runs this worker: torchrun, its workers, and the shell above them."""
    found = re.search(rf"worker {rank} of 4 is up: node \d, process (\d+)", log)
    assert found, log[-3000:]
    agent = parent(int(found[1]))
    above = parent(agent)
    if (
        b"torchrun" in Path(f"/proc/{above}/cmdline").read_bytes()
        and b"supervis" not in Path(f"/proc/{above}/cmdline").read_bytes()
    ):
        agent = above
    doomed = tree(agent)
    assert len(doomed) >= 3, doomed
    for pid in doomed:
        os.kill(pid, signal.SIGSTOP)  # nobody reacts to the death of another before all are dead
    for pid in doomed:
        os.kill(pid, signal.SIGKILL)


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def tree(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(below for child in children for below in tree(int(child)))]
