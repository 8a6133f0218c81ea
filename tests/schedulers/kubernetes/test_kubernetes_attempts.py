"""Retries by cause: the rules of the Jobs, what is rejected before the submission, and the attempts."""

from __future__ import annotations

import pytest

from tests.schedulers.kubernetes.fake_cluster import Cluster
from tests.schedulers.kubernetes.test_answers import BAD_BATCH, RUNNING, condition, failed
from torchx.errors import BackendError, NotSupportedError, SpecError
from torchx.schedulers.kubernetes.overlays import set_overlay
from torchx.schedulers.kubernetes_scheduler import create_scheduler
from torchx.specs import AppDef, AppState, Resource, RetryPolicy, Role
from torchx.specs.wishes.retries import RETRY

DISRUPTED = [{"type": "DisruptionTarget", "status": "True"}]
OOM = {"operator": "In", "values": [137]}
OTHER = {"operator": "NotIn", "values": [137]}
GROUPS = ["jobset.x-k8s.io/v1alpha2", "batch.volcano.sh/v1alpha1"]


def app(policy, **fields):
    trainer = Role("trainer", "img", entrypoint="t", num_replicas=2, resource=Resource(1, 0, 64), **fields)
    return AppDef("train", [trainer], metadata={RETRY: policy})


class Submitted:
    def __init__(self, policy, **fields):
        self.cluster = Cluster()
        self.scheduler = create_scheduler("me", client=self.cluster)
        self.app_id = self.scheduler.submit(app(policy, **fields), {})
        (self.job,) = self.cluster.of("jobs")

    def pods(self, *statuses):
        """Pods of replica 0, each created after the previous one has ended."""
        self.cluster.run_pods(self.job, RUNNING, most=1)
        (first,) = self.cluster.of("pods")
        for k, status in enumerate(statuses):
            name = f"{first['metadata']['name']}-{k}"
            made = f"2026-01-01T00:00:{10 * k:02}Z"
            metadata = {**first["metadata"], "name": name, "uid": name, "creationTimestamp": made}
            shown = {"startTime": made, **status}
            self.cluster.objects["api/v1/pods", "default", name] = {**first, "metadata": metadata, "status": shown}
        del self.cluster.objects["api/v1/pods", "default", first["metadata"]["name"]]

    def attempts(self):
        return self.scheduler.describe(self.app_id).attempts


@pytest.mark.parametrize(
    ("policy", "fields", "limits", "rules"),
    [
        (
            "preempted:free, error:3",
            {},
            {"backoffLimit": 3},
            [("Ignore", DISRUPTED), ("FailJob", OOM), ("Count", OTHER)],
        ),
        ("standard", {}, {"backoffLimit": 2}, [("Ignore", DISRUPTED), ("Count", OOM), ("FailJob", OTHER)]),
        ("node:free", {"max_retries": 7}, {"backoffLimit": 0}, [("Ignore", DISRUPTED)]),
        ("error:1", {}, {"backoffLimit": 1}, [("FailJob", DISRUPTED), ("FailJob", OOM), ("Count", OTHER)]),
        (
            "oom:2",
            {"retry_policy": RetryPolicy.REPLICA},
            {"backoffLimitPerIndex": 2, "maxFailedIndexes": 0},
            [("FailIndex", DISRUPTED), ("Count", OOM), ("FailIndex", OTHER)],
        ),
        (
            "error:1",
            {"min_replicas": 1},
            {"backoffLimitPerIndex": 1, "maxFailedIndexes": 1},
            [("FailIndex", DISRUPTED), ("FailIndex", OOM), ("Count", OTHER)],
        ),
    ],
)
def test_a_policy_is_the_rules_of_the_job(policy, fields, limits, rules):
    """The first matching rule decides; a cause that is not retried ends the job. `max_retries` is ignored."""
    spec = Submitted(policy, **fields).job["spec"]
    assert {k: v for k, v in spec.items() if k.startswith(("backoff", "maxFailed"))} == limits
    found = spec["podFailurePolicy"]["rules"]
    assert [(rule["action"], rule.get("onPodConditions") or rule["onExitCodes"]) for rule in found] == rules


@pytest.mark.parametrize("policy", ["standard", "preempted:free", "standard, error:1"])
@pytest.mark.parametrize("fields", [{}, {"retry_policy": RetryPolicy.REPLICA}], ids=["app", "replica"])
def test_the_rules_are_valid(policy, fields):
    """They are valid in the schema of Kubernetes, without unknown fields."""
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    job = Submitted(policy, **fields).job
    spec = {**job, "metadata": {"name": "x"}}
    kubernetes_validate.validate(spec, "1.30", strict=True)


