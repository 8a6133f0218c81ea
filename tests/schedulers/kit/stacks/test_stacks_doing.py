"""What one rank is said to do, for whom the others seem to wait, and how the summary counts: tables with all rows."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.schedulers.kit.stacks.test_stacks_sentence import (
    BACKWARD,
    COMPUTE,
    IDLE,
    LOAD,
    MAIN,
    READ,
    TORCH,
    WORKER,
    collective,
    row,
)
from torchx.schedulers.kit.stacks import Frame, Group, RankStack, Stacks, parse

WAIT = collective()


def one(*looks: list[list[Any]], **more: Any) -> RankStack:
    """The only rank of a job."""
    text = json.dumps(row(0, *looks, world=1, **more)).encode()
    (found,) = parse([("w", 0, "", text)]).ranks
    return found


LIBRARY = ["f", "/venv/lib/python3.11/site-packages/lib/a.py", 3]
SYSTEM = ["get", "/usr/lib/python3.11/queue.py", 171]


@pytest.mark.parametrize(
    ("stack", "said"),
    [
        ([], "runs no Python code"),
        ([["f", "/app/model/__init__.py", 3]], "is in model/__init__.py:3"),
        ([["f", "/app/model/__main__.py", 3]], "is in model/__main__.py:3"),
        ([["f", "__init__.py", 3]], "is in __init__.py:3"),
        ([["f", "train.py", None]], "is in train.py:0"),
        ([LIBRARY, MAIN], "is in f at train.py:120"),
        ([LIBRARY], "is in a.py:3"),
        ([SYSTEM, LIBRARY], "is in get at a.py:3"),
        ([SYSTEM, ["<module>", "<frozen runpy>", 88]], "is in get at <frozen runpy>:88"),
        ([SYSTEM, ["_g", "/usr/lib/python3.11/x.py", 1], MAIN], "is in train.py:120"),
        ([["<lambda>", "/usr/lib/python3.11/x.py", 1], MAIN], "is in train.py:120"),
        ([SYSTEM, ["run", "/usr/lib/python3.11/x.py", 1], MAIN], "is in run at train.py:120"),
        (WAIT, "waits in all_reduce at train.py:88"),
        ([["all_reduce", f"{TORCH}/distributed/nn/functional.py", 1], MAIN], "waits in all_reduce at train.py:120"),
        ([["_wait", f"{TORCH}/distributed/distributed_c10d.py", 1], MAIN], "is in train.py:120"),
        ([["barrier", f"{TORCH}/distributed/distributed_c10d.py", 1], *WAIT], "waits in all_reduce at train.py:88"),
        ([["all_reduce", f"{TORCH}/distributed/other.py", 1], MAIN], "is in all_reduce at train.py:120"),
        ([[*MAIN, "x = loss.item()"]], "waits in item at train.py:120"),
        ([[*MAIN, "work.wait()"]], "waits in wait at train.py:120"),
        ([[*MAIN, "x = item"]], "is in train.py:120"),
        ([SYSTEM, [*MAIN, "x = loss.item()"]], "is in get at train.py:120"),
        ([["synchronize", f"{TORCH}/cuda/__init__.py", 1], MAIN], "waits in synchronize at train.py:120"),
        ([SYSTEM, ["synchronize", f"{TORCH}/cuda/__init__.py", 1], MAIN], "is in synchronize at train.py:120"),
        ([["synchronize", "/app/train.py", 7]], "is in train.py:7"),
        (LOAD, "waits for its data loader at train.py:120, which has no process of its own"),
        (BACKWARD, "waits in backward at train.py:90"),
    ],
)
def test_what_a_stack_shows(stack: list[list[Any]], said: str) -> None:
    """By the innermost line of the user, and what was called there."""
    found = one(stack)
    assert found.doing == said
    assert found.waiting == (1.0 if said.startswith("waits in") else 0.0)


@pytest.mark.parametrize(
    ("workers", "said"),
    [
        ([], ", which has no process of its own"),
        ([row(None, IDLE)], ""),
        ([row(None, IDLE), row(None, IDLE)], ""),
        ([row(None, state="T")], ", whose worker is stopped by a signal"),
        ([row(None, IDLE), row(None, state="Z")], ", whose worker is dead"),
        ([row(None, WORKER), row(None, state="Z")], ", whose worker is in dataset.py:31"),
        ([row(None, [["read", *READ[0][1:]], ["f", "/app/start.py", 1]])], ", whose worker is in dataset.py:31"),
        ([row(None, [IDLE[0], IDLE[1], ["start", "/app/start.py", 1]])], ""),
        ([row(None, BACKWARD)], ", whose worker is in backward at train.py:90"),
    ],
)
def test_the_worker_of_a_data_loader(workers: list[dict[str, Any]], said: str) -> None:
    """One that explains the wait: by its state, or by what is inside of its loop."""
    assert one(LOAD, workers=workers).doing == f"waits for its data loader at train.py:120{said}"


@pytest.mark.parametrize(
    ("looks", "more", "doing", "waiting", "busy"),
    [
        ([WAIT, WAIT, READ, READ, READ], {}, "often waits in all_reduce at train.py:88", 0.4, False),
        ([WAIT, READ, READ, READ], {}, "is in dataset.py:31", 0.25, False),
        ([WAIT, WAIT], {}, "waits in all_reduce at train.py:88", 1.0, False),
        ([READ, COMPUTE, COMPUTE], {}, "is in model.py:12", 0.0, True),
        ([READ, READ], {}, "is in dataset.py:31", 0.0, False),
        ([READ], {"busy": 0.19}, "is in dataset.py:31", 0.0, False),
        ([READ], {"busy": 0.2}, "is in dataset.py:31", 0.0, True),
        ([READ], {"state": "D"}, "is in dataset.py:31", 0.0, True),
        ([WAIT], {"state": "D", "busy": 1.0}, "waits in all_reduce at train.py:88", 1.0, False),
        ([READ, COMPUTE], {"state": "T"}, "is stopped by a signal, in dataset.py:31", 0.0, True),
        ([WAIT], {"state": "t"}, "is stopped by a debugger, waits in all_reduce at train.py:88", 0.0, False),
        ([BACKWARD], {"busy": 0.19}, "waits in backward at train.py:90", 1.0, False),
        ([BACKWARD], {"busy": 0.2}, "is in backward at train.py:90", 0.0, True),
        ([], {"state": "D", "why": "x"}, "is waiting inside the kernel", 0.0, True),
        ([], {"state": "Z"}, "is dead", 0.0, False),
        ([], {}, "cannot be read", 0.0, False),
        ([], {"is_agent": True}, "is in torchrun, without workers", 0.0, True),
        ([], {"is_agent": True, "state": "T"}, "is stopped by a signal", 0.0, False),
    ],
)
def test_what_a_rank_does(looks: list[Any], more: dict[str, Any], doing: str, waiting: float, busy: bool) -> None:
    """Most of the time; it is busy if it moves, uses a processor or the disk, or starts its workers."""
    found = one(*looks, **more)
    assert (found.doing, found.waiting, found.busy) == (doing, waiting, busy)


@pytest.mark.parametrize(
    ("over", "busy", "looks", "said"),
    [
        (False, 0.81, [READ, READ], "waits in synchronize for all_reduce #3 at dataset.py:31"),
        (False, 0.8, [READ, READ], "is in dataset.py:31"),
        (True, 1.0, [READ, READ], "is in dataset.py:31"),
        (False, 1.0, [READ, COMPUTE], "is in dataset.py:31"),
        (False, 0.0, [[LIBRARY, MAIN]] * 2, "waits in synchronize for all_reduce #3 at train.py:120"),
    ],
)
def test_an_unfinished_collective(over: bool, busy: float, looks: list[Any], said: str) -> None:
    """Whoever stays in a line that spins, or in a library, needs its result."""
    calls = {"nccl:0": [["default_pg", "all_reduce", 3, [[8]], over, 3]]}
    assert one(*looks, busy=busy, calls=calls).doing == said


def test_why_a_rank_was_not_read() -> None:
    """If nothing else is known of it."""
    assert [one(why="no").why, one(READ, why="no").why, one(why="no", state="Z").why] == ["no", "", ""]


def test_the_frames_that_are_shown() -> None:
    """Those of the stack in which it mostly was, with the text of the user's lines."""
    frames = one(
        WAIT, [["f", "/app/a.py", 1, "x = 1"], LIBRARY, MAIN], [["f", "/app/a.py", 1, "x = 1"], LIBRARY, MAIN]
    ).frames
    assert frames == [Frame("f", "/app/a.py", 1, "x = 1"), Frame("<module>", "/app/train.py", 120)]


