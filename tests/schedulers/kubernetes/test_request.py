"""An app as objects of the API: valid in each version of Kubernetes, small, with recognizable names."""

from __future__ import annotations

import json
import sys
from dataclasses import replace

import pytest

from torchx.errors import SpecError
from torchx.schedulers.kubernetes import names, request
from torchx.schedulers.kubernetes.kinds import kinds
from torchx.schedulers.kubernetes.kinds.kinds import render
from torchx.schedulers.kubernetes.names import JOB, JOBSET, VOLCANO
from torchx.schedulers.kubernetes.options import KubernetesOpts
from torchx.schedulers.kubernetes.pods import specs
from torchx.schedulers.kubernetes.pods.specs import JobRules
from torchx.schedulers.kubernetes.request import role_names
from torchx.schedulers.kubernetes_scheduler import create_scheduler
from torchx.specs import AppDef, BindMount, Resource, RetryPolicy, Role, VolumeMount, macros

RULES = JobRules(
    KubernetesOpts(
        service_account="sa",
        image_secret="pull",
        priority_class="high",
        secret_files={"/s": "creds"},
        namespace="team",
        local_queue="lq",
        ttl_s=60,
    ),
    session="me",
    submission="train-x1",
    metadata={"torchx.pytorch.org/appdef": "{}"},
)


def app(**fields):
    trainer = Role(
        "Trainer/1",
        "img",
        entrypoint="sh",
        args=["-c", f"echo {macros.replica_id} {macros.app_id}"],
        env={"RANK0": macros.rank0_env, "T": "[SECRET]a/b"},
        num_replicas=3,
        port_map={"c10d": 29500},
        resource=Resource(2, 1, 4096, devices={"vpc.amazonaws.com/efa": 1}),
        mounts=[BindMount("/a", "/b"), VolumeMount("c", "/d", True)],
        **fields,
    )
    reader = Role("reader", "img", entrypoint="true", num_replicas=2, resource=Resource(1, 0, 512))
    return AppDef("train", [trainer, reader])


POLICIES = [
    pytest.param({}, id="no-retries"),
    pytest.param({"max_retries": 2, "retry_policy": RetryPolicy.REPLICA}, id="replica"),
    pytest.param({"max_retries": 2, "retry_policy": RetryPolicy.ROLE}, id="role"),
    pytest.param({"max_retries": 2, "min_replicas": 1}, id="elastic"),
]


@pytest.mark.parametrize("version", [(1, 25), (1, 30), (1, 37)], ids=str)
@pytest.mark.parametrize("policy", POLICIES)
def test_every_object_is_valid_for_its_cluster(version, policy):
    """It is valid in the schema of each version of Kubernetes, without unknown fields."""
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    rules = replace(RULES, version=version)
    schema = f"{version[0]}.{version[1]}"
    for item in (
        *render(JOB, app(**policy), "train-x1", rules),
        *_jobs_of_jobset(render(JOBSET, app(**policy), "train-x1", rules)[0]),
        *_pods_of_volcano(render(VOLCANO, app(**policy), "train-x1", rules)[0]),
    ):
        kubernetes_validate.validate(item, schema, strict=True)


def _jobs_of_jobset(jobset):
    return [
        {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": job["name"]}, "spec": job["template"]["spec"]}
        for job in jobset["spec"]["replicatedJobs"]
    ]


def _pods_of_volcano(job):
    return [
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {**t["template"]["metadata"], "name": "x"},
            "spec": t["template"]["spec"],
        }
        for t in job["spec"]["tasks"]
    ]


def jobs(version=specs.NEWEST, **fields):
    rules = replace(RULES, version=version, opts=replace(RULES.opts, local_queue=None))
    return render(JOB, app(**fields), "train-x1", rules)


def script(template):
    return template["spec"]["containers"][0]["command"][-1]


def variables(template):
    return {v["name"]: v.get("value", v.get("valueFrom")) for v in template["spec"]["containers"][0]["env"]}


def test_a_role_is_one_job_whatever_its_size():
    """All replicas share a template, so that the size of the request is constant."""
    small, large = app(), app()
    large.roles[0].num_replicas = 1000
    sizes = [len(json.dumps(render(JOB, a, "x-1", RULES))) for a in (small, large)]
    assert sizes[1] - sizes[0] < 10
    service, trainer, reader = jobs()
    assert (service["kind"], trainer["kind"], reader["kind"]) == ("Service", "Job", "Job")
    assert trainer["spec"]["completionMode"] == "Indexed"
    assert trainer["spec"]["parallelism"] == trainer["spec"]["completions"] == 3
    assert script(trainer["spec"]["template"]) == "echo $(TORCHX_REPLICA_ID) train-x1"


