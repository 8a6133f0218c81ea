"""Changelog fragments are named so that a release can gather them."""

from __future__ import annotations

import re
from pathlib import Path

FRAGMENTS = Path(__file__).resolve().parents[2] / "changelog.d"


def test_fragments_are_named_by_issue_and_kind() -> None:
    """Each file is ISSUE.KIND.md or ISSUE.KIND.N.md, and says something."""
    files = [file for file in FRAGMENTS.iterdir() if file.name != "README.md"]
    for file in files:
        assert re.fullmatch(r"\d+\.(added|changed|fixed|removed|security)(\.\d+)?\.md", file.name), file.name
        assert len(file.read_text().split()) > 3, file.name