@pytest.mark.parametrize("cfg", [{"kind": "jobset"}, {"kind": "volcano"}, {"queue": "gpus"}], ids=str)
def test_other_kinds_of_jobs_refuse_a_policy(cfg):
    """JobSets and Volcano do not support retries by cause."""
    with pytest.raises(NotSupportedError) as error:
        create_scheduler("me", client=Cluster()).submit_dryrun(app("standard"), cfg)
    assert "kind=job" in error.value.hint


def test_with_a_policy_auto_is_plain_jobs():
    """Also if the cluster supports JobSets and Volcano."""
    cluster = Cluster(groups=GROUPS)
    create_scheduler("me", client=cluster).submit(app("standard"), {})
    (job,) = cluster.of("jobs")
    assert job["spec"]["podFailurePolicy"]["rules"]


def test_a_dry_run_does_not_say_that_it_may_become_something_else():
    """With a policy, `auto` always selects Jobs; without one, it depends on the cluster."""
    scheduler = create_scheduler("me", client=Cluster())
    assert "kind=auto" not in str(scheduler.submit_dryrun(app("standard"), {}).request)
    assert "kind=auto" in str(scheduler.submit_dryrun(AppDef("train", app("").roles), {}).request)


def test_an_older_cluster_refuses_budgets_of_replicas_before_anything_is_made():
    """The submission checks the version of the cluster first."""
    cluster = Cluster(version=(1, 28))
    with pytest.raises(BackendError, match=r"this needs 1\.29"):
        create_scheduler("me", client=cluster).submit(app("standard", retry_policy=RetryPolicy.REPLICA), {})
    assert {method for method, *_ in cluster.calls} == {"GET"}


def test_containers_that_nodes_start_again_are_refused():
    """An overlay with `restartPolicy: OnFailure` excludes pod failure policies."""
    given = app("error:1")
    set_overlay(given.roles[0], "kubernetes", "pod", {"spec": {"restartPolicy": "OnFailure"}})
    with pytest.raises(SpecError, match="restartPolicy"):
        create_scheduler("me", client=Cluster()).submit_dryrun(given, {})


def test_the_attempts_are_the_pods_that_failed():
    """Each attempt has times, class, cause and node; a job without policy has no attempts."""
    job = Submitted("preempted:free, error:2")
    taken = [{"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}]
    job.pods({**failed(at=10, code=143), "conditions": taken}, failed(BAD_BATCH, at=20), RUNNING)
    first, second = job.attempts()
    assert (first.kind, first.again, first.started, first.ended) == ("preempted", True, 1767225600.0, 1767225610.0)
    assert "was preempted by a pod of higher priority" in first.cause
    assert (second.kind, second.again, second.hosts) == ("error", True, ["n0"])
    assert second.cause == "trainer/0 on n0: exit code 1: ValueError: bad batch"
    assert job.scheduler.describe(job.app_id).state is AppState.RUNNING


def test_the_last_attempt_says_why_there_is_no_other():
    """Its class is not retried, or all retries are used."""
    job = Submitted("error:1")
    job.pods(failed(BAD_BATCH, at=10), failed(BAD_BATCH, at=20))
    job.job["status"] = {"conditions": [condition("Failed", reason="BackoffLimitExceeded")]}
    assert [attempt.again for attempt in job.attempts()] == [True, False]
    assert job.attempts()[-1].why == "error: all 1 retries are used"
    assert "not retried (error: all 1 retries are used)" in job.scheduler.describe(job.app_id).msg
    job = Submitted("oom:1")
    job.pods(failed(BAD_BATCH, at=10))
    job.job["status"] = {"conditions": [condition("Failed", reason="PodFailurePolicy")]}
    assert job.attempts()[-1].why == "error: the policy does not retry it"


def test_a_definition_with_a_policy_that_cannot_be_read_spoils_no_status():
    """A policy of another version of torchx is ignored."""
    job = Submitted("error:1")
    annotations = job.job["metadata"]["annotations"]
    for key, text in annotations.items():
        annotations[key] = text.replace("error:1", "mystery:1")
    job.pods(failed(BAD_BATCH, at=10), RUNNING)
    assert job.attempts() == [] and job.scheduler.describe(job.app_id).state is AppState.RUNNING
