"""Gangs of plain Jobs by Kubernetes' own scheduler: where the cluster serves them, and what is said where it does not."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from tests.schedulers.kubernetes.fake_cluster import Cluster
from torchx.errors import BackendError, ConfigError
from torchx.schedulers.kubernetes_scheduler import KubernetesScheduler, create_scheduler
from torchx.specs import AppDef, AppState, Resource, RetryPolicy, Role

ALPHA, BETA = "scheduling.k8s.io/v1alpha2", "scheduling.k8s.io/v1beta1"


def app(*counts: int, **fields: Any) -> AppDef:
    small = Resource(1, 0, 64)
    return AppDef(
        "a",
        [Role(f"r{i}", "img", entrypoint="x", num_replicas=n, resource=small, **fields) for i, n in enumerate(counts)],
    )


def submit(cluster: Any, given: AppDef, **cfg: Any) -> tuple[KubernetesScheduler, str]:
    scheduler = create_scheduler("me", client=cluster)
    return scheduler, scheduler.submit(given, {"kind": "job", **cfg})


def groups_of(cluster: Cluster) -> list[Any]:
    """The names of the groups that pods of Jobs name."""
    return [
        job["spec"]["template"]["spec"].get("schedulingGroup", {}).get("podGroupName") for job in cluster.of("jobs")
    ]


@pytest.mark.parametrize("version", [ALPHA, "scheduling.k8s.io/v1alpha3", BETA])
@pytest.mark.parametrize("kind", ["job", "auto"])
def test_several_pods_are_one_gang(version: str, kind: str) -> None:
    """Of all roles together, in the newest version that the cluster serves; the Service owns the PodGroup."""
    cluster = Cluster(version=(1, 37), groups=[version])
    _, app_id = submit(cluster, app(1, 3), kind=kind)
    (group,), (service,) = cluster.of("podgroups"), cluster.of("services")
    name = app_id.partition(":")[2]
    assert (group["apiVersion"], group["metadata"]["name"]) == (version, name)
    assert group["spec"] == {"schedulingPolicy": {"gang": {"minCount": 4}}}
    assert group["metadata"]["ownerReferences"][0]["uid"] == service["metadata"]["uid"]
    assert groups_of(cluster) == [name, name]


@pytest.mark.parametrize(
    ("given", "cfg", "version", "served"),
    [
        (app(1), {}, (1, 37), True),
        (app(2), {"gang": "no"}, (1, 37), True),
        (app(2, max_retries=1), {}, (1, 37), True),
        (app(2, max_retries=1, retry_policy=RetryPolicy.REPLICA), {}, (1, 37), True),
        (app(2), {}, (1, 37), False),
        (app(2), {}, (1, 35), True),
    ],
    ids=["one pod", "no", "retries", "retries of replicas", "not served", "too old"],
)
def test_where_there_is_none(given: AppDef, cfg: dict[str, Any], version: tuple[int, int], served: bool) -> None:
    """Everything is as without gangs."""
    cluster = Cluster(version=version, groups=[ALPHA] if served else [])
    submit(cluster, given, **cfg)
    assert (cluster.of("podgroups"), groups_of(cluster)) == ([], [None])


def test_an_elastic_role_needs_its_minimum() -> None:
    """The rest may come later."""
    cluster = Cluster(version=(1, 37), groups=[BETA])
    submit(cluster, app(4, min_replicas=2), priority_class="high", gang="yes")
    (group,) = cluster.of("podgroups")
    assert group["spec"] == {"schedulingPolicy": {"gang": {"minCount": 2}}, "priorityClassName": "high"}
    old = Cluster(version=(1, 36), groups=[ALPHA])
    submit(old, app(2), priority_class="high")
    assert "priorityClassName" not in old.of("podgroups")[0]["spec"], "it needs a feature of its own"


def test_a_gang_that_was_asked_for() -> None:
    """`gang=yes` is refused where it cannot be kept, and nothing is created; it makes `auto` choose Jobs."""
    for cluster, said in (
        (Cluster(version=(1, 34)), "Kubernetes 1.34 serves no PodGroups, which `gang=yes` needs"),
        (Cluster(version=(1, 36)), "Kubernetes 1.36 serves no PodGroups, which `gang=yes` needs"),
    ):
        with pytest.raises(BackendError, match=said) as e:
            submit(cluster, app(2), gang="yes")
        assert ("kind=volcano" in e.value.hint, cluster.objects) == (True, {})
    retried = Cluster(version=(1, 36), groups=[ALPHA])
    submit(retried, app(2, max_retries=1), gang="yes")
    assert len(retried.of("podgroups")) == 1
    both = Cluster(version=(1, 36), groups=[ALPHA, "jobset.x-k8s.io/v1alpha2"])
    submit(both, app(2), gang="yes", kind="auto")
    assert (len(both.of("podgroups")), both.of("jobsets")) == (1, [])


@pytest.mark.parametrize(
    ("cfg", "said"),
    [
        ({"gang": "maybe"}, "gang `maybe` is not one of auto, yes, no"),
        ({"gang": "yes", "kind": "jobset"}, "`gang=yes` is for plain Jobs, but kind is `jobset`"),
        ({"gang": "yes", "kind": "auto", "queue": "q"}, "`gang=yes` is for plain Jobs, but kind is `volcano`"),
    ],
)
def test_options_that_contradict_one_another(cfg: dict[str, str], said: str) -> None:
    """The error names the value."""
    with pytest.raises(ConfigError, match=said):
        create_scheduler("me").submit_dryrun(app(2), cfg)


def test_without_the_right_the_pods_are_scheduled_one_by_one(caplog: pytest.LogCaptureFixture) -> None:
    """Which is said; `gang=yes` is refused. The printed rights are enough."""
    cluster = Cluster(version=(1, 37), groups=[ALPHA])
    scheduler = create_scheduler("me", client=cluster)
    rules = yaml.safe_load(scheduler.rights({"kind": "job"}))["rules"]
    cluster.grant([rule for rule in rules if "scheduling.k8s.io" not in rule["apiGroups"]])
    with caplog.at_level("INFO", "torchx.schedulers"):
        submit(cluster, app(2))
    assert "you may not create a PodGroup in `default`: its pods are scheduled one by one" in caplog.text
    with pytest.raises(BackendError, match="you may not create a PodGroup in `default`, which `gang=yes` needs"):
        submit(cluster, app(2), gang="yes")
    cluster.grant(rules)
    submit(cluster, app(2), gang="yes")
    assert len(cluster.of("podgroups")) == 1


def test_a_check_does_not_change_what_is_submitted() -> None:
    """The objects are made twice, for `run --check` and for the submission."""
    cluster: Any = Cluster(version=(1, 37), groups=[ALPHA])
    scheduler = create_scheduler("me", client=cluster)
    info = scheduler.submit_dryrun(app(2), {"kind": "job"})
    for check in scheduler.diagnose({"kind": "job"}, info):
        check.findings()
    scheduler.schedule(info)
    assert len(cluster.of("podgroups")) == 1 and None not in groups_of(cluster)


@pytest.mark.parametrize(
    ("conditions", "said"),
    [
        ([{"type": "PodGroupScheduled", "status": "False", "reason": "Unschedulable", "message": "1/2 pods fit"}], "its gang waits: 1/2 pods fit"),
        ([{"type": "PodGroupScheduled", "status": "False", "reason": "SchedulerError"}], "its gang waits: SchedulerError"),
        ([{"type": "PodGroupScheduled", "status": "True"}], "no node fits: 0/1 nodes are available"),
        ([], "no node fits: 0/1 nodes are available"),
        (None, "its PodGroup `{name}` does not exist"),
    ],
)  # fmt: skip
def test_why_a_gang_waits(conditions: Any, said: str) -> None:
    """In the words of the scheduler; of a gang that runs, nothing is asked."""
    cluster = Cluster(version=(1, 37), groups=[ALPHA])
    scheduler, app_id = submit(cluster, app(2))
    (job,), name = cluster.of("jobs"), app_id.partition(":")[2]
    waits = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes are available"}
    cluster.run_pods(job, {"phase": "Pending", "conditions": [waits]})
    for pod in cluster.of("pods"):
        del pod["spec"]["nodeName"]
    (group,) = cluster.of("podgroups")
    if conditions is None:
        cluster.take(group)
    else:
        group["status"] = {"conditions": conditions}
    found = scheduler.describe(app_id)
    assert found is not None
    assert (found.state, found.msg) == (AppState.PENDING, f"r0/0 (and 1 more): {said.format(name=name)}")
    for pod in cluster.of("pods"):
        pod["status"] = {"phase": "Running"}
    cluster.calls.clear()
    scheduler.describe(app_id)
    assert not [path for _, path, _ in cluster.calls if "podgroups" in path]


def test_a_sweep_is_no_gang() -> None:
    """Its tasks do not need one another."""
    from torchx.specs.tasks import TaskList

    cluster: Any = Cluster(version=(1, 37), groups=[ALPHA])
    scheduler = create_scheduler("me", client=cluster)
    info = scheduler.submit_dryrun(app(1), {})
    scheduler.submit_tasks(info, TaskList(names=["v"], points=[("1",), ("2",)], max_parallel=0))
    assert (cluster.of("podgroups"), groups_of(cluster)) == ([], [None])


def test_the_published_schema() -> None:
    """The field of the pods is in the schema of a Job, strictly."""
    validate = pytest.importorskip("kubernetes_validate")
    cluster = Cluster(version=(1, 37), groups=[BETA])
    submit(cluster, app(2))
    (job,) = cluster.of("jobs")
    validate.validate({**job, "apiVersion": "batch/v1", "kind": "Job"}, "1.37", strict=True)
