r"""The rules of ``.torchxignore``: those of a ``.dockerignore``, as Docker's builders apply them.

Patterns are rooted at the workspace, the last match decides, ``!`` includes again, ``*`` and ``?`` match within a name,
``**`` matches across directories, and a pattern that matches a directory also covers its contents.
Corner cases are the same, too: a line is a comment only if ``#`` is its first character, ``[^a]`` matches a slash,
``\d`` is a digit. One difference: a malformed pattern is always an error, in Docker only when it is evaluated.
See https://docs.docker.com/build/concepts/context/#dockerignore-files; a test compares the results with Docker.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable

from torchx.errors import SpecError
from torchx.util.records import dataclass

TORCHX_IGNORE = ".torchxignore"
IGNORE_FILES = (TORCHX_IGNORE, ".dockerignore")
"""The first of these that exists in a workspace is used; the other is an ordinary file."""

# Characters that Go's `strings.TrimSpace` removes; Python's `strip` also removes the separators \x1c to \x1f.
_SPACE = "\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(map(chr, range(0x2000, 0x200B)))
_ANY_FOLDERS = "(.*/)?"
_SPECIAL = re.compile(r"[*?\[\]\\^]")

# Character classes in Go's regular expressions (https://pkg.go.dev/regexp/syntax).
_SETS = {"d": "0-9", "s": r"\t\n\f\r ", "w": "0-9A-Za-z_", "D": "^0-9", "S": r"^\t\n\f\r ", "W": "^0-9A-Za-z_"}
_CONTROLS = {"a": "\a", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_POSIX = {
    **{"alnum": "0-9A-Za-z", "alpha": "A-Za-z", "ascii": r"\x00-\x7f", "blank": r"\t ", "cntrl": r"\x00-\x1f\x7f"},
    **{"digit": "0-9", "graph": "!-~", "lower": "a-z", "print": " -~", "punct": r"!-/:-@\[-`{-~"},
    **{"space": r"\t\n\v\f\r ", "upper": "A-Z", "word": "0-9A-Za-z_", "xdigit": "0-9A-Fa-f"},
}


@dataclass(frozen=True)
class _Rule:
    negated: bool
    pattern: str
    matches: Callable[[str], bool]

    def may_match_below(self, directory: str) -> bool:
        special = _SPECIAL.search(self.pattern)
        if special is None:
            return self.pattern.startswith(directory)
        literal = self.pattern[: special.start()]
        return literal.startswith(directory) or directory.startswith(literal)


class IgnoreRules:
    """An ordered list of patterns.

    >>> rules = IgnoreRules.parse("**/*.pyc\\nbuild\\n!build/keep")
    >>> [rules.ignores(p) for p in ("a/b.pyc", "build/x", "build/keep", "a.py")]
    [True, True, False, False]
    """

    def __init__(self, rules: list[_Rule]) -> None:
        self._rules = rules
        self._exceptions = [rule for rule in rules if rule.negated]

    @staticmethod
    def parse(text: str, *, origin: str = TORCHX_IGNORE) -> IgnoreRules:
        """Parse an ignore file; the SpecError for a malformed pattern has ``origin`` and the line number."""
        rules = []
        for number, line in enumerate(text.removeprefix("\ufeff").split("\n"), start=1):
            if line.startswith("#") or not line.strip(_SPACE):
                continue
            try:
                rules.append(_rule(line.strip(_SPACE)))
            except (re.error, ValueError) as e:
                shown = line.strip(_SPACE)
                raise SpecError(f"`{shown}` is not an ignore pattern ({origin}:{number}): {e}") from e
        return IgnoreRules(rules)

    def ignores(self, path: str) -> bool:
        """Return whether a path, relative to the workspace and with ``/`` between its parts, is ignored."""
        parts = path.split("/")
        ignored, seen = False, None
        for n in range(1, len(parts) + 1):
            ignored, seen = self.step(seen, "/".join(parts[:n]))
        return ignored

    def step(self, above: tuple[bool, ...] | None, path: str) -> tuple[bool, tuple[bool, ...]]:
        """One step of a walk: returns whether ``path`` is ignored, and the matches to pass on to its contents.

        ``above`` are those of its directory; None at the root.
        As in Docker's walk, a pattern that cannot change the result for a directory is not tried on it, and then does
        not cover its contents: after ``a``, ``!a/b``, a second ``a`` does not exclude ``a/b`` again.
        """
        ignored = False
        seen = []
        for i, rule in enumerate(self._rules):
            match = above is not None and above[i]
            if not match and rule.negated == ignored:
                match = rule.matches(path)
            if match:
                ignored = not rule.negated
            seen.append(match)
        return ignored, tuple(seen)

    def may_include_below(self, directory: str) -> bool:
        """Return whether something below an ignored directory may be included again, so it has to be walked."""
        prefix = f"{directory}/"
        return any(rule.may_match_below(prefix) for rule in self._exceptions)


def _rule(line: str) -> _Rule:
    # Docker cleans twice, when it reads the file and when it compiles the patterns, and so must we: only the first
    # cleaning moves a blank to the end, as in "a /", or an exclamation mark to the start, as in "/!a".
    negated = line.startswith("!")
    pattern = line[negated:].strip(_SPACE)
    if pattern:
        pattern = _clean(pattern)
        pattern = pattern if pattern == "/" else pattern.removeprefix("/")
    pattern = _clean(f"{'!' * negated}{pattern}".strip(_SPACE))
    if pattern == "!":
        raise ValueError("it names nothing to keep")
    negated = pattern.startswith("!")
    pattern = pattern[negated:]
    return _Rule(negated, pattern, _matcher(pattern))


def _clean(path: str) -> str:
    clean = posixpath.normpath(path)
    # Python keeps two leading slashes, Go does not.
    return clean[1:] if clean.startswith("//") else clean


def _matcher(pattern: str) -> Callable[[str], bool]:
    special = _SPECIAL.search(pattern.replace("^", ""))
    if special is None:
        return lambda path: path == pattern
    stars, rest = pattern[:2] == "**", pattern[2:]
    if stars and not _SPECIAL.search(rest.replace("^", "")):
        suffix = rest
        return lambda path: path.endswith(suffix) or f"/{path}" == suffix
    if pattern.endswith("**") and not _SPECIAL.search(pattern[:-2].replace("^", "")):
        prefix = pattern[:-2]
        return lambda path: path.startswith(prefix)
    fullmatch = re.compile(_to_regex(pattern)).fullmatch
    return lambda path: fullmatch(path) is not None


def _to_regex(pattern: str) -> str:
    """Return the regular expression that Docker builds from a pattern, in Python's syntax."""
    out: list[str] = []
    i = 0
    while i < len(pattern):
        char = pattern[i]
        i += 1
        if char == "*" and pattern[i : i + 1] == "*":
            i += 1
            i += pattern[i : i + 1] == "/"
            if out[-1:] == [_ANY_FOLDERS]:
                out.pop()  # `**/**` equals `**`, but would backtrack over all folders
            out.append(_ANY_FOLDERS if i < len(pattern) else ".*")
        elif char == "*":
            out.append("[^/]*")
        elif char == "?":
            out.append("[^/]")
        elif char == "\\":
            if i == len(pattern):
                raise ValueError("a backslash with nothing after it")
            out.append("\\" + pattern[i])
            i += 1
        elif char in ".+()|{}$":
            out.append("\\" + char)
        else:
            out.append(char)
    return _from_go("".join(out))


