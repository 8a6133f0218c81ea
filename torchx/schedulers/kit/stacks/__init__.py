"""Summarizes what the ranks of a job are doing, by the output of :mod:`probe` in each replica.

Frames of PyTorch and the standard library are folded: a stack is reduced to the innermost line of the user's own code,
and the collective in which it waits. In a job that hangs, most ranks wait for the others in a collective. Those that do
not are the suspects.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Any

from torchx.schedulers.kit.stacks.calls import Call, tell_apart, told
from torchx.util.records import dataclass, field

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_SYSTEM = re.compile(
    r"/(site|dist)-packages/torch/|/lib(64)?/python\d[\d.]*/(?!(site|dist)-packages/)|^<frozen |/torchx/distributed/"
)
_LIBRARY = re.compile(r"/(site|dist)-packages/")
_COLLECTIVES = ("/torch/distributed/distributed_c10d.py", "/torch/distributed/nn/functional.py")
_WAITS_IN_C = re.compile(r"\.(wait|synchronize|item|tolist|cpu)\(")  # calls that block without a Python frame
_OFTEN = 0.4
_SPINS = 0.8
_IDLE = 0.2  # a waiting thread uses or wants a processor for less than this share of the time
_PLURAL = {"waits": "wait", "is": "are", "has": "have", "runs": "run"}
_PARTS = 4
_NAMED = 4
_STATES = {"T": "stopped by a signal", "t": "stopped by a debugger", "D": "waiting inside the kernel", "Z": "dead"}


@dataclass(frozen=True)
class Frame:
    """One frame of a stack. ``source``, the text of the line, is empty if it is unknown or not the user's own code."""

    function: str
    file: str
    line: int
    source: str = ""

    @property
    def place(self) -> str:
        """``train.py:88``, with the folder for names such as ``__init__.py``."""
        parts = self.file.rsplit("/", 2)
        short = "/".join(parts[-2:]) if parts[-1] in ("__init__.py", "__main__.py") else parts[-1]
        return f"{short}:{self.line}"


@dataclass(frozen=True, kw_only=True)
class RankStack:
    """What one rank is doing.

    Attributes:
        rank: None for the main process of a replica without ranks.
        state: of its process, as in ``/proc``; empty if there is no process.
        doing: for example ``waits in all_reduce at train.py:88``.
        waiting: the share of samples in which it waited for other ranks.
        busy: it computes: it moves from line to line or uses a processor, and does not wait for others.
        frames: the most frequent stack, innermost frame first, without frames of PyTorch and the standard library.
        by: the tool that read the stack; empty if none could.
        why: the reason why none could.
        calls: the latest collectives of its process groups, in order, from PyTorch's Flight Recorder.
        is_odd: it waits in another call than most ranks of its process group.
    """

    role: str
    replica: int
    rank: int | None
    host: str = ""
    pid: int = 0
    state: str = ""
    doing: str = ""
    waiting: float = 0.0
    busy: bool = False
    frames: Sequence[Frame] = ()
    by: str = ""
    why: str = ""
    calls: Sequence[Call] = ()
    is_odd: bool = False

    @property
    def name(self) -> str:
        """``trainer/1 rank 5``."""
        where = f"{self.role}/{self.replica}"
        return where if self.rank is None else f"{where} rank {self.rank}"


@dataclass(frozen=True)
class Group:
    """Ranks that do the same; ``suspect``: the others seem to wait for them."""

    doing: str
    ranks: Sequence[RankStack]
    suspect: bool = False

    @property
    def sentence(self) -> str:
        """For example ``wait in all_reduce at train.py:88``, or ``cannot be read: py-spy failed``."""
        reasons = {rank.why for rank in self.ranks}
        why = f": {reasons.pop()}" if len(reasons) == 1 and any(reasons) else ""
        if len(self.ranks) == 1:
            return self.doing + why
        return re.sub(r"^(often )?(\w+)", lambda m: (m[1] or "") + _PLURAL.get(m[2], m[2]), self.doing) + why


