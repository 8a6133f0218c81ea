"""Checks of the nodes of a job before its programs start (``torchx run --check-nodes``), in ``AppDef.metadata``."""

from __future__ import annotations

from torchx.errors import SpecError
from torchx.util.strings import did_you_mean

CHECK_NODES = "torchx/check-nodes"
"""Metadata key: some of :data:`CHECKS`, separated by commas, or ``all``."""

SPARES = "torchx/spares"
"""Metadata key: how many nodes to ask for beyond those of the job, to leave out the ones that fail a check."""

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


def parse_spares(text: str) -> int:
    """Return the number of spare nodes; raises SpecError for anything but a positive number.

    >>> parse_spares("2")
    2
    """
    if not (text.isascii() and text.isdigit() and 0 < int(text[:9]) <= 10_000):
        raise SpecError(f"`--spares={text}` is not a number of nodes", hint="for example `--spares 1`")
    return int(text)
