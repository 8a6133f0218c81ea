"""A component of one's own for a program that explains a model: which pixels the answers came from.

.. code-block:: shell

    torchx run examples/components/interpret.py:interpret --checkpoint digits.pt
"""

from __future__ import annotations

from torchx import specs
from torchx.components.utils import python


def interpret(checkpoint: str, out: str = "attributions.json", images: int = 3, steps: int = 64) -> specs.AppDef:
    """Attribute the answers of the digits model to pixels.

    Args:
        checkpoint: what examples/ddp_digits/train.py has written
        out: file for the attributions
        images: how many of the held-out images
        steps: of the integral: more are more exact
    """
    args = [f"--checkpoint={checkpoint}", f"--out={out}", f"--images={images}", f"--steps={steps}"]
    return python(*args, script="examples/digits_interpret/interpret.py", name="interpret", cpu=1, memMB=1024)
