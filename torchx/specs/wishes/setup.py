"""Set-up lines of a job (``torchx run --setup`` and ``--uv``): shell that prepares the environment of its programs.

``AppDef.metadata`` stores the lines under :data:`SETUP`. Those of a site are the run option ``setup`` and run first.
"""

from __future__ import annotations

SETUP = "torchx/setup"
"""Metadata key of the lines, for example ``module load cuda/12.4``."""

UV = "torchx/uv"
"""Metadata key: ``1`` if the environment is made from the ``uv.lock`` of the job's folder."""


def parse_uv(text: str) -> bool:
    """Return whether a job wants ``uv``; raises SpecError for anything but a truth value.

    >>> parse_uv("1"), parse_uv("false")
    (True, False)
    """
    from torchx.errors import ConfigError, SpecError
    from torchx.specs.options.cfg_literals import cast

    try:
        return bool(cast(text, bool))
    except ConfigError as e:
        raise SpecError(f"the metadata `{UV}`: {e}", hint=e.hint) from None
