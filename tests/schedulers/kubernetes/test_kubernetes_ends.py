"""How jobs end: by a TTL, by `kubectl delete`, in a queue of Kueue, with missing rights."""

from __future__ import annotations

import pytest
import yaml

from tests.schedulers.kubernetes.fake_cluster import Cluster
from torchx.errors import BackendError, NotFoundError
from torchx.runner import Runner
from torchx.schedulers.kubernetes import client as kube_api
from torchx.schedulers.kubernetes_mcad_scheduler import create_scheduler as create_mcad
from torchx.schedulers.kubernetes_scheduler import create_scheduler
from torchx.specs import AppDef, AppState, Resource, Role, UnknownAppException

JOBSETS = "jobset.x-k8s.io/v1alpha2"
VOLCANO = "batch.volcano.sh/v1alpha1"
KUEUE = "kueue.x-k8s.io/v1beta1"
RUNNING = {"phase": "Running", "containerStatuses": [{"name": "main", "state": {"running": {}}}]}
DONE = {"conditions": [{"type": "Complete", "status": "True"}]}


@pytest.fixture(autouse=True)
def pauses(monkeypatch):
    """Collects the pauses between retries instead of sleeping."""
    found = []
    monkeypatch.setattr(kube_api.KubeApi.__init__, "__kwdefaults__", {"context": None, "sleep": found.append})
    return found


def app(*names):
    small = Resource(1, 0, 64)
    return AppDef("train", [Role(n, "img", entrypoint="t", num_replicas=2, resource=small) for n in names or ("a",)])


def submit(cluster, *roles, **cfg):
    scheduler = create_scheduler("me", client=cluster)
    return scheduler, scheduler.submit(app(*roles), cfg)


# -- a TTL ---------------------------------------------------------------------------------------


@pytest.fixture
def two():
    """A job of two roles with a TTL."""
    cluster = Cluster()
    return cluster, *submit(cluster, "reader", "trainer", ttl_s=1, kind="job")


@pytest.mark.parametrize("first", [0, 1])
def test_a_role_whose_job_the_ttl_took_had_ended(two, first):
    """Its final state is read from an event; the job ends with the other role."""
    cluster, scheduler, app_id = two
    jobs = cluster.of("jobs")
    cluster.end_by_ttl(jobs[first])
    cluster.run_pods(jobs[1 - first], RUNNING)
    found = scheduler.describe(app_id)
    assert (found.state, len(found.roles)) == (AppState.RUNNING, 2)
    states = [{r.state for r in role.replicas} for role in found.roles_statuses]
    assert (states[first], states[1 - first]) == ({AppState.SUCCEEDED}, {AppState.RUNNING})
    jobs[1 - first]["status"] = DONE
    cluster.objects = {key: item for key, item in cluster.objects.items() if not key[0].endswith("/pods")}
    assert scheduler.describe(app_id).state is AppState.SUCCEEDED
    assert [job.state for job in scheduler.list()] == [AppState.SUCCEEDED]


def test_a_role_that_failed_and_was_taken_ends_the_other(two):
    """A waiting process ends it, although only an event has the failure."""
    cluster, scheduler, app_id = two
    jobs = cluster.of("jobs")
    cluster.end_by_ttl(jobs[0], "BackoffLimitExceeded")
    cluster.run_pods(jobs[1], RUNNING)
    assert scheduler.describe(app_id).state is AppState.RUNNING
    scheduler.wait_for_end(app_id, 0.001)
    assert jobs[1]["spec"]["suspend"] is True
    for pod in cluster.of("pods"):
        cluster.take(pod)
    assert scheduler.describe(app_id).state is AppState.FAILED


def test_a_replica_whose_job_the_ttl_took_had_ended():
    """Before 1.22 each replica has a Job, which the TTL deletes separately."""
    cluster = Cluster(version=(1, 20))
    scheduler, app_id = submit(cluster, ttl_s=1)
    jobs = cluster.of("jobs")
    cluster.end_by_ttl(jobs[1])
    assert scheduler.describe(app_id).state is AppState.RUNNING
    jobs[0]["status"] = DONE
    assert scheduler.describe(app_id).state is AppState.SUCCEEDED


