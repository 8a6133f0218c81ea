"""`kubernetes`: submission, state and end of jobs, with an API server in memory."""

from __future__ import annotations

import copy
import json
import re
import ssl
import subprocess
import sys

import pytest
import urllib3

from tests.schedulers.kubernetes.fake_cluster import Cluster, Response, refusal
from torchx.errors import BackendError, ConfigError, NotFoundError, NotSupportedError, TransientError
from torchx.schedulers import get_scheduler_factories
from torchx.schedulers.api import Stream
from torchx.schedulers.kit.logs import LogQuery
from torchx.schedulers.kubernetes import client as kube_api
from torchx.schedulers.kubernetes.api import queries
from torchx.schedulers.kubernetes_scheduler import create_scheduler
from torchx.specs import AppDef, AppState, Resource, Role

yaml = pytest.importorskip("yaml")
JOBSETS = "jobset.x-k8s.io/v1alpha2"
VOLCANO = "batch.volcano.sh/v1alpha1"


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch):
    """Collects the pauses between retries instead of sleeping."""
    pauses = []
    monkeypatch.setattr(kube_api.KubeApi.__init__, "__kwdefaults__", {"context": None, "sleep": pauses.append})
    return pauses


def app(*, replicas=2, **fields):
    trainer = Role("trainer", "img:1", entrypoint="python", args=["t.py"], num_replicas=replicas, **fields)
    trainer.resource = Resource(1, 0, 2048)
    return AppDef("train", [trainer], metadata={"team": "x"})


def submit(cluster, given=None, **cfg):
    scheduler = create_scheduler("me", client=cluster)
    return scheduler, scheduler.submit(given or app(), cfg)


RUNNING = {"phase": "Running", "containerStatuses": [{"name": "main", "state": {"running": {}}}]}
FAILED = {
    "phase": "Failed",
    "containerStatuses": [
        {"name": "main", "state": {"terminated": {"exitCode": 3, "reason": "Error", "message": "ValueError: x"}}}
    ],
}

# -- submission ------------------------------------------------------------------------------------


def test_plain_jobs_belong_to_their_service():
    """Deleting the Service deletes all objects. The server validates the Jobs before the Service is created."""
    cluster = Cluster()
    _, app_id = submit(cluster, namespace="team")
    (service,), (job,) = cluster.of("services"), cluster.of("jobs")
    assert app_id == f"team:{service['metadata']['name']}"
    assert job["metadata"]["ownerReferences"][0]["uid"] == service["metadata"]["uid"]
    posts = [query.get("dryRun") for method, _, query in cluster.calls if method == "POST"]
    assert posts == ["All", None, None]


@pytest.mark.parametrize(
    ("groups", "cfg", "plural"),
    [
        ((), {}, "jobs"),
        ((JOBSETS,), {}, "jobsets"),
        ((JOBSETS,), {"kind": "job"}, "jobs"),
        ((JOBSETS, VOLCANO), {}, "jobsets"),
        ((VOLCANO,), {}, "jobs"),
        ((VOLCANO,), {"local_queue": "lq"}, "jobs"),
        ((JOBSETS, VOLCANO), {"queue": "gpu"}, "jobs"),
        ((JOBSETS, VOLCANO), {"kind": "volcano"}, "jobs"),
    ],
)
def test_what_a_job_becomes(groups, cfg, plural):
    """By default a kind that the cluster supports; Volcano if its queue is given."""
    cluster = Cluster(groups=groups)
    submit(cluster, **cfg)
    volcano = "queue" in cfg or cfg.get("kind") == "volcano" or (groups, cfg) == ((VOLCANO,), {})
    (item,) = cluster.of(plural)
    assert item["apiVersion"].startswith("batch.volcano") is volcano


