"""Logs of real containers: told apart, across restarts, evictions and broken connections, and when they are gone."""

from __future__ import annotations

import logging
import re
import threading
import time
from datetime import datetime, timezone

import pytest

from tests.backends.kubernetes import cluster
from tests.backends.kubernetes.jobs import audited
from torchx.errors import NotFoundError
from torchx.schedulers.kit.logs import LogQuery
from torchx.schedulers.kit.timed_lines import split_stamp
from torchx.schedulers.kubernetes.pods.container_logs import ContainerLog
from torchx.specs import AppState


def count(first, last, pause=0.1):
    """A script's words that say the numbers, with pauses of so many seconds."""
    return f"for i in $(seq {first} {last}); do echo line $i; sleep {pause}; done"


class Follower(threading.Thread):
    """Follows a replica's log and remembers its lines."""

    def __init__(self, jobs, app_id, k=0, **query):
        super().__init__(daemon=True)
        self.lines = []
        self.source = jobs.scheduler.log_iter(app_id, "main", k, should_tail=True, **query)
        self.start()

    def run(self):
        for line in self.source:
            self.lines.append(line.rstrip("\n"))

    def until(self, line, times=1, timeout_s=480):
        deadline = time.monotonic() + timeout_s
        alive = True
        while self.lines.count(line) < times:
            assert alive and time.monotonic() < deadline, self.lines
            alive = self.is_alive()
            time.sleep(0.05)

    def all(self, timeout_s=480):
        self.join(timeout_s)
        assert not self.is_alive(), self.lines
        return self.lines


def containers(image):
    """An init container and a sidecar that ends when the role's program has."""
    shared = {"name": "shared", "emptyDir": {}}
    mounts = [{"name": "shared", "mountPath": "/shared"}]
    side = "until [ -e /shared/done ]; do echo beside; sleep 0.3; done"
    return {
        "spec": {
            "volumes": [shared],
            "initContainers": [{"name": "fetch", "image": image, "command": ["echo", "fetched"]}],
            "containers": [
                {"name": "main", "volumeMounts": mounts},
                {"name": "proxy", "image": image, "command": ["sh", "-c", side], "volumeMounts": mounts},
            ],
        }
    }


@pytest.mark.parametrize("follow", [False, True], ids=["afterwards", "live"])
def test_containers_are_told_apart(jobs, image, follow, gate, eventually):
    """The role's own lines stand as they are, in the order of their times; the others after their container's name."""
    script = f"{count(1, 2)}; {gate.wait('seen')}; echo line 3; touch /shared/done"
    app_id = jobs.run(script, overlay=containers(image), mounts=[gate.mount])
    if follow:
        follower = Follower(jobs, app_id)
        follower.until("[proxy] beside")
    else:
        jobs.until(app_id, lambda job: job.state is AppState.RUNNING)
        eventually(lambda: "[proxy] beside" in jobs.log(app_id), timeout_s=240)
    gate.open("seen")
    jobs.until(app_id)
    lines = follower.all() if follow else jobs.log(app_id)
    assert lines[0] == "[fetch] fetched"
    assert [line for line in lines if not line.startswith("[")] == ["line 1", "line 2", "line 3"]
    assert "[proxy] beside" in lines[: lines.index("line 3")]


