"""Runs the sweeps for some minutes and prints a table: ``python -m tests.torture --minutes 10 [SWEEP ...]``."""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import sys
import tempfile
import time
from datetime import datetime, timezone
from pathlib import Path

from tests.torture import answers, canaries, faults, folders, grace, inputs, kills, local_jobs, tasks, versions
from tests.torture.rows import Row, attempts

ROWS = (
    Row("kills", "`kill -9` of supervisor, guardian or replica of a local job, and of the caller", kills.kills, 4),
    Row("grace", "a job that is told to end, whose handler of SIGTERM starts a program", grace.grace, 2),
    Row("rows", "runs on record, written by 16 processes, of which one is killed", local_jobs.rows),
    Row("threads", "one Runner in four threads, each with a job", local_jobs.threads),
    Row("forks", "forks while the logs of a running job are read", local_jobs.forks),
    Row("disks", "a verb where no file may grow beyond some bytes", local_jobs.disks),
    Row("tasks", "a sweep of 30 tasks whose supervisor and guard are killed, and the caller", tasks.tasks),
    Row("commands", "a verb on Slurm or LSF whose programs answer garbage, fail, or are killed", answers.commands),
    Row(
        "servers",
        "a verb on Docker, Kubernetes or AWS, or a registry: errors, redirects, cut, slow and malformed answers",
        answers.servers,
    ),
    Row(
        "folders",
        "a verb in a folder with modules such as `json.py` and `torchx/`, or a config file that runs programs",
        folders.folders,
    ),
    Row(
        "canaries",
        "a verb that records, shows or copies the code of a repository with files of secrets",
        canaries.canaries,
    ),
    Row(
        "versions",
        "the registry of a newer version, or set aside by an older one: verbs, readers, kills",
        versions.versions,
    ),
    Row("fuzz", "inputs of parsers", inputs.fuzz),
    Row("trees", "workspaces with links out, FIFOs, sockets, odd names, hostile Dockerfiles", inputs.trees),
    Row("secrets", "credentials in dry runs of the eight backends", inputs.secrets),
)
SWEEPS = {row.name: row for row in ROWS}
"""Another sweep is another row, here and in SECURITY.md."""

HEAD = "| sweep | what | tried | survived | did not | processes that a signal reached |\n|---|---|---:|---:|---:|---|"
_MAX_TOLD = 5


def main(argv: list[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("sweeps", nargs="*", metavar="SWEEP", help=f"all by default: {', '.join(SWEEPS)}")
    parser.add_argument("--minutes", type=float, default=10.0, help="for all of them together (default: 10)")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="the same seed tries the same")
    parser.add_argument(
        "--plant",
        choices=faults.FAULTS,
        help="plant a fault in a copy of the sources first: this command fails unless the sweeps find it",
    )
    args = parser.parse_args(argv)
    chosen = args.sweeps or list(SWEEPS)
    unknown = [name for name in chosen if name not in SWEEPS]
    if unknown:
        parser.error(f"there is no sweep {', '.join(unknown)}; there are {', '.join(SWEEPS)}")
    if args.plant:
        return faults.found(args.plant, [*chosen, "--minutes", str(args.minutes), "--seed", str(args.seed)])
    where = f"{os.cpu_count()} processors, Python {platform.python_version()}"
    print(f"{datetime.now(timezone.utc):%Y-%m-%d}, {where}, seed {args.seed}, {args.minutes:g} minutes\n", flush=True)
    print(HEAD, flush=True)
    told: list[str] = []
    place = Path(tempfile.mkdtemp(prefix="torchx-torture-"))
    try:
        for row in map(SWEEPS.__getitem__, chosen):
            share = args.minutes * 60 * row.share / sum(SWEEPS[name].share for name in chosen)
            result = attempts(row, place / row.name, seed=args.seed, seconds=share)
            bad = len(result.wrong)
            counts = f"{result.tried:,} | {result.tried - bad:,} | {bad:,}"
            print(f"| {row.name} | {row.what} | {counts} | {result.notes()} |", flush=True)
            told += [f"{row.name}: {problem}" for problem in result.wrong[:_MAX_TOLD]]
    finally:
        shutil.rmtree(place, ignore_errors=True)
    for problem in told:
        print(f"\n{problem}")
    return 1 if told else 0


if __name__ == "__main__":
    sys.exit(main())