@pytest.mark.parametrize("replicas", [1, 10_000])
def test_long_names_are_cut_to_what_jobset_takes(replicas):
    """Its webhook includes the random suffix of pod names. Names of scripts are in the job and role name."""
    cluster = Cluster(groups=(JOBSETS,))
    name = "finetune_llama3_70b_instruct_lora"
    role = Role(name, "img", entrypoint="t", num_replicas=replicas, resource=Resource(1, 0, 2048))
    submit(cluster, AppDef(name, [role]))
    assert cluster.of("jobsets")


def test_an_old_cluster_gets_what_it_knows():
    """1.20 has no Indexed Jobs: two replicas are two Jobs."""
    cluster = Cluster(version=(1, 20))
    submit(cluster)
    assert len(cluster.of("jobs")) == 2


def test_the_number_of_calls_does_not_grow_with_the_job():
    """A thousand replicas need as many calls as two."""
    counts = []
    for replicas in (2, 1000):
        cluster = Cluster()
        submit(cluster, app(replicas=replicas))
        counts.append(len(cluster.calls))
    assert counts[0] == counts[1]


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("plural", ["services", "jobs"])
def test_a_lost_answer_never_makes_two(plural, when):
    """Names are fixed before the submission: an existing object is ours, and is not created again."""
    cluster = Cluster()
    lost = urllib3.exceptions.ProtocolError("Connection aborted.", ConnectionResetError(104, "reset"))
    cluster.faults.append(("POST", f"/{plural}", lost, when))
    submit(cluster, validate_spec=False)
    assert len(cluster.of("services")) == len(cluster.of("jobs")) == 1


def test_an_answer_that_breaks_off_is_asked_for_again(no_waiting):
    """Every verb is retried; after the last attempt the error is one line."""
    cluster = Cluster()
    cut = Response(200, {"kind": "List", "items": []}, cut=9)
    cluster.faults += [
        ("POST", "/services", cut, "after"),
        ("POST", "/jobs", cut, "after"),
        ("GET", "/jobs", cut, "before"),
    ]
    scheduler, app_id = submit(cluster, validate_spec=False)
    assert scheduler.describe(app_id).state is AppState.PENDING
    assert len(cluster.of("services")) == len(cluster.of("jobs")) == 1 and no_waiting
    cluster.faults = [("GET", "/jobs", cut, "before")] * 10
    with pytest.raises(TransientError, match="breaks off its answer"):
        scheduler.describe(app_id)


def test_the_id_is_known_before_the_submission():
    """It includes the namespace, so that it is recorded, and the job found after an interrupted submission."""
    cluster = Cluster()
    scheduler = create_scheduler("me", client=cluster)
    info = scheduler.submit_dryrun(app(), {"namespace": "elsewhere", "validate_spec": False})
    expected = scheduler.expected_id(info)
    assert expected.startswith("elsewhere:train-")
    assert scheduler.schedule(info) == expected
    assert scheduler.find_submission(expected, {}, age_s=100) == expected


def test_a_name_that_is_somebody_elses_is_an_error():
    """An object without our annotation was not created by the lost call."""
    cluster = Cluster()
    scheduler = create_scheduler("me", client=cluster)
    info = scheduler.submit_dryrun(app(), {"validate_spec": False})
    name = info.request.app_id
    cluster.objects["api/v1/services", "default", name] = {"metadata": {"name": name, "uid": "u", "annotations": {}}}
    with pytest.raises(BackendError, match="already exists"):
        scheduler.schedule(info)
    assert cluster.of("jobs") == []


def test_what_is_refused_half_way_is_removed():
    """The quota rejects the Job after the Service was created: the Service is deleted, and the message shown."""
    cluster = Cluster()
    cluster.faults.append(("POST", "/jobs", refusal(403, "Forbidden", "exceeded quota: small"), "before"))
    with pytest.raises(BackendError, match="exceeded quota: small"):
        submit(cluster, validate_spec=False)
    assert cluster.objects == {}


