"""Parses INI files in the dialect of ``configparser``, and records the file and line of each value.

A file has sections ``[name]`` with lines ``key = value`` or ``key: value``. Keys are case-sensitive. Lines that begin
with ``#`` or ``;`` are comments. A value continues on lines that are indented deeper than its key. Values of
``[DEFAULT]`` apply to all sections. In a value, ``%(key)s`` is replaced by the value of that key, and ``%%`` by a
percent sign; a single percent sign is kept.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable

from torchx.errors import ConfigError
from torchx.util.records import dataclass, replace

DEFAULT_SECTION = "DEFAULT"
_DEEPEST = 10  # as in configparser


@dataclass
class Entry:
    """One value, and its file and line."""

    text: str
    path: str
    line: int

    def where(self) -> str:
        """File and line, with a short path: ``~/.torchxconfig:12``."""
        return f"{short_path(self.path)}:{self.line}"


class Section(dict[str, Entry]):
    """The values of a section by key, and the file and line of its head."""

    def __init__(self, path: str, line: int) -> None:
        super().__init__()
        self.path = path
        self.line = line

    def where(self) -> str:
        """File and line of the section's head."""
        return f"{short_path(self.path)}:{self.line}"


Sections = dict[str, Section]


def read(path: str) -> Sections:
    """Read the sections of a file; raise ConfigError if it cannot be read, is not UTF-8, or is malformed."""
    try:
        with open(path, encoding="utf-8-sig") as file:
            lines = file.readlines()
    except OSError as e:
        raise ConfigError(f"the config file `{path}` cannot be read: {e.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"the config file `{path}` is not UTF-8 text") from None
    return interpolated(parse(lines, path))


def interpolated(sections: Sections) -> Sections:
    """Replace ``%(key)s`` and ``%%`` in the values of parsed sections, and return them."""
    for section in sections.values():
        marked = [(key, entry) for key, entry in section.items() if "%" in entry.text]
        section.update({key: replace(entry, text=_interpolated(entry, section)) for key, entry in marked})
    return sections


def _interpolated(entry: Entry, section: Section, depth: int = 0) -> str:
    import re

    def value(found: re.Match[str]) -> str:
        if found[1] is None:
            return "%"
        if found[1] not in section or depth > _DEEPEST:
            what = "refers to itself" if found[1] in section else "is not a key of its section"
            raise ConfigError(
                f"{entry.where()}: `{found[0]}` {what}",
                hint=f"give `{found[1]}` a value here or in `[DEFAULT]`, or write `%{found[0]}` to mean the text",
            )
        return _interpolated(section[found[1]], section, depth + 1)

    return re.sub(r"%(?:%|\(([^()]+)\)s)", value, entry.text)


def parse(lines: Iterable[str], path: str) -> Sections:
    """Parse the sections of a text; ``path`` is used only in error messages.

    Raises:
        ConfigError: a line is malformed; the message begins with ``path:line``.

    >>> parse(["[slurm]", "time = 1:00", "; a comment", "comment: two", "  lines"], "x")["slurm"]["comment"]
    Entry(text='two\\nlines', path='x', line=4)
    """
    sections: Sections = {}
    section: Section | None = None
    value: list[str] | None = None  # lines of the value that may continue
    values: list[tuple[Entry, list[str]]] = []
    key_indent = sys.maxsize
    for number, line in enumerate(lines, start=1):
        if "\0" in line:
            raise ConfigError(f"{path}:{number}: there is a NUL character in it", hint="a config file is plain text")
        text = line.strip()
        if text[:1] in ("#", ";"):
            continue
        if not text:
            if value is not None:
                value.append("")  # an empty line within a value belongs to it
            continue
        indent = len(line) - len(line.lstrip())
        if value is not None and indent > key_indent:
            value.append(text)
            continue
        key_indent, value = indent, None
        if text.startswith("[") and (end := text.rfind("]")) > 1:
            name = text[1:end]
            if name in sections and name != DEFAULT_SECTION:
                raise _malformed(path, number, f"section `[{name}]` appears twice")
            section = sections.setdefault(name, Section(path, number))
            continue
        key, content = _key_and_value(text, path, number, in_section=section is not None)
        if section is None or key in section:
            raise _malformed(path, number, f"`{key}` appears twice in its section")
        value = [content]
        section[key] = Entry("", path, number)
        values.append((section[key], value))
    for entry, parts in values:
        entry.text = "\n".join(parts).rstrip()
    for key, entry in sections.pop(DEFAULT_SECTION, {}).items():
        for section in sections.values():
            section.setdefault(key, entry)
    return sections


def short_path(path: str) -> str:
    """Shortens an absolute path: relative to the current directory, or with ``~``."""
    absolute = os.path.abspath(path)
    for root, prefix in ((os.getcwd(), ""), (os.path.expanduser("~"), "~/")):
        if absolute.startswith(root.rstrip("/") + "/"):
            return prefix + absolute[len(root.rstrip("/")) + 1 :]
    return absolute


def _key_and_value(text: str, path: str, number: int, *, in_section: bool) -> tuple[str, str]:
    at = min((i for i in (text.find("="), text.find(":")) if i >= 0), default=-1)
    if at < 0:
        raise _malformed(path, number, f"`{text}` is not of the form `key = value`")
    key = text[:at].strip()
    if not key:
        raise _malformed(path, number, f"`{text}` has no key")
    if not in_section:
        raise _malformed(path, number, f"`{key}` appears before the first `[section]`")
    return key, text[at + 1 :].strip()


def _malformed(path: str, line: int, what: str) -> ConfigError:
    return ConfigError(
        f"{short_path(path)}:{line}: {what}",
        hint="a config file has sections `[scheduler]` with lines `key = value` in them",
    )
