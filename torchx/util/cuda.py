"""A door to :mod:`torchx.compat.cuda`, which lived here; see "Doors" in design.md."""

import sys

from torchx.compat.cuda import *  # noqa: F403  # so that type checkers see the names

sys.modules[__name__] = sys.modules["torchx.compat.cuda"]