@pytest.mark.parametrize("blind", [False, True])
def test_a_role_of_whose_end_nobody_knows(two, blind):
    """Without the event, or the right to read it, the job runs while other roles do, and is then unknown."""
    cluster, scheduler, app_id = two
    jobs = cluster.of("jobs")
    cluster.take(jobs[0])
    if blind:
        cluster.grant(yaml.safe_load(scheduler.rights({}))["rules"])
        cluster.rights.remove(("list", "", "events"))
    cluster.run_pods(jobs[1], RUNNING)
    assert scheduler.describe(app_id).state is AppState.RUNNING
    jobs[1]["status"] = DONE
    for pod in cluster.of("pods"):
        cluster.take(pod)
    assert scheduler.describe(app_id) is None


@pytest.mark.parametrize(("condition", "state"), [("Complete", AppState.SUCCEEDED), ("Failed", AppState.FAILED)])
def test_a_ttl_that_is_quicker_than_who_waits(condition, state):
    """The watch's deletion event has the final state, which is reported once and then recorded."""
    cluster = Cluster()
    scheduler, app_id = submit(cluster, ttl_s=0)
    assert scheduler.describe(app_id).state is AppState.PENDING
    (job,) = cluster.of("jobs")
    ended = {**job, "status": {"conditions": [{"type": condition, "status": "True"}]}}
    cluster.watched = [{"type": "DELETED", "object": ended}]
    cluster.take(job)
    scheduler.wait_for_end(app_id, 60)
    assert scheduler.describe(app_id).state is state
    assert scheduler.describe(app_id) is None


def test_who_waits_for_a_job_that_kubectl_deletes():
    """The job runs until its pod has ended, does not count as failed, and then no longer exists."""
    cluster = Cluster()
    scheduler, app_id = submit(cluster)
    (job,) = cluster.of("jobs")
    cluster.run_pods(job, RUNNING)
    assert scheduler.describe(app_id).state is AppState.RUNNING
    cluster.take(job)
    cluster.run_pods(job, RUNNING)
    pods = cluster.of("pods")
    for pod in pods:
        pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:30Z"
    assert scheduler.describe(app_id).state is AppState.RUNNING
    for pod in pods:
        terminated = {"terminated": {"exitCode": 143, "reason": "Error"}}
        pod["status"] = {"phase": "Failed", "containerStatuses": [{"name": "main", "state": terminated}]}
    assert scheduler.describe(app_id) is None


def test_the_last_job_takes_all_along(two):
    """No objects are left, and the job is unknown."""
    cluster, scheduler, app_id = two
    for job in cluster.of("jobs"):
        cluster.end_by_ttl(job)
    assert not cluster.of("services")
    assert scheduler.describe(app_id) is None
    assert not scheduler.exists(app_id)


def test_what_was_followed_is_shown_when_the_ttl_has_taken_the_job(caplog):
    """Another process shows it; the log of a replica that was not followed is an error."""
    cluster = Cluster()

    def runner():
        return Runner("me", {"kubernetes": lambda *_, **__: create_scheduler("me", client=cluster)})

    with runner() as first:
        handle = first.run(app("a"), "kubernetes", {"ttl_s": 1})
        (job,) = cluster.of("jobs")
        cluster.run_pods(job, {**RUNNING, "phase": "Succeeded"})
        for pod in cluster.of("pods"):
            pod["status"]["containerStatuses"][0]["state"] = {"terminated": {"exitCode": 0}}
            cluster.logs[pod["metadata"]["name"], ""] = b"2026-01-01T00:00:00.000000001Z loss 0.1\n"
        job["status"] = DONE
        assert list(first.log_lines(handle, "a", 0, should_tail=True)) == ["loss 0.1\n"]
    cluster.end_by_ttl(job)
    for pod in cluster.of("pods"):
        cluster.take(pod)
    for tail in (False, True):
        with runner() as other:
            assert list(other.log_lines(handle, "a", 0, should_tail=tail)) == ["loss 0.1\n"]
            with pytest.raises(NotFoundError, match="their logs with them"):
                list(other.log_lines(handle, "a", 1, should_tail=tail))
    assert "these are the last lines that were followed" in caplog.text
    with runner() as last:
        last.delete(handle)
        with pytest.raises(UnknownAppException):
            last.log_lines(handle, "a", 0)


# -- kubectl delete ------------------------------------------------------------------------------


def test_delete_removes_what_kubectl_delete_job_left():
    """It deletes the Service, but not another user's Service of the same name."""
    cluster = Cluster()
    scheduler, app_id = submit(cluster)
    cluster.take(cluster.of("jobs")[0])
    assert scheduler.describe(app_id) is None
    assert scheduler.exists(app_id)
    scheduler.delete(app_id)
    assert not cluster.of("services")
    scheduler, app_id = submit(cluster)
    cluster.take(cluster.of("jobs")[0])
    cluster.of("services")[0]["metadata"]["labels"] = {}
    scheduler.delete(app_id)
    assert cluster.of("services")


