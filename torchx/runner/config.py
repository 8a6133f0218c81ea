"""A door to :mod:`torchx.config`, which lived here; see "Doors" in design.md."""

import sys

from torchx.config import *  # noqa: F403  # so that type checkers see the names

sys.modules[__name__] = sys.modules["torchx.config"]
