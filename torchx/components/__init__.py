"""Ready-made jobs: functions that return an :class:`~torchx.specs.AppDef`.

=====================  ==============================================================
``dist.ddp``           distributed PyTorch training
``dist.spmd``          the same, sized by a named resource
``dist.torchrun``      the same, with every option of ``torchrun``
``utils.*``            small jobs: a shell command, a Python program, a binary, a copy
=====================  ==============================================================

Each is run by its name, ``torchx run dist.ddp --script train.py``, and explained by ``torchx run dist.ddp --help``.
"""
