"""Ten minutes without an API server: waiting and following logs continue, with one warning, and miss nothing."""

from __future__ import annotations

import pytest
import urllib3

from tests.schedulers.kubernetes.fake_cluster import Cluster, refusal
from torchx.errors import BackendError, TransientError
from torchx.runner import Runner
from torchx.runner.watching import wait as runner_wait
from torchx.schedulers.kubernetes import base, logs
from torchx.schedulers.kubernetes import client as kube_api
from torchx.schedulers.kubernetes.api import queries
from torchx.schedulers.kubernetes_scheduler import create_scheduler
from torchx.specs import AppDef, AppState, Resource, Role
from torchx.testing import FakeClock
from torchx.util import outages

JOBSETS = "jobset.x-k8s.io/v1alpha2"
RUNNING = {"phase": "Running", "containerStatuses": [{"name": "main", "state": {"running": {}}}]}
OVER = {"phase": "Succeeded", "containerStatuses": [{"name": "main", "state": {"terminated": {"exitCode": 0}}}]}
DONE = {"conditions": [{"type": "Complete", "status": "True"}]}
RBAC = 'pods is forbidden: User "ann" cannot list resource "pods" in API group "" in the namespace "default": RBAC: role not found'


@pytest.fixture
def clock(monkeypatch):
    """A clock that advances only by `sleep`."""
    found = FakeClock()
    for module in (runner_wait, outages, base, logs, queries):
        monkeypatch.setattr(module, "time", found)
    monkeypatch.setattr(kube_api.KubeApi.__init__, "__kwdefaults__", {"context": None, "sleep": found.sleep})
    return found


@pytest.fixture
def submitted(clock):
    """A running job of one replica, submitted by a Runner."""
    cluster = Cluster(groups=[JOBSETS])
    scheduler = create_scheduler("me", client=cluster)
    with Runner("me", {"kubernetes": lambda *_, **__: scheduler}) as runner:
        role = Role("a", "img", entrypoint="t", resource=Resource(1, 0, 64))
        handle = runner.run(AppDef("train", [role]), "kubernetes", {"kind": "job"})
        (job,) = cluster.of("jobs")
        cluster.run_pods(job, RUNNING)
        yield cluster, runner, handle


def away(cluster, clock, answer, *, seconds, then):
    """Answers each call like this; after some seconds the server is back, and ``then`` has happened."""
    until = clock.now + seconds
    happened = []

    def answers(method, path):
        if clock.now < until:
            return answer()
        if not happened:
            happened.append(1)
            then()
        return None

    cluster.away = answers


def end(cluster):
    """Ends the job."""
    cluster.of("jobs")[0]["status"] = DONE
    for pod in cluster.of("pods"):
        pod["status"] = OVER


ANSWERS = {
    "429": lambda: refusal(429, "TooManyRequests", "too many requests", {"Retry-After": "1"}),
    "500": lambda: refusal(500, "InternalError", "etcdserver: leader changed"),
    "502": lambda: refusal(502, "", "bad gateway"),
    "503": lambda: refusal(503, "ServiceUnavailable", "the server is currently unable to handle the request"),
    "504": lambda: refusal(504, "Timeout", "request did not complete"),
    "403": lambda: refusal(403, "Forbidden", RBAC),
    "404": lambda: refusal(404, "NotFound", "the server could not find the requested resource"),
    "reset": lambda: urllib3.exceptions.ProtocolError("Connection aborted.", ConnectionResetError(104, "reset")),
    "silence": lambda: urllib3.exceptions.ReadTimeoutError(None, "/", "Read timed out."),
}


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS)
def test_who_waits_bears_nine_minutes(submitted, clock, caplog, answer):
    """Waiting survives all transient errors, also 403 after a success, with one warning, and sees the end."""
    cluster, runner, handle = submitted
    assert runner.status(handle).state is AppState.RUNNING
    began = clock.now
    away(cluster, clock, answer, seconds=540, then=lambda: end(cluster))
    assert runner.wait(handle, wait_interval=10).state is AppState.SUCCEEDED
    assert 540 <= clock.now - began < 600
    assert len([m for m in caplog.messages if "retries for 10 minutes" in m]) == 1


def test_who_waits_gives_up_after_ten_minutes(submitted, clock):
    """The error has the server's message."""
    cluster, runner, handle = submitted
    runner.status(handle)
    began = clock.now
    away(cluster, clock, ANSWERS["503"], seconds=1e9, then=lambda: None)
    with pytest.raises(TransientError, match="unable to handle the request"):
        runner.wait(handle, wait_interval=10)
    assert 600 <= clock.now - began < 660


def test_what_was_never_allowed_is_not_waited_for(submitted, clock):
    """Missing rights are reported at once."""
    cluster, runner, handle = submitted
    cluster.rights = set()
    with pytest.raises(BackendError, match="cannot list resource") as e:
        runner.wait(handle)
    assert not isinstance(e.value, TransientError)
    assert not clock.slept