@pytest.mark.parametrize(
    "text", ['{"looks": 1, "pid": 7}', '{"pid": 7}', '{"looks": []}', '{"looks": [], "pid": "7"}', "[7]", "null", "{"]
)
def test_lines_that_are_not_the_probes(text: str) -> None:
    """They are skipped, and the others are read."""
    found = parse([("w", 0, "n9", f"{text}\n{json.dumps(row(0, READ, world=1))}\n{text}".encode())])
    assert [(r.rank, r.host, r.pid) for r in found.ranks] == [(0, "n9", 100)]
    assert found.unread == {}


# -- all ranks -----------------------------------------------------------------------------------------


def told(*groups: list[dict[str, Any]]) -> Stacks:
    """Ranks of one replica each, from 0."""
    rows = [one for group in groups for one in group]
    return parse(
        ("w", k, "n", json.dumps({**r, "rank": k, "world_size": len(rows)}).encode()) for k, r in enumerate(rows)
    )


def some(count: int, *looks: list[list[Any]], **more: Any) -> list[dict[str, Any]]:
    return [row(0, *looks, **more)] * count


FOUR = (WAIT, WAIT, WAIT, READ)


@pytest.mark.parametrize(
    ("groups", "suspects"),
    [
        # nobody waits for others: those that wait for their data, if they are at most half
        ([some(1, LOAD), some(1, READ)], [0]),
        ([some(2, LOAD), some(2, READ)], [0, 1]),
        ([some(2, LOAD), some(1, READ)], []),
        ([some(3, READ), some(1, COMPUTE)], []),
        # some wait: those that do not, if they are at most half
        ([some(1, WAIT), some(1, READ)], [1]),
        ([some(2, WAIT), some(2, READ)], [2, 3]),
        ([some(2, WAIT), some(3, READ)], []),
        ([some(3, WAIT), some(1, *FOUR)], []),
        ([some(3, WAIT), some(1, WAIT, WAIT, READ, READ, READ)], []),
        ([some(3, WAIT), some(1, WAIT, READ, READ)], [3]),
        ([some(3, WAIT, WAIT, READ, READ, READ), some(1, READ)], [3]),
        # all wait: the minority, if there are more than two, and it is less than half
        ([some(1, WAIT), some(1, collective("barrier"))], []),
        ([some(2, WAIT), some(1, collective("barrier"))], [2]),
        ([some(2, WAIT), some(2, collective("barrier"))], []),
        ([some(3, WAIT), some(2, collective("barrier"))], [3, 4]),
        ([some(2, WAIT), some(1, *FOUR)], []),
        # whoever cannot go on is one, whatever the others do
        ([some(2, READ), some(1, READ, state="T")], [2]),
        ([some(1, READ), some(2, READ, state="t")], [1, 2]),
        ([some(2, WAIT), some(1, state="Z")], [2]),
        ([some(2, WAIT), some(3, state="Z")], [2, 3, 4]),
        ([some(2, WAIT), some(1, READ), some(2, collective("barrier"), state="T")], [3, 4]),
        ([some(3, WAIT), some(1, READ), some(1, state="")], [3, 4]),
    ],
)
def test_for_whom_the_others_wait(groups: list[list[dict[str, Any]]], suspects: list[int]) -> None:
    """At most half of the ranks are suspects, and less than half if all of them wait."""
    found = told(*groups)
    assert sorted(r.rank or 0 for group in found.groups if group.suspect for r in group.ranks) == suspects
    assert [group.suspect for group in found.groups] == sorted(group.suspect for group in found.groups)


