"""How far a command walks through the house: which files of torchx/ it enters, and how often it changes rooms.

A file is entered when a function of it is called; a crossing is a call from a function of one top-level room
(``torchx/cli``, ``torchx/runner``, ...) to a function of another. What runs while a module is imported is not counted:
``tests/startup`` holds it. ``python -m benchmarks.crossings`` prints both for two commands, with ``-v`` each crossing.

To compare with another commit, run this file with that commit's ``torchx`` on the path::

    git worktree add /tmp/before COMMIT && PYTHONPATH=/tmp/before python benchmarks/crossings.py
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import subprocess
import sys
import tempfile

JOB = ["dist.ddp", "-j", "2x8", "--script", "train.py"]
COMMANDS = {
    "torchx run --dryrun -s slurm dist.ddp": ["run", "--dryrun", "-s", "slurm", *JOB],
    "torchx status @last, a local job": ["status", "@last"],
}

WATCH = """
import json, os, sys
import torchx
from torchx.cli.main import main

root = os.path.dirname(torchx.__file__) + os.sep
rooms, entered, crossings = {}, set(), {}

def room(code):
    # Of a function of torchx; "import" for the import system and what runs in it; "" for all else.
    if code not in rooms:
        file = code.co_filename
        if file.startswith("<frozen importlib") or (code.co_name == "<module>" and file.startswith(root)):
            rooms[code] = "import"
        elif file.startswith(root) and code.co_flags & 1:  # a class's body is no function
            rooms[code] = file[len(root):].partition(os.sep)[0].removesuffix(".py")
        else:
            rooms[code] = ""
    return rooms[code]

def watch(frame, event, _):
    here = room(frame.f_code)
    if event != "call" or here in ("", "import"):
        return
    caller = frame.f_back
    while caller is not None and not room(caller.f_code):
        caller = caller.f_back
    there = room(caller.f_code) if caller is not None else here
    if there == "import":
        return
    entered.add(frame.f_code.co_filename[len(root):])
    if there != here:
        key = f"{there} -> {here}: {frame.f_code.co_name}"
        crossings[key] = crossings.get(key, 0) + 1

sys.argv[0] = "torchx"
sys.setprofile(watch)
try:
    main(sys.argv[1:])
finally:
    sys.setprofile(None)
    with open(os.environ["CROSSINGS"], "w") as f:
        json.dump([sorted(entered), crossings], f)
"""


def measure(argv: list[str], env: dict[str, str]) -> tuple[list[str], collections.Counter[str]]:
    """The files that a command enters, and its crossings, each with how often it happens."""
    watched = [sys.executable, "-c", WATCH, *argv]
    subprocess.run(watched, env=env, cwd=env["HOME"], check=True, stdout=subprocess.DEVNULL)
    with open(env["CROSSINGS"]) as f:
        files, crossings = json.load(f)
    return files, collections.Counter(crossings)


def show(crossings: collections.Counter[str]) -> None:
    """The crossings by room, then by function."""
    rooms = collections.Counter[str]()
    for key, number in crossings.items():
        rooms[key.partition(":")[0]] += number
    for key, number in [*rooms.most_common(), *crossings.most_common()]:
        print(f"{number:6} {key}")


def main() -> None:
    about = (__doc__ or "").partition("\n")[0]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.crossings", description=about)
    parser.add_argument("-v", "--verbose", action="store_true", help="show the crossings, by room and by function")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
        env = {"PYTHONPATH": here, **os.environ, "HOME": home, "TORCHX_HOME": f"{home}/.torchx"}
        env["CROSSINGS"] = f"{home}/crossings"
        with open(f"{home}/train.py", "w"):
            pass
        job = [sys.executable, "-m", "torchx", "run", "-s", "local_cwd", "--wait", "utils.echo"]
        subprocess.run(job, env=env, cwd=home, check=True, capture_output=True)
        for title, command in COMMANDS.items():
            files, crossings = measure(command, env)
            print(f"{title}: {len(files)} files, {crossings.total()} crossings")
            if args.verbose:
                show(crossings)


if __name__ == "__main__":
    main()
