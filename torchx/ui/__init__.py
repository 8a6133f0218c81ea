"""The page in the browser, ``torchx ui``: reads the run registry, listens on loopback alone, ends with its shell."""

ACTIONS = ("cancel", "rerun")
"""What the page can be allowed to do beside reading."""
