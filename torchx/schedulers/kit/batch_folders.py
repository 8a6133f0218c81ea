"""A door to :mod:`torchx.schedulers.batch.folders`, which lived here; see "Doors" in design.md."""

import sys

from torchx.schedulers.batch.folders import *  # noqa: F403  # so that type checkers see the names

sys.modules[__name__] = sys.modules["torchx.schedulers.batch.folders"]
