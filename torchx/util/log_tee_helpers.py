"""A door to :mod:`torchx.runner.watching.tee`, which lived here; see "Doors" in design.md."""

import sys

from torchx.runner.watching.tee import *  # noqa: F403  # so that type checkers see the names

sys.modules[__name__] = sys.modules["torchx.runner.watching.tee"]
