"""The version stands in two places, because neither can be read from the other without a cost at start-up."""

from __future__ import annotations

import re
from pathlib import Path

import torchx

PYPROJECT = Path(__file__).parents[1] / "pyproject.toml"


def test_the_distribution_has_the_version_that_the_package_says() -> None:
    """`pip show torchx` and `torchx --version` agree."""
    declared = re.search(r'^version = "(.+)"$', PYPROJECT.read_text(), re.MULTILINE)
    assert declared
    assert declared[1] == torchx.__version__