def test_a_log_goes_on_when_the_container_is_started_again(jobs, gate, eventually):
    """`restartPolicy: OnFailure` by an overlay: both runs are shown, each line once."""
    again = f"touch /gate/again; echo first; {gate.wait('followed')}; exit 3"
    script = f"if [ -e /gate/again ]; then echo second; {gate.wait('seen')}; else {again}; fi"
    overlay = {"spec": {"restartPolicy": "OnFailure"}}
    app_id = jobs.run(script, overlay=overlay, max_retries=3, mounts=[gate.mount])  # a restart is a retry
    follower = Follower(jobs, app_id)
    follower.until("first")
    gate.open("followed")
    follower.until("second")
    # Of the restart one knows a little later, when the next look is due.
    eventually(lambda: jobs.log(app_id) == ["first", "second"], timeout_s=240)
    # While it runs: of a container that has ended the kubelet keeps one run, and removes the others within a minute.
    query = LogQuery(previous=True, timestamps=True)
    (line,) = list(jobs.scheduler.open_logs(app_id, [("main", 0)], query)[0])
    assert re.fullmatch(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z first\n", line)
    gate.open("seen")
    found = jobs.until(app_id)
    assert (found.state, found.num_restarts) == (AppState.SUCCEEDED, 1)
    assert follower.all() == ["first", "second"]


def test_a_crashed_container_is_shown_while_it_is_waited_with(jobs, eventually):
    """CrashLoopBackOff is named, and the log is that of the run that crashed."""
    # A kubelet that comes by late finds its first pauses over, and starts the container at once: each is twice as long.
    app_id = jobs.run("echo dying; exit 7", overlay={"spec": {"restartPolicy": "OnFailure"}}, max_retries=20)
    found = jobs.until(app_id, lambda job: "CrashLoopBackOff" in job.msg, timeout_s=540)
    assert found.msg.startswith("main/0: its container fails again and again: Kubernetes is backing off before")
    assert found.msg.endswith("; restarted because it failed: exit code 7: dying")
    said = eventually(lambda: jobs.log(app_id))  # nothing is, where the next run is just being made
    assert set(said) == {"dying"}
    jobs.scheduler.cancel(app_id)


def test_a_log_goes_on_in_the_pod_that_replaces_another(jobs, gate, eventually):
    """The pod is evicted as in the draining of a node: its lines, and then those of the new pod."""
    script = f"echo on $HOSTNAME; {count(1, 2)}; {gate.wait('moved')}; {count(3, 15)}"
    overlay = {"spec": {"terminationGracePeriodSeconds": 1}}
    app_id = jobs.run(script, max_retries=2, overlay=overlay, mounts=[gate.mount])
    follower = Follower(jobs, app_id)
    follower.until("line 2")
    (pod,) = jobs.pods(app_id)
    name = pod["metadata"]["name"]
    eviction = {"apiVersion": "policy/v1beta1", "kind": "Eviction", "metadata": {"name": name}}
    cluster.call(
        "POST", jobs.path("pods", f"{name}/eviction"), {**eviction, "deleteOptions": {"gracePeriodSeconds": 0}}
    )
    follower.until("line 2", times=2)
    eventually(lambda: name not in [pod["metadata"]["name"] for pod in jobs.pods(app_id)])
    gate.open("moved")
    lines = follower.all()
    assert [line for line in lines if line.startswith("on ")] and lines.count("line 1") == 2
    assert lines[-1] == "line 15" and lines.count("line 15") == 1


def test_lines_of_a_time_and_with_a_word(jobs, gate, eventually):
    """`since` and `until` to the fraction of a second; `regex`."""
    app_id = jobs.run(f"echo early; {gate.wait('a')}; echo late; {gate.wait('b')}; echo last", mounts=[gate.mount])
    jobs.until(app_id, lambda job: job.state is AppState.RUNNING)
    for n, name in enumerate("ab"):
        eventually(lambda n=n: len(jobs.log(app_id)) > n, timeout_s=240)  # it has its time
        gate.open(name)
    jobs.until(app_id)
    path = jobs.path("pods", f"{jobs.pods(app_id)[0]['metadata']['name']}/log?timestamps=true")
    times = [split_stamp(line)[0] / 10**9 for line in cluster.ask("GET", path)[1].encode().splitlines()]
    # The API goes back to whole seconds: it shows the line before, too.
    first, second = (datetime.fromtimestamp(at + 0.001, timezone.utc) for at in times[:2])
    assert jobs.log(app_id, since=first) == ["late", "last"]
    assert jobs.log(app_id, until=first) == ["early"]
    assert jobs.log(app_id, since=first, until=second) == ["late"]
    assert jobs.log(app_id, regex="^la") == ["late", "last"]
    assert Follower(jobs, app_id, since=second).all() == ["last"]


def test_many_lines_and_long_ones_arrive_whole(jobs):
    """A log of some megabytes, with a line of 100 kB and one that is no UTF-8, as it was written."""
    script = "seq 1 100000; python3 -c \"print('x' * 100000)\"; printf 'a\\377b\\n'; printf 'no end'"
    app_id = jobs.run(script)
    jobs.until(app_id)
    lines = jobs.log(app_id)
    assert lines[:100000] == [str(i) for i in range(1, 100001)]
    assert lines[100000:] == ["x" * 100000, "a\ufffdb", "no end"]


@pytest.mark.timeout(600)
def test_replicas_are_followed_with_one_look_a_second(jobs, gate):
    """Twelve followers: a connection each, while it runs, and one shared question a second about the pods."""
    app_id = jobs.run(f"{count(1, 4, pause=1)}; {gate.wait('go')}", num_replicas=12, mounts=[gate.mount])
    jobs.until(app_id, lambda _: len(jobs.pods(app_id)) == 12)  # who waits for pods asks more
    with audited(jobs.namespace) as audit:
        begun = time.monotonic()
        followers = [Follower(jobs, app_id, k) for k in range(12)]
        for follower in followers:
            follower.until("line 4")
        gate.open("go")
        for follower in followers:
            assert follower.all() == [f"line {i}" for i in range(1, 5)]
        took = time.monotonic() - begun
    streams = [call for call in audit.calls() if "/log?" in call["requestURI"]]
    # While the cluster has not noticed that a container has ended, its log is asked for again, every 8 looks at last.
    assert len(streams) <= (5 + took / 8) * 12, len(streams)
    assert len(audit.calls()) - len(streams) <= 3 * (took + 2), (took, audit.verbs())


def cut_twice(monkeypatch, after):
    """The connections of two logs break after so many lines; the result has the last line of each."""
    import urllib3

    whole, cut = ContainerLog._new, []

    def lines_until_cut(lines):
        for n, line in enumerate(lines):
            yield line
            if n == after and len(cut) < 2:
                cut.append(line)
                raise urllib3.exceptions.ProtocolError("cut")

    monkeypatch.setattr(
        ContainerLog, "_new", lambda log, lines, *, previous: whole(log, lines_until_cut(lines), previous=previous)
    )
    return cut


def test_a_stream_that_breaks_off_goes_on(jobs, gate, monkeypatch):
    """The connection to the API server is cut twice in the middle: no line is lost, and none is shown again."""
    app_id = jobs.run(f"{count(1, 8)}; {gate.wait('cut')}; {count(9, 20)}", mounts=[gate.mount])
    cut = cut_twice(monkeypatch, 5)
    follower = Follower(jobs, app_id)
    follower.until("line 8")
    gate.open("cut")
    assert follower.all() == [f"line {i}" for i in range(1, 21)]
    assert len(cut) == 2


def test_the_log_of_what_has_ended_goes_on_where_it_broke_off(jobs, monkeypatch):
    """Nobody would ask for the rest later: all of it is shown all the same."""
    app_id = jobs.run("seq 1 1000")
    jobs.until(app_id)
    cut = cut_twice(monkeypatch, 300)
    assert jobs.log(app_id) == [str(i) for i in range(1, 1001)]
    assert len(cut) == 2


def test_pods_that_are_gone_leave_what_was_archived(jobs, caplog):
    """Of each replica all that it wrote, to the byte, until the job is deleted."""
    app_id = jobs.run("seq 1 30000; printf 'no end of line'", num_replicas=2)
    jobs.until(app_id)
    both = [("main", 0), ("main", 1)]
    before = [list(lines) for lines in jobs.scheduler.open_logs(app_id, both, LogQuery(keep=True))]
    assert [len(lines) for lines in before] == [30001] * 2
    for pod in jobs.pods(app_id):
        cluster.call("DELETE", f"{jobs.path('pods', pod['metadata']['name'])}?gracePeriodSeconds=0")
    jobs.use("kubernetes")
    with caplog.at_level(logging.WARNING, "torchx"):
        assert [list(lines) for lines in jobs.scheduler.open_logs(app_id, both, LogQuery())] == before
    assert "were archived on this machine" in caplog.text
    jobs.scheduler.delete(app_id)
    with pytest.raises(NotFoundError):
        jobs.log(app_id)


def test_pods_that_are_gone_leave_the_lines_that_were_followed(jobs, caplog):
    """Without them, it is said that there is nothing."""
    app_id = jobs.run("echo a; echo b", num_replicas=2)
    Follower(jobs, app_id).all()
    jobs.until(app_id)
    for pod in jobs.pods(app_id):
        cluster.call("DELETE", f"{jobs.path('pods', pod['metadata']['name'])}?gracePeriodSeconds=0")
    jobs.use("kubernetes")  # one that has not seen them just now
    with caplog.at_level(logging.WARNING, "torchx"):
        assert jobs.log(app_id) == ["a", "b"]
    assert "the last lines that were followed" in caplog.text
    with pytest.raises(NotFoundError, match="the pods of this replica are gone"):
        jobs.log(app_id, k=1)
