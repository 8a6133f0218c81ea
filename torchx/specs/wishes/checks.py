"""Checks of the nodes of a job before its programs start (``torchx run --check-nodes``), in ``AppDef.metadata``."""

from __future__ import annotations

from torchx.errors import SpecError
from torchx.util.strings import did_you_mean

CHECK_NODES = "torchx/check-nodes"
"""Metadata key: some of :data:`CHECKS`, separated by commas, or ``all``."""

CHECKS = ("gpus", "disk", "clock", "net", "collective")


def parse_checks(text: str) -> tuple[str, ...]:
    """Return the checks in their order; raises SpecError for an unknown one.

    >>> parse_checks("all") == CHECKS, parse_checks("net, gpus")
    (True, ('gpus', 'net'))
    """
    words = [*CHECKS] if text.strip() == "all" else [word.strip() for word in text.split(",")]
    for word in words:
        if word not in CHECKS:
            hint = did_you_mean(word, CHECKS) or f"some of {', '.join(CHECKS)}; without any, all of them"
            raise SpecError(f"`--check-nodes={text}`: there is no check `{word}`", hint=hint)
    return tuple(check for check in CHECKS if check in words)
