"""Values that must not be shown, as this process has learned them: they are masked in all that it prints."""

from __future__ import annotations

MASK = "********"
_LEAST = 6
_known: dict[str, bytes] = {}  # the longest first


def learn(value: str) -> None:
    """Has a value masked from now on, line by line. Lines of less than six characters are too common to be.

    >>> learn("sesame open")
    >>> redact('say "sesame open"')
    'say "********"'
    >>> forget()
    """
    new = dict(_known)
    for line in value.splitlines():
        if len(line) >= _LEAST:
            forms = {line, *(_as_json(line) if not line.isalnum() else ())}
            new.update((form, form.encode("utf-8", "surrogateescape")) for form in forms)
    if len(new) > len(_known):
        ordered = sorted(new.items(), key=lambda item: -len(item[0]))
        _known.clear()
        _known.update(ordered)


def forget() -> None:
    """Forgets all values."""
    _known.clear()


def knows_any() -> bool:
    """Whether there is anything to mask."""
    return bool(_known)


def redact(text: str) -> str:
    """``text`` with the values masked."""
    for value in _known:
        text = text.replace(value, MASK)
    return text


class Redactor:
    """Masks values in the blocks of one stream, those too that a border between two blocks divides.

    >>> learn("sesame open")
    >>> stream = Redactor()
    >>> stream.block(b"say: sesame", more=True), stream.block(b" open!", more=False)
    (b'say: ', b'********!')
    >>> forget()
    """

    def __init__(self) -> None:
        self._held = b""

    def block(self, data: bytes, *, more: bool) -> bytes:
        """The next block, masked.

        Args:
            more: its last line goes on in the next block. What may be the beginning of a value is held back then.
        """
        if self._held:
            data, self._held = self._held + data, b""
        for value in _known.values():
            data = data.replace(value, MASK.encode())
        if more and (length := max((_begun(data, value) for value in _known.values()), default=0)):
            data, self._held = data[:-length], data[-length:]
        return data


def _begun(data: bytes, value: bytes) -> int:
    """How many bytes at the end of ``data`` are the beginning of ``value``."""
    return next((n for n in range(min(len(data), len(value) - 1), 0, -1) if data.endswith(value[:n])), 0)


def _as_json(line: str) -> tuple[str, str]:
    import json

    return json.dumps(line)[1:-1], json.dumps(line, ensure_ascii=False)[1:-1]
