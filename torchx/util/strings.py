"""Suggestions for typos, safe names, and formatting of sizes and charts."""

from __future__ import annotations

from collections.abc import Iterable


def nearest(word: str, choices: Iterable[str], cutoff: float = 0.6) -> str | None:
    """Return the choice that is most similar to ``word``, or None if no similarity (0 to 1) reaches ``cutoff``.

    >>> nearest("dist.dpp", ["dist.ddp", "utils.echo"])
    'dist.ddp'
    >>> nearest("zzz", ["dist.ddp"]) is None, nearest("--gpu", ["--log"]) is None
    (True, True)
    """
    import difflib

    pool = list(choices)
    # Without the dashes of options, in which any two of them are similar.
    folded = {c.lower().lstrip("-").replace("-", "_"): c for c in reversed(pool)}
    close = difflib.get_close_matches(word.lower().lstrip("-").replace("-", "_"), folded, n=1, cutoff=cutoff)
    if close:
        return folded[close[0]]
    # `echo` for `utils.echo`
    tails = [c for c in pool if c.rpartition(".")[2] == word]
    return tails[0] if len(tails) == 1 else None


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """Return the hint for a typo, or an empty string."""
    found = nearest(word, choices)
    return f"did you mean `{found}`?" if found else ""


def normalize_str(data: str) -> str:
    """Convert ``data`` to a name of lower-case letters, digits and inner dashes or dots that starts with a letter.

    >>> normalize_str("My_Job 7/é")
    'my-job-7'
    """
    import re

    text = re.sub(r"[^a-z0-9.]+", "-", data.lower())
    return re.sub(r"^[^a-z]+|[^a-z0-9]+$", "", text)


def whole(value: object) -> int | None:
    """Return a count, of steps for example, that a program gave in any form; None if it is none.

    >>> whole("7"), whole(7.0), whole("7.5e3"), whole(-1), whole("x"), whole(float("nan")), whole(10**400)
    (7, 7, 7500, None, None, None, None)
    """
    try:
        number = int(float(value))  # type: ignore[arg-type]
    except (ValueError, TypeError, ArithmeticError, RuntimeError):  # RuntimeError: of PyTorch
        return None
    return number if 0 <= number < 1 << 53 else None


def size_text(count: float) -> str:
    """Format a number of bytes.

    >>> size_text(512), size_text(3_435_973_837), size_text(80 * 2**30)
    ('512 B', '3.2 GiB', '80 GiB')
    """
    for unit in ("B", "KiB", "MiB", "GiB", "TiB", "PiB"):
        if count < 1000 or unit == "PiB":
            break
        count /= 1024
    return f"{count:.1f} {unit}" if count < 10 and count % 1 >= 0.05 and unit != "B" else f"{count:.0f} {unit}"


def parse_size(text: str) -> int:
    """Return the bytes for ``627808K``, ``4Gn`` or ``1.5 Gbytes``; 0 for other text, as ``16?`` for an unknown size.

    >>> parse_size("2K"), parse_size("1.5 Gbytes"), parse_size("-"), parse_size("16?")
    (2048, 1610612736, 0, 0)
    """
    import re

    found = re.fullmatch(r"(\d{1,15}(?:\.\d+)?)\s*([KMGTP]?)(?:[bB](?:ytes)?|[nc])?", text.strip())
    return int(float(found[1]) * 1024 ** " KMGTP".index(found[2] or " ")) if found else 0


_BARS = "▁▂▃▄▅▆▇█"


def sparkline(values: list[float], room: int, most: float = 0.0) -> str:
    """Draw the values as bars in ``room`` characters, each the maximum of several values if there is less room.

    A full bar is ``most``, or the maximum of the values.

    >>> sparkline([0, 1, 2, 4, 8], 8), sparkline([1, 9, 1, 1], 2), sparkline([50], 4, most=100)
    ('▁▁▂▄█', '█▁', '▄')
    """
    if room <= 0:
        return ""
    if len(values) > room:
        values = [max(values[i * len(values) // room : (i + 1) * len(values) // room]) for i in range(room)]
    top = most or max(values, default=0.0)
    last = len(_BARS) - 1
    return "".join(_BARS[min(int(value / top * len(_BARS) - 1e-9), last)] if top > 0 else _BARS[0] for value in values)
