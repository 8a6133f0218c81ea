"""How to run training; this module contains no components.

``utils.python`` launches a training script in one process, and ``dist.ddp`` in many. A component in the project itself
adds names, types and a help page for the options::

    torchx run utils.python --script train.py
    torchx run dist.ddp -j 2x4 --script train.py -- --epochs 3
    torchx run my_component.py:train --epochs 3

``docs/train.md`` shows all three with ``examples/ddp_digits``.
"""
