"""The log of a container that is started again between two calls."""

from __future__ import annotations

import pytest

from tests.schedulers.kubernetes.fake_cluster import Cluster, refusal
from torchx.schedulers.kit.logs import LogQuery
from torchx.schedulers.kubernetes.client import KubeApi
from torchx.schedulers.kubernetes.container_logs import ContainerLog


def stamped(first, *lines):
    return b"".join(f"2026-01-01T00:00:{first + i:02}.5Z {line}\n".encode() for i, line in enumerate(lines))


@pytest.fixture
def cluster():
    return Cluster()


@pytest.fixture
def read(cluster):
    """Reads what is new, after a look that saw the container run, started again so many times."""
    pod = {"metadata": {"namespace": "default", "name": "p"}}
    log = ContainerLog(KubeApi(cluster), pod, "main", LogQuery())

    def read(restarts):
        status = {"restartCount": restarts, "state": {"running": {}}}
        return [line.decode() for _, line in log.lines(status, follow=False)]

    return read


def test_a_run_that_ended_before_it_was_read_comes_late(cluster, read):
    """The look still saw it, and what was read was the next one's: nothing of either is lost, or shown again."""
    cluster.logs["p", ""] = stamped(10, "c")
    cluster.logs["p", "true"] = stamped(0, "a", "b")
    assert read(0) == ["c\n"]
    cluster.logs["p", ""] += stamped(11, "d")
    assert read(1) == ["a\n", "b\n", "d\n"]
    cluster.logs["p", ""] += stamped(12, "e")
    assert read(1) == ["e\n"]


def test_the_rest_of_a_run_that_ended_between_two_reads_comes_late(cluster, read):
    """What was read of it before is not shown again."""
    cluster.logs["p", ""] = stamped(0, "a")
    assert read(0) == ["a\n"]
    cluster.logs["p", ""], cluster.logs["p", "true"] = stamped(10, "c"), stamped(0, "a", "b")
    assert read(0) == ["c\n"]
    assert read(1) == ["b\n"]


def test_a_run_that_was_read_is_not_shown_again(cluster, read):
    """Of the one before the present, only what is new."""
    cluster.logs["p", ""] = stamped(0, "a", "b")
    assert read(0) == ["a\n", "b\n"]
    cluster.logs["p", ""], cluster.logs["p", "true"] = stamped(10, "d"), stamped(0, "a", "b", "c")
    assert read(1) == ["c\n", "d\n"]


def test_a_run_that_is_no_longer_kept_is_left_out(cluster, read):
    """The present one is read all the same."""
    cluster.logs["p", ""] = stamped(0, "a")
    assert read(0) == ["a\n"]
    cluster.logs["p", ""] = stamped(10, "b")
    gone = refusal(400, "BadRequest", "previous terminated container not found")
    cluster.faults += [("GET", "/log", gone, "before")] * 2
    assert read(1) == ["b\n"]
