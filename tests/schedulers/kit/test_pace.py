"""Steps that ranks report: how far a job is, which rank is slow, and whether it stalls."""

from __future__ import annotations

import json

import pytest

from torchx.schedulers.kit.pace import Rank, pace_of, parse_file, parse_lines, times_of
from torchx.settings import STEPS_SLOT

STEP_S, SLOW_S = 0.5, 40.0


def rank(number: int, own_s: float, *, until: float = 100.0, step_s: float = STEP_S, stops: float = 1e9) -> Rank:
    """A rank that takes ``step_s`` a step, of which ``own_s`` outside of collectives; none after ``stops``."""
    one = Rank(number, "trainer", number // 2, world=4, total=1000, began=0.0, slow_s=SLOW_S)
    for t in range(0, int(until) + 1, 5):
        step = int(min(t, stops) / step_s)
        busy = own_s * min(t, stops) / step_s
        one.points.append((float(t), step, busy))
    one.at = min(until, stops)
    return one


def test_even_ranks() -> None:
    """Rate and time left; no rank is named, although they differ a little."""
    pace = pace_of([rank(k, 0.2 + k * 0.03) for k in range(4)], {})
    assert pace is not None
    assert (pace.step, pace.total, pace.ranks, pace.slow, pace.stalled_s) == (200, 1000, 4, None, 0.0)
    assert pace.rate == pytest.approx(2.0)
    assert pace.left_s == pytest.approx(400.0)


def test_ranks_that_wait_are_not_slow() -> None:
    """All ranks have the same pace; the one that does not wait for others is named, with its host."""
    ranks = [rank(0, 0.1), rank(1, 0.12), rank(2, 0.45), rank(3, 0.1)]
    pace = pace_of(ranks, {("trainer", 1): "n1"})
    assert pace is not None and pace.slow is not None
    assert (pace.slow.rank, pace.slow.replica, pace.slow.host) == (2, 1, "n1")
    assert pace.slow.factor == pytest.approx(4.5, abs=0.1)
    assert pace.slow.since < 30, "it was slow from the start"


def test_ranks_without_collectives() -> None:
    """Ranks that do not wait for each other are compared by the time of a step."""
    ranks = [rank(k, own_s=0.5 if k != 3 else 1.5, step_s=0.5 if k != 3 else 1.5) for k in range(4)]
    pace = pace_of(ranks, {})
    assert pace is not None and pace.slow is not None
    assert pace.slow.rank == 3 and pace.step == 66
    assert pace.rate == pytest.approx(1 / 1.5, rel=0.05), "the job ends with its last rank"
    assert pace.left_s == pytest.approx((1000 - 66) * 1.5, rel=0.05)


@pytest.mark.parametrize(
    ("own", "until", "why"),
    [
        pytest.param([0.001, 0.004, 0.001, 0.001], 100, "four times of nearly nothing costs the job nothing"),
        pytest.param([0.2, 0.33, 0.2, 0.2], 100, "1.65 times is not enough"),
        pytest.param([0.1, 0.45, 0.1, 0.1], 30, "too early to say"),
    ],
)
def test_no_false_alarm(own: list[float], until: float, why: str) -> None:
    pace = pace_of([rank(k, s, until=until) for k, s in enumerate(own)], {})
    assert pace is not None and pace.slow is None, why


def test_a_stall_is_not_slowness() -> None:
    """No step for longer than usual: no rate, and the rank that is not in a collective."""
    ranks = [rank(k, 0.1, until=200, stops=100) for k in range(4)]
    ranks[3].points = [(t, step, busy + max(t - 100, 0)) for t, step, busy in ranks[3].points]
    pace = pace_of(ranks, {})
    assert pace is not None and pace.slow is not None
    assert (pace.stalled_s, pace.rate, pace.left_s, pace.slow.rank) == (100.0, None, None, 3)
    assert pace.lines()[1] == ("stalled", "no step for 1 min 40 s; the others wait for rank 3 (trainer/1)")


def test_ranks_of_an_earlier_attempt_do_not_count() -> None:
    old = rank(9, 0.1, until=50)
    old.world = 10
    late = [rank(k, 0.1, until=100) for k in range(4)]
    pace = pace_of([old, *late], {})
    assert pace is not None and pace.ranks == 4
    assert pace_of([], {}) is None


def test_files() -> None:
    """A slot for each local rank; what is not a record, or is being written, is skipped."""
    row = {"rank": 1, "world": 2, "step": 5, "total": 9, "points": [[1.0, 5, 0.5]], "metrics": {"loss": 0.5}}
    slot = json.dumps(row).encode().ljust(STEPS_SLOT)
    data = b"\0" * STEPS_SLOT + slot + slot[:20]
    (one,) = parse_file("w", 3, data)
    assert (one.rank, one.replica, one.total, one.metrics, one.points) == (1, 3, 9, {"loss": 0.5}, [(1.0, 5, 0.5)])
    for odd in (b"[]", b"{}", b'{"rank": "x", "points": []}', b'{"rank": 1, "points": [[1]]}', b"[" * 4000, b"\xff"):
        assert parse_file("w", 0, odd) == []


def test_lines() -> None:
    """Lines of programs without torchx, with the prefixes of torchrun and with time stamps."""
    lines = [
        "2026-11-29T12:00:00.000Z step 3\n",
        "2026-11-29T12:00:10.000Z [trainer1]:::torchx progress step=7 total=100\n",
        "2026-11-29T12:00:20.000Z [trainer1]:::torchx progress step=9 total=100\n",
        "- [trainer0]:::torchx progress step=x\n",
        "2026-11-29T12:00:20.500Z ::torchx progress step=8 rank=0 world=2 t=4.5 busy=1.5 slow_s=9\n",
    ]
    found = {one.rank: one for one in parse_lines("w", 0, times_of(lines))}
    assert found[1].total == 100 and [p[1] for p in found[1].points] == [7, 9]
    assert found[1].points[1][0] - found[1].points[0][0] == 10.0
    assert (found[0].points, found[0].slow_s) == ([(4.5, 8, 1.5)], 9.0)


@pytest.mark.parametrize(
    ("text", "step", "total", "metrics"),
    [
        pytest.param("step=7.0 total=100.0", 7, 100, {}, id="floats"),
        pytest.param("step=1,019 total=5,000", 1019, 5000, {}, id="thousands"),
        pytest.param("step='7', total=\"9\"", 7, 9, {}, id="quotes"),
        pytest.param("step=7,total=9,loss=0.5", 7, 9, {"loss": 0.5}, id="commas between"),
        pytest.param("step=7 total=nan", 7, None, {}, id="no total"),
        pytest.param("step=7 total=0", 7, None, {}, id="total of none"),
        pytest.param("step=7 total=9 phase=train loss=0.5", 7, 9, {"loss": 0.5}, id="a metric that is no number"),
        pytest.param("step=7 total=9 t=0.25 loss=1e-4", 7, 9, {"t": 0.25, "loss": 1e-4}, id="a metric named t"),
        pytest.param(f"step=7 total={10**400}", 7, None, {}, id="total beyond all numbers"),
    ],
)
def test_lines_that_people_write(text: str, step: int, total: int | None, metrics: dict[str, float]) -> None:
    """What can be read of a line counts, the rest does not hide it."""
    (one,) = parse_lines("w", 0, [(5.0, f"\033[32m::torchx progress {text}\033[0m\r\n")])
    assert (one.points, one.total, one.metrics) == ([(5.0, step, 0.0)], total, metrics)


@pytest.mark.parametrize("step", ["nan", "inf", "-3", str(10**400), "9" * 5000, "x", ""])
def test_steps_that_are_none(step: str) -> None:
    """Neither lines nor files of such steps are read, and they break no status."""
    assert parse_lines("w", 0, [(5.0, f"::torchx progress step={step} total=9")]) == []
    row = {"rank": 1, "world": 1, "total": 10**400, "points": [[1.0, 5, 0.5], [2.0, 6, 1.0]], "metrics": {"a": 10**400}}
    for one in parse_file("w", 0, json.dumps(row).encode()):
        assert pace_of([one], {}) is not None


def test_a_program_that_prints_nothing_any_more_stalls() -> None:
    """Its newest line is that of its last step: the time since then counts, as long as it runs."""
    lines = [(float(t), f"::torchx progress step={t} total=500") for t in range(100)]
    found = parse_lines("w", 0, lines)
    early, late = pace_of(found, {}, now=300.0), pace_of(found, {}, now=700.0)
    assert early is not None and (early.stalled_s, early.rate) == (0.0, 1.0)
    assert late is not None and (late.stalled_s, late.rate, late.left_s) == (601.0, None, None)