@pytest.mark.parametrize("kind", [JOB, JOBSET, VOLCANO])
def test_the_work_of_a_dry_run_grows_no_faster_than_the_job(kind):
    """Measured in executed lines of Python."""
    scheduler = create_scheduler("me")

    def lines(replicas):
        given, count = app(), 0
        given.roles[0].num_replicas = replicas

        def trace(_frame, event, _arg):
            nonlocal count
            count += event == "line"
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            scheduler.submit_dryrun(given, {"kind": kind})
        finally:
            sys.settrace(before)
        return count

    lines(2)  # what is done once
    small, medium, large = lines(50), lines(100), lines(200)
    assert large - medium <= 2.2 * (medium - small) + 100, (small, medium, large)


def test_rank_0_has_a_name_before_it_is_ready():
    """Replicas get `<job>-0.<service>`, which the Service publishes at once."""
    service, trainer, reader = jobs()
    assert service["spec"]["clusterIP"] == "None" and service["spec"]["publishNotReadyAddresses"]
    assert service["spec"]["selector"] == {names.LABEL_UNIQUE_NAME: "train-x1"}
    for job in (trainer, reader):
        template = job["spec"]["template"]
        assert template["spec"]["subdomain"] == service["metadata"]["name"] == "train-x1"
        assert variables(template)["TORCHX_RANK0_HOST"] == f"{job['metadata']['name']}-0.train-x1"
        assert template["metadata"]["labels"][names.LABEL_UNIQUE_NAME] == "train-x1"
    assert variables(trainer["spec"]["template"])["RANK0"] == "TORCHX_RANK0_HOST"


def test_an_old_cluster_gets_a_job_for_each_replica():
    """Before 1.22 a Job has no indexes: each replica has a Job, with the same names as later."""
    _, *replicas = jobs(version=(1, 20))
    assert [j["metadata"]["name"] for j in replicas][:3] == [f"train-x1-trainer-1-{k}" for k in range(3)]
    for k, job in enumerate(replicas[:3]):
        template = job["spec"]["template"]
        assert script(template) == f"echo {k} train-x1"
        assert template["spec"]["hostname"] == job["metadata"]["name"] and template["spec"]["subdomain"] == "train-x1"
        assert template["metadata"]["labels"][names.LABEL_REPLICA_ID] == str(k)
        assert variables(template)["TORCHX_RANK0_HOST"] == "train-x1-trainer-1-0.train-x1"


@pytest.mark.parametrize("policy", [{"retry_policy": RetryPolicy.REPLICA}, {"min_replicas": 1}])
def test_the_limit_of_a_replicas_own_job_is_its_own(policy):
    """It fails after `max_retries` retries, however many replicas there are."""
    _, *replicas = jobs(version=(1, 20), max_retries=2, **policy)
    assert [job["spec"]["backoffLimit"] for job in replicas[:3]] == [2] * 3


@pytest.mark.parametrize("kind", [JOB, JOBSET])
def test_the_replicas_number_in_a_mount_is_refused_where_one_template_serves_all(kind):
    """A shared template would mount the wrong folder; Volcano supports it."""
    given = app()
    given.roles[0].mounts = [BindMount(f"/data/{macros.replica_id}", "/data")]
    with pytest.raises(SpecError, match="`Trainer/1`") as error:
        render(kind, given, "train-x1", RULES)
    assert "kind=volcano" in error.value.hint
    volcano = render(VOLCANO, given, "train-x1", RULES)[0]
    paths = [t["template"]["spec"]["volumes"][1]["hostPath"]["path"] for t in volcano["spec"]["tasks"][:3]]
    assert paths == ["/data/0", "/data/1", "/data/2"]


@pytest.mark.parametrize(
    ("policy", "version", "limits"),
    [
        ({}, (1, 37), {"backoffLimit": 0}),
        ({"max_retries": 2}, (1, 37), {"backoffLimit": 2}),
        (
            {"max_retries": 2, "retry_policy": RetryPolicy.REPLICA},
            (1, 37),
            {"backoffLimitPerIndex": 2, "maxFailedIndexes": 0},
        ),
        ({"max_retries": 2, "retry_policy": RetryPolicy.REPLICA}, (1, 28), {"backoffLimit": 6}),
        (
            {"max_retries": 1, "min_replicas": 1},
            (1, 37),
            {"backoffLimitPerIndex": 1, "maxFailedIndexes": 2},
        ),
        ({"max_retries": 1, "min_replicas": 1}, (1, 25), {"backoffLimit": 5}),
    ],
)
def test_retries(policy, version, limits):
    """The limits and failure policies of a Job, by retry policy and version."""
    spec = jobs(version=version, **policy)[1]["spec"]
    found = {k: v for k, v in spec.items() if k.startswith(("backoff", "maxFailed"))}
    assert found == limits
    assert ("podFailurePolicy" in spec) == (version >= (1, 26))


