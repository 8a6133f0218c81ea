"""The text form of run options: ``name=value,list=x;y,dict=K:v``."""

from __future__ import annotations

from torchx.errors import ConfigError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from torchx.specs.options.runopts import CfgVal

TRUE = ("true", "1", "yes", "on")
FALSE = ("false", "0", "no", "off")


def split_options(text: str, known: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Split a literal into ``(name, text of the value)`` pairs; quotes are kept.

    After a ``;``, only a name of ``known`` begins a new option. Text before the first name raises ConfigError.
    """
    name = ""
    value = ""
    for separator, piece in pieces(text):
        found, eq, rest = piece.partition("=")
        found = found.strip()
        if eq and _is_name(found) and (separator != ";" or found in known or not name):
            if name:
                yield name, value
            name, value = found, rest
        elif name:
            value += separator + piece
        elif piece.strip():
            raise ConfigError(
                f"run options `{text}` begin with `{piece}`, which is not of the form `name=value`",
                hint="write `a=1,b=x`",
            )
    if name:
        yield name, value


def join_options(cfg: Mapping[str, CfgVal]) -> str:
    """Return the literal of the given options, which ``runopts.cfg_from_str`` reads back; None values are omitted."""
    return ",".join(f"{name}={_literal(value)}" for name, value in cfg.items() if value is not None)


def cast(text: str, tp: Any) -> CfgVal:
    """Convert ``text`` to type ``tp``; raises ConfigError if it is not a value of that type.

    >>> cast("yes", bool), cast("A:1;B:x=y", dict[str, str])
    (True, {'A': '1', 'B': 'x=y'})
    """
    if tp == list[str]:
        return [unquote(item) for item in _items(text)]
    if tp == dict[str, str]:
        return dict(_pair(item, text) for item in _items(text))
    if tp is str:
        return unquote(text)
    plain = unquote(text.strip())
    if tp is bool:
        return _bool(plain)
    try:
        number: int | float = tp(plain)
    except ValueError:
        what = "a whole number" if tp is int else "a number"
        raise ConfigError(f"`{plain}` is not {what}") from None
    return number


def _bool(text: str) -> bool:
    if text.lower() in TRUE:
        return True
    if text.lower() in FALSE:
        return False
    raise ConfigError(f"`{text}` is not true or false", hint="write `true` or `false`")


def _items(text: str) -> list[str]:
    return [piece.strip() for _, piece in pieces(text) if piece.strip()]


def _pair(item: str, text: str) -> tuple[str, str]:
    end = _closing_quote(item, 0)
    start = end + 1 if end else 0
    at = min((i for i in (item.find(":", start), item.find("=", start)) if i >= 0), default=-1)
    if at < 0:
        raise ConfigError(f"`{item}` in `{text}` is not of the form `KEY:value`", hint="write `KEY:value;KEY2:value2`")
    return unquote(item[:at].strip()), unquote(item[at + 1 :].strip())


def _is_name(text: str) -> bool:
    return bool(text) and text.replace("_", "a").replace("-", "a").replace(".", "a").isalnum()


def pieces(text: str, separators: str = ",;", marks: str = "=:") -> Iterator[tuple[str, str]]:
    """Split a text at separators outside of quotes; yields ``(preceding separator, piece)``.

    A quote opens at the start of a piece or after one of ``marks``, which end a name.

    >>> [piece for _, piece in pieces("a='1,2',b,\\"c;d\\"")]
    ["a='1,2'", 'b', '"c;d"']
    """
    separator = ""
    start = i = 0
    opening = True  # whether a quote at this position would open a quoted value
    while i < len(text):
        char = text[i]
        if opening and char in "'\"":
            i = (_closing_quote(text, i, separators + marks) or i) + 1
            opening = False
            continue
        if char in separators:
            yield separator, text[start:i]
            separator, start, opening = char, i + 1, True
        else:
            opening = char in marks or (opening and char.isspace())
        i += 1
    yield separator, text[start:]


def unquote(text: str) -> str:
    r"""Remove the quotes around a text, if any, and unescape ``\\`` and the escaped quote inside.

    >>> unquote('"a, b"'), unquote("it's")
    ('a, b', "it's")
    """
    if len(text) < 2 or _closing_quote(text, 0) != len(text) - 1:
        return text
    import re

    return re.sub(rf"\\([\\{text[0]}])", r"\1", text[1:-1])


def _closing_quote(text: str, start: int, after: str = ",;:=") -> int:
    """Return the index of the quote before the end or one of ``after`` that closes the one at ``start``, or 0."""
    quote = text[start : start + 1]
    if quote not in ("'", '"'):
        return 0
    i = start + 1
    while i < len(text):
        if text[i] == "\\":
            i += 2
            continue
        if text[i] == quote:
            return i if text[i + 1 :].lstrip()[:1] in ("", *after) else 0
        i += 1
    return 0


def _literal(value: CfgVal) -> str:
    if isinstance(value, list):
        return ";".join(_quoted(item) for item in value)
    if isinstance(value, dict):
        return ";".join(f"{_quoted(k)}:{_quoted(v)}" for k, v in value.items())
    return _quoted(value) if isinstance(value, str) else str(value)


def _quoted(text: str) -> str:
    if text and not set(text) & set(",;:='\"\\") and text == text.strip():
        return text
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
