"""The launcher ``torchx`` of Hydra: the jobs of a ``--multirun`` as one sweep of torchx, on any of its schedulers."""
