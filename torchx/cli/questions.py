"""What a person at a terminal is asked."""

from __future__ import annotations

import sys
from collections.abc import Callable
from getpass import getpass

from torchx.util.term import is_tty


def ask_a_person() -> Callable[[str], str] | None:
    """What asks a person for a value; None where there is nobody to ask."""
    if not (is_tty(sys.stdin) and is_tty(sys.stderr)):
        return None

    def ask(what: str) -> str:
        return getpass(f"{what} is masked on record; its value: ", stream=sys.stderr)

    return ask


def agreed(question: str) -> bool:
    """Whether a person at the terminal says yes."""
    sys.stderr.write(f"{question}? [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")
