"""A door to :mod:`torchx.component_reader.types`, which lived here; see "Doors" in design.md."""

import sys

from torchx.component_reader.types import *  # noqa: F403  # so that type checkers see the names

sys.modules[__name__] = sys.modules["torchx.component_reader.types"]
