"""Data to copy to each node before the programs start (``torchx run --stage``), in ``AppDef.metadata[STAGE]``."""

from __future__ import annotations

from torchx.errors import SpecError

STAGE = "torchx/stage"
"""Metadata key: ``SOURCE=PATH`` on each line."""


def parse_stage(text: str) -> tuple[tuple[str, str], ...]:
    """Return pairs of a source, which is a path or a URL, and its path on the node; raises SpecError if one is missing.

    >>> parse_stage("s3://b/data?a=1=/tmp/data")
    (('s3://b/data?a=1', '/tmp/data'),)
    """
    pairs = []
    for line in filter(None, map(str.strip, text.splitlines())):
        source, _, target = line.rpartition("=")
        if not source or not target.strip("/."):
            raise SpecError(f"`--stage {line}` is not SOURCE=PATH", hint="for example `--stage /data/imagenet=data`")
        pairs.append((source, target.rstrip("/")))
    return tuple(pairs)
