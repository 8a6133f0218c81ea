"""What is concluded from the stacks of all ranks: the sentence, who does the same, and for whom the others wait."""

from __future__ import annotations

import json
from typing import Any

import pytest

from torchx.schedulers.kit.stacks import Stacks, parse

TORCH = "/venv/lib/python3.11/site-packages/torch"
MAIN = ["<module>", "/app/train.py", 120]


def collective(name: str = "all_reduce", line: int = 88) -> list[list[Any]]:
    c10d, logger = f"{TORCH}/distributed/distributed_c10d.py", f"{TORCH}/distributed/c10d_logger.py"
    return [["_wait", c10d, 1], [name, c10d, 3252], ["wrapper", logger, 83], ["step", "/app/train.py", line], MAIN]


COMPUTE = [["forward", "/app/model.py", 12], ["_call_impl", f"{TORCH}/nn/modules/module.py", 9], MAIN]
READ = [["__getitem__", "/app/dataset.py", 31], MAIN]
LOAD = [
    ["select", "/usr/lib/python3.11/selectors.py", 415],
    ["_try_get_data", f"{TORCH}/utils/data/dataloader.py", 1310],
    ["__next__", f"{TORCH}/utils/data/dataloader.py", 732],
    MAIN,
]
WORKER = [["__getitem__", "/app/dataset.py", 31], ["_worker_loop", f"{TORCH}/utils/data/_utils/worker.py", 349], MAIN]
IDLE = [["get", "/usr/lib/python3.11/queue.py", 1], ["_worker_loop", f"{TORCH}/utils/data/_utils/worker.py", 1], MAIN]
BACKWARD = [["_engine_run_backward", f"{TORCH}/autograd/graph.py", 829], ["step", "/app/train.py", 90], MAIN]


def row(rank: int | None, *looks: list[list[Any]], world: int = 8, **more: Any) -> dict[str, Any]:
    found = {"host": "n1", "busy": 0.0, "is_agent": False, "rank": rank, "world_size": world}
    rest = {
        "pid": 100 + (rank or 0),
        "state": "S",
        "by": "py-spy",
        "why": "",
        "looks": looks,
        "workers": [],
    }
    return {**found, **rest, **more}


