"""A component of one's own: the digits training with its options spelled out.

.. code-block:: shell

    torchx run examples/components/digits.py:digits --nodes 1 --epochs 3
"""

from __future__ import annotations

from torchx import specs
from torchx.components.dist import ddp


def digits(nodes: int = 2, workers: int = 2, epochs: int = 15, checkpoint: str | None = None) -> specs.AppDef:
    """Train on handwritten digits.

    Args:
        nodes: groups of workers, each on a machine of its own where the scheduler has several
        workers: processes on each node
        epochs: passes over the data
        checkpoint: file to resume from, and to save to
    """
    args = ["--epochs", str(epochs)]
    if checkpoint:
        args += ["--checkpoint", checkpoint]
    return ddp(*args, script="examples/ddp_digits/train.py", j=f"{nodes}x{workers}", name="digits")
