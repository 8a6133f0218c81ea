"""The text form of run options: ``name=value,list=x;y,dict=K:v``."""

from __future__ import annotations

from torchx.errors import ConfigError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from torchx.specs.runopts import CfgVal

TRUE = ("true", "1", "yes", "on")
FALSE = ("false", "0", "no", "off")


def split_options(text: str, known: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The options of a literal: name and text of the value, quotes and all.

    Args:
        text: the literal.
        known: the options there are: what follows a ``;`` is a new option only if it begins with one of their names.

    Raises:
        ConfigError: text before the first name.
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
    """The literal of options, the inverse of splitting and casting."""
    return ",".join(f"{name}={_literal(value)}" for name, value in cfg.items() if value is not None)


def cast(text: str, tp: Any) -> CfgVal:
    """The value of type ``tp`` that ``text`` stands for.

    Raises:
        ConfigError: it stands for none.

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
    """The pieces of a text, each with the separator before it. One in quotes does not divide.

    Args:
        marks: what ends a name: quotes stand around a whole piece, or begin behind a mark.

    >>> [piece for _, piece in pieces("a='1,2',b,\\"c;d\\"")]
    ["a='1,2'", 'b', '"c;d"']
    """
    separator = ""
    start = i = 0
    opening = True  # a quote here would open a value or an item, it is not just a character in it
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
    """The text without the quotes around it, if there are any; a backslash in them keeps a quote or a backslash.

    >>> unquote('"a, b"'), unquote("it's")
    ('a, b', "it's")
    """
    if len(text) < 2 or _closing_quote(text, 0) != len(text) - 1:
        return text
    import re

    return re.sub(rf"\\([\\{text[0]}])", r"\1", text[1:-1])


def _closing_quote(text: str, start: int, after: str = ",;:=") -> int:
    """Where the quote that opens at ``start`` closes; 0 when it does not, or closes in the middle of a word.

    Args:
        after: what may stand behind it, if it is not the end.
    """
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
