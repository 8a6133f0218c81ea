"""The events of a Slurm job, read at any moment: only complete lines count."""

from __future__ import annotations

import pytest

from torchx.schedulers.slurm.events import JobEvents, ReplicaEvents, parse_events

LINES = [
    "5 start 0 123\n",
    "6 up w/0 node12\n",
    "6 up w/1 node13\n",
    "7 absent w/2\n",
    "8 down w/1 137\n",
    "8 again w/1\n",
    "9 up w/1 node13\n",
    "10 retry 12\n",
    "11 end 137\n",
    "20 start 1 123\n",
    "21 up w/0 node12\n",
    "22 down w/0 143\n",
    "23 end 143\n",
]


def test_a_file_that_is_being_written() -> None:
    """A partial line is ignored: it could show another exit code, host or job."""
    text = "".join(LINES)
    for cut in range(len(text) + 1):
        whole = text[: text.rfind("\n", 0, cut) + 1]
        assert parse_events(text[:cut]) == parse_events(whole), text[:cut]


def test_line_by_line() -> None:
    """Each line changes only its own facts."""
    assert parse_events("") == JobEvents()
    attempt = parse_events("".join(LINES[:9]))
    assert (attempt.starts, attempt.job_id, attempt.started) == (1, "123", 5.0)
    assert (attempt.retries, attempt.retrying, attempt.exit_code, attempt.ended) == (12, True, 137, 11.0)
    assert (attempt.again, attempt.tries) == (1, {"w/1": 1})
    assert attempt.replicas == {
        "w/0": ReplicaEvents(host="node12", up=True),
        "w/1": ReplicaEvents(host="node13", up=True),
        "w/2": ReplicaEvents(absent=True),
    }
    down = parse_events("".join(LINES[:5])).replicas["w/1"]
    assert (down.host, down.up, down.exit_code, down.ended) == ("node13", True, 137, 8.0)


def test_another_attempt_begins_anew() -> None:
    """Except for the counts over all attempts."""
    job = parse_events("".join(LINES[:10]))
    assert (job.starts, job.started, job.ended, job.exit_code, job.retrying) == (2, 20.0, 0.0, None, False)
    assert (job.replicas, job.tries) == ({}, {})
    assert (job.retries, job.again) == (12, 1)
    whole = parse_events("".join(LINES))
    assert (whole.exit_code, whole.ended, whole.replicas["w/0"].exit_code) == (143, 23.0, 143)


@pytest.mark.parametrize(
    "line",
    [
        "6 up w/9\n",
        "6 down w/9\n",
        "6 down w/9 x\n",
        "6 again\n",
        "x end 1\n",
        "6 end\n",
        "6 end x\n",
        "6\n",
        "\n",
        "6 news w/9\n",
    ],
)
def test_a_damaged_line_changes_nothing(line: str) -> None:
    """It is skipped, and the next line counts."""
    assert parse_events(LINES[0] + line + LINES[1]) == parse_events(LINES[0] + LINES[1])


def test_an_older_start_names_no_job() -> None:
    """Its line ends with the number of restarts."""
    assert parse_events("5 start 0\n").job_id == ""
