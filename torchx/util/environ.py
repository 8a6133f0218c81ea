"""Looks environment variables up at the price of a dict's lookup."""

from __future__ import annotations

import os

_IS_POSIX = os.name == "posix"


def variable(name: str) -> str | None:
    """``os.environ.get(name)``, the environment as it is now.

    ``os.environ`` raises and catches two exceptions for each variable that is not set, which is the usual case of most
    that torchx asks for: 1.3 microseconds, and a dry run asks for eight. The dict behind it answers in a tenth.

    >>> variable("PATH") == os.environ["PATH"], variable("NOT_SET_ANYWHERE")
    (True, None)
    """
    if _IS_POSIX:
        try:
            value = os.environ._data.get(name.encode("ascii"))  # type: ignore[attr-defined]  # it is CPython's own
        except (AttributeError, UnicodeEncodeError):
            pass  # another Python, a plain dict in the place of `os.environ`, or a name with an umlaut
        else:
            return None if value is None else os.fsdecode(value)
    return os.environ.get(name)


def home() -> str:
    """``os.path.expanduser("~")``, the environment as it is now.

    >>> home() == os.path.expanduser("~")
    True
    """
    found = variable("HOME")
    return found.rstrip("/") or "/" if found else os.path.expanduser("~")