def test_ranks_that_do_the_same_are_one_group() -> None:
    """Also if some do it only often; the largest group comes first, its text is that of most."""
    found = told(some(1, COMPUTE), some(2, *FOUR), some(1, WAIT), some(1, COMPUTE))
    assert [(g.doing, [r.rank for r in g.ranks]) for g in found.groups] == [
        ("often waits in all_reduce at train.py:88", [1, 2, 3]),
        ("is in model.py:12", [0, 4]),
    ]
    assert [rank.rank for rank in found.ranks] == list(range(5))
    assert found.busy is False
    assert told(some(1, READ, COMPUTE), some(1, WAIT)).busy is True


def group(doing: str, *ranks: int, suspect: bool = False, host: str = "", why: str = "") -> Group:
    return Group(
        doing, [RankStack(role="w", replica=k, rank=k, doing=doing, host=host, why=why) for k in ranks], suspect
    )


@pytest.mark.parametrize(
    ("groups", "said"),
    [
        ([group("is here", 0)], "w/0 rank 0 is here"),
        ([group("is here", 0, 1)], "all 2 ranks are here"),
        ([group("is here", 0, 1, suspect=True)], "all 2 ranks are here"),
        ([group("often waits", 0, 1)], "all 2 ranks often wait"),
        ([group("has no process", 0, 1)], "all 2 ranks have no process"),
        ([group("runs no code", 0, 1)], "all 2 ranks run no code"),
        ([group("stands", 0, 1)], "all 2 ranks stands"),
        ([group("is here", 0, 1, 2), group("waits", 3, 4)], "3 of 5 ranks are here; 2 of 5 ranks wait"),
        ([group("waits", *range(5)), group("is here", 5, 6, 7, 8, suspect=True)], "5 of 9 ranks wait; ranks 5, 6, 7, 8 of w are here"),
        ([group("waits", *range(6)), group("is here", *range(6, 11), suspect=True)], "6 of 11 ranks wait; 5 of 11 ranks are here"),
        ([group("is here", 0, 1, why="no"), group("waits", 2)], "2 of 3 ranks are here: no; w/2 rank 2 waits"),
        ([group("is here", 0, why="no")], "w/0 rank 0 is here: no"),
        ([group(f"does {k}", k) for k in range(4)], "; ".join(f"w/{k} rank {k} does {k}" for k in range(4))),
        ([group(f"does {k}", k) for k in range(5)], "; ".join([*(f"w/{k} rank {k} does {k}" for k in range(4)), "1 is elsewhere"])),
        ([group(f"does {k}", k) for k in range(6)], "; ".join([*(f"w/{k} rank {k} does {k}" for k in range(4)), "2 are elsewhere"])),
        (
            [*(group(f"does {k}", k) for k in range(4)), *(group(f"has {k}", k, suspect=True) for k in (4, 5))],
            "w/0 rank 0 does 0; w/1 rank 1 does 1; w/4 rank 4 has 4; w/5 rank 5 has 5; 2 are elsewhere",
        ),
        (
            [*(group(f"does {k}", k) for k in range(2)), *(group(f"has {k}", k, suspect=True) for k in range(2, 7))],
            "w/0 rank 0 does 0; w/2 rank 2 has 2; w/3 rank 3 has 3; w/4 rank 4 has 4; 3 are elsewhere",
        ),
        ([group("waits", 0, host="a"), group("is", 1, host="a")], "w/0 rank 0 waits; w/1 rank 1 is"),
        ([group("waits", 0, host="a"), group("is", 1, host="b")], "w/0 rank 0 (node a) waits; w/1 rank 1 (node b) is"),
        ([group("waits", 0, host="a"), group("is", 1)], "w/0 rank 0 waits; w/1 rank 1 is"),
        (
            [group("waits", 0, host="a"), group("is", 1, host="b"), group("has", 2)],
            "w/0 rank 0 (node a) waits; w/1 rank 1 (node b) is; w/2 rank 2 has",
        ),
    ],
)  # fmt: skip
def test_the_summary(groups: list[Group], said: str) -> None:
    """Four parts at most, suspects by name; the rest is counted."""
    assert Stacks(groups).sentence == said


