"""A door to :mod:`torchx.component_reader.finder`, which lived here; see "Doors" in design.md."""

import sys

from torchx.component_reader.finder import *  # noqa: F403  # so that type checkers see the names

sys.modules[__name__] = sys.modules["torchx.component_reader.finder"]
