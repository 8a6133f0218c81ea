"""Print the benchmark table, in a quarter of an hour. With ``--quick`` in two minutes, to see that all rows work."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile

from benchmarks import contestants, report, rows, stage
from benchmarks.timing import Samples


def main() -> int:
    args = parse_args()
    where = stage.Stage(tempfile.mkdtemp(prefix="torchx-bench-"), stage.QUICK if args.quick else stage.SIZES)
    try:
        return measure_all(args, where)
    finally:
        where.close()
        shutil.rmtree(where.folder, ignore_errors=True)


def measure_all(args: argparse.Namespace, where: stage.Stage) -> int:
    everyone = contestants.prepare(peers=not args.no_peers)
    for one in everyone:
        if one.problem:
            print(f"note: {one.name} {one.problem}", file=sys.stderr)
    where.fill(everyone[0])
    rounds = args.rounds or (5 if args.quick else 21)
    table, front = report.header(), []
    figures: dict[str, Samples] = {}
    print("\n".join(table), flush=True)
    for row in rows.ROWS:
        if args.only and args.only not in report.title(row, where.sizes):
            continue
        samples = row.samples(everyone, where, rounds)
        table.append(report.line(row, samples, where.sizes))
        figures[row.what] = samples
        print(table[-1], flush=True)
        if row.front:
            front.append(table[-1])
    table += report.notes(everyone, rounds)
    print("\n".join(table[len(figures) + 2 :]))
    if args.json:
        with open(args.json, "w") as file:
            json.dump({what: vars(samples) for what, samples in figures.items()}, file, indent=1)
    if args.write:
        report.write(table, front)
    return 1 if any(contestants.OURS in one.problems for one in figures.values()) else 0


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes, few rounds")
    parser.add_argument("--only", metavar="TEXT", help="only the rows whose description holds TEXT")
    parser.add_argument("--rounds", type=int, help="samples of each contestant in a row (21; with --quick 5)")
    parser.add_argument("--no-peers", action="store_true", help="only ours and the floor")
    parser.add_argument("--json", metavar="FILE", help="also write every sample there")
    parser.add_argument(
        "--write", action="store_true", help="put the table into benchmarks/README.md, and a few rows into README.md"
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
