"""How far a command walks through the house: the files of torchx/ it enters, and how often it goes from one room to another.

A file is entered when a function of it is called; a crossing is a call from a function of one top-level room
(``torchx/cli``, ``torchx/runner``, ...) to a function of another. Imports are not counted: they are held by
``tests/startup``. ``python -m benchmarks.crossings`` prints both for two commands, and with ``-v`` the crossings themselves.

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

COMMANDS = {
    "torchx run --dryrun -s slurm dist.ddp": ["run", "--dryrun", "-s", "slurm", "dist.ddp", "-j", "2x8", "--script", "train.py"],
    "torchx status @last (a local job)": ["status", "@last"],
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


def measure(argv: list[str], env: dict[str, str]) -> tuple[list[str], dict[str, int]]:
    """The files that a command enters, and its crossings, each with how often it happens."""
    subprocess.run([sys.executable, "-c", WATCH, *argv], env=env, cwd=env["HOME"], check=True, stdout=subprocess.DEVNULL)
    with open(env["CROSSINGS"]) as f:
        files, crossings = json.load(f)
    return files, crossings


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.crossings", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("-v", "--verbose", action="store_true", help="show the crossings, by room and by function")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        path = os.environ.get("PYTHONPATH", os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
        env = {**os.environ, "HOME": home, "TORCHX_HOME": f"{home}/.torchx", "CROSSINGS": f"{home}/crossings", "PYTHONPATH": path}
        with open(f"{home}/train.py", "w"):
            pass
        argv = [sys.executable, "-m", "torchx", "run", "-s", "local_cwd", "--wait", "utils.echo"]
        subprocess.run(argv, env=env, cwd=home, check=True, capture_output=True)
        for title, command in COMMANDS.items():
            files, crossings = measure(command, env)
            print(f"{title}: {len(files)} files, {sum(crossings.values())} crossings")
            if args.verbose:
                rooms = collections.Counter[str]()
                for key, number in crossings.items():
                    rooms[key.partition(":")[0]] += number
                for key, number in [*rooms.most_common(), *sorted(crossings.items(), key=lambda item: -item[1])]:
                    print(f"{number:6} {key}")


if __name__ == "__main__":
    main()
