"""Sweeps of several job arrays on a real Slurm, whose command gets `kill -9`: each task runs once, or none does.

``python -m tests.torture.arrays --kills 20 --tasks 2500``, where ``sbatch`` is on the path and tasks can start. Most of
the kills meet the submission: a script in the place of ``sbatch`` sends them before Slurm gets to know of the sweep,
while it answers, and between its answer and the record of torchx. The others come at any moment of the command.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
MOMENTS = ("answered", "during", "printed", "any", "before")
"""When the command is killed, in turn: see the script below; `any` is a moment of its own run time."""

_SHIM = """#!/bin/bash
# Once the kill has been sent, this is sbatch; in jobs it is not on the path.
PATH=${PATH#@PLACE@:}
if ! mv @PLACE@/moment @PLACE@/sent 2>/dev/null; then exec @SBATCH@ "$@"; fi
read -r moment pause <@PLACE@/sent
later() { (sleep "$pause"; kill -9 "$PPID") </dev/null >/dev/null 2>&1 & }
case $moment in
  before) kill -9 "$PPID"; exit 1 ;;
  during) later; exec @SBATCH@ "$@" ;;
  answered) answer=$(@SBATCH@ "$@"); kill -9 "$PPID"; echo "$answer" ;;
  printed) @SBATCH@ "$@"; later ;;
esac
"""
_PAUSES_S = {"during": 0.1, "printed": 0.03}
_LASTS_S = 1.5  # of the command, on a machine with other work
_PATIENCE_S = 1800.0
_MAX_WRONG = 3


class Sweep(NamedTuple):
    """One sweep under kill; ``place``: its record, its shim of ``sbatch``, and the witness to which each task adds a line."""

    place: Path
    name: str
    tasks: int
    partition: str

    @property
    def env(self) -> dict[str, str]:
        path = f"{self.place}:{os.environ.get('PATH', os.defpath)}"
        return {**os.environ, "TORCHX_HOME": f"{self.place}/home", "PATH": path, "PYTHONPATH": str(ROOT)}

    def torchx(self, *words: str) -> subprocess.Popen[str]:
        argv = [sys.executable, "-m", "torchx", *words]
        pipe = subprocess.PIPE
        return subprocess.Popen(argv, env=self.env, cwd=self.place, stdout=pipe, stderr=pipe, text=True)

    def says(self, *words: str) -> str:
        """Both streams of a verb."""
        return "".join(self.torchx(*words).communicate(timeout=_PATIENCE_S))

    def submit(self) -> subprocess.Popen[str]:
        """Start the command."""
        grid = f"k=0..{self.tasks - 1}"
        words = ["--workspace=", "--name", self.name, "--grid", grid, "--cpu", "1", "--mem", "50M"]
        task = f"echo {{k}} >> {self.place}/witness"
        return self.torchx(
            "sweep", "-s", "slurm", "-cfg", f"partition={self.partition},time=30", *words, "utils.sh", task
        )


def killed(sweep: Sweep, moment: str, rng: random.Random, lasts_s: float) -> tuple[bool, str]:
    """Submit and kill; return whether the kill met the command, and how."""
    (sweep.place / "sbatch").write_text(
        _SHIM.replace("@PLACE@", str(sweep.place)).replace("@SBATCH@", shutil.which("sbatch") or "sbatch")
    )
    (sweep.place / "sbatch").chmod(0o755)
    pause = rng.random() * _PAUSES_S.get(moment, 0.0)
    if moment != "any":
        (sweep.place / "moment").write_text(f"{moment} {pause:.3f}\n")
    process = sweep.submit()
    if moment == "any":
        pause = rng.random() * lasts_s
        time.sleep(pause)
        process.kill()
    process.communicate(timeout=_PATIENCE_S)
    met = process.returncode == -9
    return met, f"{moment} {pause:.3f} s: {'killed' if met else f'over with {process.returncode}'}"


def settled(sweep: Sweep) -> tuple[str, str]:
    """What became of it, and what is wrong with that."""
    listed = sweep.says("list")
    if "not known yet" in listed:  # two minutes later it is
        with sqlite3.connect(sweep.place / "home" / "runs.db") as db:
            db.execute("UPDATE runs SET created_at = created_at - 130")
        db.close()
        listed = sweep.says("list")
    found = sorted(set(re.findall(r"slurm://torchx/\S*?sweep-\d+", listed)))
    if len(found) > 1:
        return "", f"two sweeps are on record: {listed}"
    if found:
        return _of_all(sweep, found[0])
    time.sleep(2)  # a task of a sweep that nobody knows would begin in this time
    witness, left = _witness(sweep), _queued(sweep)
    return (
        "no sweep",
        f"{sum(witness.values())} tasks ran, {left} are queued, none on record" if witness or left else "",
    )


def _of_all(sweep: Sweep, handle: str) -> tuple[str, str]:
    """Wait, by a command that is killed now and then as well, and count."""
    began = time.monotonic()
    while time.monotonic() - began < _PATIENCE_S:
        waiting = sweep.torchx("wait", handle)
        try:
            waiting.communicate(timeout=random.uniform(5, 60))
            break
        except subprocess.TimeoutExpired:
            waiting.kill()
            waiting.communicate()
    counts = json.loads(sweep.torchx("status", "--json", handle).communicate()[0])["tasks"]["counts"]
    witness = _witness(sweep)
    twice = [k for k, n in witness.items() if n > 1]
    lost = [k for k in range(sweep.tasks) if str(k) not in witness]
    problems = [f"{len(twice)} tasks ran twice, such as {twice[:5]}"] if twice else []
    problems += [f"{len(lost)} tasks never ran, such as {lost[:5]}"] if lost else []
    problems += [f"states: {counts}"] if counts != {"SUCCEEDED": sweep.tasks} else []
    problems += [f"{left} are queued still"] if (left := _queued(sweep)) else []
    return f"{handle}, all over after {time.monotonic() - began:.0f} s", "; ".join(problems)


def _witness(sweep: Sweep) -> Counter[str]:
    file = sweep.place / "witness"
    return Counter(file.read_text().split() if file.exists() else ())


def _queued(sweep: Sweep) -> int:
    argv = ["squeue", "--noheader", "--me", "--array", "--format=%j"]
    names = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.split()
    return sum(1 for name in names if name.startswith(sweep.name))


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.torture.arrays", description=__doc__.partition("\n")[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--tasks", type=int, default=2500)
    parser.add_argument("--partition", default="main")
    parser.add_argument("--moments", nargs="*", choices=MOMENTS, default=MOMENTS)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    args = parser.parse_args(argv)
    rng, number, kills, wrong = random.Random(args.seed), 0, 0, 0
    print(f"seed {args.seed}, {args.tasks} tasks\n", flush=True)
    while kills < args.kills and wrong < _MAX_WRONG:
        moment = args.moments[number % len(args.moments)]
        # tasks write into it from any node
        with tempfile.TemporaryDirectory(prefix="torchx-arrays-", dir="/tmp") as folder:
            sweep = Sweep(Path(folder), f"torture{os.getpid()}x{number}", args.tasks, args.partition)
            met, how = killed(sweep, moment, rng, _LASTS_S)
            outcome, problem = settled(sweep)
            if problem:
                shutil.copytree(folder, f"{folder}.kept", symlinks=True)
        number, kills, wrong = number + 1, kills + met, wrong + bool(problem)
        print(f"{number}: {how}; {outcome}; {problem or 'right'}", flush=True)
    print(f"\n{number - wrong} of {number} right; {kills} kills met the command")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