@pytest.mark.parametrize("at", ["/services", "/jobs"])
def test_what_is_interrupted_half_way_is_removed(at):
    """Ctrl-C leaves no Service without its Jobs, and not the Jobs of some of the roles."""
    cluster = Cluster()

    def interrupted(method, path):
        if method == "POST" and path.endswith(at) and (at == "/services" or len(cluster.of("jobs")) == 1):
            raise KeyboardInterrupt

    scheduler = create_scheduler("me", client=cluster)
    roles = [Role(name, "img", entrypoint="t", resource=Resource(1, 0, 64)) for name in ("a", "b")]
    info = scheduler.submit_dryrun(AppDef("train", roles), {"kind": "job", "validate_spec": False})
    cluster.away = interrupted
    with pytest.raises(KeyboardInterrupt):
        scheduler.schedule(info)
    assert cluster.objects == {} and cluster.calls[-1][0] == "DELETE"


def test_what_cannot_be_removed_is_named():
    """The hint has the command that deletes it."""
    cluster = Cluster()
    cluster.faults += [
        ("POST", "/jobs", refusal(422, "Invalid", "spec.x: bad"), "before"),
        ("DELETE", "/services", refusal(403, "Forbidden", "cannot delete"), "before"),
    ]
    with pytest.raises(BackendError, match="could not be deleted") as error:
        submit(cluster, validate_spec=False)
    assert error.value.hint.startswith("kubectl delete -n default Service train-")


def test_a_busy_server_is_waited_for(no_waiting):
    """Retries follow `Retry-After` of 429, and use exponential backoff for 503."""
    cluster = Cluster()
    cluster.faults += [
        ("GET", "/version", refusal(429, "TooManyRequests", "slow down", {"Retry-After": "7"}), "before"),
        ("GET", "/version", refusal(503, "Unavailable", "x"), "before"),
    ]
    submit(cluster)
    assert no_waiting[0] == 7 and len(no_waiting) == 2


def test_a_server_that_is_down_is_one_clear_line(no_waiting):
    """After five attempts. An untrusted certificate is not retried; an EOF in the TLS handshake is."""
    cluster = Cluster()
    for eof, tries in ((ssl.SSLEOFError(8, "EOF occurred"), 5), (ssl.SSLCertVerificationError(1, "self-signed"), 1)):
        cluster.faults = [("GET", "/", urllib3.exceptions.SSLError(eof), "before")] * 9
        with pytest.raises(BackendError, match="EOF occurred" if tries == 5 else r"cannot be trusted: .*self-signed"):
            create_scheduler("me", client=cluster).describe("default:x")
        assert (9 - len(cluster.faults), len(no_waiting)) == (tries, 4)
    refused = urllib3.exceptions.NewConnectionError(None, "Failed to establish a new connection: refused")
    cluster.faults = [("GET", "/", refused, "before")] * 9
    with pytest.raises(TransientError, match="`https://cluster:6443` does not answer: Failed to establish"):
        create_scheduler("me", client=cluster).describe("default:x")
    assert len(no_waiting) == 8


def test_missing_rights_are_named():
    """The message has verb, resource and namespace; the hint says who can grant them."""
    said = (
        'jobs.batch is forbidden: User "me" cannot create resource "jobs" in API group "batch" in the namespace "team"'
    )
    cluster = Cluster()
    cluster.faults.append(("POST", "/jobs", refusal(403, "Forbidden", said), "before"))
    with pytest.raises(BackendError, match=r'cannot create resource "jobs" .* namespace "team"') as error:
        submit(cluster, namespace="team")
    assert "kubectl auth can-i" in error.value.hint
    assert cluster.objects == {}


@pytest.mark.parametrize(("cfg", "said"), [({"kind": "pod"}, "`pod`"), ({"kind": "job", "queue": "q"}, "`queue`")])
def test_options_that_contradict_one_another_are_refused(cfg, said):
    """Before anything is created."""
    with pytest.raises(ConfigError, match=said):
        create_scheduler("me", client=Cluster()).submit_dryrun(app(), cfg)


