"""Distinguishes ranks that wait in the same line but in different collectives, by PyTorch's Flight Recorder.

Each rank numbers the collectives of a process group. If the ranks agree, equal numbers mean the same operation. A rank
that waits in another collective than most of its group has made an extra call, skipped one, or made a different one.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Any

from torchx.util.records import dataclass, replace

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torchx.schedulers.kit.stacks import RankStack

_WAITS = re.compile(r"^waits in (\w+)")
_ELSEWHERE = ("backward", "wait", "synchronize", "item", "tolist", "cpu")  # these wait for an earlier call
_UNEVEN = ("gather", "scatter", "all_to_all", "alltoall", "barrier")  # sizes may differ between ranks


@dataclass(frozen=True)
class Call:
    """A collective that a rank has called.

    Args:
        group: name of the process group, the same on all of its ranks.
        label: description of that group; empty for the group of all ranks.
        size: of its input, if it is the same on all ranks, such as ``[8]``.
        order: position among all collectives of the rank.
        began: the GPU has begun it, as far as PyTorch records that.
    """

    group: str
    label: str
    op: str
    number: int
    size: str
    is_over: bool
    order: int
    began: bool = False

    @property
    def key(self) -> tuple[str, int, str]:
        """Equal on all ranks of the group if they agree."""
        return (self.op, self.number, self.size)


def told(groups: Any) -> list[Call]:
    """Parse the calls in a probe's output for one rank. Skips invalid ones."""
    found = []
    for group, calls in groups.items() if isinstance(groups, dict) else ():
        for call in calls if isinstance(calls, list) else ():
            try:
                about, op, number, sizes, over, order, *more = call
                size = "" if str(op).startswith(_UNEVEN) or not sizes else ", ".join(map(str, sizes[:2]))
                known = {"default_pg": "", "undefined": str(group).partition(":")[2]}
                label = known.get(str(about), str(about))
                began = bool(more and more[0])
                found.append(Call(str(group), label, str(op), int(number), size, bool(over), int(order), began))
            except (TypeError, ValueError):
                continue
    return sorted(found, key=lambda call: call.order)


def tell_apart(ranks: Sequence[RankStack]) -> list[RankStack]:
    """Add the number of the call in which a rank waits to what it is doing, if that is informative."""
    groups: dict[str, list[tuple[RankStack, Call]]] = {}
    lines: dict[str, set[str]] = {}
    for rank in ranks:
        call = _waits_in(rank)
        lines.setdefault(rank.doing.removeprefix("often "), set()).add(call.group if call else "")
        if call:
            groups.setdefault(call.group, []).append((rank, call))
    changed: dict[int, RankStack] = {}
    for members in groups.values():
        key, most = Counter(call.key for _, call in members).most_common(1)[0]
        usual = next(call for _, call in members if call.key == key)
        begun = any(call.began for _, call in members if call.key == key)
        sized = len({call.size for _, call in members if call.key[:2] == key[:2]}) > 1
        for rank, call in members:
            if most == len(members) and len(lines[rank.doing]) > 1:
                continue  # as in tensor parallelism, where each group has a call of its own in the same line
            is_late = begun and not call.began and call.key == key
            is_odd = is_late or (most * 2 > len(members) and call.key != key)
            doing = _named(rank.doing, call, sized=sized, grouped=len(groups) > 1)
            doing += ", which its GPU has not begun" if is_late else _difference(rank, call, usual) if is_odd else ""
            changed[id(rank)] = replace(rank, doing=doing, is_odd=is_odd)
    return [changed.get(id(rank), rank) for rank in ranks]


def _waits_in(rank: RankStack) -> Call | None:
    """Return the unfinished call in which the main thread waits, else the first unfinished one.

    With NCCL it is the first: a GPU makes the calls in order, and the main thread may be many calls ahead of it.
    """
    match = _WAITS.match(rank.doing)
    open_ = [call for call in rank.calls if not call.is_over]
    if match is None or rank.waiting < 1 or not open_:
        return None
    if open_[0].group.startswith("nccl:"):
        return open_[0]
    return next((call for call in reversed(open_) if call.op == match[1]), open_[0])


def _named(doing: str, call: Call, *, sized: bool, grouped: bool) -> str:
    """Return ``waits in all_reduce #17 at train.py:88``; ``waits in backward for all_reduce #17 at train.py:90``.

    A ``wait()`` for a call made before ``waits for all_reduce #17``.
    """
    of = f" of {call.size}" if sized and call.size else ""
    within = f" in group {call.label}" if grouped and call.label else ""
    which = f"#{call.number}{of}{within}"
    doing = _WAITS.sub(lambda m: f"{m[0]} for {call.op} {which}" if m[1] in _ELSEWHERE else f"{m[0]} {which}", doing)
    return doing.replace("waits in wait for ", "waits for ")


def _difference(rank: RankStack, call: Call, usual: Call) -> str:
    """``, 1 call ahead: its #16 is broadcast``."""
    apart = call.number - usual.number
    if not apart:
        return ""
    text = f", {abs(apart)} call{'s' if abs(apart) > 1 else ''} {'ahead' if apart > 0 else 'behind'}"
    own = next((c for c in rank.calls if (c.group, c.number) == (usual.group, usual.number)), None)
    return f"{text}: its #{own.number} is {own.op}" if own and own.op != usual.op else text