@dataclass(frozen=True)
class Stacks:
    """What all ranks are doing, the largest group first and suspects last, and why other replicas are ``unread``."""

    groups: Sequence[Group]
    unread: dict[tuple[str, int], str] = field(default_factory=dict)

    @property
    def ranks(self) -> list[RankStack]:
        """All ranks, in order."""
        return sorted((r for g in self.groups for r in g.ranks), key=lambda r: (r.role, r.rank or 0, r.replica))

    @property
    def busy(self) -> bool:
        """Whether ranks compute or are being started, so that the job may be silent without hanging."""
        return any(rank.busy for rank in self.ranks)

    @property
    def sentence(self) -> str:
        """A summary: ``7 of 8 ranks wait in all_reduce at train.py:88; trainer/1 rank 5 is in dataset.py:31``."""
        hosts = len({r.host for r in self.ranks if r.host}) > 1
        total = sum(len(g.ranks) for g in self.groups)
        named = [g for g in self.groups if g.suspect]
        first = [g for g in self.groups if not g.suspect][: max(_PARTS - len(named), 1)]
        shown = [*first, *named][:_PARTS]
        parts = [_say(group, total, hosts=hosts) for group in shown]
        if rest := total - sum(len(g.ranks) for g in shown):
            parts.append(f"{rest} {'is' if rest == 1 else 'are'} elsewhere")
        if self.unread:
            (role, k), why = next(iter(self.unread.items()))
            more = f" and {len(self.unread) - 1} more" if len(self.unread) > 1 else ""
            parts.append(f"{role}/{k}{more} could not be inspected: {why}")
        return "; ".join(parts)


def parse(
    texts: Iterable[tuple[str, int, str, bytes]],
    unread: dict[tuple[str, int], str] | None = None,
    *,
    whole: bool = True,
) -> Stacks:
    """Parse the output of probes.

    ``texts`` has the role, the number of the replica, its host (empty: the one in the output), and the output of its
    probe. ``unread``: replicas without a probe -> why. ``whole``: ranks without a process are reported as missing.
    """
    found, unread, worlds = [], dict(unread or {}), dict[str, int]()
    for role, k, host, text in texts:
        rows = _rows(text)
        if not rows:
            unread[role, k] = "no process of the user runs there"
        for row in rows:
            found.append(_rank(role, k, host, row))
            worlds[role] = max(worlds.get(role, 0), row.get("world_size") or 0)
    for role, world in worlds.items() if whole and not unread else ():
        seen = {r.rank for r in found if r.role == role}
        missing = [n for n in range(world) if n not in seen] if None not in seen else []
        found += [RankStack(role=role, replica=-1, rank=n, doing="has no process") for n in missing[:_NAMED]]
    return Stacks(_grouped(tell_apart(found)), unread)


def probe_text(*py_spy: str) -> str:
    """Return the source of the program to run inside a replica, where py-spy may also be at these paths."""
    from torchx.schedulers.kit.shell import read_script

    return read_script(__file__, "probe.py").replace("BROUGHT: tuple[str, ...] = ()", f"BROUGHT = {py_spy!r}")


# -- one rank ------------------------------------------------------------------------------------------


def _rows(text: bytes) -> list[dict[str, Any]]:
    import json

    rows = []
    for line in text.splitlines():
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(row, dict) and isinstance(row.get("looks"), list) and isinstance(row.get("pid"), int):
            rows.append(row)
    return rows


def _rank(role: str, k: int, host: str, row: dict[str, Any]) -> RankStack:
    state, used, agent = str(row.get("state", "")), float(row.get("busy", 0.0)), bool(row.get("is_agent"))
    trouble = _STATES.get(state, "")
    stopped = trouble if state != "D" else ""
    looks = [_frames(look) for look in row["looks"]]
    calls = told(row.get("calls"))
    still = all(look == looks[0] for look in looks)
    said = [_doing(look, busy=used, pending=still and not all(call.is_over for call in calls)) for look in looks]
    waiting = sum(waits for _, waits in said) / max(len(said), 1)
    moves = used >= _IDLE or not still
    frames: Sequence[Frame] = ()
    if said:
        doing = Counter(text for text, waits in said if waits == (waiting >= _OFTEN)).most_common(1)[0][0]
        frames = _folded(next(look for look, (text, _) in zip(looks, said, strict=True) if text == doing))
        doing = f"often {doing}" if _OFTEN <= waiting < 1 else doing
        if stopped:
            doing = f"is {stopped}, {doing.removeprefix('is ')}"
        elif "data loader" in doing:
            doing += _worker(row.get("workers", ()))
    elif trouble:
        doing = f"is {trouble}"
    else:
        doing = "is in torchrun, without workers" if agent else "cannot be read"
    return RankStack(
        role=role,
        replica=k,
        rank=row.get("rank"),
        host=host or str(row.get("host", "")),
        pid=row["pid"],
        state=state,
        doing=doing,
        waiting=0.0 if stopped else waiting,
        busy=not waiting and (moves or state == "D" or (agent and not trouble)),
        frames=frames,
        by=str(row.get("by", "")),
        why="" if said or trouble else str(row.get("why", "")),
        calls=calls,
    )


def _frames(look: Sequence[Any]) -> list[Frame]:
    return [Frame(str(name), str(file), int(line or 0), *map(str, source)) for name, file, line, *source in look]


