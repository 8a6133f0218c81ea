"""The page in the browser, ``torchx ui``: reads the run registry, listens on loopback alone, ends with its shell."""
