"""Which small changes can be made to a script of bash: one comparison, test, number, command or operator each."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator

from tests.mutation.changes import Change

_HIDDEN = "\x7f"  # stands for what is text: comments, quotes, names in ${...}
_COMPARISONS = {"-gt": ["-ge", "-le"], "-ge": ["-gt", "-lt"], "-lt": ["-le", "-ge"], "-le": ["-lt", "-gt"]}
_COMPARISONS |= {"-eq": ["-ne"], "-ne": ["-eq"], "==": ["!="], "!=": ["=="], "=": ["!="], "-z": ["-n"], "-n": ["-z"]}
_ARITHMETIC = {"<": ["<=", ">="], "<=": ["<", ">"], ">": [">=", "<="], ">=": [">", "<"], "==": ["!="], "!=": ["=="]}
_ARITHMETIC |= {"+": ["-"], "-": ["+"], "*": ["/"], "/": ["*"]}
_TEST = re.compile(r"(?<!\S)\[\[?\s(?P<inner>.*?)\s\]\]?(?![^\s;)&|])", re.S)
_COMMAND = re.compile(
    r"(?=(?:^|;|&&|\|\||(?<!=)\(|(?<!\S)(?:then|do|else|\{|!)(?=\s))[ \t]*(?P<command>[A-Za-z_][^;&|(){}\n]*?)[ \t]*"
    r"(?=$|;|&&|\|\||(?<=\s)\}|(?P<closed>\))))",
    re.M,
)
_NO_COMMAND = re.compile(
    r"(if|then|else|elif|fi|for|while|until|do|done|case|esac|in|function|local|declare|shift|return|true|false|"
    r"sleep|torchx_pause)\b"
    r"|\w+(\[[^]]*\])?\+?=\S*(\s+\w+(\[[^]]*\])?\+?=\S*)*$"  # assignments
    r"|\S+\*$"  # patterns of `case`
)
_SPEECH = re.compile(r"\s*(echo|printf)\b.*>&2")
_PAUSE = re.compile(r"\b(sleep|torchx_pause)\b|\bread -\w*t\b|-t \d")


def changes(source: str, path: str = "") -> list[Change]:
    """All changes of a script, in the order of its lines.

    >>> [change.made("f && exit 1") for change in changes("f && exit 1")]
    [': && exit 1', 'f || exit 1', 'f && :', 'f && exit 0', 'f && exit 2']
    """
    code = _code(source)
    found = [
        _made(source, path, kind, start, end, new)
        for kind, start, end, new in _found(code)
        if not _SPEECH.match(code[code.rfind("\n", 0, start) + 1 :].partition("\n")[0])
    ]
    return sorted(set(found), key=lambda change: (change.start, change.end, change.new))


def is_script(source: str) -> bool:
    """Whether bash can read it."""
    return not subprocess.run(["bash", "-n"], input=source.encode(), capture_output=True, check=False).returncode


def _made(source: str, path: str, kind: str, start: int, end: int, new: str) -> Change:
    line = source.count("\n", 0, start) + 1
    first, last = len(source[:start].encode()), len(source[:end].encode())
    return Change(path, line, kind, first, last, new, range(line, line + 1), range(0), ())


def _found(code: str) -> Iterator[tuple[str, int, int, str]]:
    sums = _sums(code)

    def is_sum(at: int) -> bool:
        return any(start <= at < end for start, end in sums)

    yield from _of_conditions(code)
    for match in _TEST.finditer(code):
        yield from _of_test(code, match)
    for start, end in sums:
        for match in re.finditer(r"(?<=\s)([<>]=?|[=!]=|[-+*/])(?=\s)", code[start:end]):
            for new in _ARITHMETIC[match.group()]:
                yield "operator", start + match.start(), start + match.end(), new
    for match in re.finditer(r"(?<![\w$.\-{&>\[:])(\d+)(?![\w.>&*])", code):
        if is_sum(match.start()) or not _PAUSE.search(code[code.rfind("\n", 0, match.start()) + 1 : match.start()]):
            value = int(match.group())
            for other in (value + 1, value - 1)[: 2 if value else 1]:
                yield "constant", match.start(), match.end(), str(other)
    for match in _COMMAND.finditer(code):
        command = match.group("command")
        before = code[: match.start("command")].rstrip()
        is_label = match.group("closed") and " " not in command and not re.search(r"\($|&&$|\|\|$|[^;];$", before)
        if not (is_label or is_sum(match.start("command")) or _NO_COMMAND.match(command)):
            yield "dropped", match.start("command"), match.end("command"), ":"


def _of_conditions(code: str) -> Iterator[tuple[str, int, int, str]]:
    for match in re.finditer(r"&&|\|\|", code):
        yield "and/or", match.start(), match.end(), "||" if match.group() == "&&" else "&&"
    for match in re.finditer(r"(?<=[\s(])!\s+(?=\S)|(?<=\(\()!|(?<=[&|] )!(?=\w)", code):
        yield "not", match.start(), match.end(), ""
    for match in re.finditer(r"(?<![\w$])(if|elif|while|until) (?!!)", code):
        if match.group(1) == "until":
            yield "negated", match.start(), match.end() - 1, "while"
        elif not code.startswith((":", "read "), match.end()):
            yield "negated", match.end(), match.end(), "! "


def _of_test(code: str, test: re.Match[str]) -> Iterator[tuple[str, int, int, str]]:
    start = test.start("inner")
    inner = test.group("inner")
    for match in re.finditer(r"(?<!\S)\(?(?P<sign>-[a-z]+|[=!]?=)(?=\s)", inner):
        at, sign = start + match.start("sign"), match.group("sign")
        for new in _COMPARISONS.get(sign, []):
            yield "comparison", at, at + len(sign), "=" if new == "==" and code[test.start() + 1] != "[" else new
        if re.fullmatch("-[defhLsxr]", sign) and not inner[: match.start("sign")].endswith("! "):
            yield "not", at, at, "! "


def _sums(code: str) -> list[tuple[int, int]]:
    """Where ``((...))`` and ``$((...))`` are."""
    found = []
    for match in re.finditer(r"\(\(", code):
        depth = 0
        for at in range(match.start(), len(code)):
            depth += (code[at] == "(") - (code[at] == ")")
            if not depth:
                if code[at - 1] == ")":
                    found.append((match.end(), at - 1))
                break
    return found


def _code(source: str) -> str:
    """The source with what is text hidden: of the same length, with the same lines."""
    code = list(source)
    _hide(source, code, 0, "")
    return "".join(code)


def _hide(source: str, code: list[str], at: int, until: str) -> int:
    """Hide the text from here until this character, ``"`` included; where it ends."""
    quoted, depth = until == '"', 0
    while at < len(source):
        char = source[at]
        if char == until and not depth:
            return at
        if char == "\\":
            at = _hidden(code, at, at + 2)
        elif source.startswith("$(", at):
            at = _hide(source, code, at + 2, ")") + 1
        elif source.startswith("${", at):
            end = _hide(source, code, at + 2, "}") + 1
            at = _hidden(code, at, end)
        elif char == '"':
            at = _hide(source, code, at + 1, '"') + 1 if not quoted else at + 1
        elif quoted:
            at = _hidden(code, at, at + 1)
        elif char == "'":
            at = _hidden(code, at, source.index("'", at + 1) + 1)
        elif char == "#" and (not at or source[at - 1] in " \t\n;("):
            end = source.find("\n", at)
            at = _hidden(code, at, len(source) if end < 0 else end, " ")
        else:
            if until == ")":
                depth += (char == "(") - (char == ")")
            at += 1
    return at


def _hidden(code: list[str], start: int, end: int, by: str = _HIDDEN) -> int:
    for at in range(start, min(end, len(code))):
        if code[at] != "\n":
            code[at] = by
    return end
