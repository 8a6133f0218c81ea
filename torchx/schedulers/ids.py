"""Names for jobs that nobody else has, short and without vowels that would spell words."""

from __future__ import annotations

import os

START_CANDIDATES = "bcdfghjklmnpqrstvwxz"
END_CANDIDATES = START_CANDIDATES + "012345679"

_LENGTH = 14
# A character for each value of a random byte. Some have one value more than others, which costs 0.001 bits each.
_START = (START_CANDIDATES * 13)[:256].encode()
_END = (END_CANDIDATES * 9)[:256].encode()


def random_uint64() -> int:
    """A random number of 64 bits, from the system's generator: forked processes never repeat one another."""
    return int.from_bytes(os.urandom(8), "big")


def random_id(max_length: int | None = None) -> str:
    """A random id that starts with a letter.

    Args:
        max_length: length of the id in characters; 14, 67 bits of randomness, when None.

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
        string_length: characters of the id; 0 means :func:`random_id`'s usual length.

    >>> make_unique("train", 4).startswith("train-"), len(make_unique("train", 4))
    (True, 10)
    """
    return f"{name}-{random_id(string_length or None)}"
