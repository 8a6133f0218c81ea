"""Tables of what replicas use: cells, sparklines where there is room for them, averages after the end."""

from __future__ import annotations

import pytest

from torchx.runner.show.tables import USAGE, replica_metrics, usage_rows, usage_table
from torchx.schedulers.kit.metrics import AttemptUsage, Gpu, ReplicaMetrics, Sample

GIB = 2**30


def samples(*memory: int, attempt: int = 0, gpu: float | None = None) -> list[Sample]:
    """One each second, with as many processors in use as GiB."""
    gpus = [] if gpu is None else [Gpu(gpu, GIB, 8 * GIB), Gpu(0.0, GIB, 8 * GIB)]
    return [Sample(float(t), float(m), m * GIB, gpus, attempt) for t, m in enumerate(memory)]


def cells(one: ReplicaMetrics, bars: int = 0, *, over: bool = False) -> dict[str, str]:
    headings, row = usage_rows([one], bars, over=over)
    return dict(zip(headings, row, strict=True))


def test_current_usage() -> None:
    """The last sample, the peak, and the limits; without sparklines if none are wanted."""
    one = ReplicaMetrics("w", 3, 4.0, 8 * GIB, samples(1, 4, 2, gpu=50.0))
    assert cells(one) == {
        "REPLICA": "w/3",
        "CPU": "2.0 of 4",
        "MEMORY": "2 GiB",
        "PEAK": "4 GiB",
        "LIMIT": "8 GiB",
        "GPU": "25 %",
        "GPU MEMORY": "2 GiB of 16 GiB",
    }


def test_usage_after_the_end() -> None:
    """The averages of the last attempt; the memory is gone, only its peak is shown."""
    one = ReplicaMetrics("w", 0, samples=[*samples(9, 9), *samples(1, 3, attempt=1, gpu=80.0)])
    assert cells(one, over=True) == {
        "REPLICA": "w/0",
        "CPU": "avg 2.0",
        "MEMORY": "-",
        "PEAK": "9 GiB",
        "LIMIT": "-",
        "GPU": "avg 40 %",
        "GPU MEMORY": "2 GiB of 16 GiB",
    }


def test_a_summary_is_all_that_is_left() -> None:
    """The average of the last attempt, and the peak of all."""
    kept = [AttemptUsage(0, 1.0, 5 * GIB, None, 60.0), AttemptUsage(1, 0.5, GIB, 70.0, 60.0)]
    found = cells(ReplicaMetrics("w", 0, attempts=kept), 8, over=True)
    assert list(found.values()) == ["w/0", "avg 0.5", "-", "5 GiB", "-", "avg 70 %", "-"]
    assert list(cells(ReplicaMetrics("w", 0, attempts=kept)).values())[1:3] == ["-", "-"]


def test_nothing_is_known() -> None:
    """A replica that has not started yet has a row of dashes."""
    assert list(cells(ReplicaMetrics("w", 0, 4.0, GIB), 8).values()) == ["w/0", *"------"]


def test_sparklines_of_the_last_attempt() -> None:
    """Beside the processors, the memory and the GPUs, of whose percents 100 are a full bar; one sample is no line."""
    one = ReplicaMetrics("w", 0, samples=[*samples(9), *samples(1, 2, 4, attempt=1, gpu=100.0)])
    found = cells(one, 8)
    assert (found["CPU"], found["MEMORY"], found["GPU"]) == ("4.0 ▂▄█", "4 GiB ▂▄█", "50 % ▄▄▄")
    over = cells(one, 8, over=True)
    assert (over["MEMORY"], over["PEAK"]) == ("-", "9 GiB ▂▄█")
    assert cells(ReplicaMetrics("w", 0, samples=samples(1)), 8)["CPU"] == "1.0"


@pytest.mark.parametrize("gpu", [None, 50.0])
def test_sparklines_where_there_is_room(gpu: float | None) -> None:
    """Two, or three with GPUs, which otherwise have no columns; between 4 and 24 characters, or none at all."""
    one = ReplicaMetrics("w", 0, samples=samples(*[1, 2] * 20, gpu=gpu))
    count, lines = (5, 2) if gpu is None else (7, 3)
    plain = [row[:count] for row in usage_rows([one], 0, over=False)]
    narrow = sum(max(map(len, column)) + 2 for column in zip(*plain, strict=True))
    assert plain[0] == list(USAGE[:count])
    for room, bars in ((narrow, 0), (narrow + 5 * lines - 1, 0), (narrow + 5 * lines, 4), (narrow + 300, 24)):
        table = usage_table([one], room, over=False)
        assert [len(row) for row in table] == [count, count]
        assert table[1][1].count("█") + table[1][1].count("▄") == bars
        if room < narrow + 300:
            assert sum(max(map(len, column)) + 2 for column in zip(*table, strict=True)) <= room


def test_samples_of_the_same_time_are_one() -> None:
    """A scheduler that has no newer sample yet reports the last one again; a restarted clock begins anew."""
    seen = replica_metrics([ReplicaMetrics("a", 0, samples=samples(1, 2))], {})
    again = replica_metrics([ReplicaMetrics("a", 0, samples=samples(1, 5)[1:])], seen)
    assert [(sample.at, sample.cpu) for sample in again["a", 0].samples] == [(0.0, 1.0), (1.0, 5.0)]
    other = replica_metrics([ReplicaMetrics("a", 1, samples=samples(7))], again)
    assert [sample.cpu for sample in other["a", 1].samples] == [7.0]
