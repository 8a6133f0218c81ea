"""Reads JSON that others have written: what is nested too deeply, or has another shape, is an error like any other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torchx.errors import ParseError, TorchXError


def loads(text: str | bytes) -> Any:
    """``json.loads``; a text that is nested too deeply raises ValueError, as any other that is not valid."""
    import json

    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


@contextmanager
def reading(what: str) -> Iterator[None]:
    """Raise ParseError where ``what``, an answer, has another shape than the code in the block expects."""
    try:
        yield
    except TorchXError:
        raise
    except (AttributeError, LookupError, TypeError, ValueError) as e:
        raise ParseError(f"{what} has an unexpected shape: {e}") from e
