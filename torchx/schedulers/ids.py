"""Short unique names for jobs, without vowels so that they spell no words."""

from __future__ import annotations

import os

START_CANDIDATES = "bcdfghjklmnpqrstvwxz"
END_CANDIDATES = START_CANDIDATES + "012345679"

_LENGTH = 14
# Translation tables from random bytes to characters. Some characters are drawn slightly more often; this costs
# 0.001 bits of randomness each.
_START = (START_CANDIDATES * 13)[:256].encode()
_END = (END_CANDIDATES * 9)[:256].encode()


def random_uint64() -> int:
    """Return a random 64-bit number from the system's generator, so that forked processes draw different ones."""
    return int.from_bytes(os.urandom(8), "big")


def random_id(max_length: int | None = None) -> str:
    """Return a random id that starts with a letter.

    Args:
        max_length: length of the id in characters; None: 14, which is 67 bits of randomness.

    Raises:
        ValueError: ``max_length`` is below 1.

    >>> len(random_id(5)), random_id()[0] in START_CANDIDATES
    (5, True)
    """
    if max_length is not None and max_length < 1:
        raise ValueError(f"`max_length` must be 1 or more, not `{max_length}`")
    drawn = os.urandom(max_length or _LENGTH)
    return (drawn[:1].translate(_START) + drawn[1:].translate(_END)).decode()


def make_unique(name: str, string_length: int = 0) -> str:
    """``name``, a dash and a random id.

    Args:
        string_length: characters of the id; 0: the default length of :func:`random_id`.

    >>> make_unique("train", 4).startswith("train-"), len(make_unique("train", 4))
    (True, 10)
    """
    return f"{name}-{random_id(string_length or None)}"
