"""Logs of real containers: told apart, across restarts, evictions and broken connections, and when they are gone."""

from __future__ import annotations

import logging
import threading
import time
from datetime import datetime, timezone

import pytest

from tests.backends.kubernetes import cluster
from torchx.errors import NotFoundError
from torchx.specs import AppState

COUNT = "i=0; while [ $i -lt {n} ]; do i=$((i+1)); echo line $i; sleep {pause}; done"


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

    def until(self, line, timeout_s=40):
        deadline = time.monotonic() + timeout_s
        while line not in self.lines:
            assert time.monotonic() < deadline and self.is_alive(), self.lines
            time.sleep(0.05)

    def all(self, timeout_s=60):
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
def test_containers_are_told_apart(jobs, image, follow):
    """The role's own lines stand as they are, in the order of their times; the others after their container's name."""
    app_id = jobs.run(f"{COUNT.format(n=3, pause=0.5)}; touch /shared/done", overlay=containers(image))
    if follow:
        lines = Follower(jobs, app_id).all()
    jobs.until(app_id)
    lines = lines if follow else jobs.log(app_id)
    assert lines[0] == "[fetch] fetched"
    assert [line for line in lines if not line.startswith("[")] == ["line 1", "line 2", "line 3"]
    assert "[proxy] beside" in lines[: lines.index("line 3")]


def test_a_log_goes_on_when_the_container_is_started_again(jobs):
    """`restartPolicy: OnFailure` by an overlay: both runs are shown, each line once."""
    again = "touch /shared/again; echo first; sleep 1; exit 3"
    script = f"if [ -e /shared/again ]; then echo second; sleep 3; else {again}; fi"
    volume = {"volumes": [{"name": "shared", "emptyDir": {}}]}
    main = {"name": "main", "volumeMounts": [{"name": "shared", "mountPath": "/shared"}]}
    overlay = {"spec": {"restartPolicy": "OnFailure", **volume, "containers": [main]}}
    app_id = jobs.run(script, overlay=overlay, max_retries=3)  # a restart is a retry
    follower = Follower(jobs, app_id)
    follower.until("second")
    assert jobs.log(app_id) == ["first", "second"]
    found = jobs.until(app_id)
    assert (found.state, found.num_restarts) == (AppState.SUCCEEDED, 1)
    assert follower.all() == ["first", "second"]


def test_a_crashed_container_is_shown_while_it_is_waited_with(jobs):
    """CrashLoopBackOff is named, and the log is that of the run that crashed."""
    app_id = jobs.run("echo dying; exit 7", overlay={"spec": {"restartPolicy": "OnFailure"}}, max_retries=5)
    found = jobs.until(app_id, lambda job: "CrashLoopBackOff" in job.msg)
    assert found.msg.startswith("main/0: its container fails again and again, and is waited with (CrashLoopBackOff)")
    assert set(jobs.log(app_id)) == {"dying"}
    jobs.scheduler.cancel(app_id)


def test_a_log_goes_on_in_the_pod_that_replaces_another(jobs):
    """The pod is evicted as in the draining of a node: its lines, and then those of the new pod."""
    app_id = jobs.run(
        f"echo on $HOSTNAME; {COUNT.format(n=15, pause=0.3)}",
        max_retries=2,
        overlay={"spec": {"terminationGracePeriodSeconds": 1}},
    )
    follower = Follower(jobs, app_id)
    follower.until("line 2")
    (pod,) = jobs.pods(app_id)
    name = pod["metadata"]["name"]
    eviction = {"apiVersion": "policy/v1beta1", "kind": "Eviction", "metadata": {"name": name}}
    cluster.call(
        "POST", jobs.path("pods", f"{name}/eviction"), {**eviction, "deleteOptions": {"gracePeriodSeconds": 0}}
    )
    lines = follower.all()
    assert [line for line in lines if line.startswith("on ")] and lines.count("line 1") == 2
    assert lines[-1] == "line 15" and lines.count("line 15") == 1


