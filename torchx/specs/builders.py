"""A door to :mod:`torchx.component_reader.builders`, which lived here; see "Doors" in design.md."""

import sys

from torchx.component_reader.builders import *  # noqa: F403  # so that type checkers see the names

sys.modules[__name__] = sys.modules["torchx.component_reader.builders"]