# -- dry run ---------------------------------------------------------------------------------------


def test_a_dry_run_is_yaml_and_masks_secrets():
    """It is valid for `kubectl apply -f -`, and does not create a client."""
    given = app()
    given.roles[0].env["API_KEY"] = "hunter2"
    info = create_scheduler("me").submit_dryrun(given, {"kind": "job"})
    text = str(info)
    assert "hunter2" not in text
    (listed,) = yaml.safe_load_all(text)
    assert [item["kind"] for item in listed["items"]] == ["Service", "Job"]
    container = info.request.resource["items"][1]["spec"]["template"]["spec"]["containers"][0]
    name = info.request.app_id
    reference = {"secretKeyRef": {"name": name, "key": "0.API_KEY"}}
    assert {"name": "API_KEY", "valueFrom": reference} in container["env"]
    assert f"# and a Secret `{name}`, owned by the job: API_KEY\n" in text
    assert info.request.secret["stringData"] == {"0.API_KEY": "hunter2"}


def test_a_dry_run_imports_no_client():
    """Neither that of Kubernetes nor that of Docker."""
    program = (
        "import sys; from torchx.schedulers.kubernetes_scheduler import create_scheduler; from torchx.specs import *;"
        "create_scheduler('x').submit_dryrun(AppDef('a',[Role('r','i',resource=Resource(1,0,1))]),{}).request;"
        "print(sorted({m.split('.')[0] for m in sys.modules} & {'kubernetes','docker','urllib3','yaml'}))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_overlay_of_a_file_is_laid_over_every_pod(tmp_path):
    """The file is YAML; the error for an invalid file names it."""
    path = tmp_path / "pod.yaml"
    path.write_text("spec:\n  hostIPC: true\n")
    info = create_scheduler("me").submit_dryrun(app(), {"pod_overlay": str(path)})
    assert info.request.resource["items"][1]["spec"]["template"]["spec"]["hostIPC"] is True
    for bad in ("- a", "a: [", ""):
        path.write_text(bad)
        with pytest.raises(ConfigError, match=r"pod\.yaml"):
            create_scheduler("me").submit_dryrun(app(), {"pod_overlay": str(path)})
    with pytest.raises(ConfigError, match="cannot be read"):
        create_scheduler("me").submit_dryrun(app(), {"pod_overlay": str(tmp_path / "none")})


# -- what became of it -----------------------------------------------------------------------------


def test_describe_rebuilds_the_job_from_the_cluster_alone():
    """It works on another machine, without a record."""
    cluster = Cluster()
    given = app()
    _, app_id = submit(cluster, given)
    found = create_scheduler("other", client=cluster).describe(app_id)
    assert found.roles == given.roles and found.metadata == {"team": "x"}
    assert found.state is AppState.PENDING and found.msg == "its pods are not created yet"


def test_status_of_a_thousand_replicas_is_pages():
    """There is no call for each replica."""
    cluster = Cluster()
    scheduler, app_id = submit(cluster, app(replicas=1000))
    cluster.run_pods(cluster.of("jobs")[0], RUNNING)
    cluster.calls.clear()
    found = scheduler.describe(app_id)
    assert found.state is AppState.RUNNING and len(found.roles_statuses[0].replicas) == 1000
    assert [path.rpartition("/")[2] for _, path, _ in cluster.calls] == ["jobs", "pods", "pods"]


def test_what_fails_and_is_made_again_does_not_end_the_job():
    """As long as the Job replaces failed pods, a waiting process does not see an end."""
    cluster = Cluster()
    scheduler, app_id = submit(cluster, app(max_retries=3))
    cluster.run_pods(cluster.of("jobs")[0], FAILED)
    found = scheduler.describe(app_id)
    assert (found.state, found.msg) == (
        AppState.RUNNING,
        "trainer/0 failed and is being restarted: exit code 3: ValueError: x",
    )


def test_many_jobs_are_asked_for_together():
    """They need as many calls as one job; unknown jobs are None."""
    cluster = Cluster()
    scheduler, first = submit(cluster)
    second = scheduler.submit(app(), {})
    cluster.calls.clear()
    found = scheduler.describe_many([first, "default:nobody", second])
    assert [answer and answer.state for answer in found.values()] == [AppState.PENDING, None, AppState.PENDING]
    assert [path.rpartition("/")[2] for _, path, _ in cluster.calls].count("pods") == 1


def test_very_many_jobs_are_a_list_of_all(monkeypatch: pytest.MonkeyPatch):
    """The list includes other jobs of torchx, which are ignored."""
    monkeypatch.setattr(queries, "MANY", 4)
    monkeypatch.setattr(queries, "AT_ONCE", 2)
    cluster = Cluster()
    scheduler, first = submit(cluster)
    wanted = [first, *(scheduler.submit(app(), {}) for _ in range(4))]
    for asked, lists, explained in ((wanted[:3], 2, 3), (wanted[:4], 1, 2)):
        cluster.calls.clear()
        found = scheduler.describe_many(asked)
        assert {app_id: answer.state for app_id, answer in found.items()} == dict.fromkeys(asked, AppState.PENDING)
        kinds = [path.rpartition("/")[2] for _, path, _ in cluster.calls]
        # why they have no pods: of very many only the oldest, which a list of runs has last
        assert (kinds.count("pods"), kinds.count("events")) == (lists, explained)


def test_who_may_see_but_one_kind_is_told_of_it():
    """The server checks rights before it looks for the kind, and returns 403 instead of 404."""
    cluster = Cluster(groups=[JOBSETS])
    scheduler, app_id = submit(cluster, kind="job")
    for _ in range(2):
        cluster.faults.append(("GET", "/jobsets", refusal(403, "Forbidden", "cannot list jobsets"), "before"))
    assert scheduler.describe("default:nobody") is None
    assert [job.app_id for job in scheduler.list({"namespace": "default"})] == [app_id]


def test_waiting_is_a_watch_of_what_owns_the_pods(no_waiting):
    """It starts at the last known version, and returns only at the end of the job."""
    cluster = Cluster()
    scheduler, app_id = submit(cluster)
    (job,) = cluster.of("jobs")
    complete = {**job, "status": {"conditions": [{"type": "Complete", "status": "True"}]}}
    cluster.watched = [{"type": "MODIFIED", "object": job}, {"type": "MODIFIED", "object": complete}]
    scheduler.describe(app_id)
    cluster.calls.clear()
    scheduler.wait_for_end(app_id, 3600)
    ((_, path, query),) = cluster.calls
    assert path.endswith("/jobs") and query["timeoutSeconds"] == "3601"


@pytest.mark.parametrize(
    "event", [{"type": "ERROR", "object": {"code": 410}}, {"type": "DELETED", "object": {"metadata": {"name": "x"}}}]
)
def test_a_watch_that_can_tell_no_more_ends(event):
    """It ends if its version is too old or the job was deleted; the next status has the reason."""
    cluster = Cluster()
    scheduler, app_id = submit(cluster)
    cluster.watched = [event]
    scheduler.wait_for_end(app_id, 3600)


@pytest.mark.parametrize("backend", ["kubernetes", "kubernetes_mcad", "local_docker"])
def test_a_scheduler_can_be_copied(backend):
    """Also a runner that has one, as long as it has not been used."""
    scheduler = get_scheduler_factories()[backend]("me")
    assert copy.deepcopy(scheduler).session_name == "me"


def test_changes_are_events_of_a_watch():
    """The watch starts at the version of a list, because old servers end one without a version; bookmarks are no changes."""
    cluster = Cluster()
    _, app_id = submit(cluster)
    (job,) = cluster.of("jobs")
    bookmark = {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "8"}}}
    cluster.watched = [bookmark, {"type": "MODIFIED", "object": job}, {"type": "ERROR", "object": {"code": 410}}]
    versioned = Response(200, {"metadata": {"resourceVersion": "7"}, "items": [job]})
    cluster.faults.append(("GET", "/jobs", versioned, "before"))
    assert list(queries.changes(kube_api.KubeApi(cluster), "job", "default")) == [app_id]
    assert [query.get("resourceVersion") for _, _, query in cluster.calls[-2:]] == [None, "7"]


