"""Texts that users see are written as the field writes: phrases that read like a translation do not come back."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import torchx
from tests.trees import walk

ROOT = Path(torchx.__file__).parent.parent
BANNED = {
    r"\b(?<!here )(?:is|was) no (?!longer\b|more\b|such\b|one\b)": "`x` is not a valid y",
    r"(?<!here )\bare no (?!longer\b|more\b)": "x are not y",
    r"\b[Ll]eave\w* (?:\w+ ){1,3}away\b": "omit it",
    r"\btakes? no such\b": "rejected the request",
    r"^So (?:many|old|long)\b": "name the quantity and its unit",
    r"^The same\b": "a docstring that can be read alone",
    r"\btells (?!you\b|[^.;]{0,40}\b(?:apart|from)\b)": "reports, says, shows",
    r"\bis waited with\b": "is backing off",
    r"\bwhat there is of\b": "name it",
    r"\bwhere nobody (?:has|is)\b": "if it is not x",
    r"\b(?:is|are) told to (?:end|stop)\b": "is stopped",
    r"\bof which each\b": "each of which",
    r"\b(?:hears? of|to be had|borne)\b": "is notified of, is available, is tolerated",
    r"\bnot told (?:where|whether|how)\b": "does not know where",
    r"\b[Aa]s (?:many|much)\b[^.;]{0,40}\bas (?:it|you|they|one user) may\b": "has reached its limit of x",
    r"\b(?:[Ee]rrors|[Aa]rguments) as of\b": "see x",
    r"\b(?:is|are) to be said\b": "name it",
    r"\bnobody (?:is|was) asked\b": "without a query",
    r"\bslept on\b": "waits until x reports",
}


@cache
def texts() -> list[tuple[str, str]]:
    """Where, and what: string literals and docstrings of the package, lines of the documents."""
    return list(_texts())


def _texts() -> Iterator[tuple[str, str]]:
    for path in sorted((ROOT / "torchx").rglob("*.py")):
        for node in walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
                yield f"{path.relative_to(ROOT)}:{node.lineno}", node.value
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
            yield f"{path.relative_to(ROOT)}:{number}", line


@pytest.mark.parametrize("phrase", BANNED)
def test_no_banned_phrase(phrase: str) -> None:
    """No text has it; the value in the table shows what to write."""
    prose = phrase == r"^The same\b"  # in a document the line before says what is meant
    found = [
        f"{where}: {text[:100]!r}"
        for where, text in texts()
        if re.search(phrase, text) and not (prose and where.partition(":")[0].endswith(".md"))
    ]
    assert not found, f"write: {BANNED[phrase]}"


@pytest.mark.parametrize(
    ("text", "bad"),
    [
        ("`70000` is no port", True),
        ("there is no job `x`", False),
        ("it is no longer there", False),
        ("choose another, or leave it away", True),
        ("AWS takes no such request", True),
        ("So old an answer may be.", True),
        ("How long ago it ended.", False),
        ("The same, where there is none.", True),
        ("LSF tells why", True),
        ("what tells them apart", False),
        ("its queue runs as many jobs as it may", True),
        ("Log in. Errors as of `ensure`.", True),
    ],
)
def test_what_is_banned(text: str, bad: bool) -> None:
    """The phrases are found, and plain English is left alone."""
    assert any(re.search(phrase, text) for phrase in BANNED) == bad
