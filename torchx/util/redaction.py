"""Secret values that this process knows, and their masking in its output."""

from __future__ import annotations

MASK = "********"
_MIN_CHARS = 6
_known: dict[str, bytes] = {}  # longest first


def learn(value: str) -> None:
    """Mask a value from now on, line by line, except for lines of less than six characters, which are too common.

    >>> learn("sesame open")
    >>> redact('say "sesame open"')
    'say "********"'
    >>> forget()
    """
    new = dict(_known)
    for line in value.splitlines():
        if len(line) >= _MIN_CHARS:
            forms = {line, *(_as_json(line) if not line.isalnum() else ())}
            new.update((form, form.encode("utf-8", "surrogateescape")) for form in forms)
    if len(new) > len(_known):
        ordered = sorted(new.items(), key=lambda item: -len(item[0]))
        _known.clear()
        _known.update(ordered)


def forget() -> None:
    """Forget all values."""
    _known.clear()


def knows_any() -> bool:
    """Whether there are values to mask."""
    return bool(_known)


def redact(text: str) -> str:
    """Return ``text`` with all known values masked."""
    for value in _known:
        text = text.replace(value, MASK)
    return text


class Redactor:
    """Masks values in the blocks of a stream, even values that span two blocks.

    >>> learn("sesame open")
    >>> stream = Redactor()
    >>> stream.block(b"say: sesame", more=True), stream.block(b" open!", more=False)
    (b'say: ', b'********!')
    >>> forget()
    """

    def __init__(self) -> None:
        self._held = b""

    def block(self, data: bytes, *, more: bool) -> bytes:
        """Mask the next block. If ``more`` continues its last line, a possible start of a value is held back."""
        if self._held:
            data, self._held = self._held + data, b""
        for value in _known.values():
            data = data.replace(value, MASK.encode())
        if more and (length := max((_overlap(data, value) for value in _known.values()), default=0)):
            data, self._held = data[:-length], data[-length:]
        return data


def _overlap(data: bytes, value: bytes) -> int:
    """Return how many bytes at the end of ``data`` are the start of ``value``."""
    return next((n for n in range(min(len(data), len(value) - 1), 0, -1) if data.endswith(value[:n])), 0)


def _as_json(line: str) -> tuple[str, str]:
    import json

    return json.dumps(line)[1:-1], json.dumps(line, ensure_ascii=False)[1:-1]