def test_a_job_that_goes_by_itself_takes_its_service_along():
    """With a TTL, the Jobs own the Service, too."""
    cluster = Cluster()
    submit(cluster, ttl_s=60)
    (service,), (job,) = cluster.of("services"), cluster.of("jobs")
    assert [ref["uid"] for ref in service["metadata"]["ownerReferences"]] == [job["metadata"]["uid"]]


def test_a_failed_replica_is_named_with_its_last_words():
    """The message has the replica, the exit code and the last output."""
    cluster = Cluster()
    scheduler, app_id = submit(cluster)
    (job,) = cluster.of("jobs")
    cluster.run_pods(job, FAILED)
    job["status"] = {"conditions": [{"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded"}]}
    found = scheduler.describe(app_id)
    assert found.state is AppState.FAILED
    assert found.msg == "trainer/0 on n0: exit code 3: ValueError: x"
    assert json.loads(found.structured_error_msg)["message"]["errorCode"] == 3


def test_pods_that_cannot_be_made_are_explained():
    """An exceeded quota is visible only in an event of the Job."""
    cluster = Cluster()
    scheduler, app_id = submit(cluster)
    cluster.warn(cluster.of("jobs")[0], "FailedCreate", "exceeded quota: small")
    assert scheduler.describe(app_id).msg == "its pods cannot be created: exceeded quota: small"


