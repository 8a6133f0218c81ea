"""Sweeps of torchx on this machine, of which the caller, the supervisor and its guard are killed again and again."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Collection, Iterator
from pathlib import Path

from tests.torture.calls import torchx
from tests.torture.kills import sent
from tests.torture.local_jobs import at_its_end, job_folders, lines
from tests.torture.rows import Round
from torchx.supervisor import proctree
from torchx.supervisor.statefile import LOST, SUCCEEDED, StateFileError, read_state

_COUNT = 30


def tasks(rng: random.Random, place: Path) -> Iterator[Round]:
    """A sweep under kills at any moment: each task leaves one witness, none is lost, and none runs twice."""
    for number in range(1 << 30):
        home = place / str(number)
        home.mkdir()
        yield _killed_again_and_again(rng, home)


def _killed_again_and_again(rng: random.Random, home: Path) -> Round:
    task = f"echo {{k}} >> {home}/runs; sleep 0.0{rng.randrange(6)}"
    argv = ["sweep", "-s", "local_cwd", "--max-parallel", "3", "--grid", f"k=0..{_COUNT - 1}", "utils.sh", task]
    call = torchx(argv, {"TORCHX_HOME": str(home), "TORCHX_ERROR_FILE": ""}, hasty=False)
    caller_dies = rng.random() < 0.3
    if caller_dies:
        time.sleep(rng.random() * 0.4)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(call.pid, signal.SIGKILL)
    ended = call.ended()
    if not caller_dies and ended.code != 0:
        return Round(f"exit code {ended.code}: {ended.err[-300:]}", ())
    killed: dict[int, str] = {}
    guards: set[int] = set()
    both = False
    for _ in range(rng.randrange(1, 6)):
        time.sleep(rng.random() * 0.15)
        both |= _kill(home, rng.choice((("supervisor",), ("guard",), ("guard", "supervisor"))), killed, guards)
    problem = _settled(home, started=not caller_dies, both=both, killed=killed.keys(), guards=guards)
    return Round(problem, tuple(killed.values()))


def _kill(home: Path, victims: tuple[str, ...], killed: dict[int, str], guards: set[int]) -> bool:
    """Kills them; whether both were gone at the same time, for all that is known."""
    for folder in job_folders(home):
        try:
            supervisor = proctree.read_process(read_state(f"{folder}/state").supervisor)
        except (OSError, StateFileError):
            continue
        if supervisor is None:
            return True
        pids = {"supervisor": supervisor.pid, "guard": supervisor.ppid}
        # Where one of the two is gone already, the parent is who adopts orphans: init, or this very process of the tests.
        if supervisor.ppid <= 1 or supervisor.ppid == os.getpid():
            pids, victims = {"supervisor": supervisor.pid}, ("supervisor", "guard")
        guards.update(pid for name, pid in pids.items() if name == "guard")
        killed.update({pids[name]: name for name in victims if name in pids and sent(pids[name])})
        if len(pids) == 1:
            return True
    return "guard" in victims


def _settled(home: Path, *, started: bool, both: bool, killed: Collection[int], guards: set[int]) -> str:
    folders = job_folders(home)
    if started and not folders:
        return "the sweep is gone"
    for folder in folders:
        alone = bool({read_state(f"{folder}/state").supervisor, *guards}.difference(killed))
        job = at_its_end(folder, alone=alone)
        if job is None:
            return "it does not end"
        runs = Counter(lines(home / "runs"))
        if twice := [k for k, n in runs.items() if n > 1]:
            return f"tasks {twice} ran twice"
        if never := [k for k in range(_COUNT) if str(k) not in runs]:
            return f"tasks {never} never ran: {[job.replicas[k].state for k in never]}"
        others = Counter(line.state for line in job.replicas if line.state != SUCCEEDED)
        if set(others) - ({LOST} if both else set()):
            return f"{dict(others)} of tasks that succeed"
    return ""
