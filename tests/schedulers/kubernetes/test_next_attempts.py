"""Attempts created by torchx: their Jobs, and that concurrent commands create each of them once."""

from __future__ import annotations

import pytest

from tests.schedulers.kubernetes.fake_cluster import Cluster, refusal
from tests.schedulers.kubernetes.test_answers import BAD_BATCH, DONE, RUNNING, condition, failed
from torchx.errors import SpecError
from torchx.schedulers.kit.logs import LogQuery
from torchx.schedulers.kubernetes import logs
from torchx.schedulers.kubernetes_scheduler import create_scheduler
from torchx.specs import AppDef, AppState, Resource, RetryPolicy, Role
from torchx.specs.wishes.retries import RETRY

OOM = failed(code=137, reason="OOMKilled")


def role(name="trainer", **fields):
    return Role(name, "img", entrypoint="t", num_replicas=2, resource=Resource(1, 0, 100), **fields)


class Submitted:
    """A job with a policy, and a second client that reads its state."""

    def __init__(self, policy="oom:2:mem*2", *roles, version=(1, 30), **cfg):
        self.cluster = Cluster(version=version)
        self.scheduler, self.other = (create_scheduler("me", client=self.cluster) for _ in range(2))
        app = AppDef("train", list(roles) or [role()], metadata={RETRY: policy})
        self.app_id = self.scheduler.submit(app, cfg)
        self.name = self.app_id.partition(":")[2]

    def jobs(self):
        return {job["metadata"]["name"].removeprefix(self.name): job for job in self.cluster.of("jobs")}

    def ends(self, name, status, *, on="n"):
        """Lets all pods of the Job with this suffix, and the Job, fail."""
        job = self.jobs()[name]
        before = {id(pod) for pod in self.cluster.of("pods")}
        self.cluster.run_pods(job, status)
        for pod in self.cluster.of("pods"):
            if id(pod) not in before:
                pod["spec"] = {**pod["spec"], "nodeName": f"{on}{pod['metadata']['name'][-7]}"}
        kind = "Complete" if status is DONE else "Failed"
        job["status"] = {"conditions": [condition(kind, reason="BackoffLimitExceeded")]}

    def look(self):
        return self.scheduler.describe(self.app_id)

    def posted(self):
        return [p for method, p, query in self.cluster.calls if (method, p[-5:], query) == ("POST", "/jobs", {})]


def memory(job):
    (container,) = job["spec"]["template"]["spec"]["containers"]
    return container["resources"]["limits"]["memory"]


def rank0(job):
    (container,) = job["spec"]["template"]["spec"]["containers"]
    return next(v["value"] for v in container["env"] if v["name"] == "TORCHX_RANK0_HOST")


def test_the_first_attempt_ends_with_the_first_pod_that_fails():
    """The cluster replaces no pods; the label says that torchx retries the job."""
    (job,) = Submitted().jobs().values()
    assert job["spec"]["backoffLimit"] == 0
    assert "podFailurePolicy" not in job["spec"]
    for labels in (job["metadata"]["labels"], job["spec"]["template"]["metadata"]["labels"]):
        assert labels["torchx.pytorch.org/attempt"] == "1"


def test_the_next_attempt_gets_more_memory():
    """The next command creates it under new names; it succeeds, and previous attempts are listed."""
    job = Submitted()
    job.ends("-trainer", OOM)
    found = job.look()
    assert found.state is AppState.PENDING
    assert [(a.kind, a.again, a.memory, a.why) for a in found.attempts] == [("oom", True, 2.0, "oom: retry 1 of 2")]
    first, second = job.jobs()["-trainer"], job.jobs()["-a2-trainer"]
    assert (memory(first), memory(second)) == ("100M", "200M")
    assert rank0(second) == f"{job.name}-a2-trainer-0.{job.name}"
    assert second["metadata"]["ownerReferences"] == first["metadata"]["ownerReferences"]
    job.ends("-a2-trainer", OOM)
    job.look()
    third = job.jobs()["-a3-trainer"]
    assert memory(third) == "400M"
    assert rank0(third) == f"{job.name}-a3-trainer-0.{job.name}"
    job.ends("-a3-trainer", DONE)
    found = job.look()
    assert (found.state, found.num_restarts, len(found.attempts)) == (AppState.SUCCEEDED, 2, 2)
    assert job.scheduler.list()[0].state is AppState.SUCCEEDED