def test_a_job_that_waits_for_kueue_says_what_kueue_says():
    """It shows the admission message of its Workload."""
    cluster = Cluster(groups=["kueue.x-k8s.io/v1beta1"])
    scheduler, app_id = submit(cluster, local_queue="lq")
    (job,) = cluster.of("jobs")
    said = {"type": "QuotaReserved", "status": "False", "message": "insufficient unused quota for cpu"}
    labels = {"kueue.x-k8s.io/job-uid": job["metadata"]["uid"]}
    workload = {"metadata": {"name": "w", "labels": labels, "uid": "w"}, "status": {"conditions": [said]}}
    cluster.objects["apis/kueue.x-k8s.io/v1beta1/workloads", "default", "w"] = workload
    found = scheduler.describe(app_id)
    assert found.state is AppState.PENDING
    assert found.msg == "it waits in the queue `lq`: insufficient unused quota for cpu"


def test_unknown_jobs_are_none():
    """Whatever kinds the cluster has."""
    assert create_scheduler("me", client=Cluster(groups=[JOBSETS, VOLCANO])).describe("default:nobody") is None


def test_list_shows_ours_in_every_namespace():
    """Each job is shown once, with its state; Jobs of others are not shown."""
    cluster = Cluster(groups=[JOBSETS])
    _, first = submit(cluster, kind="job")
    _, second = submit(cluster, namespace="team")
    cluster.objects["apis/batch/v1/jobs", "default", "x"] = {
        "metadata": {"name": "x", "namespace": "default", "uid": "x"}
    }
    found = create_scheduler("me", client=cluster).list()
    assert {job.app_id: job.state for job in found} == {first: AppState.PENDING, second: AppState.PENDING}
    assert {job.name for job in found} == {"train"}
    only = create_scheduler("me", client=cluster).list({"namespace": "team"})
    assert [job.app_id for job in only] == [second]


