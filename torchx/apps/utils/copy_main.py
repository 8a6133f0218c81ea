"""Copies a file between any two places that fsspec knows.

``python -m torchx.apps.utils.copy_main --src s3://bucket/a --dst file:///tmp/a``
"""

from __future__ import annotations

import argparse
import sys

from torchx.errors import MissingDependencyError

_BLOCK = 1 << 20  # bytes held in memory at a time


def parse_args(argv: list[str]) -> argparse.Namespace:
    """``src`` and ``dst``: paths or URLs."""
    parser = argparse.ArgumentParser(description="copies a file between any two places that fsspec knows")
    parser.add_argument("--src", required=True, help="what to copy: a path or URL")
    parser.add_argument("--dst", required=True, help="where to: a path or URL")
    return parser.parse_args(argv)


def main(argv: list[str]) -> None:
    """Copies; missing directories of a local destination are created.

    Raises:
        OSError: the source cannot be read or the destination not be written.
    """
    args = parse_args(argv)
    try:
        import fsspec
    except ImportError as e:
        raise MissingDependencyError("copying needs the package `fsspec`", hint="pip install fsspec") from e
    with fsspec.open(args.src, "rb") as src, fsspec.open(args.dst, "wb", auto_mkdir=True) as dst:
        while block := src.read(_BLOCK):
            dst.write(block)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except (OSError, ValueError, ImportError) as e:
        sys.exit(f"copy: {e}")
