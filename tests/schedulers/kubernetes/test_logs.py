"""The logs of many replicas need one poll of the job."""

from __future__ import annotations

import io

import pytest

from tests.schedulers.kubernetes.fake_cluster import Cluster
from torchx.errors import NotFoundError
from torchx.runner import Runner
from torchx.schedulers.kit.logs import LogQuery
from torchx.schedulers.kubernetes_scheduler import create_scheduler
from torchx.specs import AppDef, Resource, Role

DONE = {"phase": "Succeeded", "containerStatuses": [{"name": "main", "state": {"terminated": {"exitCode": 0}}}]}
GROUPS = ("jobset.x-k8s.io/v1alpha2", "batch.volcano.sh/v1alpha1")


@pytest.fixture
def submitted():
    """Submits a job of this many replicas, which have ended; the other scheduler does not know it."""

    def submit(replicas, kind="job"):
        cluster = Cluster(groups=GROUPS)
        role = Role("trainer", "img", entrypoint="t", num_replicas=replicas, resource=Resource(1, 0, 64))
        app_id = create_scheduler("me", client=cluster).submit(AppDef("train", [role]), {"kind": kind})
        if kind == "job":
            (item,) = cluster.of("jobs")
            cluster.run_pods(item, DONE)
        else:
            (item,) = cluster.of("jobs")
            for k, task in enumerate(item["spec"]["tasks"]):
                name = f"{item['metadata']['name']}-{k}"
                metadata = {**task["template"]["metadata"], "name": name, "namespace": "default", "uid": name}
                cluster.objects["api/v1/pods", "default", name] = {"metadata": metadata, "spec": {}, "status": DONE}
        for pod in cluster.of("pods"):
            cluster.logs[pod["metadata"]["name"], ""] = b"2026-01-01T00:00:00.5Z hello\n"
        cluster.calls.clear()
        return cluster, create_scheduler("me", client=cluster), app_id

    return submit


@pytest.mark.parametrize("kind", ["job", "volcano"])
@pytest.mark.parametrize("replicas", [1, 16, 64])
def test_logs_of_a_job_are_a_call_for_each_replica_and_a_few(submitted, replicas, kind):
    """A process that does not know the job makes at most N + 4 calls for N replicas."""
    from torchx.cli.cmd_log import show_logs

    cluster, scheduler, app_id = submitted(replicas, kind)
    out = io.StringIO()
    with Runner("me", {"kubernetes": lambda *_, **__: scheduler}) as runner:
        show_logs(out, f"kubernetes://me/{app_id}", runner, query=LogQuery())
    assert out.getvalue().splitlines() == [f"trainer/{k} hello" for k in range(replicas)]
    assert len(cluster.calls) <= replicas + 4


def test_a_thousand_replicas_are_two_pages(submitted):
    """The list of pods is fetched once, however long reading takes."""
    cluster, scheduler, app_id = submitted(1000)
    logs = scheduler.open_logs(app_id, scheduler.log_replicas(app_id), LogQuery())
    assert sum(len(list(log)) for log in logs) == 1000
    assert len(cluster.calls) == 1 + 2 + 1000


def test_nothing_is_read_before_lines_are_asked_for(submitted):
    """An error of one replica is raised when its lines are read."""
    cluster, scheduler, app_id = submitted(3)
    cluster.objects = {key: item for key, item in cluster.objects.items() if not key[2].endswith("-1-abcde")}
    first, second, third = scheduler.open_logs(app_id, [("trainer", k) for k in range(3)], LogQuery())
    assert cluster.calls == []
    assert list(first) == list(third) == ["hello\n"]
    with pytest.raises(NotFoundError, match="gone"):
        list(second)


def test_replicas_are_known_without_their_definition_too(submitted):
    """They are derived from the pods, such as for a definition that is too large; an unknown job has none."""
    cluster, scheduler, app_id = submitted(2)
    del cluster.of("jobs")[0]["metadata"]["annotations"]["torchx.pytorch.org/appdef"]
    assert scheduler.log_replicas(app_id) == [("trainer", 0), ("trainer", 1)]
    assert list(scheduler.open_logs(app_id, [("trainer", 1)], LogQuery())[0]) == ["hello\n"]
    assert scheduler.log_replicas("default:nobody") is None


@pytest.mark.parametrize("names", [("читатель", "тренер"), ("a/1", "a-1"), ("x" * 80, "x" * 81)])
def test_roles_whose_names_are_no_labels_have_their_own_logs(names):
    """Also in what is kept of them after their pods are gone."""
    cluster = Cluster()
    scheduler = create_scheduler("me", client=cluster)
    roles = [Role(name, "img", entrypoint="t", resource=Resource(1, 0, 64)) for name in names]
    app_id = scheduler.submit(AppDef("train", roles), {"kind": "job"})
    for k, job in enumerate(cluster.of("jobs")):
        cluster.run_pods(job, DONE)
        job["status"] = {"conditions": [{"type": "Complete", "status": "True"}]}
        cluster.logs[cluster.of("pods")[k]["metadata"]["name"], ""] = b"2026-01-01T00:00:00.5Z of %d\n" % k
    for query in (LogQuery(), LogQuery(keep=True), LogQuery(follow=True)):
        found = scheduler.open_logs(app_id, [(name, 0) for name in names], query)
        assert [list(log) for log in found] == [["of 0\n"], ["of 1\n"]]
    for pod in cluster.of("pods"):
        cluster.take(pod)
    found = scheduler.open_logs(app_id, [(name, 0) for name in names], LogQuery())
    assert [list(log) for log in found] == [["of 0\n"], ["of 1\n"]]