def stacks(*rows: dict[str, Any], per_replica: int = 4, hosts: tuple[str, ...] = ("n1", "n2")) -> Stacks:
    replicas: dict[int, list[dict[str, Any]]] = {}
    for one in rows:
        replicas.setdefault((one["rank"] or 0) // per_replica, []).append(one)
    return parse(
        ("trainer", k, hosts[k % len(hosts)], "\n".join(map(json.dumps, group)).encode())
        for k, group in replicas.items()
    )


def suspects(found: Stacks) -> list[int | None]:
    return [rank.rank for group in found.groups if group.suspect for rank in group.ranks]


def others(*but: int, stack: list[list[Any]] | None = None) -> list[dict[str, Any]]:
    return [row(rank, stack or collective()) for rank in range(8) if rank not in but]


def test_the_one_that_does_not_wait_is_named_last() -> None:
    """With its node, for there are two; a collective by its name, lines by those of the user."""
    found = stacks(*others(5), row(5, READ))
    assert found.sentence == (
        "7 of 8 ranks wait in all_reduce at train.py:88; trainer/1 rank 5 (node n2) is in dataset.py:31"
    )
    assert suspects(found) == [5]
    assert [(f.place, f.function) for f in found.groups[0].ranks[0].frames] == [
        ("train.py:88", "step"),
        ("train.py:120", "<module>"),
    ]


@pytest.mark.parametrize(
    ("odd", "said"),
    [
        ([row(5, collective("broadcast", 91))], "trainer/1 rank 5 (node n2) waits in broadcast at train.py:91"),
        ([row(5, state="T")], "trainer/1 rank 5 (node n2) is stopped by a signal"),
        ([row(5, READ, state="T")], "trainer/1 rank 5 (node n2) is stopped by a signal, in dataset.py:31"),
        ([], "rank 5 of trainer has no process"),
        (
            [row(5, LOAD, workers=[row(None, IDLE), row(None, WORKER)])],
            "trainer/1 rank 5 (node n2) waits for its data loader at train.py:120, whose worker is in dataset.py:31",
        ),
        (
            [row(5, LOAD, workers=[row(None, state="D")])],
            "trainer/1 rank 5 (node n2) waits for its data loader at train.py:120, whose worker is waiting inside the kernel",
        ),
        ([row(5, BACKWARD, busy=0.9)], "trainer/1 rank 5 (node n2) is in backward at train.py:90"),
        ([row(5, why="py-spy failed: no")], "trainer/1 rank 5 (node n2) cannot be read: py-spy failed: no"),
        ([row(5, READ, READ, READ, collective())], "trainer/1 rank 5 (node n2) is in dataset.py:31"),
    ],
    ids=["mismatch", "stopped", "stopped-read", "gone", "loader", "loader-disk", "computes", "unread", "slow"],
)
def test_what_the_suspect_does(odd: list[dict[str, Any]], said: str) -> None:
    """The others wait for it, whatever it does instead."""
    found = stacks(*others(5), *odd)
    assert found.sentence == f"7 of 8 ranks wait in all_reduce at train.py:88; {said}"
    assert suspects(found) == [5]


def test_who_waits_most_of_the_time_waits_for_the_slow_one() -> None:
    """All of them move on; the one that others wait for never waits itself."""
    looks = (collective(), COMPUTE, collective(), collective())
    found = stacks(*(row(rank, *looks) for rank in range(7)), row(7, COMPUTE, COMPUTE, COMPUTE, COMPUTE))
    assert found.sentence.startswith("7 of 8 ranks often wait in all_reduce at train.py:88; trainer/1 rank 7")
    assert suspects(found) == [7]


def test_backward_waits_where_it_uses_no_processor() -> None:
    """So ranks of DDP wait for the gradients of the others."""
    found = stacks(*others(2, stack=BACKWARD), row(2, READ))
    assert found.sentence.startswith("7 of 8 ranks wait in backward at train.py:90; trainer/0 rank 2")


def test_a_wait_that_only_the_line_shows() -> None:
    """``work.wait()`` and ``loss.item()`` are no frames of Python."""
    rows = [row(rank, [[*MAIN, "loss.item()"]]) for rank in range(8) if rank != 3]
    assert stacks(*rows, row(3, READ)).sentence.startswith(
        "7 of 8 ranks wait in item at train.py:120; trainer/0 rank 3"
    )


SYNCHRONIZE = [["synchronize", f"{TORCH}/cuda/__init__.py", 1162], ["step", "/app/train.py", 92], MAIN]
CLIP = [
    ["_get_total_norm", f"{TORCH}/nn/utils/clip_grad.py", 82],
    ["clip_grad_norm_", f"{TORCH}/nn/utils/clip_grad.py", 224],
    ["_no_grad_wrapper", f"{TORCH}/nn/utils/clip_grad.py", 41],
    ["step", "/app/train.py", 69],
    MAIN,
]
COMPARE = [["step", "/app/train.py", 70, "if loss > best:"], MAIN]
STORE = [["step", "/app/train.py", 71, "fcntl.flock(file, 2)"], MAIN]
AHEAD = {"nccl:0": [["default_pg", "all_reduce", n, [[8]], n < 6, n] for n in (5, 6, 7, 8)]}


@pytest.mark.parametrize(
    ("stack", "calls_", "busy", "said"),
    [
        (SYNCHRONIZE, {}, 1.0, "wait in synchronize at train.py:92"),
        (SYNCHRONIZE, AHEAD, 1.0, "wait in synchronize for all_reduce #6 at train.py:92"),
        (CLIP, AHEAD, 1.0, "wait in synchronize for all_reduce #6 at train.py:69"),
        (CLIP, {}, 1.0, "are in train.py:69"),
        (COMPARE, AHEAD, 1.0, "wait in synchronize for all_reduce #6 at train.py:70"),
        (STORE, AHEAD, 0.0, "are in train.py:71"),
        (collective(), AHEAD, 1.0, "wait in all_reduce #6 at train.py:88"),
    ],
    ids=["synchronize", "numbered", "library", "unknown", "compare", "elsewhere", "queue-full"],
)
def test_who_waits_for_the_gpu_waits_for_its_first_unfinished_call(
    stack: list[list[Any]], calls_: dict[str, Any], busy: float, said: str
) -> None:
    """As on an H200: a call of NCCL returns at once; the line that needs its result waits, using a processor."""
    rows = [row(rank, stack, stack, calls=calls_, busy=busy) for rank in range(8) if rank != 3]
    assert stacks(*rows, row(3, READ, READ)).sentence == (
        f"7 of 8 ranks {said}; trainer/0 rank 3 (node n1) is in dataset.py:31"
    )


def test_a_gpu_that_is_busy_with_something_else_is_named() -> None:
    """With ``TORCH_NCCL_ENABLE_TIMING=1`` PyTorch knows on which GPUs a call of NCCL has begun."""

    def waits(rank: int, *, began: bool) -> dict[str, Any]:
        entry = ["default_pg", "all_reduce", 6, [[8]], False, 6, began]
        return row(rank, *[[[*MAIN, "loss.item()"]]] * 2, calls={"nccl:0": [entry]}, busy=1.0)

    found = stacks(*(waits(rank, began=rank != 5) for rank in range(8)))
    assert found.sentence == (
        "7 of 8 ranks wait in item for all_reduce #6 at train.py:120; "
        "trainer/1 rank 5 (node n2) waits in item for all_reduce #6 at train.py:120, which its GPU has not begun"
    )
    assert suspects(found) == [5]
    found = stacks(*(waits(rank, began=False) for rank in range(8)))
    assert found.sentence == "all 8 ranks wait in item for all_reduce #6 at train.py:120"


def test_who_moves_does_not_wait_for_the_gpu() -> None:
    """It computes while the GPU makes a collective."""
    rows = [row(rank, CLIP, COMPUTE, calls=AHEAD, busy=1.0) for rank in range(8)]
    assert stacks(*rows).sentence == "all 8 ranks are in train.py:69"


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        (others(), "all 8 ranks wait in all_reduce at train.py:88"),
        (others(stack=COMPUTE), "all 8 ranks are in model.py:12"),
        (
            [*others(4, 5, 6, 7), *others(0, 1, 2, 3, stack=collective("barrier", 9))],
            "4 of 8 ranks wait in all_reduce at train.py:88; 4 of 8 ranks wait in barrier at train.py:9",
        ),
        (
            [*others(0, 1, 2, stack=COMPUTE), *others(3, 4, 5, 6, 7)],
            "5 of 8 ranks are in model.py:12; 3 of 8 ranks wait in all_reduce at train.py:88",
        ),
    ],
    ids=["all-wait", "all-compute", "halves", "most-compute"],
)
def test_nobody_is_blamed_without_need(rows: list[dict[str, Any]], sentence: str) -> None:
    """Where nothing points at a few ranks, none is a suspect."""
    found = stacks(*rows, hosts=("",))
    assert (found.sentence, suspects(found)) == (sentence, [])


