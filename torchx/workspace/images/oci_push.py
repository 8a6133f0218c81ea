"""A planned image on its way to the registry, as a person sees it."""

from __future__ import annotations

import sys
import threading
from typing import TextIO

from torchx.workspace.images.docker_build import short_name
from torchx.workspace.images.progress import Display, megabytes
from torchx.workspace.oci import ImageBuilder, Plan


def push(builder: ImageBuilder, plan: Plan, *, quiet: bool = False, stream: TextIO | None = None) -> None:
    """Pushes, and says how it goes.

    Raises:
        as :meth:`ImageBuilder.push`.
    """
    display = Display(stream or sys.stderr, quiet=quiet)
    name = short_name(f"{plan.name.registry}/{plan.name.repository}", plan.name.tag)
    total = len(plan.uploads) + len(plan.base.layers) if plan.manifest else 0
    done = sent = 0
    lock = threading.Lock()

    def progress(size: int, complete: bool) -> None:
        nonlocal done, sent
        with lock:
            sent += size
            done += complete
        display.doing(f"Pushing {name}: {done}/{total} layers, {megabytes(sent)} MB sent")

    try:
        builder.push(plan, progress)
    finally:
        display.close()
    if plan.manifest is None:
        display.line(f"{name} is in the registry already")
    else:
        display.line(f"Pushed {name}, {megabytes(sent)} MB sent")