def test_different_reasons_are_not_one() -> None:
    """A reason is given if it is the same for all."""
    ranks = [
        RankStack(role="w", replica=k, rank=k, doing="cannot be read", why=why) for k, why in enumerate(["a", "b"])
    ]
    assert Group("cannot be read", ranks).sentence == "cannot be read"


@pytest.mark.parametrize(
    ("count", "said"), [(1, "v/0 could"), (2, "v/0 and 1 more could"), (3, "v/0 and 2 more could")]
)
def test_replicas_that_were_not_read_are_counted(count: int, said: str) -> None:
    """By the first of them, and its reason."""
    found = Stacks([], {("v", k): f"why {k}" for k in range(count)})
    assert found.sentence == f"{said} not be inspected: why 0"


@pytest.mark.parametrize(
    ("ranks", "world", "missing"),
    [
        ([0, 1], 2, []),
        ([0, 1], 3, [2]),
        ([1], 7, [0, 2, 3, 4]),
        ([None], 3, []),
        ([0], None, []),
        ([0], 0, []),
    ],
)
def test_who_is_missing(ranks: list[int | None], world: int | None, missing: list[int]) -> None:
    """Ranks without a process, four at most; the largest number of ranks that one of them knows counts."""
    rows = [row(rank, READ) | {"world_size": world if i == 0 else 0} for i, rank in enumerate(ranks)]
    other = json.dumps(row(0, READ, world=1))
    found = parse([("w", 0, "", "\n".join(map(json.dumps, rows)).encode()), ("v", 0, "", other.encode())])
    assert [r.rank for r in found.ranks if r.replica == -1] == missing
    assert all(r.doing == "has no process" and r.role == "w" for r in found.ranks if r.replica == -1)