def _doing(stack: Sequence[Frame], *, busy: float, pending: bool = False) -> tuple[str, bool]:
    """Return what a rank with this stack is doing, and whether it waits for other ranks.

    Args:
        pending: it stays in this line with an unfinished collective. With NCCL the call returns at once, and whatever
            needs its result waits, often inside a library. The thread uses a processor meanwhile.
    """
    if not stack:
        return "runs no Python code", False
    line = _folded(stack)[0]
    above = stack[: stack.index(line)]
    collectives = [f.function for f in above if f.file.endswith(_COLLECTIVES) and not f.function.startswith("_")]
    if collectives:
        return f"waits in {collectives[-1]} at {line.place}", True
    if any("/torch/utils/data/dataloader.py" in f.file for f in above):
        return f"waits for its data loader at {line.place}", False
    if any("/torch/autograd/" in f.file for f in above):
        waits = busy < _IDLE
        return f"{'waits' if waits else 'is'} in backward at {line.place}", waits
    match = _WAITS_IN_C.search(line.source) if not above else None
    if match:
        return f"waits in {match[1]} at {line.place}", True
    if (above and above[0].function == "synchronize") or (pending and (above or busy > _SPINS)):
        return f"waits in synchronize at {line.place}", True
    called = above[-1].function if above else "_"
    return f"is in {line.place}" if called.startswith(("_", "<")) else f"is in {called} at {line.place}", False


def _worker(workers: Sequence[dict[str, Any]]) -> str:
    """Return what a worker of the data loader is doing, if that explains the wait."""
    if not workers:
        return ", which has no process of its own"
    for worker in workers:
        if state := _STATES.get(str(worker.get("state", ""))):
            return f", whose worker is {state}"
        for frames in map(_frames, worker["looks"]):
            # frames outside of the worker's loop only show how it was started
            loop = next((i for i, f in enumerate(frames) if "/torch/utils/data/_utils/worker.py" in f.file), None)
            if not all(_SYSTEM.search(f.file) for f in frames[:loop]):
                return f", whose worker {_doing(frames, busy=1.0)[0]}"
    return ""


def _folded(stack: Sequence[Frame]) -> list[Frame]:
    """Return the user's frames, else all except those of PyTorch and the standard library, else the outermost one."""
    some = [f for f in stack if not _SYSTEM.search(f.file)]
    return [f for f in some if not _LIBRARY.search(f.file)] or some or list(stack[-1:])


# -- all ranks -----------------------------------------------------------------------------------------


def _grouped(ranks: Sequence[RankStack]) -> list[Group]:
    suspects = _suspects(ranks)
    groups: dict[tuple[bool, str], list[RankStack]] = {}
    for rank in sorted(ranks, key=lambda r: (r.role, r.rank or 0, r.replica)):
        groups.setdefault((id(rank) in suspects, rank.doing.removeprefix("often ")), []).append(rank)
    order = sorted(groups.items(), key=lambda item: (item[0][0], -len(item[1])))
    return [
        Group(Counter(rank.doing for rank in found).most_common(1)[0][0], found, suspect)
        for (suspect, _), found in order
    ]


def _suspects(ranks: Sequence[RankStack]) -> set[int]:
    """Return the ``id`` of each rank for which the others seem to wait."""
    gone = {id(r) for r in ranks if r.state in ("T", "t", "Z", "")}
    most = max((r.waiting for r in ranks), default=0.0)
    if most < _OFTEN:  # no rank waits for others
        apart = {id(r) for r in ranks if "data loader" in r.doing}
    elif any(r.waiting < _OFTEN * most for r in ranks):
        apart = {id(r) for r in ranks if r.waiting < _OFTEN * most}
    else:  # all wait, so those that wait elsewhere than the majority are suspect
        doing = Counter(r.doing.removeprefix("often ") for r in ranks).most_common(1)[0][0]
        odd = {id(r) for r in ranks if r.is_odd}
        apart = odd or {id(r) for r in ranks if r.doing.removeprefix("often ") != doing} if len(ranks) > 2 else set()
        return gone | apart if len(apart) * 2 < len(ranks) else gone
    return gone | apart if len(apart) * 2 <= len(ranks) else gone


def _say(group: Group, total: int, *, hosts: bool) -> str:
    first, count = group.ranks[0], len(group.ranks)
    if count == 1:
        who = first.name if first.replica >= 0 else f"rank {first.rank} of {first.role}"
        who += f" (node {first.host})" if hosts and first.host else ""
    elif count <= _NAMED and group.suspect and count < total:
        who = f"ranks {', '.join(str(r.rank) for r in group.ranks)} of {first.role}"
    else:
        who = f"all {total} ranks" if count == total else f"{count} of {total} ranks"
    return f"{who} {group.sentence}"
