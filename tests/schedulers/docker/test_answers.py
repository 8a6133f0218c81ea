"""Recorded answers of engines, and garbage."""

from __future__ import annotations

import io
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchx.schedulers.docker.answers import facts_of
from torchx.schedulers.docker.client import side_by_side
from torchx.schedulers.docker.containers import jobs_of, parse_container
from torchx.schedulers.docker.evidence import History
from torchx.schedulers.docker.logs import pieces_of
from torchx.schedulers.kit.timed_lines import Piece, whole_lines
from torchx.schedulers.kit.verdict import describe
from torchx.specs.api import AppState
from torchx.workspace.images.engine_errors import meaning_of

LABELS = {
    "torchx.pytorch.org/app-id": "a-1",
    "torchx.pytorch.org/role-name": "r",
    "torchx.pytorch.org/replica-id": "0",
}


@pytest.mark.parametrize(
    ("said", "means"),
    [
        ('could not select device driver "" with capabilities: [[compute utility]]', "GPUs"),  # Docker 20.10
        ("failed to discover GPU vendor from CDI: no known GPU vendor found: unresolvable CDI devices", "GPUs"),
        ("nvidia-container-cli: device error: 8: unknown device: unknown", "GPUs"),
        ("Range of CPUs is from 0.01 to 2.00, as there are only 2 CPUs available", "more CPUs"),
        ("Minimum memory limit allowed is 6MB", "less memory"),
        (
            "driver failed programming external connectivity: Bind for 0.0.0.0:80 failed: port is already allocated",
            "port",
        ),
        ('invalid mount config for type "bind": bind source path does not exist: /nope', "what it mounts"),
        ('error gathering device information while adding custom device "/dev/x": no such file or directory', "device"),
        ("container create: stat /dev/no-such: no such file or directory", "device"),  # Podman 4.3
        ('exec: "/no/prog": stat /no/prog: no such file or directory: unknown', "not a program"),
        ('exec: "nope": executable file not found in $PATH', "not a program"),
        ("No such image: nope:1", "no such image"),
        ("manifest for nope:1 not found: manifest unknown: manifest unknown", "no such image"),
        ("pull access denied for nope, repository does not exist or may require 'docker login'", "no such image"),
        (
            'Get "https://registry-1.docker.io/v2/": dial tcp: lookup registry-1.docker.io on 10.0.0.1:53: no such host',
            "registry",
        ),
        ("could not find an available, non-overlapping IPv4 address pool among the defaults", "address range"),
        ("all predefined address pools have been fully subnetted", "address range"),  # Docker 24
        ("write /x: no space left on device", "disk is full"),
        ("crun: setrlimit `RLIMIT_NOFILE`: Operation not permitted: OCI permission denied", ""),
        ("", ""),
    ],
)
def test_what_engines_say(said: str, means: str) -> None:
    """Each error has its meaning and a hint; an unknown one is quoted."""
    meaning, hint = meaning_of(said)
    assert means in meaning
    assert bool(meaning) is bool(means) is bool(hint)


@pytest.mark.parametrize(
    ("summary", "state", "exit_code"),
    [
        ({"State": "running", "Status": "Up 3 seconds"}, AppState.RUNNING, None),
        ({"State": "exited", "Status": "Exited (0) About a minute ago"}, AppState.SUCCEEDED, 0),
        ({"State": "exited", "Status": "Exited (137) 2 days ago"}, AppState.FAILED, 137),
        ({"State": "exited", "Status": "Exited (-1) Less than a second ago"}, AppState.FAILED, -1),
        ({"State": "restarting", "Status": "Restarting (1) 4 seconds ago"}, AppState.PENDING, 1),
        ({"State": "created", "Status": "Created"}, AppState.SUBMITTED, None),
        ({"State": "paused", "Status": "Up 2 minutes (Paused)"}, AppState.PENDING, None),
        ({"State": "dead", "Status": "Dead"}, AppState.FAILED, None),
        ({"State": "stopping", "Status": "stopping"}, AppState.RUNNING, None),  # Podman
        ({"State": "exited", "Status": "exited"}, AppState.UNKNOWN, None),
        ({"State": "no such state"}, AppState.UNKNOWN, None),
        (
            {"State": "exited", "Status": "Exited (143) 1 second ago", "Names": ["/x.cancelled"]},
            AppState.CANCELLED,
            143,
        ),
        ({"State": "running", "Status": "Up 1 second", "Names": ["/x.cancelled"]}, AppState.RUNNING, None),
    ],
)
def test_one_entry_of_the_list(summary: dict[str, Any], state: AppState, exit_code: int | None) -> None:
    """It contains state and exit code; the name given at cancellation counts once the container has ended."""
    container = parse_container({"Id": "1", "Labels": LABELS, **summary})
    assert container is not None
    assert (container.state, container.exit_code) == (state, exit_code)


def test_a_job_that_is_being_cancelled_says_when_it_is_killed() -> None:
    """It is killed a grace period, here the default of 10 s, after the signal that `docker stop` has sent."""
    summary = {"Id": "1", "Labels": LABELS, "State": "running", "Status": "Up 1 second", "Names": ["/x.cancelled"]}
    (job,) = jobs_of([summary]).values()
    facts = facts_of(job, History(signalled={"1": 100.0}), now=103.0)
    assert describe(facts).msg == "cancelling, SIGKILL in 7 s"
    assert describe(facts_of(job, History(), now=103.0)).msg == "cancelling"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(st.sampled_from(["State", "Status", "Created", "ImageID", "Id"]), json_values, st.text(max_size=8))
def test_garbage_in_the_list(key: str, value: Any, sizes: str) -> None:
    """Whatever an engine answers, there is a description."""
    labels = {**LABELS, "torchx.pytorch.org/roles": sizes, "torchx.pytorch.org/role": sizes}
    jobs = jobs_of([{"Labels": labels, "State": "running", key: value}, {"Labels": None}, {}])
    assert isinstance(describe(facts_of(jobs["a-1"])).state, AppState)


@given(st.binary(max_size=200))
def test_garbage_in_the_log(data: bytes) -> None:
    """Whatever an engine sends, reading ends, and the output is no longer than the input."""
    lines = list(whole_lines(pieces_of(io.BytesIO(data).read)))
    assert sum(len(line.text) for line in lines) <= len(data)


def test_a_terminal_has_no_frames() -> None:
    """The log of a container with a terminal is plain text; its times are parsed all the same."""
    text = b"1970-01-01T00:00:01.5Z one\r\n1970-01-01T01:00:02+01:00 two"
    found = [(e.time, e.text) for e in whole_lines(pieces_of(io.BytesIO(text).read))]
    assert found == [(1_500_000_000, b"one\r\n"), (2_000_000_000, b"two")]


def test_pieces_of_two_streams() -> None:
    """A long line arrives in pieces, with lines of the other stream in between."""
    pieces = [Piece(1, 1, b"a"), Piece(2, 2, b"e\n"), Piece(1, 3, b"b"), Piece(2, 4, b"rest"), Piece(1, 5, b"c\n")]
    assert [line.text for line in whole_lines(pieces)] == [b"e\n", b"abc\n", b"rest"]


def test_side_by_side_stops_at_a_failure() -> None:
    """Results are in order; the first failure is raised once all calls have ended."""
    assert side_by_side(lambda x: x * 2, range(20)) == [x * 2 for x in range(20)]
    done = []

    def work(x: int) -> None:
        if x == 3:
            raise ValueError("three")
        done.append(x)

    with pytest.raises(ValueError, match="three"):
        side_by_side(work, range(1000))
    assert len(done) < 1000
