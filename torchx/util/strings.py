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
