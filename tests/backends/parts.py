"""The real parts that the tests in these folders run against, all at once, for continuous integration.

    python -m tests.backends.parts up      # installs what is missing, starts what is down; as root, on Debian
    python -m tests.backends.parts down    # stops what `up` has started

Each can be had by itself, too: see the module that it names.
"""

from __future__ import annotations

import importlib
import sys
import time

PARTS = {
    "Docker engine": ("tests.backends.docker.engine", ("up", "image", "registry")),
    "Slurm": ("tests.backends.slurm.cluster", ("up",)),
    "Kubernetes": ("tests.backends.kubernetes.cluster", ("up",)),
}


def up() -> None:
    for name, (module, calls) in PARTS.items():
        since = time.monotonic()
        for call in calls:
            getattr(importlib.import_module(module), call)()
        print(f"==> {name} is up ({time.monotonic() - since:.0f} s)", flush=True)


def down() -> None:
    for module, _ in reversed(PARTS.values()):
        importlib.import_module(module).down()


if __name__ == "__main__":
    if sys.argv[1:] not in (["up"], ["down"]):
        sys.exit("usage: python -m tests.backends.parts up|down")
    {"up": up, "down": down}[sys.argv[1]]()
