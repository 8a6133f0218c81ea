"""torchx as a user runs it, with an eye on each step: killed right after one of them, or its steps counted.

``sitecustomize`` is the door: Python runs it before the command, which is the installed one, unchanged.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

_CUSTOMIZE = """
import os, signal, sys

kill_after = int(os.environ.pop("STEPS_KILL_AFTER", "0"))
report = os.environ.pop("STEPS_REPORT", "")
# Calls by which a submission changes something outside of this process, or learns of it.
STEPS = {"connect", "Connection.execute", "mkdir", "posix_spawn", "write", "read", "poll.poll", "Connection.close"}
steps, calls, queried, begun, opened = [], 0, 0, False, []


def query(event, args):
    if event == "sqlite3.connect/handle":
        opened.append(args[0])  # which cannot be used yet


def progress():
    global queried
    queried += 100


def look(frame, event, function):
    global calls, begun
    if event == "call" or event == "c_call":
        calls += frame.f_code is not progress.__code__
    elif event == "c_return":
        name = getattr(function, "__qualname__", "")
        begun = begun or name == "connect"  # of the run registry: nothing happens before
        while opened:
            opened.pop().set_progress_handler(progress, 100)
        if begun and name in STEPS:
            steps.append(name)
            if len(steps) == kill_after:
                os.kill(os.getpid(), signal.SIGKILL)


if kill_after or report:
    import atexit

    def tell():
        sys.setprofile(None)
        if report:
            with open(report, "w") as f:
                f.write(" ".join([str(calls), str(queried), *map(lambda s: s.replace(" ", "_"), steps)]))

    atexit.register(tell)
    sys.addaudithook(query)
    sys.setprofile(look)
"""


@dataclass
class Steps:
    """What a command did.

    Attributes:
        calls: of functions, whether in Python or in C: a measure of work that no other process disturbs.
        names: of the calls that touched the outside, from the first look at the run registry on.
        queried: what SQLite's virtual machine executed for it, in its instructions.
        out: what it printed.
    """

    calls: int
    names: list[str]
    queried: int
    out: str


def environment(folder: Path, **more: str) -> dict[str, str]:
    """Variables with which a torchx command is watched; ``folder`` is an empty place for our files."""
    site = folder / "site"
    site.mkdir(exist_ok=True)
    (site / "sitecustomize.py").write_text(_CUSTOMIZE)
    path = [str(site), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path), **more}


def command(*args: str) -> list[str]:
    """The installed command, by this interpreter's folder."""
    return [os.path.join(os.path.dirname(sys.executable), "torchx"), *args]


def count(folder: Path, *args: str) -> Steps:
    """Run a command to its end, successfully, and count."""
    report = folder / "report"
    done = subprocess.run(
        command(*args),
        env=environment(folder, STEPS_REPORT=str(report)),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, f"torchx {' '.join(args)}: {done.returncode}\n{done.stdout}{done.stderr}"
    calls, queried, *names = report.read_text().split()
    return Steps(int(calls), names, int(queried), done.stdout)
