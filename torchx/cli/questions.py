"""Questions to the user at the terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torchx.cli.failures import UsageError, note
from torchx.util.term import is_tty

YES_HELP = "do not ask for confirmation; the default without a terminal"


def ask_a_person() -> Callable[[str], str] | None:
    """Return a function that asks the user for a masked value; None without a terminal."""
    if not (is_tty(sys.stdin) and is_tty(sys.stderr)):
        return None

    def ask(what: str) -> str:
        from getpass import getpass

        return getpass(f"{what} is masked on record; its value: ", stream=sys.stderr)

    return ask


def agreed(question: str) -> bool:
    sys.stderr.write(f"{question}? [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


@contextmanager
def asking_for_hours(*, yes: bool) -> Iterator[None]:
    """Within the block, ask before a job that could use more GPU-hours than the config files permit."""
    from torchx.runner.launch import hours

    def confirm(text: str) -> None:
        if yes:
            note(text)
        elif not (is_tty(sys.stdin) and is_tty(sys.stderr)) or not agreed(f"{text}. Submit it"):
            raise UsageError(text, hint=hours.HINT)

    hours.confirm = confirm
    try:
        yield
    finally:
        hours.confirm = None