# -- Kueue ---------------------------------------------------------------------------------------


def queued(cluster, *roles):
    """A job in a Kueue queue, with its Workloads."""
    scheduler, app_id = submit(cluster, *roles, local_queue="lq", kind="job")
    seen_by_kueue(cluster)
    return scheduler, app_id


def seen_by_kueue(cluster):
    """Creates a Workload for each Job."""
    for job in cluster.of("jobs"):
        labels = {"kueue.x-k8s.io/job-uid": job["metadata"]["uid"]}
        workload = {"apiVersion": KUEUE, "kind": "Workload", "spec": {"active": True}}
        name = f"w-{job['metadata']['name']}"
        metadata = {"name": name, "namespace": "default", "labels": labels, "uid": name}
        cluster.objects[f"apis/{KUEUE}/workloads", "default", name] = {**workload, "metadata": metadata}


@pytest.mark.parametrize("missing", [("list", "kueue.x-k8s.io", "workloads"), ("patch", "kueue.x-k8s.io", "workloads")])
def test_a_refused_part_of_a_cancel_is_a_failed_cancel(missing):
    """Without the right to Workloads, Kueue would resume the job: it is not marked as cancelled."""
    cluster = Cluster(groups=[KUEUE])
    scheduler, app_id = queued(cluster)
    cluster.grant(yaml.safe_load(scheduler.rights({"local_queue": "lq"}))["rules"])
    cluster.rights.remove(missing)
    with pytest.raises(BackendError, match=f'cannot {missing[0]} resource "workloads" in API group "kueue.x-k8s.io"'):
        scheduler.cancel(app_id)
    assert scheduler.describe(app_id).state is AppState.PENDING


def test_the_other_parts_of_a_refused_cancel_are_done():
    """If the Workload of one role cannot be changed, the other role is removed from its queue nevertheless."""
    cluster = Cluster(groups=[KUEUE])
    scheduler, app_id = queued(cluster, "a", "b")
    from tests.schedulers.kubernetes.fake_cluster import refusal

    said = 'workloads.kueue.x-k8s.io "w" is forbidden: User "ann" cannot patch resource "workloads"'
    cluster.faults.append(("PATCH", "/workloads/", refusal(403, "Forbidden", said), "before"))
    with pytest.raises(BackendError, match="cannot patch"):
        scheduler.cancel(app_id)
    assert [w["spec"]["active"] for w in cluster.of("workloads")] == [True, False]


def test_status_believes_the_job_and_not_the_mark():
    """A job that is resumed after it was cancelled runs."""
    cluster = Cluster(groups=[KUEUE])
    scheduler, app_id = queued(cluster)
    scheduler.cancel(app_id)
    assert scheduler.describe(app_id).state is AppState.CANCELLED
    (job,) = cluster.of("jobs")
    job["spec"]["suspend"] = False
    assert scheduler.describe(app_id).state is AppState.PENDING
    cluster.run_pods(job, RUNNING)
    found = scheduler.describe(app_id)
    assert (found.state, found.msg) == (AppState.RUNNING, "cancelling")


def test_a_job_that_kueue_has_not_seen_yet_is_waited_for(pauses):
    """Cancelling waits for its Workload for some seconds, because Kueue would resume a suspended Job."""
    cluster = Cluster(groups=[KUEUE])
    scheduler, app_id = submit(cluster, local_queue="lq", kind="job")
    scheduler.cancel(app_id)
    assert pauses == [1.0, 1.0, 1.0]
    assert scheduler.describe(app_id).state is AppState.CANCELLED


# -- rights --------------------------------------------------------------------------------------


def all_verbs(scheduler, cluster, app_id, plural):
    """Runs all commands on a job."""
    assert scheduler.describe(app_id).state in (AppState.PENDING, AppState.SUBMITTED)
    scheduler.wait_for_end(app_id, 0.001)
    (item,) = cluster.of(plural)
    if "spec" in item and "template" in item["spec"]:
        cluster.run_pods(item, RUNNING)
        name = cluster.of("pods")[0]["metadata"]["name"]
        cluster.logs[name, ""] = b"2026-01-01T00:00:00.000000001Z hi\n"
        assert list(scheduler.log_iter(app_id, "a", 0)) == ["hi\n"]
    assert scheduler.list({"namespace": "default"})
    scheduler.cancel(app_id)
    scheduler.delete(app_id)
    assert not scheduler.exists(app_id)