# -- collectives ---------------------------------------------------------------------------------------


def call(
    number: int, op: str = "all_reduce", size: Any = ((8,),), over: bool = False, *more: Any, about: str = "default_pg"
) -> Any:
    return [about, op, number, size, over, number, *more]


def waiting(*calls: Any, group: str = "gloo:0", stack: list[list[Any]] = WAIT) -> dict[str, Any]:
    return row(0, stack, calls={group: list(calls)})


def lines(*rows: dict[str, Any]) -> list[str]:
    return [rank.doing.replace(" at train.py:88", "") for rank in told(list(rows)).ranks]


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([waiting(call(5))] * 3, ["waits in all_reduce #5"] * 3),
        ([waiting(call(5))] * 2 + [waiting(call(6))], ["waits in all_reduce #5"] * 2 + ["waits in all_reduce #6, 1 call ahead"]),
        ([waiting(call(5))] * 2 + [waiting(call(3))], ["waits in all_reduce #5"] * 2 + ["waits in all_reduce #3, 2 calls behind"]),
        ([waiting(call(5)), waiting(call(6))], ["waits in all_reduce #5", "waits in all_reduce #6"]),
        (
            [waiting(call(5))] * 2 + [waiting(call(5, "broadcast", over=True), call(6))],
            ["waits in all_reduce #5"] * 2 + ["waits in all_reduce #6, 1 call ahead: its #5 is broadcast"],
        ),
        (
            [waiting(call(5))] * 2 + [waiting(call(5, size=[[9]]))],
            ["waits in all_reduce #5 of [8]"] * 2 + ["waits in all_reduce #5 of [9]"],
        ),
        (
            [waiting(call(5, "all_gather"))] * 2 + [waiting(call(5, "all_gather", size=[[9]]))],
            ["waits in all_reduce #5 of [8]"] * 2 + ["waits in all_reduce #5 of [9]"],
        ),
        ([waiting(call(5, "gather"))] * 2 + [waiting(call(5, "gather", size=[[9]]))], ["waits in all_reduce #5"] * 3),
        ([waiting(call(5, size=[[1], [2], [3]]))] * 2 + [waiting(call(5, size=[]))], ["waits in all_reduce #5 of [1], [2]"] * 2 + ["waits in all_reduce #5"]),
        ([waiting(call(4), call(5)), waiting(call(4), call(5))], ["waits in all_reduce #5"] * 2),
        ([waiting(call(4), call(5, "broadcast"))] * 2, ["waits in all_reduce #4"] * 2),
        ([waiting(call(4, "barrier"), call(5, "broadcast"))] * 2, ["waits in all_reduce #4"] * 2),
        ([waiting(call(4), call(5), group="nccl:0")] * 2, ["waits in all_reduce #4"] * 2),
        ([waiting(call(4, over=True))] * 2, ["waits in all_reduce"] * 2),
        ([waiting(call(5)), row(0, WAIT, READ, calls={"gloo:0": [call(5)]})], ["waits in all_reduce", "often waits in all_reduce"]),
        ([waiting(call(5)), row(0, READ, calls={"gloo:0": [call(5)]})], ["waits in all_reduce #5", "is in dataset.py:31"]),
        ([waiting(call(6), call(5))] * 2, ["waits in all_reduce #6"] * 2),
        ([waiting(["x"], 7, call(5), [*call(5)[:2], "x", *call(5)[3:]])] * 2, ["waits in all_reduce #5"] * 2),
    ],
)  # fmt: skip
def test_in_which_call_a_rank_waits(rows: list[dict[str, Any]], said: list[str]) -> None:
    """By its number, and its size where sizes differ; who is ahead or behind is told, if more than half agree."""
    assert lines(*rows) == said