def calls(number: int, op: str = "all_reduce", group: str = "0", *, before: str = "all_reduce") -> dict[str, Any]:
    """What a probe tells of a rank that waits in that call: the one before is over."""
    about = "default_pg" if group == "0" else "tp"
    done = [about, before, number - 1, [[8]], True, number - 1]
    return {f"gloo:{group}": [done, [about, op, number, [[8]], False, number]]}


def test_who_has_made_a_call_too_many_is_named() -> None:
    """Though all of them wait in the same line."""
    found = stacks(*others(6), row(6, collective()) | {"calls": calls(18, before="broadcast")})
    assert found.sentence == "all 8 ranks wait in all_reduce at train.py:88"  # nothing is known of the others
    rows = [one | {"calls": calls(17)} for one in others(6)]
    found = stacks(*rows, row(6, collective(), calls=calls(18, before="broadcast")))
    assert found.sentence == (
        "7 of 8 ranks wait in all_reduce #17 at train.py:88; "
        "trainer/1 rank 6 (node n2) waits in all_reduce #18 at train.py:88, 1 call ahead: its #17 is broadcast"
    )
    assert suspects(found) == [6]
    found = stacks(*rows, row(6, collective(), calls=calls(15)))
    assert found.sentence.endswith("waits in all_reduce #15 at train.py:88, 2 calls behind")


def test_numbers_of_different_groups_are_not_compared() -> None:
    """As with tensor parallelism: each pair counts by itself. In which pair ranks disagree is told nonetheless."""
    rows = [row(rank, collective(), calls=calls(10 + rank // 2, group=str(rank // 2 + 1))) for rank in range(8)]
    assert stacks(*rows).sentence == "all 8 ranks wait in all_reduce at train.py:88"
    rows[3]["calls"] = calls(12, group="2")
    found = stacks(*rows)
    assert found.sentence.endswith(
        "trainer/0 rank 2 (node n1) waits in all_reduce #11 in group tp at train.py:88; "
        "trainer/0 rank 3 (node n1) waits in all_reduce #12 in group tp at train.py:88"
    )
    assert suspects(found) == [2, 3]


def test_a_rank_whose_calls_are_not_known_is_in_the_same_line_nonetheless() -> None:
    rows = [row(rank, collective(), calls=calls(17) if rank else {}) for rank in range(8)]
    found = stacks(*rows)
    assert (found.sentence, suspects(found)) == ("all 8 ranks wait in all_reduce at train.py:88", [])


def test_a_replica_without_ranks() -> None:
    """A program that torchrun did not start."""
    found = parse([("sh", 0, "", json.dumps(row(None, READ)).encode())])
    assert found.sentence == "sh/0 is in dataset.py:31"


def test_of_some_replicas_nobody_is_missing() -> None:
    """Ranks of the others were not looked for."""
    text = "\n".join(json.dumps(one) for one in others(4, 5, 6, 7)).encode()
    assert parse([("t", 0, "", text)], whole=False).sentence == "all 4 ranks wait in all_reduce at train.py:88"
    assert "ranks 4, 5, 6, 7 of t have no process" in parse([("t", 0, "", text)]).sentence


def test_replicas_that_could_not_be_looked_into_are_said() -> None:
    """And ranks that may be there are not called missing."""
    texts = "\n".join(json.dumps(one) for one in others(4, 5, 6, 7)).encode()
    found = parse([("trainer", 0, "n1", texts)], {("trainer", 1): "the node is down"})
    assert found.sentence == (
        "all 4 ranks wait in all_reduce at train.py:88; trainer/1 could not be inspected: the node is down"
    )


@pytest.mark.parametrize("text", [b"", b'{}\nnull\n[1]\n{"looks": 1}', b"\xff\n{", b"[" * 5000])
def test_garbage_is_not_believed(text: bytes) -> None:
    """What is not the probe's is nothing."""
    assert parse([("w", 0, "", text)]).sentence == "w/0 could not be inspected: no process of the user runs there"