def _from_go(regex: str) -> str:
    """Translate a regular expression from Go's to Python's syntax, for expressions that patterns can produce."""
    out = []
    i = 0
    while i < len(regex):
        char = regex[i]
        i += 1
        if char == "[":
            text, i = _class(regex, i)
            out.append(text)
        elif char == "\\":
            escaped = regex[i]
            i += 1
            members = _members(escaped)
            out.append(
                f"[{members}]" if members else {"A": r"\A", "z": r"\Z", "b": r"(?a:\b)", "B": r"(?a:\B)"}[escaped]
            )
        else:
            out.append(char if char in "^.*?()+" else re.escape(char))
    return "".join(out)


def _class(regex: str, i: int) -> tuple[str, int]:
    negated = regex[i : i + 1] == "^"
    i += negated
    members = []
    first = True
    while first or regex[i : i + 1] != "]":
        if i >= len(regex):
            raise ValueError("`[` without `]`")
        posix = re.compile(r"\[:(\^?)(\w*):\]").match(regex, i)
        if posix:
            if posix[2] not in _POSIX or posix[1]:
                raise ValueError(f"there is no class `{posix[0]}`")
            members.append(_POSIX[posix[2]])
            i = posix.end()
        else:
            low, i = _member(regex, i)
            if regex[i : i + 1] == "-" and regex[i + 1 : i + 2] not in ("", "]"):
                high, i = _member(regex, i + 1)
                low = f"{low}-{high}"
            members.append(low)
        first = False
    return f"[{'^' * negated}{''.join(members)}]", i + 1


def _member(regex: str, i: int) -> tuple[str, int]:
    if regex[i] != "\\":
        return re.escape(regex[i]), i + 1
    if i + 1 >= len(regex):
        raise ValueError("`[` without `]`")
    members = _members(regex[i + 1])
    if not members or members.startswith("^"):
        raise ValueError(f"`\\{regex[i + 1]}` cannot be in a class")
    return members, i + 2


def _members(escaped: str) -> str:
    """Return the characters that ``\\`` and a character match, as written in a class; empty for an assertion."""
    if escaped in _SETS:
        return _SETS[escaped]
    if escaped in _CONTROLS:
        return re.escape(_CONTROLS[escaped])
    if escaped in "AzbB":
        return ""
    if escaped.isalnum() or not escaped.isascii():
        raise ValueError(f"`\\{escaped}` means nothing; write `{escaped}` without the backslash")
    return re.escape(escaped)
