"""Converts values of any type to JSON types."""

from __future__ import annotations

from typing import Any

_MAX_DEPTH = 20


def plain(value: Any, _depth: int = 0) -> Any:
    """Convert a value to JSON types: scalars of NumPy and PyTorch become numbers, other objects strings.

    >>> plain({"lr": 0.1, "shape": (2, 3), 1: {"x"}})
    {'lr': 0.1, 'shape': [2, 3], '1': ['x']}
    >>> plain(ValueError("no"))
    'no'
    """
    if value is None or type(value) in (bool, int, float, str):
        return value
    if _depth < _MAX_DEPTH:
        if isinstance(value, dict):
            return {str(k): plain(v, _depth + 1) for k, v in value.items()}
        if isinstance(value, (list, tuple)):
            return [plain(v, _depth + 1) for v in value]
        if isinstance(value, (set, frozenset)):
            return [plain(v, _depth + 1) for v in sorted(value, key=str)]
    if isinstance(value, (bool, int, float, str)):  # of a subclass, such as an enum's
        return next(kind(value) for kind in (bool, int, float, str) if isinstance(value, kind))
    return _scalar(value)


def _scalar(value: Any) -> Any:
    try:
        found = value.item()
        if type(found) in (bool, int, float, str):
            return found
    except Exception:  # noqa: S110  # it has no such method, or more than one element
        pass
    return str(value)
