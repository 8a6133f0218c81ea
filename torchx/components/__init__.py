"""Ready-made jobs: functions that return an :class:`~torchx.specs.AppDef`.

=====================  ==============================================================
``dist.ddp``           distributed PyTorch training
``dist.spmd``          distributed PyTorch, sized by a named resource
``dist.torchrun``      distributed PyTorch with every option of ``torchrun``
``utils.*``            small jobs: a shell command, a Python program, a binary, a copy
=====================  ==============================================================

``torchx run dist.ddp --script train.py`` runs one by its name; ``torchx run dist.ddp --help`` describes it.
"""
