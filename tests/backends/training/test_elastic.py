"""An elastic job loses a node in the middle of the training, and goes on with the other."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.backends.shell import Shell
from tests.backends.training.held import Held


@pytest.mark.timeout(900)
def test_goes_on_without_a_killed_node(shell: Shell, eventually: Callable[..., object], tmp_path: Path) -> None:
    """Of `-j 1:2x2`, one node is killed after some epochs: the other goes on from the checkpoint with two workers."""
    checkpoint = tmp_path / "digits.pt"
    held = Held(tmp_path, 3)
    # torchrun waits for more nodes for as long as `last_call_timeout` once it has enough; one that comes later yet is
    # taken in when it comes.
    handle = shell.launch(
        *("dist.ddp", "-j", "1:2x2", "--rdzv_conf", "last_call_timeout=3", "--script", held.script),
        *("--", "--epochs", "20", "--checkpoint", str(checkpoint)),
    )
    trained = r"4 workers; from epoch \d+(?s:.)*\bepoch +([3-9]|\d\d)/20"
    eventually(lambda: re.search(trained, shell.torchx("log", handle)), timeout_s=240)

    kill_replica_1(shell.torchx("log", handle))
    held.go_on()

    log = shell.torchx("log", "-f", handle, timeout_s=500)
    status = json.loads(shell.torchx("status", "--json", handle))
    assert status["state"] == "SUCCEEDED", shell.torchx("status", handle)
    resumed = re.findall(r"2 workers; from epoch (\d+)", log)
    assert resumed, log[-3000:]
    assert 3 < int(resumed[-1]) <= 20
    assert "epoch 20/20" in log
    final = re.findall(r"final test accuracy: ([\d.]+)", log)
    assert len(final) == 1
    assert float(final[0]) > 0.94


def kill_replica_1(log: str) -> None:
    """SIGKILL the whole of the node that does not hold the rendezvous, whatever number it was given there: torchrun, its
    workers, and the shell above them."""
    found = re.findall(r"/1 .*worker \d of 4 is up: node \d, process (\d+)", log)
    assert found, log[-3000:]
    agent = parent(int(found[-1]))
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
