"""Evaluates the Booth function at one point and stores the result: a trial of a parameter search.

``python -m torchx.apps.utils.booth_main --x1=1 --x2=3 --tracker_base=/tmp/trials``
"""

from __future__ import annotations

import argparse
import sys

from torchx.runtime.tracking import FsspecResultTracker


def parse_args(argv: list[str]) -> argparse.Namespace:
    """Parse the point, the number of the trial, and the place for its result."""
    parser = argparse.ArgumentParser(description="evaluates the Booth function; its minimum is 0 at (1, 3)")
    parser.add_argument("--x1", type=float, required=True, help="the first variable")
    parser.add_argument("--x2", type=float, required=True, help="the second variable")
    parser.add_argument("--trial_idx", type=int, default=0, help="number of the trial")
    parser.add_argument("--tracker_base", required=True, help="where to store results: a directory or an fsspec URL")
    return parser.parse_args(argv)


def booth(x1: float, x2: float) -> float:
    """Return the Booth function.

    >>> booth(1, 3)
    0
    """
    return (x1 + 2 * x2 - 7) ** 2 + (2 * x1 + x2 - 5) ** 2


def main(argv: list[str]) -> None:
    """Print the value and store it as ``booth_eval``."""
    args = parse_args(argv)
    value = booth(args.x1, args.x2)
    FsspecResultTracker(args.tracker_base).put(args.trial_idx, booth_eval=value)
    print(f"booth({args.x1}, {args.x2}) = {value}; trial {args.trial_idx} in {args.tracker_base}")


if __name__ == "__main__":
    main(sys.argv[1:])
