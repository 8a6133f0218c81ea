"""Compatibility alias of :mod:`torchx.util.colors`."""

from __future__ import annotations

from torchx.util.colors import BLUE, ENDC, GRAY, GREEN, ORANGE

__all__ = ["BLUE", "ENDC", "GRAY", "GREEN", "ORANGE"]
