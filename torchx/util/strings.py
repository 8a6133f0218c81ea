"""Text: suggestions for typos, names made safe."""

from __future__ import annotations

from collections.abc import Iterable


def nearest(word: str, choices: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The choice that ``word`` was probably meant to be, or None.

    Args:
        cutoff: how alike they must be, from 0 to 1.

    >>> nearest("dist.dpp", ["dist.ddp", "utils.echo"])
    'dist.ddp'
    >>> nearest("zzz", ["dist.ddp"]) is None
    True
    """
    import difflib

    pool = list(choices)
    folded = {c.lower().replace("-", "_"): c for c in pool}
    close = difflib.get_close_matches(word.lower().replace("-", "_"), folded, n=1, cutoff=cutoff)
    if close:
        return folded[close[0]]
    # `echo` for `utils.echo`: right at the end, but not the whole name
    tails = [c for c in pool if c.rpartition(".")[2] == word]
    return tails[0] if len(tails) == 1 else None


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """The hint for a typo, or an empty string."""
    found = nearest(word, choices)
    return f"did you mean `{found}`?" if found else ""


def normalize_str(data: str) -> str:
    """``data`` as a name of lower-case letters, digits and inner dashes or dots, starting with a letter.

    >>> normalize_str("My_Job 7/é")
    'my-job-7'
    """
    import re

    text = re.sub(r"[^a-z0-9.]+", "-", data.lower())
    return re.sub(r"^[^a-z]+|[^a-z0-9]+$", "", text)


def size_text(count: float) -> str:
    """Bytes as people write them.

    >>> size_text(512), size_text(3_435_973_837), size_text(80 * 2**30)
    ('512 B', '3.2 GiB', '80 GiB')
    """
    for unit in ("B", "KiB", "MiB", "GiB", "TiB", "PiB"):  # the last one is used
        if count < 1000 or unit == "PiB":
            break
        count /= 1024
    return f"{count:.1f} {unit}" if count < 10 and count % 1 >= 0.05 and unit != "B" else f"{count:.0f} {unit}"


_BARS = "▁▂▃▄▅▆▇█"


def sparkline(values: list[float], room: int, most: float = 0.0) -> str:
    """The values as a line of bars, of several the highest where there are more than characters.

    Args:
        most: what a full bar stands for; 0: the highest value.

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
