"""Whoever polls is killed, again and again: another of those who watch goes on, and no change is missed."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torchx.runs import default_registry
from torchx.specs import AppState, is_terminal

Eventually = Callable[..., object]
KILLS = int(os.environ.get("TORCHX_TEST_KILLS", "5"))


def watcher(out: Path) -> subprocess.Popen[bytes]:
    with out.open("a") as file:
        return subprocess.Popen([sys.executable, "-m", "torchx", "watch", "--json"], stdout=file, stderr=file)


def poller() -> int:
    """The process that asked last; 0 when nobody has."""
    folder = Path(os.environ["TORCHX_HOME"], "pollers")
    for path in folder.glob("local_cwd@*.json"):
        with contextlib.suppress(ValueError):  # it was being replaced
            return int(json.loads(path.read_text())["pid"])
    return 0


def test_the_poller_is_killed(tmp_path: Path, eventually: Eventually) -> None:
    """Each kill hits whoever polls. At the end every job's end is on record, and each change follows from the one before."""
    rng = random.Random(7)
    outs = [tmp_path / f"{k}.txt" for k in range(3)]
    alive = [watcher(out) for out in outs]
    handles: list[str] = []
    hit = 0
    try:
        while hit < KILLS:
            done = subprocess.run(
                [
                    sys.executable,
                    "-m",
                    "torchx",
                    "run",
                    "-d",
                    "utils.sh",
                    "--",
                    f"sleep {rng.random():.2f}; exit {len(handles) % 2}",
                ],
                capture_output=True,
                text=True,
                check=True,
            )
            handles.append(done.stdout.strip())
            pid = poller()
            victim = next((k for k, process in enumerate(alive) if process.pid == pid), None)
            if victim is None:
                continue
            os.kill(pid, signal.SIGKILL)
            alive[victim].wait()
            alive[victim] = watcher(outs[victim])
            hit += 1
        registry = default_registry()
        eventually(lambda: registry.unfinished() == {}, timeout_s=120, every_s=0.1)
    finally:
        for process in alive:
            process.kill()
            process.wait()
    changes = registry.changes(0, until=registry.last_change())
    registry.close()
    for number, handle in enumerate(handles):
        states: list[AppState | None] = [None]
        for change in (c for c in changes if c.handle == handle):
            assert change.was is states[-1], (handle, states, change)
            states.append(change.state)
        assert states[-1] is (AppState.FAILED if number % 2 else AppState.SUCCEEDED), (handle, states)
        assert sum(is_terminal(state) for state in states if state) == 1


def test_a_poller_that_was_stopped(tmp_path: Path, eventually: Eventually) -> None:
    """Ctrl-Z on the watcher that polls: another one sees the end of the job."""
    first = watcher(tmp_path / "first.txt")
    second = None
    try:
        run: list[Any] = [
            sys.executable,
            "-m",
            "torchx",
            "run",
            "-d",
            "utils.sh",
            "--",
            "while [ ! -e go ]; do sleep 0.1; done",
        ]
        subprocess.run(run, check=True, capture_output=True, cwd=tmp_path)
        eventually(lambda: poller() == first.pid, timeout_s=120, every_s=0.1)
        os.kill(first.pid, signal.SIGSTOP)
        second = watcher(tmp_path / "second.txt")
        (tmp_path / "go").touch()
        eventually(lambda: "SUCCEEDED" in (tmp_path / "second.txt").read_text(), timeout_s=120, every_s=0.1)
        assert poller() == second.pid
    finally:
        for process in filter(None, (first, second)):
            process.kill()
            process.wait()
