"""The real parts that the tests in these folders run against, all at once, for continuous integration.

    python -m tests.backends.parts up docker slurm    # installs what is missing, starts what is down; as root, on Debian
    python -m tests.backends.parts down docker slurm  # stops what `up` has started

Each can be had by itself, too: see the module that it names.
"""

from __future__ import annotations

import importlib
import sys
import time

PARTS = {
    "docker": ("tests.backends.docker.engine", ("up", "image", "registry")),
    "slurm": ("tests.backends.slurm.cluster", ("up",)),
    "kubernetes": ("tests.backends.kubernetes.cluster", ("up",)),
}


def up(names: list[str]) -> None:
    for name in names:
        module, calls = PARTS[name]
        since = time.monotonic()
        for call in calls:
            getattr(importlib.import_module(module), call)()
        print(f"==> {name} is up ({time.monotonic() - since:.0f} s)", flush=True)


def down(names: list[str]) -> None:
    for name in reversed(names):
        importlib.import_module(PARTS[name][0]).down()


if __name__ == "__main__":
    verb, *given = sys.argv[1:] or [""]
    if verb not in ("up", "down") or not given or set(given) - set(PARTS):
        sys.exit(f"usage: python -m tests.backends.parts up|down {'|'.join(PARTS)} ...")
    {"up": up, "down": down}[verb](given)
