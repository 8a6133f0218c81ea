"""Names for jobs that nobody else has, short and without vowels that would spell words."""

from __future__ import annotations

import os

START_CANDIDATES = "bcdfghjklmnpqrstvwxz"
END_CANDIDATES = START_CANDIDATES + "012345679"


def random_uint64() -> int:
    """A random number of 64 bits, from the system's generator: forked processes never repeat one another."""
    return int.from_bytes(os.urandom(8), "big")


def random_id(max_length: int | None = None) -> str:
    """A random id that starts with a letter.

    Args:
        max_length: longest id in characters; about 14, all 64 bits of randomness, when None.

    Raises:
        ValueError: ``max_length`` is below 1.

    >>> len(random_id(5)), random_id()[0] in START_CANDIDATES
    (5, True)
    """
    if max_length is not None and max_length < 1:
        raise ValueError(f"`max_length` must be 1 or more, not `{max_length}`")
    number = random_uint64()
    number, digit = divmod(number, len(START_CANDIDATES))
    text = START_CANDIDATES[digit]
    while number and (max_length is None or len(text) < max_length):
        number, digit = divmod(number, len(END_CANDIDATES))
        text += END_CANDIDATES[digit]
    return text


def make_unique(name: str, string_length: int = 0) -> str:
    """``name``, a dash and a random id.

    Args:
        string_length: characters of the id; 0 means :func:`random_id`'s usual length.

    >>> make_unique("train", 4).startswith("train-"), len(make_unique("train", 4))
    (True, 10)
    """
    return f"{name}-{random_id(string_length or None)}"
