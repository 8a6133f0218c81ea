"""A door to :mod:`torchx.plugins`, which lived here; see "Doors" in design.md."""

import sys

from torchx.plugins import *  # noqa: F403  # so that type checkers see the names

sys.modules[__name__] = sys.modules["torchx.plugins"]