def test_lines_of_a_time_and_with_a_word(jobs):
    """`since` and `until` to the fraction of a second; `regex`."""
    app_id = jobs.run("date +%s.%N; echo early; sleep 1.5; echo late; sleep 1.5; echo last")
    jobs.until(app_id)
    begun = float(jobs.log(app_id)[0])
    at = lambda seconds: datetime.fromtimestamp(begun + seconds, timezone.utc)  # noqa: E731  # short
    assert jobs.log(app_id, since=at(0.75)) == ["late", "last"]
    assert jobs.log(app_id, until=at(0.75))[1:] == ["early"]
    assert jobs.log(app_id, since=at(0.75), until=at(2.25)) == ["late"]
    assert jobs.log(app_id, regex="^la") == ["late", "last"]
    assert Follower(jobs, app_id, since=at(2.25)).all() == ["last"]


def test_many_lines_and_long_ones_arrive_whole(jobs):
    """A log of some megabytes, with a line of 100 kB and one that is no UTF-8, as it was written."""
    script = "seq 1 100000; python3 -c \"print('x' * 100000)\"; printf 'a\\377b\\n'; printf 'no end'"
    app_id = jobs.run(script)
    jobs.until(app_id)
    lines = jobs.log(app_id)
    assert lines[:100000] == [str(i) for i in range(1, 100001)]
    assert lines[100000:] == ["x" * 100000, "a\ufffdb", "no end"]


def test_replicas_are_followed_with_one_look_a_second(jobs):
    """Twelve followers: a connection each, while it runs, and one shared question a second about the pods."""
    from tests.backends.kubernetes.jobs import audited

    app_id = jobs.run(COUNT.format(n=4, pause=1), num_replicas=12)
    with audited() as calls:
        begun = time.monotonic()
        followers = [Follower(jobs, app_id, k) for k in range(12)]
        for follower in followers:
            assert follower.all(120) == [f"line {i}" for i in range(1, 5)]
        took = time.monotonic() - begun
    streams = [call for call in calls if "/log?" in call["requestURI"]]
    assert len(streams) <= 5 * 12, len(streams)
    assert len(calls) - len(streams) <= 3 * (took + 2), len(calls)


def test_a_stream_that_breaks_off_goes_on(jobs, tmp_path, monkeypatch):
    """The connection to the API server is cut twice in the middle: no line is lost, and none is shown again."""
    from torchx.schedulers.kit.kube import container_logs

    app_id = jobs.run(COUNT.format(n=20, pause=0.2))
    cut = []
    honest = container_logs._lines

    def cutting(response):
        import urllib3

        for n, line in enumerate(honest(response)):
            yield line
            if n == 5 and len(cut) < 2:
                cut.append(line)
                response.close()
                raise urllib3.exceptions.ProtocolError("cut")

    def lines(response):
        try:
            yield from cutting(response)
        except __import__("urllib3").exceptions.HTTPError:
            return

    monkeypatch.setattr(container_logs, "_lines", lines)
    assert Follower(jobs, app_id).all() == [f"line {i}" for i in range(1, 21)]
    assert len(cut) == 2


def test_pods_that_are_gone_leave_the_lines_that_were_followed(jobs, caplog):
    """Without them, it is said that there is nothing."""
    app_id = jobs.run("echo a; echo b", num_replicas=2)
    Follower(jobs, app_id).all()
    jobs.until(app_id)
    for pod in jobs.pods(app_id):
        cluster.call("DELETE", f"{jobs.path('pods', pod['metadata']['name'])}?gracePeriodSeconds=0")
    time.sleep(1.1)  # a look is shared for a second
    with caplog.at_level(logging.WARNING, "torchx"):
        assert jobs.log(app_id) == ["a", "b"]
    assert "the last lines that were followed" in caplog.text
    with pytest.raises(NotFoundError, match="the pods of this replica are gone"):
        jobs.log(app_id, k=1)
