"""The real parts that the tests of several folders share, started before the tests run.

    python -m tests.backends.parts up docker ssh    # for the tests of these folders: installs what is missing, starts
                                                    # what is down; as root, on Debian
    python -m tests.backends.parts down             # stops what `up` has started

Each can be had by itself, too: see the module that it names. A folder whose parts are not there starts them itself.
"""

from __future__ import annotations

import importlib
import sys
import time

PARTS = {
    "docker": ("tests.backends.docker.engine", ("up", "image", "registry")),
    "slurm": ("tests.backends.slurm.cluster", ("up",)),
    "mlflow": ("tests.backends.venvs", ("mlflow_and_s3",)),
    "moto": ("tests.backends.aws.moto", ("toolkit",)),
    "chromium": ("tests.backends.ui.browser", ("up",)),
}
"""What is started or installed: module, and the functions that are called one after the other."""

_STOPPED = ("slurm", "docker")

FOLDERS = {
    "docker": ("docker",),
    "slurm": ("slurm",),
    "ssh": ("slurm",),
    "local": (),
    "gridengine": (),
    "trackers": ("docker", "mlflow"),
    "lsf": ("docker",),
    "components": (),
    "training": (),
    "aws": ("docker", "moto"),
    "workspace": ("mlflow",),
    "distributed": (),
    "ui": ("chromium", "docker", "slurm"),
    "compat": ("docker", "slurm"),
    "clients": ("docker", "slurm"),
    "mcp": ("docker", "slurm"),
    "kubernetes": ("docker", "mlflow"),
}
"""Folder of ``tests/backends`` to the parts that its tests use, in the order in which the folders are best run: two run
at a time, and what takes long comes first, but Kubernetes, whose programs may have to be built."""


def up(folders: list[str]) -> None:
    """Start what the tests of these folders use."""
    needed = {part for folder in folders for part in FOLDERS[folder]}
    for name in (name for name in PARTS if name in needed):
        module, calls = PARTS[name]
        since = time.monotonic()
        for call in calls:
            getattr(importlib.import_module(module), call)()
        print(f"==> {name} is there ({time.monotonic() - since:.0f} s)", flush=True)


def down() -> None:
    """Stop what :func:`up` has started; what it has installed stays."""
    for name in _STOPPED:
        importlib.import_module(PARTS[name][0]).down()


def main(argv: list[str]) -> int:
    verb, *folders = argv or [""]
    if unknown := sorted(set(folders) - set(FOLDERS)):
        print(f"no folder of tests/backends: {', '.join(unknown)}; there are: {', '.join(FOLDERS)}", file=sys.stderr)
        return 2
    if verb == "folders":
        print("\n".join(f"tests/backends/{name}" for name in FOLDERS if name in (folders or FOLDERS)))
    elif verb == "up" and folders:
        up(folders)
    elif verb == "down" and not folders:
        down()
    else:
        print(__doc__, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
