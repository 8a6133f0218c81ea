"""Runs the sweeps for some minutes and prints a table: ``python -m tests.torture --minutes 10 [SWEEP ...]``."""

from __future__ import annotations

import argparse
import os
import platform
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from itertools import islice
from pathlib import Path

from tests.torture import answers, inputs, local_jobs
from tests.torture.tasks import tasks

Sweep = Callable[[random.Random, Path], Iterator[str]]

SWEEPS: dict[str, Sweep] = {
    sweep.__name__: sweep
    for sweep in (
        local_jobs.kills,
        local_jobs.rows,
        local_jobs.threads,
        local_jobs.forks,
        local_jobs.disks,
        tasks,
        answers.commands,
        answers.servers,
        inputs.fuzz,
        inputs.trees,
        inputs.secrets,
    )
}
_MOST_TOLD = 5


def attempts(
    name: str, place: Path, *, seed: int, count: int | None = None, seconds: float = 0.0
) -> tuple[int, list[str]]:
    """How many attempts of a sweep were made, and what was wrong: so many of them, or for so long."""
    place.mkdir()
    deadline = time.monotonic() + seconds
    tried, wrong = 0, []
    for problem in islice(SWEEPS[name](random.Random(seed), place), count):
        tried += 1
        if problem:
            wrong.append(problem)
        if count is None and time.monotonic() > deadline:
            break
    return tried, wrong


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("sweeps", nargs="*", metavar="SWEEP", help=f"all by default: {', '.join(SWEEPS)}")
    parser.add_argument("--minutes", type=float, default=10.0, help="for all of them together (default: 10)")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="the same seed tries the same")
    args = parser.parse_args(argv)
    chosen = args.sweeps or list(SWEEPS)
    unknown = [name for name in chosen if name not in SWEEPS]
    if unknown:
        parser.error(f"there is no sweep {', '.join(unknown)}; there are {', '.join(SWEEPS)}")
    where = f"{os.cpu_count()} processors, Python {platform.python_version()}"
    print(f"{datetime.now(timezone.utc):%Y-%m-%d}, {where}, seed {args.seed}, {args.minutes:g} minutes\n", flush=True)
    print("| sweep | tried | survived | did not |\n|---|---:|---:|---:|", flush=True)
    told: list[str] = []
    place = Path(tempfile.mkdtemp(prefix="torchx-torture-"))
    try:
        for name in chosen:
            share = args.minutes * 60 / len(chosen)
            tried, wrong = attempts(name, place / name, seed=args.seed, seconds=share)
            print(f"| {name} | {tried:,} | {tried - len(wrong):,} | {len(wrong):,} |", flush=True)
            told += [f"{name}: {problem}" for problem in wrong[:_MOST_TOLD]]
    finally:
        shutil.rmtree(place, ignore_errors=True)
    for problem in told:
        print(f"\n{problem}")
    return 1 if told else 0


if __name__ == "__main__":
    sys.exit(main())