def test_a_server_that_starts_up_does_not_make_a_job_vanish(clock):
    """A server that does not serve custom kinds yet does not mean that the job was deleted."""
    cluster = Cluster(groups=[JOBSETS])
    scheduler = create_scheduler("me", client=cluster)
    role = Role("a", "img", entrypoint="t", resource=Resource(1, 0, 64))
    app_id = scheduler.submit(AppDef("train", [role]), {"kind": "jobset"})
    assert scheduler.describe(app_id).state is AppState.PENDING
    cluster.groups.clear()
    with pytest.raises(TransientError, match="could not find the requested resource"):
        scheduler.describe(app_id)
    cluster.groups.add(JOBSETS)
    assert scheduler.describe(app_id).state is AppState.PENDING
    cluster.cold = 1
    assert scheduler.describe(app_id).state is AppState.PENDING


# -- logs ----------------------------------------------------------------------------------------


def written(*texts):
    return b"".join(b"2026-01-01T00:00:%02d.000000001Z %s\n" % (i // 2, text.encode()) for i, text in enumerate(texts))


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS)
def test_a_log_goes_on_after_nine_minutes(submitted, clock, caplog, answer):
    """The stream broke within a line, and two lines share each timestamp: no line is lost or repeated."""
    cluster, runner, handle = submitted
    name = cluster.of("pods")[0]["metadata"]["name"]
    lines = [f"line {i}" for i in range(8)]
    cluster.logs[name, ""] = written(*lines[:5])
    cluster.cuts = [len(written(*lines[:3])) + 7]

    def then():
        cluster.logs[name, ""] = written(*lines)
        end(cluster)

    got = []
    for line in runner.log_lines(handle, "a", 0, should_tail=True):
        got.append(line.rstrip("\n"))
        if len(got) == 3:
            away(cluster, clock, answer, seconds=540, then=then)
    assert got == lines
    assert len([m for m in caplog.messages if "torchx retries" in m]) == 1


def test_a_log_of_which_a_node_does_not_answer_goes_on(submitted, clock, caplog):
    """If the API server cannot reach a node, one warning is logged for all replicas."""
    cluster, runner, handle = submitted
    name = cluster.of("pods")[0]["metadata"]["name"]
    cluster.logs[name, ""] = written("a", "b")
    until = clock.now + 300
    dialing = refusal(500, "InternalError", "error dialing backend: dial tcp 10.0.0.7:10250: i/o timeout")

    def answers(method, path):
        if clock.now < until:
            return dialing if path.endswith("/log") else None
        end(cluster)
        return None

    cluster.away = answers
    assert list(runner.log_lines(handle, "a", 0, should_tail=True)) == ["a\n", "b\n"]
    assert len([m for m in caplog.messages if "error dialing backend" in m]) == 1


def test_a_log_that_nobody_follows_is_not_waited_for(submitted, clock):
    """Without `--follow`, an outage is an error."""
    cluster, runner, handle = submitted
    lines = runner.log_lines(handle, "a", 0)
    away(cluster, clock, ANSWERS["503"], seconds=1e9, then=lambda: None)
    with pytest.raises(TransientError):
        list(lines)
    assert sum(clock.slept) < 60


def test_lines_of_a_sidecar_are_not_lost_with_those_of_its_pod(submitted, clock):
    """The outage begins between two containers: the lines of both are shown, sorted by time."""
    cluster, runner, handle = submitted
    (pod,) = cluster.of("pods")
    name = pod["metadata"]["name"]
    both = [{"name": n, "state": {"running": {}}} for n in ("main", "proxy")]
    pod["status"] = {"phase": "Running", "containerStatuses": both}
    cluster.logs[name, ""] = written("a", "b")
    asked, began = [], clock.now

    def answers(method, path):
        if clock.now > began + 60:
            over = [{"name": n, "state": {"terminated": {"exitCode": 0}}} for n in ("main", "proxy")]
            pod["status"] = {"phase": "Succeeded", "containerStatuses": over}
            cluster.of("jobs")[0]["status"] = DONE
        if not path.endswith("/log"):
            return None
        asked.append(path)
        return ANSWERS["503"]() if 2 <= len(asked) <= 6 else None  # the second container, five times

    cluster.away = answers
    got = list(runner.log_lines(handle, "a", 0, should_tail=True))
    assert sorted(got) == ["[proxy] a\n", "[proxy] b\n", "a\n", "b\n"]


def test_the_end_of_the_run_before_is_read_after_an_outage(submitted, clock):
    """The container was restarted during the outage: the last lines of its first run are shown."""
    cluster, runner, handle = submitted
    (pod,) = cluster.of("pods")
    name = pod["metadata"]["name"]
    cluster.logs[name, ""] = written("a", "b")
    cluster.cuts = [len(written("a", "b"))]
    got = []

    def then():
        cluster.logs[name, "true"] = written("a", "b", "c", "d")
        cluster.logs[name, ""] = written("a", "b", "c", "d", "e", "f")[len(written("a", "b", "c", "d")) :]
        pod["status"]["containerStatuses"] = [
            {"name": "main", "restartCount": 1, "state": {"terminated": {"exitCode": 0}}}
        ]
        pod["status"]["phase"] = "Succeeded"
        cluster.of("jobs")[0]["status"] = DONE
        cluster.faults = [("GET", "/log", ANSWERS["503"](), "before") for _ in range(12)]

    for line in runner.log_lines(handle, "a", 0, should_tail=True):
        got.append(line.rstrip("\n"))
        if len(got) == 2:
            away(cluster, clock, ANSWERS["503"], seconds=100, then=then)
    assert got == ["a", "b", "c", "d", "e", "f"]
