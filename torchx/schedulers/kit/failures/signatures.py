"""The table of signatures: what is known about the words of failures, and how a row is found for a text.

A row is data, with an example that is its own test; a new signature needs no code. Rows come from the section
``[failures]`` of the config files, from plugins (entry-point group ``torchx.failures``) and from :mod:`.rows`, in this
order. The first row that matches counts; among the words of systems, the classes come in the order of
:data:`_SAID_ORDER`. Which place is searched first is decided in :mod:`.classes`.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from torchx.errors import ConfigError
from torchx.plugins import FAILURES, load_group
from torchx.schedulers.kit.failures.row import PLACES, SYSTEM, Row, compiled
from torchx.schedulers.kit.failures.rows import ROWS
from torchx.specs.configured import failures
from torchx.specs.wishes.retries import CLASSES as RETRIED
from torchx.util.notices import logger

CLASSES = (*RETRIED, "cancelled")
# fmt: off
_SAID_ORDER = ("lost", "oom", "image", "preempted", "timeout", "node", "network", "quota", "error", "unknown",
               "cancelled")
# fmt: on


class Match(NamedTuple):
    """A row and the words that it matched; ``decided`` if they determined the class."""

    row: Row
    line: str
    decided: bool = True


_matches: list[Match] | None = None


def rows(where: str) -> Sequence[Row]:
    """Return the rows of a place, in order of precedence."""
    return _by_place()[where]


def first(where: str, line: str) -> Row | None:
    """Return the first row that matches a line or exception."""
    if _words(where).search(line) is None:
        return None
    return next((row for row in rows(where) if row.search(line)), None)


def in_lines(where: str, lines: Sequence[str]) -> Iterator[tuple[Row, int]]:
    """Yield the matches in some lines, each with the index of its line: row by row, in order of precedence."""
    whole = "\n".join(lines)
    for row in rows(where):
        if row.text in whole:
            yield from ((row, at) for at, line in enumerate(lines) if row.search(line))


def note(row: Row, line: str, *, decided: bool = True) -> None:
    """Keep a match for the caller of :func:`explained`."""
    if _matches is not None and Match(row, line) not in _matches:
        if (before := Match(row, line, decided=False)) in _matches:
            _matches.remove(before)
        _matches.append(Match(row, line, decided))


def note_all(where: str, lines: Sequence[str]) -> None:
    """Keep all matches in these lines, decisive or not, if somebody asked for them."""
    for row, at in in_lines(where, lines) if _matches is not None else ():
        note(row, lines[at], decided=False)


@contextmanager
def explained() -> Iterator[list[Match]]:
    """Collect the rows that match within the ``with`` block, the decisive ones first in each failure."""
    global _matches
    before, _matches = _matches, []
    try:
        yield _matches
    finally:
        _matches = before


def parse_row(name: str, text: str) -> Row:
    """Return a row of a site: ``CLASS[:aftermath] PLACE PATTERN``.

    Raises:
        ConfigError: it has another form, an unknown class or place, or no valid regular expression.

    >>> row = parse_row("fabric", "node line fabric manager (?:down|lost)")
    >>> row.kind, row.where, bool(row.search("n3: fabric manager lost"))
    ('node', 'line', True)
    """
    kind, _, rest = text.strip().partition(" ")
    where, _, pattern = rest.strip().partition(" ")
    kind, colon, mark = kind.partition(":")
    pattern = pattern.strip()
    hint = f"write `{name} = CLASS PLACE PATTERN`, for example `node line fabric manager lost`"
    if kind not in CLASSES or mark not in ("", "aftermath") or (colon and not mark):
        raise ConfigError(
            f"[failures] `{name}`: `{kind}{colon}{mark}` is not a class", hint=f"{', '.join(CLASSES)}; {hint}"
        )
    if where not in PLACES or not pattern:
        raise ConfigError(
            f"[failures] `{name}`: `{where}` is not a place with a pattern", hint=f"{', '.join(PLACES)}; {hint}"
        )
    try:
        re.compile(pattern)
    except re.error as e:
        raise ConfigError(f"[failures] `{name}`: `{pattern}` is not a regular expression: {e}", hint=hint) from e
    return Row(kind, where, "", pattern, bool(mark), name=name)


def _of_site() -> Iterator[Row]:
    """Yield the rows of the config and of plugins; one that is wrong is skipped, with a warning."""
    told: dict[str, str | Iterable[Row] | Callable[[], Iterable[Row]]] = {**failures(), **(load_group(FAILURES) or {})}
    for name, value in told.items():
        try:
            found = [parse_row(name, value)] if isinstance(value, str) else list(value() if callable(value) else value)
            for row in found:
                if not isinstance(row, Row) or row.where not in PLACES or row.kind not in ("", *CLASSES):
                    raise ConfigError(f"plugin `{name}`: `{row}` is not a signature")
                compiled(row.pattern)
        except (ConfigError, TypeError, re.error) as e:
            logger("torchx.failures").warning("%s; it has no effect", e)
        else:
            yield from found


@functools.cache
def _words(where: str) -> re.Pattern[str]:
    """Return what every match of a place has, so that most lines are looked at once only."""
    return re.compile("|".join({re.escape(row.text) for row in rows(where)}))


@functools.cache
def _by_place() -> dict[str, list[Row]]:
    every = [*_of_site(), *ROWS]
    found = {where: [row for row in every if row.where == where] for where in PLACES}
    found[SYSTEM].sort(key=lambda row: (not row.name, _SAID_ORDER.index(row.kind)))  # a site's own come first
    return found
