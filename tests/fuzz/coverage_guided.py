"""Lets atheris look for bytes that break a promise: ``python -m tests.fuzz.coverage_guided --seconds 60 [TARGET ...]``.

Each target of ``targets.py`` runs in a process of its own, one after the other, for that long. What was learnt is kept
in ``.cache/fuzz``, and so is what broke something: move such a file's bytes to ``test_targets.py``.
"""

from __future__ import annotations

import argparse
import importlib
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
KEPT = ROOT / ".cache" / "fuzz"
LIMITS = ("-timeout=120", "-rss_limit_mb=1500", "-max_len=2048", "-print_final_stats=1", "-verbosity=1")
_UNITS = re.compile(r"stat::number_of_executed_units:\s*(\d+)")


def main(argv: list[str] | None = None) -> int:
    """Runs the targets; 1 when one of them broke a promise, 0 else."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("targets", nargs="*", metavar="TARGET", help="all by default")
    parser.add_argument("--seconds", type=int, default=60, help="for each target (default: 60)")
    parser.add_argument("--runs", type=int, help="for each target, instead of seconds: the same on any machine")
    parser.add_argument("--kept", type=Path, default=KEPT, help="what was learnt (default: .cache/fuzz)")
    parser.add_argument("--module", default="tests.fuzz.targets", help="with `TARGETS` and `seeds()` (default: ours)")
    parser.add_argument("--one", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.one:
        _fuzz(args.module, *args.one)
    targets = importlib.import_module(args.module).TARGETS
    unknown = sorted(set(args.targets) - set(targets))
    if unknown:
        parser.error(f"there is no target {', '.join(unknown)}; there are {', '.join(sorted(targets))}")
    chosen = args.targets or sorted(targets)
    until = ("-seed=1", f"-runs={args.runs}") if args.runs else (f"-max_total_time={args.seconds}",)
    broken = [name for name in chosen if not _run(args.module, name, until, args.kept)]
    print(f"{len(broken)} of {len(chosen)} targets are broken: {', '.join(broken) or 'none'}")
    return 1 if broken else 0


def _run(module: str, name: str, until: tuple[str, ...], kept: Path) -> bool:
    """Fuzzes one target in a process of its own, with libFuzzer's options that end it; False when that found something."""
    corpus, found = kept / name, kept / "broken"
    for folder in (corpus, found):
        folder.mkdir(parents=True, exist_ok=True)
    for i, seed in enumerate(importlib.import_module(module).seeds()[name]):
        (corpus / f"seed-{i}").write_bytes(seed)
    options = [*until, f"-artifact_prefix={found}/{name}-", *LIMITS]
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz.coverage_guided", "--module", module, "--one", name, str(corpus), *options],
        cwd=ROOT,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    units = _UNITS.search(done.stderr)
    count = int(units[1]) if units else 0
    print(f"{name:15} {count:>10,} executions  {'fine' if done.returncode == 0 else 'BROKEN'}", flush=True)
    if done.returncode:
        print(done.stdout[-6000:] + done.stderr[-3000:], flush=True)
    return done.returncode == 0


def _fuzz(module: str, name: str, *options: str) -> None:
    import atheris

    with atheris.instrument_imports(include=["torchx", "docstring_parser", module]):
        targets = importlib.import_module(module)
        for seed in targets.seeds()[name]:  # imports what is imported on use
            targets.TARGETS[name](seed)
    atheris.Setup([sys.argv[0], *options], targets.TARGETS[name])
    atheris.Fuzz()


if __name__ == "__main__":
    sys.exit(main())
