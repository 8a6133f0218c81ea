"""The rules of ``.torchxignore``: those of a ``.dockerignore``, to the letter.

Patterns are rooted at the workspace, the last one that matches decides, ``!`` takes back, ``*`` and ``?``
stay within a name, ``**`` spans directories, and a pattern that matches a directory covers what is below it.
See https://docs.docker.com/build/concepts/context/#dockerignore-files.
"""

from __future__ import annotations

import posixpath
import re

from torchx.errors import SpecError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dataclasses import dataclass
else:
    from torchx.util.records import dataclass


@dataclass(frozen=True)
class _Rule:
    negated: bool
    parts: tuple[str, ...]
    regex: re.Pattern[str]


class IgnoreRules:
    """An ordered list of patterns.

    >>> rules = IgnoreRules.parse("**/*.pyc\\nbuild\\n!build/keep")
    >>> [rules.ignores(p) for p in ("a/b.pyc", "build/x", "build/keep", "a.py")]
    [True, True, False, False]
    """

    def __init__(self, rules: list[_Rule]) -> None:
        self._rules = rules

    @staticmethod
    def parse(text: str, *, origin: str = ".torchxignore") -> IgnoreRules:
        """Reads the file's text.

        Raises:
            SpecError: a pattern is malformed; names ``origin`` and the line.
        """
        rules = []
        for number, line in enumerate(text.removeprefix("\ufeff").splitlines(), start=1):
            pattern = line.strip()
            if not pattern or line.startswith("#"):
                continue
            negated = pattern.startswith("!")
            pattern = posixpath.normpath(pattern.removeprefix("!").strip() or ".").lstrip("/")
            if pattern in ("", "."):
                if negated:
                    raise SpecError(f"`{line}` is not an ignore pattern ({origin}:{number})", hint="name what to keep")
                continue
            try:
                rules.append(_Rule(negated, tuple(pattern.split("/")), re.compile(_to_regex(pattern))))
            except (re.error, ValueError) as e:
                raise SpecError(f"`{line}` is not an ignore pattern ({origin}:{number}): {e}") from e
        return IgnoreRules(rules)

    def ignores(self, path: str) -> bool:
        """Whether a path, relative to the workspace and with ``/`` between its parts, is left out."""
        parts = path.split("/")
        candidates = ["/".join(parts[:n]) for n in range(len(parts), 0, -1)]
        ignored = False
        for rule in self._rules:
            if rule.negated == ignored and any(rule.regex.fullmatch(c) for c in candidates):
                ignored = not rule.negated
        return ignored

    def prunes(self, directory: str) -> bool:
        """Whether an ignored directory need not be looked into: nothing below it is taken back."""
        parts = directory.split("/")
        return self.ignores(directory) and not any(r.negated and _may_match_below(r.parts, parts) for r in self._rules)


def _may_match_below(pattern: tuple[str, ...], directory: list[str]) -> bool:
    for wanted, part in zip(pattern, directory, strict=False):
        if "**" in wanted:
            return True
        if not re.fullmatch(_to_regex(wanted), part):
            return False
    return True


def _to_regex(pattern: str) -> str:
    out = []
    i = 0
    while i < len(pattern):
        char = pattern[i]
        i += 1
        if char == "*" and pattern[i : i + 1] == "*":
            i += 1
            i += pattern[i : i + 1] == "/"
            out.append("(?:.*/)?" if i < len(pattern) else ".*")
        elif char == "*":
            out.append("[^/]*")
        elif char == "?":
            out.append("[^/]")
        elif char == "[":
            end = _class_end(pattern, i)
            out.append("[" + pattern[i:end].replace("[", r"\[") + "]")
            i = end + 1
        elif char == "\\":
            if i == len(pattern):
                raise ValueError("a backslash with nothing after it")
            out.append(re.escape(pattern[i]))
            i += 1
        else:
            out.append(re.escape(char))
    return "(?s:" + "".join(out) + ")"


def _class_end(pattern: str, start: int) -> int:
    i = start + (pattern[start : start + 1] == "^")
    first = i
    while i < len(pattern) and (pattern[i] != "]" or i == first):
        i += 2 if pattern[i] == "\\" else 1
    if i >= len(pattern):
        raise ValueError("`[` without `]`")
    return i
