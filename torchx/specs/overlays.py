"""A door to :mod:`torchx.schedulers.kubernetes.overlays`, which lived here; see "Doors" in design.md."""

import sys

from torchx.schedulers.kubernetes.overlays import *  # noqa: F403  # so that type checkers see the names

sys.modules[__name__] = sys.modules["torchx.schedulers.kubernetes.overlays"]
