"""Programs that hand a trained model to a server, each run with ``python -m torchx.apps.serve.<name>``."""