def test_kueue_holds_a_job_until_its_queue_admits_it():
    """The Job is suspended, with Kueue's label."""
    for item in render(JOB, app(), "train-x1", RULES)[1:]:
        assert item["spec"]["suspend"] and item["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "lq"
    jobset = render(JOBSET, app(), "train-x1", RULES)[0]
    assert jobset["spec"]["suspend"] and jobset["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "lq"
    assert not any("suspend" in j["template"]["spec"] for j in jobset["spec"]["replicatedJobs"])


def test_jobset():
    """One replicated Job per role, stable names, restarts of the whole."""
    jobset = render(JOBSET, app(max_retries=3), "train-x1", RULES)[0]
    assert [j["name"] for j in jobset["spec"]["replicatedJobs"]] == ["trainer-1", "reader"]
    assert jobset["spec"]["failurePolicy"] == {"maxRestarts": 3}
    assert jobset["spec"]["network"]["publishNotReadyAddresses"]
    template = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]
    assert template["backoffLimit"] == 0
    assert variables(template["template"])["TORCHX_RANK0_HOST"] == "train-x1-trainer-1-0-0.train-x1"


def test_volcano():
    """A task per replica, a gang of the minimum size, the queue; a failure restarts or aborts the job."""
    rules = replace(RULES, opts=replace(RULES.opts, queue="gpu"))
    job = render(VOLCANO, app(max_retries=2, min_replicas=2), "train-x1", rules)[0]
    spec = job["spec"]
    assert [t["name"] for t in spec["tasks"]] == ["trainer-1-0", "trainer-1-1", "trainer-1-2", "reader-0", "reader-1"]
    assert (spec["queue"], spec["priorityClassName"], spec["minAvailable"], spec["maxRetry"]) == ("gpu", "high", 4, 2)
    assert spec["tasks"][2]["minAvailable"] == 0
    assert spec["tasks"][0]["policies"] == kinds.RETRY_POLICIES[RetryPolicy.APPLICATION]
    assert render(VOLCANO, app(), "x", rules)[0]["spec"]["policies"] == [{"event": "PodFailed", "action": "AbortJob"}]


def test_the_handle_in_the_environment_is_the_one_that_status_takes():
    """The app id in it includes the namespace."""
    given = app()
    given.roles[0].env["TORCHX_JOB_ID"] = f"kubernetes://me/{macros.app_id}"
    template = render(JOB, given, "train-x1", RULES)[1]["spec"]["template"]
    assert variables(template)["TORCHX_JOB_ID"] == "kubernetes://me/team:train-x1"


def test_names_of_roles_are_distinct_and_fit():
    """Host names of pods have at most 63 characters, and names of roles are unique."""
    names = role_names(AppDef("a", [Role(name, "i") for name in ("a-2", "a", "A", "a-3")]))
    assert names == ["a-2", "a", "a-3", "a-3-3"]
    names = role_names(AppDef("a", [Role("r" * 40 + c, "i") for c in "abcdefghijkl"]))
    assert len(set(names)) == 12
    longest = max(names, key=len)
    assert len(f"{'a' * request.MAX_APP_ID}-{longest}-0-99999-abcde") <= 63


@pytest.mark.parametrize(
    ("cfg", "operator"),
    [
        ({"kind": "jobset"}, "with JobSet"),
        ({"kind": "volcano"}, "with Volcano"),
        ({"queue": "gpu"}, "with Volcano"),
        ({"local_queue": "lq"}, "with Kueue"),
        ({"kind": "jobset", "local_queue": "lq"}, "with JobSet, with Kueue"),
        ({}, "that it reaches"),
    ],
    ids=str,
)
def test_an_export_names_the_operators_that_it_needs(cfg, operator):
    """The cluster must have them, since `kubectl` creates exactly these objects."""
    scheduler = create_scheduler("me")
    plain = AppDef("train", [Role("a", "img", entrypoint="true")])
    assert scheduler.export(scheduler.submit_dryrun(plain, cfg)).needs.endswith(operator)


def test_a_ttl_is_that_of_the_whole_jobset():
    """JobSet creates a Job again that a TTL has deleted while other roles run, and the role would run twice."""
    (jobset,) = render(JOBSET, app(), "train-x1", RULES)
    assert jobset["spec"]["ttlSecondsAfterFinished"] == 60
    templates = [job["template"]["spec"] for job in jobset["spec"]["replicatedJobs"]]
    assert not any("ttlSecondsAfterFinished" in spec for spec in templates)
