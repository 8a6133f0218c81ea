"""A door to :mod:`torchx.schedulers.batch.base`, which lived here; see "Doors" in design.md."""

import sys

from torchx.schedulers.batch.base import *  # noqa: F403  # so that type checkers see the names

sys.modules[__name__] = sys.modules["torchx.schedulers.batch.base"]