@pytest.mark.parametrize(
    ("create", "cfg", "groups", "plural"),
    [
        (create_scheduler, {"kind": "job", "ttl_s": 60}, [], "jobs"),
        (create_scheduler, {"kind": "job", "local_queue": "lq"}, [KUEUE], "jobs"),
        (create_scheduler, {"kind": "jobset"}, [JOBSETS], "jobsets"),
        (
            create_scheduler,
            {"kind": "volcano"},
            [VOLCANO, "bus.volcano.sh/v1alpha1", "scheduling.volcano.sh/v1beta1"],
            "jobs",
        ),
        (create_mcad, {}, ["workload.codeflare.dev/v1beta2"], "appwrappers"),
        (create_mcad, {"appwrapper_version": "v1beta1"}, ["mcad.ibm.com/v1beta1"], "appwrappers"),
    ],
    ids=["job", "kueue", "jobset", "volcano", "appwrapper", "old appwrapper"],
)
def test_the_rights_of_the_printed_role_are_enough(create, cfg, groups, plural, tmp_path):
    """All commands work with them, and use all of them except those for rare errors."""
    cluster = Cluster(groups=groups)
    scheduler = create("me", client=cluster)
    rules = yaml.safe_load(scheduler.rights(cfg))["rules"]
    cluster.grant(rules)
    given = app()
    given.roles[0].env["API_KEY"] = "hunter2"
    (tmp_path / "train.py").write_text("pass")
    app_id = scheduler.submit(given, cfg, workspace=str(tmp_path) if create is create_scheduler else None)
    if KUEUE in groups:
        seen_by_kueue(cluster)
    all_verbs(scheduler, cluster, app_id, plural)
    unused = {f"{verb} {resource}" for verb, _, resource in cluster.rights - cluster.used}
    # The first of a TTL, two of sweeps; the others of `torchx exec` and `forward`, whose protocols this cluster does not speak.
    others = {"patch services", "patch configmaps", "delete pods", "create pods/exec", "create pods/portforward"}
    others |= {"create podgroups"}  # only where the cluster schedules gangs: test_gang.py
    others |= {"create pods", "list localqueues"}  # of `torchx cp` after the end, and `torchx nodes`
    others |= {"create services"}  # of roles in order
    if cfg == {} and create is create_mcad:  # its webhook asks for the rights to what it wraps
        others |= {"create pods", "create services"}
    assert {right for right in unused if not right.startswith("get ")} <= others


@pytest.mark.parametrize("right", ["create", "list", "delete", "patch"])
def test_each_right_to_jobs_is_needed(right):
    """Without it, a command fails and names the right."""
    cluster = Cluster()
    scheduler = create_scheduler("me", client=cluster)
    cluster.grant(yaml.safe_load(scheduler.rights({}))["rules"])
    cluster.rights.remove((right, "batch", "jobs"))
    with pytest.raises(BackendError, match=f'cannot {right} resource "jobs"'):
        all_verbs(scheduler, cluster, scheduler.submit(app(), {}), "jobs")


@pytest.mark.parametrize(
    ("groups", "may", "plural"),
    [([JOBSETS], "jobs", "jobs"), ([JOBSETS, VOLCANO], "volcano", "jobs"), ([JOBSETS], "jobsets", "jobsets")],
)
def test_auto_takes_what_one_may_create(groups, may, plural):
    """On a cluster with JobSets, a user without the right to create them gets another kind."""
    cluster = Cluster(groups=groups)
    scheduler = create_scheduler("me", client=cluster)
    kind = {"jobs": "job", "jobsets": "jobset"}.get(may, may)
    cluster.grant(yaml.safe_load(scheduler.rights({"kind": kind}))["rules"])
    scheduler.submit(app(), {})
    assert len(cluster.of(plural)) == 1
    group = cluster.of(plural)[0]["apiVersion"].partition("/")[0]
    assert group == {"job": "batch", "jobset": "jobset.x-k8s.io", "volcano": "batch.volcano.sh"}[kind]


def test_connections_are_kept_alive():
    """The system detects a dead peer within a minute."""
    import socket

    from torchx.schedulers.kubernetes.api.credentials import keep_alive

    options = {(level, name): value for level, name, value in keep_alive()}
    assert options[socket.SOL_SOCKET, socket.SO_KEEPALIVE] == 1
    tcp = [
        options[socket.IPPROTO_TCP, name] for name in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
    ]
    assert tcp[0] + tcp[1] * tcp[2] < 60
    with socket.socket() as one:
        for option in keep_alive():
            one.setsockopt(*option)
