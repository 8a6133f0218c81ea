"""Real Gloo jobs that hang: `torchx stacks` names the rank for which the others wait, and what it does instead.

`HANG_SEEDS=13 pytest -s tests/backends/distributed/test_hangs.py` tries 104 of them, and prints which were named at the first look;
`HANG_RANKS=8`, of so many ranks. In containers and on Slurm `HANG_ROUNDS=11` does the same.
"""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.backends.distributed.rounds import RANKS, each_is_named, said_in_the_end, wait_for
from tests.backends.shell import Shell

pytest.importorskip("torch")

ROUNDS = 8
MISCALLS = {
    "extra": (
        r"3 of 4 ranks wait in all_reduce #4 at miscalls\.py:(\d+); "
        r"miscalls/0 rank 2 waits in all_reduce #5 at miscalls\.py:\1, 1 call ahead: its #4 is broadcast"
    ),
    "operation": (
        r"3 of 4 ranks wait in all_reduce #4 at miscalls\.py:(\d+); "
        r"miscalls/0 rank 2 waits in broadcast #4 at miscalls\.py:\1"
    ),
    "size": (  # who sleeps is named last, and those that wait disagree
        r"miscalls/0 rank 1 waits in all_reduce #4 of \[16\] at miscalls\.py:(\d+); "
        r"miscalls/0 rank 3 waits in all_reduce #4 of \[8\] at miscalls\.py:\1; ranks 0, 2 of miscalls are in miscalls\.py:\d+"
    ),
    "pairs": (  # each pair has its own group, which has counted by itself: that is no disagreement
        r"2 of 4 ranks wait in all_reduce at miscalls\.py:\d+; ranks 0, 2 of miscalls are in miscalls\.py:\d+"
    ),
    "later": (
        r"3 of 4 ranks wait for all_reduce #4 at miscalls\.py:(\d+); "
        r"miscalls/0 rank 2 waits in barrier #4 at miscalls\.py:\1"
    ),
    "backward": (
        r"3 of 4 ranks wait in backward for all_reduce #\d+ at miscalls\.py:\d+; miscalls/0 rank 2 is in miscalls\.py:\d+"
    ),
}


@contextmanager
def launched(shell: Shell, out: Path, *arguments: str, ranks: int = RANKS, program: str = "hangs.py") -> Iterator[None]:
    """A job that hangs, and is ended in the end."""
    launch(shell, out, *arguments, ranks=ranks, program=program)
    try:
        yield
    finally:
        shell.torchx("cancel", "@last")
        shell.torchx("wait", "@last", check=False)


def launch(
    shell: Shell, out: Path, *arguments: str, ranks: int = RANKS, program: str = "hangs.py", dog: str = ""
) -> None:
    path = str(Path(__file__).with_name(program).relative_to(shell.cwd))
    words = ["dist.ddp", "-j", f"1x{ranks}", "--script", path, "--env", f"OUT={out},OMP_NUM_THREADS=1"]
    more = ["--watchdog", dog] if dog else []
    shell.torchx("run", "-s", "local_cwd", "-d", *more, *words, "--", *arguments)


@pytest.mark.parametrize("seed", range(int(os.environ.get("HANG_SEEDS", "1"))))
def test_the_right_rank_is_named(shell: Shell, tmp_path: Path, seed: int) -> None:
    """A rank that sleeps, is stopped, has no data, is slow, or is in another collective: nobody else is ever blamed."""
    with launched(shell, tmp_path, str(seed), str(ROUNDS)):
        each_is_named(shell, "@last", tmp_path, ROUNDS, lambda said: os.kill(said["pid"], signal.SIGCONT))


@pytest.mark.parametrize("kind", MISCALLS)
def test_ranks_in_the_same_line_are_told_apart_by_their_calls(shell: Shell, tmp_path: Path, kind: str) -> None:
    """By number, operation and size, as PyTorch's Flight Recorder has them; a number says nothing across groups."""
    with launched(shell, tmp_path, kind, ranks=4, program="miscalls.py"):
        assert said_in_the_end(shell, "@last", MISCALLS[kind]) == ([0, 2] if kind in ("size", "pairs") else [2])


def test_a_silent_training_is_ended_and_says_why(shell: Shell, tmp_path: Path) -> None:
    """The watchdog of the job looks for itself; the cause of the failure is what it saw."""
    launch(shell, tmp_path, "0", "1", ranks=4, dog="5s:cancel")
    said = wait_for(shell, "@last", tmp_path / "round-0")
    shell.torchx("wait", "@last", check=False)
    document = json.loads(shell.torchx("status", "@last", "--json"))
    assert document["cause"]["class"] == "timeout"
    assert re.fullmatch(
        rf"no output for \d+ s: 3 of 4 ranks wait in all_reduce #\d+ at hangs\.py:\d+; "
        rf"hangs/0 rank {said['who']} waits in broadcast #\d+ at hangs\.py:\d+",
        document["hang"],
    ), document


def test_a_slow_start_and_a_long_evaluation_are_not_silence(shell: Shell, tmp_path: Path) -> None:
    """They compute: no alarm within three times the time, though nothing is written."""
    (tmp_path / "slow.py").write_text(
        "import os, time\nfrom pathlib import Path\n"
        "def evaluate(seconds):\n    end = time.monotonic() + seconds\n"
        "    while time.monotonic() < end:\n        sum(range(1000))\n"
        f"evaluate(7)\nprint('started', flush=True)\nevaluate(7)\nPath({str(tmp_path)!r}, 'done').touch()\n"
    )
    shell.torchx(
        "run",
        "-s",
        "local_cwd",
        "--wait",
        "--watchdog",
        "4s:cancel",
        "utils.python",
        "--script",
        str(tmp_path / "slow.py"),
    )
    assert (tmp_path / "done").exists()
    assert json.loads(shell.torchx("status", "@last", "--json"))["hang"] is None