@pytest.mark.parametrize(
    ("began", "late"),
    [((True, True, False), [2]), ((False, False, False), []), ((True, False, False), [1, 2]), ((True,) * 3, [])],
)
def test_a_gpu_that_has_not_begun(began: tuple[bool, ...], late: list[int]) -> None:
    """Where another one has begun the same call."""
    found = told([waiting(call(5, "all_reduce", [[8]], False, one)) for one in began])
    assert [r.rank for r in found.ranks if r.doing.endswith(", which its GPU has not begun")] == late
    assert [r.rank for r in found.ranks if r.is_odd] == late


@pytest.mark.parametrize(
    ("about", "group", "said"),
    [("tp", "nccl:7", " in group tp"), ("undefined", "nccl:7", " in group 7"), ("default_pg", "nccl:7", "")],
)
def test_the_name_of_a_group(about: str, group: str, said: str) -> None:
    """If ranks wait in several; that of all ranks has none."""
    rows = [waiting(call(number, about=about), group=group) for number in (5, 5, 6)]
    others = [waiting(call(9, about="dp"), group="nccl:1")] * 2
    named = [f"waits in all_reduce #5{said}"] * 2 + [f"waits in all_reduce #6{said}, 1 call ahead"]
    assert lines(*rows, *others) == [*named, *["waits in all_reduce"] * 2]
