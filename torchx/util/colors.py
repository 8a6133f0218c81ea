"""Escape codes for coloured standard output; empty strings if :func:`~torchx.util.term.has_color` is false."""

from __future__ import annotations

import sys

from torchx.util.term import has_color

_ON = has_color(sys.stdout)

ENDC = "\033[0m" if _ON else ""
BLUE = "\033[34m" if _ON else ""
GRAY = "\033[90m" if _ON else ""
GREEN = "\033[32m" if _ON else ""
ORANGE = "\033[38;5;208m" if _ON else ""
