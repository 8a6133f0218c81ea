"""Small programs, each run with ``python -m torchx.apps.utils.<name>``."""
