"""A door to :mod:`torchx.compat.io`, which lived here; see "Doors" in design.md."""

import sys

from torchx.compat.io import *  # noqa: F403  # so that type checkers see the names

sys.modules[__name__] = sys.modules["torchx.compat.io"]
