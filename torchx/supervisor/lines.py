"""Lines that are too long to be held: where they may be cut."""

from __future__ import annotations

LONG_LINE = 1 << 20
"""A line of more bytes than this is passed on in pieces: progress bars without line ends, binary data."""


class Part(bytes):
    """A piece of a line: more of it follows."""


def whole_characters(data: bytes) -> int:
    r"""How many of the first bytes to take so that neither a character of UTF-8 nor ``\r\n`` is cut.

    What is not UTF-8 may be cut anywhere. 0 only where all there is is the beginning of a character.

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
