"""The rows of the table of signatures, by who writes the words; see :mod:`..signatures` and docs/signatures.md."""

from torchx.schedulers.kit.failures.rows import frameworks, programs, systems, torch

ROWS = (*torch.ROWS, *frameworks.ROWS, *programs.ROWS, *systems.ROWS)
"""All rows; of those of one place, the first that matches counts."""
