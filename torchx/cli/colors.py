"""The escape codes of :mod:`torchx.util.colors`, where programs of old look for them."""

from __future__ import annotations

from torchx.util.colors import BLUE, ENDC, GRAY, GREEN, ORANGE

__all__ = ["BLUE", "ENDC", "GRAY", "GREEN", "ORANGE"]
