"""The web page of ``torchx ui``: reads the run registry, listens only on loopback, ends with its shell."""

ACTIONS = ("cancel", "rerun")
"""Actions that ``torchx ui --allow`` can permit; without it the page only reads."""
