"""Results to copy here when a job has ended (``torchx run --fetch``), stored in ``AppDef.metadata[FETCH]``."""

from __future__ import annotations

from torchx.errors import SpecError

FETCH = "torchx/fetch"
"""Metadata key: ``PATH`` or ``PATH=TARGET`` on each line."""


def parse_fetch(text: str) -> tuple[tuple[str, str], ...]:
    """Return pairs of a path in the job and where to copy it; raises SpecError for a path that leads out of the folder.

    >>> parse_fetch("runs/\\n/ckpt/lr=1/last.pt=last.pt")
    (('runs/', 'runs/'), ('/ckpt/lr=1/last.pt', 'last.pt'))
    """
    pairs = []
    for line in filter(None, map(str.strip, text.splitlines())):
        source, equals, target = line.rpartition("=") if "=" in line else (line, "", "")
        if not equals and (source.startswith("/") or ".." in source.split("/")):
            raise SpecError(f"`--fetch {line}` has no target in this folder", hint=f"`--fetch {line}=DIR` names one")
        if not source or (equals and not target):
            raise SpecError(f"`--fetch {line}` is not PATH or PATH=TARGET", hint="for example `--fetch runs/`")
        pairs.append((source, target or source))
    return tuple(pairs)
