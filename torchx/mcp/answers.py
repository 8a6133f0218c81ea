"""Answers of tools: bounded, cleaned of control characters, and with the text of others marked as such."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torchx.util.redaction import redact

DEFAULT_BYTES = 6_000
"""About 2,000 tokens of JSON."""
MAX_BYTES = 200_000
_SHORTEST = 200  # characters of a text, and
_FEWEST = 2  # entries of a list, that are kept at least

# Keys whose text is written by programs, job names and other people: data, never instructions.
UNTRUSTED = frozenset(
    "a about argv b command cwd doing error evidence frames key line lines log message msg name patch said sentence"  # noqa: SIM905
    " summary traceback user workspace".split()
)


def answer(document: dict[str, Any], max_bytes: int, more: str) -> dict[str, Any]:
    """Return a document of at most about ``max_bytes`` of JSON, with keys of its own that say what it is.

    ``untrusted`` names the keys that hold text of others; ``left_out`` says what was shortened, and ``more`` how to see
    it. Lists lose their last entries, texts their middles; the schema of the document still holds.

    >>> answer({"state": "FAILED", "roles": list(range(900))}, 200, "ask for more")["left_out"]
    {'roles': '872 of 900 entries'}
    """
    marked = sorted(_keys(document) & UNTRUSTED)
    entries, characters = 1 << 20, 1 << 30
    while True:
        left: dict[str, str] = {}
        found: dict[str, Any] = _shortened(document, entries, characters, "", left)
        if _size(found) <= max_bytes or (entries <= _FEWEST and characters <= _SHORTEST):
            break
        longest = _longest(found)
        entries = max(_FEWEST, min(entries, longest[0]) // 2)
        characters = max(_SHORTEST, min(characters, longest[1]) // 2)
    if marked:
        found["untrusted"] = marked
    if left:
        found.update(left_out=left, more=more)
    return found


def clean(text: str) -> str:
    """Mask secrets, and remove control characters: escape sequences must not reach a client's terminal.

    >>> clean("a" + chr(27) + "[31mred" + chr(9) + "x")
    'a[31mred\\tx'
    """
    return "".join(c for c in redact(text) if c.isprintable() or c in "\n\t")


def _shortened(value: Any, entries: int, characters: int, path: str, left: dict[str, str]) -> Any:
    if isinstance(value, str):
        text = clean(value)
        if len(text) <= characters:
            return text
        left[path] = f"{len(text) - characters} of {len(text)} characters"
        return f"{text[: characters // 2]} [...] {text[-characters // 2 :]}"
    if isinstance(value, dict):
        return {
            clean(str(key)): _shortened(v, entries, characters, f"{path}.{key}".lstrip("."), left)
            for key, v in value.items()
        }
    if isinstance(value, list | tuple):
        if len(value) > entries:
            left[path] = f"{len(value) - entries} of {len(value)} entries"
        return [_shortened(v, entries, characters, f"{path}[]", left) for v in value[:entries]]
    return value


def _longest(value: Any) -> tuple[int, int]:
    """Return the length of the longest list, and of the longest text."""
    found = [0, 0]

    def look(item: Any) -> None:
        if isinstance(item, str):
            found[1] = max(found[1], len(item))
        elif isinstance(item, list):
            found[0] = max(found[0], len(item))
        _each(item, look)

    look(value)
    return found[0], found[1]


def _keys(value: Any) -> set[str]:
    found: set[str] = set()

    def look(item: Any) -> None:
        if isinstance(item, dict):
            found.update(key for key, v in item.items() if v not in (None, "", [], {}))
        _each(item, look)

    look(value)
    return found


def _each(value: Any, act: Callable[[Any], None]) -> None:
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        act(item)


def _size(document: Any) -> int:
    import json

    return len(json.dumps(document, default=str, ensure_ascii=False).encode(errors="replace"))
