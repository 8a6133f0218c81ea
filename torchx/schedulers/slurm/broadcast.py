"""Sends the data of ``--stage`` to all nodes of a job at once, by Slurm's ``sbcast``."""

from __future__ import annotations

from torchx.schedulers.kit.setup import shell_function
from torchx.schedulers.kit.shell import quote, read_script


def broadcast(stages: tuple[tuple[str, str], ...]) -> str:
    """Return the part of the batch script that does it; empty without absolute paths."""
    sources = [quote(source) for source, _ in stages if source.startswith("/")]
    if not sources:
        return ""
    part = read_script(__file__, "broadcast.sh").strip()
    return "\n".join([shell_function("stage_node"), f"staged=({' '.join(sources)})", part])
