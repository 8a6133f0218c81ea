"""Where components that train are to be found: this module has none of its own.

A training script needs no component of its own to be launched. On one process it is a job of ``utils.python``, on many
of ``dist.ddp``; a component of a project's own gives its options names, types and a help page::

    torchx run utils.python --script train.py
    torchx run dist.ddp -j 2x4 --script train.py -- --epochs 3
    torchx run my_component.py:train --epochs 3

The page ``docs/train.md`` goes from the one to the other with ``examples/ddp_digits``.

>>> from torchx.components.dist import ddp
>>> app = ddp("--epochs", "3", script="train.py", j="2x4")
>>> app.roles[0].num_replicas, app.roles[0].args[-1].endswith("train.py --epochs 3")
(2, True)
"""
