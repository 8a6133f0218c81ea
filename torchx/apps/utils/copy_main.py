"""Copies a file between any two places that fsspec supports.

``python -m torchx.apps.utils.copy_main --src s3://bucket/a --dst file:///tmp/a``
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from torchx.errors import MissingDependencyError

_BLOCK = 1 << 20  # bytes held in memory at a time


def parse_args(argv: list[str]) -> argparse.Namespace:
    """Parse ``src`` and ``dst``: paths or URLs."""
    parser = argparse.ArgumentParser(description="copies a file between any two places that fsspec supports")
    parser.add_argument("--src", required=True, help="the source: a path or URL")
    parser.add_argument("--dst", required=True, help="the destination: a path or URL")
    return parser.parse_args(argv)


def main(argv: list[str]) -> None:
    """Copy the file; create missing directories of a local destination. A failed copy leaves no incomplete file.

    Raises:
        OSError: the source cannot be read, or the destination cannot be written.
    """
    args = parse_args(argv)
    try:
        import fsspec
        from fsspec.core import url_to_fs
    except ImportError as e:
        raise MissingDependencyError("copying needs the package `fsspec`", hint="pip install fsspec") from e
    fs, path = url_to_fs(args.dst)
    with fsspec.open(args.src, "rb") as src, _local(path) if _is_local(fs) else _remote(fs, path) as dst:
        while block := src.read(_BLOCK):
            dst.write(block)


def _is_local(fs: Any) -> bool:
    from fsspec.implementations.local import LocalFileSystem

    return isinstance(fs, LocalFileSystem)


@contextmanager
def _local(path: str) -> Iterator[Any]:
    """Yield a file that gets its name when it is complete; write directly to a pipe or a device."""
    if os.path.exists(path) and not os.path.isfile(path):
        with open(path, "wb") as f:
            yield f
        return
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    part = f"{path}.{os.getpid()}.part"
    try:
        with open(part, "wb") as f:
            yield f
        os.replace(part, path)
    finally:
        with suppress(FileNotFoundError):
            os.unlink(part)


@contextmanager
def _remote(fs: Any, path: str) -> Iterator[Any]:
    """Yield an object of a store, in a transaction: otherwise closing it would publish an incomplete object."""
    with fs.transaction, fs.open(path, "wb") as f:
        yield f


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except (OSError, ValueError, ImportError) as e:
        sys.exit(f"copy: {e}")