def test_suspended_jobs_are_listed_without_their_pods():
    """Their owners alone have the state: the number of calls does not depend on how many wait."""
    cluster = Cluster()
    scheduler, _ = submit(cluster, kind="job", local_queue="lq")
    for _ in range(120):
        submit(cluster, kind="job", local_queue="lq")
    cluster.calls.clear()
    assert {job.state for job in scheduler.list({"namespace": "default"})} == {AppState.PENDING}
    asked = [query for _, path, query in cluster.calls if path.endswith("/pods")]
    assert [query.get("fieldSelector") for query in asked] == ["status.phase=Running"]


# -- logs ------------------------------------------------------------------------------------------


def stamped(*lines):
    return b"".join(f"2026-01-01T00:00:0{i}.000000000Z {line}\n".encode() for i, line in enumerate(lines))


def test_logs_of_a_replica():
    """They are those of its pod, without timestamps."""
    cluster = Cluster()
    scheduler, app_id = submit(cluster)
    (job,) = cluster.of("jobs")
    cluster.run_pods(job, {**RUNNING, "phase": "Succeeded"})
    cluster.logs[f"{job['metadata']['name']}-1-abcde", ""] = stamped("a", "", "b c")
    assert list(scheduler.log_iter(app_id, "trainer", 1)) == ["a\n", "\n", "b c\n"]
    assert list(scheduler.log_iter(app_id, "trainer", 1, regex="b")) == ["b c\n"]


def test_times_of_lines():
    """They are those of the node, in UTC."""
    cluster = Cluster()
    scheduler, app_id = submit(cluster)
    (job,) = cluster.of("jobs")
    cluster.run_pods(job, {**RUNNING, "phase": "Succeeded"})
    cluster.logs[f"{job['metadata']['name']}-1-abcde", ""] = b"2026-01-01T02:00:00.125+01:00 [1]:a\n"
    query = LogQuery(timestamps=True, regex=re.compile(r"^\[1\]"))
    assert list(scheduler.open_logs(app_id, [("trainer", 1)], query)[0]) == ["2026-01-01T01:00:00.125Z [1]:a\n"]


def test_the_run_before_the_last_restart():
    """It is the log of the role's container, or of the replaced pod; an error if there is none, or it was deleted."""
    cluster = Cluster()
    scheduler, app_id = submit(cluster)
    (job,) = cluster.of("jobs")
    cluster.run_pods(job, RUNNING)
    name = f"{job['metadata']['name']}-1-abcde"

    def previous():
        return list(scheduler.open_logs(app_id, [("trainer", 1)], LogQuery(previous=True))[0])

    with pytest.raises(NotFoundError, match="not started again"):
        previous()
    pod = cluster.objects["api/v1/pods", "default", name]
    before = copy.deepcopy(pod)
    pod["status"] = {
        **pod["status"],
        "containerStatuses": [{"name": "main", "restartCount": 2, "state": {"running": {}}}],
    }
    with pytest.raises(NotFoundError, match="no longer has"):
        previous()
    cluster.logs[name, "true"], cluster.logs[name, ""] = stamped("a", "b"), stamped("c")
    assert previous() == ["a\n", "b\n"]
    pod["status"] = before["status"]
    pod["metadata"]["creationTimestamp"] = "2026-01-02T00:00:00Z"
    before["metadata"] |= {"name": "old", "uid": "old", "creationTimestamp": "2026-01-01T00:00:00Z"}
    cluster.objects["api/v1/pods", "default", "old"] = before
    cluster.logs["old", ""] = stamped("of the old pod")
    assert previous() == ["of the old pod\n"]


