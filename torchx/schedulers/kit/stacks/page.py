"""Renders what the ranks of a job are doing: the summary, then one stack for each group of ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchx.util.term import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torchx.schedulers.kit.stacks import Group, RankStack, Stacks

_MAX_FRAMES = 8
_MAX_HEADS = 12


def page(found: Stacks, gray: Callable[[str], str] = str) -> Iterator[str]:
    """Yield the lines of the page; ``gray`` renders a text dimmed."""
    yield printable(found.sentence)
    hosts = len({rank.host for rank in found.ranks if rank.host}) > 1
    for group in reversed(found.groups):
        yield ""
        heads = list(_heads(group.ranks, hosts=hosts))
        for text, pid in heads[:_MAX_HEADS]:
            yield printable(text) + (gray(f"  pid {pid}") if pid else "")
        if len(heads) > _MAX_HEADS:
            yield f"... in {len(heads) - _MAX_HEADS} more replicas"
        if not (group.ranks[0].why and len(found.groups) == 1 and found.sentence.endswith(group.sentence)):
            yield from map(printable, _body(group))  # otherwise the summary has said it
    for (role, k), why in found.unread.items():
        yield from ("", f"{role}/{k}", f"    {printable(why)}")


def _heads(ranks: Sequence[RankStack], *, hosts: bool) -> Iterator[tuple[str, int]]:
    """Yield a line for each replica with its ranks, and its pid if it has a single rank."""
    from itertools import groupby

    for (role, k, host), members in groupby(ranks, lambda r: (r.role, r.replica, r.host)):
        found = list(members)
        numbers = [rank.rank for rank in found if rank.rank is not None]
        name = f"{role}/{k}" if k >= 0 else role
        name += f" rank{'s' if len(numbers) > 1 else ''} {_ranges(numbers)}" if numbers else ""
        yield f"{name} (node {host})" if hosts and host else name, found[0].pid if len(found) == 1 else 0


def _ranges(numbers: Sequence[int]) -> str:
    """Format numbers as ranges.

    >>> _ranges([0, 1, 2, 5, 7, 8])
    '0-2, 5, 7, 8'
    """
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs)


def _body(group: Group) -> Iterator[str]:
    """Yield what the ranks of a group are doing, and the frames of one of them, innermost first."""
    yield f"    {group.sentence}"
    frames = group.ranks[0].frames
    width = max((len(f.place) for f in frames[:_MAX_FRAMES]), default=0)
    for frame in frames[:_MAX_FRAMES]:
        yield f"      {frame.place:{width}}  {frame.function:16}  {frame.source}".rstrip()
    if len(frames) > _MAX_FRAMES:
        yield f"      ... {len(frames) - _MAX_FRAMES} more"
