"""Splits lines that are too long to hold in memory."""

from __future__ import annotations

LONG_LINE = 1 << 20
"""Lines longer than this, in bytes, are passed on in parts: progress bars without line ends, binary data."""


class Part(bytes):
    """A part of a line, which continues in the next block."""


def whole_characters(data: bytes) -> int:
    r"""Return the length of the longest prefix that splits neither a UTF-8 character nor ``\r\n``.

    Data that is not UTF-8 may be split anywhere. 0 only if the data is the beginning of a single character.

    >>> whole_characters("é".encode()), whole_characters("aé".encode()[:2]), whole_characters(b"a\r")
    (2, 1, 1)
    """
    end = len(data)
    if data.endswith(b"\r"):
        return end - 1
    for back in range(1, min(end, 3) + 1):
        byte = data[end - back]
        if byte < 0x80:
            break
        if byte >= 0xC0:
            length = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return end - back if length > back else end
    return end
