"""The log of a container that is restarted between two calls."""

from __future__ import annotations

import pytest

from tests.schedulers.kubernetes.fake_cluster import Cluster, refusal
from torchx.schedulers.kit.logs import LogQuery
from torchx.schedulers.kubernetes.client import KubeApi
from torchx.schedulers.kubernetes.pods.container_logs import ContainerLog


def stamped(first, *lines):
    return b"".join(f"2026-01-01T00:00:{first + i:02}.5Z {line}\n".encode() for i, line in enumerate(lines))


@pytest.fixture
def cluster():
    return Cluster()


@pytest.fixture
def read(cluster):
    """Reads new lines, with a status that has this number of restarts."""
    pod = {"metadata": {"namespace": "default", "name": "p"}}
    log = ContainerLog(KubeApi(cluster), pod, "main", LogQuery())

    def read(restarts):
        status = {"restartCount": restarts, "state": {"running": {}}}
        return [line.decode() for _, line in log.lines(status, follow=False)]

    return read


def test_a_run_that_ended_before_it_was_read_comes_late(cluster, read):
    """Lines of the next run were read in its place: its own lines come late, and no line is lost or repeated."""
    cluster.logs["p", ""] = stamped(10, "c")
    cluster.logs["p", "true"] = stamped(0, "a", "b")
    assert read(0) == ["c\n"]
    cluster.logs["p", ""] += stamped(11, "d")
    assert read(1) == ["a\n", "b\n", "d\n"]
    cluster.logs["p", ""] += stamped(12, "e")
    assert read(1) == ["e\n"]


def test_the_rest_of_a_run_that_ended_between_two_reads_comes_late(cluster, read):
    """Lines that were read before are not repeated."""
    cluster.logs["p", ""] = stamped(0, "a")
    assert read(0) == ["a\n"]
    cluster.logs["p", ""], cluster.logs["p", "true"] = stamped(10, "c"), stamped(0, "a", "b")
    assert read(0) == ["c\n"]
    assert read(1) == ["b\n"]


def test_a_run_that_was_read_is_not_shown_again(cluster, read):
    """Only unread lines of the previous run are shown."""
    cluster.logs["p", ""] = stamped(0, "a", "b")
    assert read(0) == ["a\n", "b\n"]
    cluster.logs["p", ""], cluster.logs["p", "true"] = stamped(10, "d"), stamped(0, "a", "b", "c")
    assert read(1) == ["c\n", "d\n"]


def test_a_run_that_is_no_longer_kept_is_left_out(cluster, read):
    """The current run is read nevertheless."""
    cluster.logs["p", ""] = stamped(0, "a")
    assert read(0) == ["a\n"]
    cluster.logs["p", ""] = stamped(10, "b")
    gone = refusal(400, "BadRequest", "previous terminated container not found")
    cluster.faults += [("GET", "/log", gone, "before")] * 2
    assert read(1) == ["b\n"]


@pytest.mark.parametrize("follow", [False, True])
def test_a_crashed_container_is_read_while_it_waits(cluster, follow):
    """Its last lines come before its next run, once, also if there is never another run."""
    pod = {"metadata": {"namespace": "default", "name": "p"}}
    log = ContainerLog(KubeApi(cluster), pod, "main", LogQuery(follow=follow))

    def read(restarts, **state):
        return [line.decode() for _, line in log.lines({"restartCount": restarts, **state}, follow=follow)]

    crashed = {"state": {"waiting": {"reason": "CrashLoopBackOff"}}, "lastState": {"terminated": {"exitCode": 1}}}
    cluster.logs["p", ""] = stamped(0, "a", "b")
    assert read(0, **crashed) == ["a\n", "b\n"]
    assert read(0, **crashed) == []
    cluster.logs["p", ""], cluster.logs["p", "true"] = stamped(10, "c"), stamped(0, "a", "b")
    assert read(1, **crashed) == ["c\n"]
    assert read(1, state={"waiting": {"reason": "ContainerCreating"}}) == []
    cluster.logs["p", ""], cluster.logs["p", "true"] = stamped(20, "d"), stamped(10, "c")
    assert read(2, state={"terminated": {"exitCode": 1}}) == ["d\n"]
