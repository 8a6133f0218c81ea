"""A door to :mod:`torchx.schedulers.kit.verdict`, which lived here; see "Doors" in design.md."""

import sys

from torchx.schedulers.kit.verdict import *  # noqa: F403  # so that type checkers see the names

sys.modules[__name__] = sys.modules["torchx.schedulers.kit.verdict"]