def test_the_policy_ends_it():
    """A class that is not retried, used retries, or the same exception twice: no further Job, and the reason."""
    job = Submitted("error:3:differs, oom:1:mem*2")
    for name in ("-trainer", "-a2-trainer"):
        job.ends(name, failed(BAD_BATCH))
        found = job.look()
    assert found.state is AppState.FAILED
    assert [a.again for a in found.attempts] == [True, False]
    assert found.msg.endswith("not retried (error: the same failure twice in a row)")
    assert [a.why for a in job.look().attempts] == [a.why for a in found.attempts]
    assert len(job.jobs()) == 2


def test_nodes_are_avoided():
    """By name, in addition to the user's affinity; the policy lists at most 8."""
    job = Submitted("error:9:avoid")
    term = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}
    spec = job.jobs()["-trainer"]["spec"]["template"]["spec"]
    spec["affinity"] = {
        "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    }
    names = ["-trainer", *(f"-a{n}-trainer" for n in range(2, 10))]
    for number, name in enumerate(names, 1):
        job.ends(name, failed(f"ValueError: {'x' * number}"), on=f"m{number}-")
        job.look()
    affinity = job.jobs()["-a10-trainer"]["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]
    (got,) = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert got["matchExpressions"] == term["matchExpressions"]
    assert {f["values"][0] for f in got["matchFields"]} == {f"m{n}-0" for n in range(2, 10)}
    assert {(f["key"], f["operator"], len(f["values"])) for f in got["matchFields"]} == {("metadata.name", "NotIn", 1)}


def test_a_gang_of_two_roles_starts_again_as_a_whole():
    """If one role fails, the other is stopped, and both have Jobs in the next attempt, with new names."""
    job = Submitted("oom:2:mem*2", role("a"), role("b"))
    job.ends("-b", OOM)
    job.cluster.run_pods(job.jobs()["-a"], RUNNING)
    assert job.look().state is AppState.PENDING
    jobs = job.jobs()
    assert set(jobs) == {"-a", "-b", "-a2-a", "-a2-b"}
    assert jobs["-a"]["spec"]["suspend"] and "suspend" not in jobs["-a2-a"]["spec"]
    assert [rank0(jobs[name]) for name in ("-a2-a", "-a2-b")] == [f"{job.name}-a2-{r}-0.{job.name}" for r in "ab"]
    assert [len(r.replicas) for r in job.look().roles_statuses] == [2, 2]


def test_the_last_attempt_ends_as_a_whole():
    """If one role fails without retry, the next command ends the other role."""
    job = Submitted("oom:1:mem*2", role("a"), role("b"))
    job.cluster.run_pods(job.jobs()["-b"], RUNNING)
    job.ends("-a", failed(BAD_BATCH))
    job.look()
    assert job.jobs()["-b"]["spec"]["suspend"]
    assert len(job.jobs()) == 2


def test_two_clients_at_once_make_one():
    """Two concurrent commands create one Job per role, and report the same."""
    job = Submitted("oom:2:mem*2", role("a"), role("b"))
    job.ends("-a", OOM)
    seen = []

    def first(method, path):
        if method == "POST" and path.endswith("/jobs") and not seen:
            seen.append(None)
            seen.append(job.other.describe(job.app_id))

    job.cluster.away = first
    found = job.look()
    assert len(job.jobs()) == 4
    assert found.state is seen[1].state is AppState.PENDING
    assert found.attempts == seen[1].attempts and len(found.attempts) == 1
    assert len(job.posted()) == 2 + 4


def test_who_dies_while_it_makes_them_is_followed_by_another():
    """If a command dies after the first Job, the next one creates the second Job by the same decision."""
    job = Submitted("oom:2:mem*2", role("a"), role("b"))
    job.ends("-a", OOM)

    def dies(method, path):
        return refusal(403, "Forbidden", "no") if method == "POST" and "-a2-a" in "".join(job.jobs()) else None

    job.cluster.away = dies
    found = job.look()
    assert found.attempts[-1].why.startswith("the next attempt could not be made: ")
    assert job.scheduler.list()[0].state is AppState.PENDING  # and not what became of the first attempt
    job.cluster.away = lambda method, path: None
    job.other.describe(job.app_id)
    assert set(job.jobs()) == {"-a", "-b", "-a2-a", "-a2-b"}
    found = job.look()
    assert (found.state, len(found.attempts)) == (AppState.PENDING, 1)
    assert memory(job.jobs()["-a2-b"]) == "200M"


def test_without_the_right_to_make_jobs_it_is_said():
    """The status is that of the failed attempt, with the reason why no other one follows."""
    job = Submitted()
    job.ends("-trainer", OOM)
    job.cluster.away = lambda method, path: refusal(403, "Forbidden", "you may not") if method == "POST" else None
    found = job.look()
    assert found.state is AppState.FAILED
    assert "you may not" in found.attempts[0].why and not found.attempts[0].again


@pytest.mark.parametrize("when", ["running", "failed"])
def test_what_is_cancelled_stays_so(when):
    """No further attempt is created, whether it was running or had just failed."""
    job = Submitted()
    if when == "failed":
        job.ends("-trainer", OOM)
    else:
        job.cluster.run_pods(job.jobs()["-trainer"], RUNNING)
    job.scheduler.cancel(job.app_id)
    found = job.other.describe(job.app_id)
    assert ("cancelled" in found.attempts[0].why) if when == "failed" else (found.msg == "cancelling")
    assert len(job.jobs()) == 1


@pytest.mark.parametrize("order", ["cancel first", "job first"])
def test_a_cancel_while_the_next_attempt_is_made(order):
    """Either the cancelling or the creating process sees the other, so that the new Job is ended."""
    job = Submitted()
    job.ends("-trainer", OOM)

    def between(method, path):
        made = "-a2-trainer" in job.jobs()
        if (method == "POST" and order == "cancel first") or (method == "GET" and order == "job first" and made):
            job.cluster.away = lambda method, path: None
            job.other.cancel(job.app_id)

    job.cluster.away = between
    job.look()
    assert job.look().state is AppState.CANCELLED
    assert job.jobs()["-a2-trainer"]["spec"]["suspend"]


def test_deleting_it_takes_all_attempts():
    """No Jobs are left."""
    job = Submitted()
    job.ends("-trainer", OOM)
    job.look()
    job.scheduler.delete(job.app_id)
    assert not job.jobs()


def test_a_cluster_before_failure_policies():
    """1.20 has no failure policies, and a Job for each replica: retries by cause work nevertheless."""
    job = Submitted("standard", version=(1, 20))
    assert set(job.jobs()) == {"-trainer-0", "-trainer-1"}
    job.ends("-trainer-1", OOM)
    job.look()
    jobs = job.jobs()
    assert set(jobs) == {"-trainer-0", "-trainer-1", "-a2-trainer-0", "-a2-trainer-1"}
    second = jobs["-a2-trainer-1"]["spec"]["template"]["spec"]
    assert (second["hostname"], second["subdomain"]) == (f"{job.name}-a2-trainer-1", job.name)
    assert rank0(jobs["-a2-trainer-1"]) == f"{job.name}-a2-trainer-0.{job.name}"
    assert jobs["-a2-trainer-0"]["spec"]["parallelism"] == 1
    assert memory(jobs["-a2-trainer-1"]) == "150M"


def test_what_the_controller_adds_is_left_out():
    """The API server would reject a copy with the controller's selector and labels."""
    job = Submitted(local_queue="q")
    first = job.jobs()["-trainer"]
    first["spec"].update(selector={"matchLabels": {"controller-uid": "1"}}, suspend=False)
    first["spec"]["template"]["metadata"]["labels"].update({"controller-uid": "1", "batch.kubernetes.io/job-name": "x"})
    first["metadata"]["annotations"]["batch.kubernetes.io/job-tracking"] = ""
    job.ends("-trainer", OOM)
    job.look()
    second = job.jobs()["-a2-trainer"]
    assert "selector" not in second["spec"] and second["spec"]["suspend"]  # Kueue admits it
    assert not [
        key for key in second["spec"]["template"]["metadata"]["labels"] if "controller" in key or "job-name" in key
    ]
    assert "status" not in second and "batch.kubernetes.io/job-tracking" not in second["metadata"]["annotations"]


@pytest.mark.parametrize(
    ("policy", "fields", "cfg", "error", "said"),
    [
        ("oom:1:mem*2", {}, {"ttl_s": 60}, SpecError, "ttl_s"),
        ("oom:1:mem*2", {"retry_policy": RetryPolicy.REPLICA}, {}, SpecError, "starts the whole job again"),
        ("timeout:1:checkpoint", {}, {}, SpecError, "cannot keep"),
    ],
)
def test_what_is_refused(policy, fields, cfg, error, said):
    """Before anything is created."""
    cluster = Cluster()
    with pytest.raises(error, match=said):
        create_scheduler("me", client=cluster).submit(AppDef("a", [role(**fields)], metadata={RETRY: policy}), cfg)
    assert not cluster.objects


def test_a_name_that_somebody_else_took_is_no_attempt():
    """The status says so, and the other object is not changed."""
    job = Submitted()
    job.ends("-trainer", OOM)
    name = f"{job.name}-a2-trainer"
    theirs = {"kind": "Job", "metadata": {"name": name, "namespace": "default", "uid": "x"}}
    job.cluster.objects["apis/batch/v1/jobs", "default", name] = theirs
    found = job.look()
    assert found.state is AppState.FAILED
    assert "is already in use" in found.attempts[0].why


def test_a_definition_that_no_annotation_holds():
    """The next attempt needs the policy in the definition on the Job: without it, the job is not submitted."""
    large = role(args=["x" * 1000 for _ in range(200)])
    with pytest.raises(SpecError, match="definition of `train` is too large"):
        Submitted("oom:2:mem*2", large)
    assert set(Submitted("oom:2", large).jobs()) == {"-trainer"}  # the cluster retries it by itself


def test_a_definition_that_somebody_has_removed():
    """Without its policy the job has failed, and no attempt follows."""
    job = Submitted()
    job.ends("-trainer", OOM)
    del job.jobs()["-trainer"]["metadata"]["annotations"]["torchx.pytorch.org/appdef"]
    assert job.look().state is AppState.FAILED
    assert len(job.jobs()) == 1


def test_claims_of_devices_are_kept():
    """They are in the resources of the container, beside its memory."""
    job = Submitted("oom:2:mem*2", version=(1, 34), claims={"gpu": "two-gpus"})
    job.ends("-trainer", OOM)
    assert job.look().state is AppState.PENDING
    (container,) = job.jobs()["-a2-trainer"]["spec"]["template"]["spec"]["containers"]
    assert (container["resources"]["limits"]["memory"], container["resources"]["claims"]) == ("200M", [{"name": "gpu"}])


def test_an_attempt_whose_record_was_deleted_is_not_completed():
    """Its first Job has the record; somebody may have deleted it."""
    job = Submitted("oom:2:mem*2", role("reader"), role("trainer"))
    job.ends("-trainer", OOM)
    job.look()
    job.cluster.take(job.jobs()["-a2-reader"])
    job.look()
    assert list(job.jobs()) == ["-reader", "-trainer", "-a2-trainer"]


def test_a_log_is_followed_into_the_next_attempt(monkeypatch):
    """Also if the follower is the first to see that the last one has failed."""
    job = Submitted()
    monkeypatch.setattr(logs, "_EVERY_S", 0.001)

    def ends(name, status):
        job.ends(name, status)
        for pod in job.cluster.of("pods"):
            text = f"2026-01-01T00:00:00.5Z of {pod['metadata']['name'].removeprefix(job.name)}\n"
            job.cluster.logs[pod["metadata"]["name"], ""] = text.encode()

    ends("-trainer", OOM)
    (lines,) = job.other.open_logs(job.app_id, [("trainer", 0)], LogQuery(follow=True))
    found = iter(lines)
    assert next(found) == "of -trainer-0-abcde\n"
    assert list(job.jobs()) == ["-trainer", "-a2-trainer"]
    ends("-a2-trainer", DONE)
    assert list(found) == ["of -a2-trainer-0-abcde\n"]