def test_a_node_that_is_in_another_zone():
    """Its timestamps have an offset: the request uses UTC, and no line is repeated."""
    from torchx.schedulers.kubernetes.client import KubeApi
    from torchx.schedulers.kubernetes.pods.container_logs import ContainerLog

    cluster = Cluster()
    pod = {"metadata": {"namespace": "default", "name": "p"}}
    log = ContainerLog(KubeApi(cluster), pod, "main", LogQuery())
    cluster.logs["p", ""] = b"2026-01-01T01:00:00.5+02:00 a\n2026-01-01T01:00:00.5+02:00 b\n"
    running = {"state": {"running": {}}}
    assert [line for _, line in log.lines(running, follow=False)] == [b"a\n", b"b\n"]
    cluster.logs["p", ""] += b"2026-01-01T01:00:00.5+02:00 c\n2026-01-01T01:00:01.0+02:00 d\n"
    assert [line for _, line in log.lines(running, follow=False)] == [b"c\n", b"d\n"]
    assert cluster.calls[-1][2]["sinceTime"] == "2025-12-31T23:00:00Z"


def test_a_log_that_breaks_off_goes_on():
    """Logs of ended pods are resumed, too. A log without progress is an error instead of an end."""
    cluster = Cluster()
    scheduler, app_id = submit(cluster)
    (job,) = cluster.of("jobs")
    cluster.run_pods(job, {**RUNNING, "phase": "Succeeded"})
    job["status"] = {"conditions": [{"type": "Complete", "status": "True"}]}
    cluster.logs[f"{job['metadata']['name']}-0-abcde", ""] = stamped("a", "b", "c")
    for follow in (False, True):
        cluster.cuts = [40, 40, 70, 70]
        assert list(scheduler.log_iter(app_id, "trainer", 0, should_tail=follow)) == ["a\n", "b\n", "c\n"]
        assert not cluster.cuts
    cluster.cuts = [40] * 10
    with pytest.raises(TransientError, match="breaks off"):
        list(scheduler.log_iter(app_id, "trainer", 0))


def test_one_stream_alone_is_refused():
    """Kubernetes does not distinguish them, and showing both would be wrong."""
    scheduler, app_id = submit(Cluster())
    with pytest.raises(NotSupportedError, match="`stderr`"):
        list(scheduler.log_iter(app_id, "trainer", 0, streams=Stream.STDERR))


def test_pods_that_are_gone_are_said():
    """It is an error instead of an empty log."""
    scheduler, app_id = submit(Cluster())
    with pytest.raises(NotFoundError, match="gone"):
        list(scheduler.log_iter(app_id, "trainer", 0))


# -- the end ---------------------------------------------------------------------------------------


def test_cancel_keeps_the_job_and_is_quiet_twice():
    """It is suspended, annotated, and shown as cancelled."""
    cluster = Cluster()
    scheduler, app_id = submit(cluster)
    scheduler.cancel(app_id)
    (job,) = cluster.of("jobs")
    assert job["spec"]["suspend"] is True
    found = scheduler.describe(app_id)
    assert found.state is AppState.CANCELLED
    assert [r.state for r in found.roles_statuses[0].replicas] == [AppState.CANCELLED] * 2
    before = len(cluster.calls)
    scheduler.cancel(app_id)
    assert not [call for call in cluster.calls[before:] if call[0] != "GET"]


def test_a_job_that_has_ended_is_not_cancelled():
    """Its state remains SUCCEEDED."""
    cluster = Cluster()
    scheduler, app_id = submit(cluster)
    cluster.of("jobs")[0]["status"] = {"conditions": [{"type": "Complete", "status": "True"}]}
    scheduler.cancel(app_id)
    assert scheduler.describe(app_id).state is AppState.SUCCEEDED


@pytest.mark.parametrize("cfg", [{"kind": "job"}, {"kind": "jobset"}, {"kind": "volcano"}])
def test_delete_leaves_nothing(cfg):
    """No objects of any kind are left."""
    cluster = Cluster(groups=[JOBSETS, VOLCANO])
    scheduler, app_id = submit(cluster, **cfg)
    scheduler.delete(app_id)
    assert cluster.objects == {}
    assert scheduler.describe(app_id) is None
