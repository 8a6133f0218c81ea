"""States and causes of jobs, from the objects of the API; `status` and `list` agree."""

from __future__ import annotations

import json
import re
from datetime import datetime, timedelta, timezone

import pytest

from tests.schedulers.kubernetes.fake_cluster import Cluster, refusal
from torchx.schedulers.kubernetes_scheduler import create_scheduler
from torchx.specs import NONE, AppDef, AppState, Resource, RetryPolicy, Role
from torchx.specs.failures import parse_failure

JOBSETS = "jobset.x-k8s.io/v1alpha2"
VOLCANO = "batch.volcano.sh/v1alpha1"
PODGROUPS = "scheduling.volcano.sh/v1beta1"
RUNNING = {"phase": "Running", "containerStatuses": [{"name": "main", "state": {"running": {}}}]}
PENDING = {"phase": "Pending"}
DONE = {"phase": "Succeeded", "containerStatuses": [{"name": "main", "state": {"terminated": {"exitCode": 0}}}]}
LOST_PEER = """Traceback (most recent call last):
  File "train.py", line 9, in <module>
    dist.all_reduce(t)
RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:27045
"""
BAD_BATCH = """Traceback (most recent call last):
  File "train.py", line 12, in <module>
    raise ValueError("bad batch")
ValueError: bad batch
"""


def failed(message="", *, at=10, code=1, **fields):
    ended = {"exitCode": code, "reason": "Error", "message": message, "finishedAt": f"2026-01-01T00:00:{at}Z"}
    return {"phase": "Failed", "containerStatuses": [{"name": "main", "state": {"terminated": {**ended, **fields}}}]}


def condition(kind, **fields):
    return {"type": kind, "status": "True", **fields}


def role(name="trainer", replicas=2, **fields):
    return Role(name, "img", entrypoint="t", num_replicas=replicas, resource=Resource(1, 0, 64), **fields)


class Submitted:
    """A job, with helpers that change its objects."""

    def __init__(self, *roles, groups=(), **cfg):
        self.cluster = Cluster(groups=groups)
        self.scheduler = create_scheduler("me", client=self.cluster)
        self.app_id = self.scheduler.submit(AppDef("train", list(roles) or [role()]), cfg)

    def jobs(self):
        return self.cluster.of("jobs")

    def pods(self, *statuses, job=0):
        """The pods of one Job, in these states."""
        self.cluster.run_pods(self.jobs()[job], PENDING, most=len(statuses))
        name = self.jobs()[job]["metadata"]["name"]
        mine = [pod for pod in self.cluster.of("pods") if pod["metadata"]["name"].startswith(f"{name}-")]
        for pod, status in zip(mine, statuses, strict=True):
            pod["status"] = status

    def end(self, *conditions, job=0):
        self.jobs()[job]["status"] = {"conditions": list(conditions)}

    def told(self):
        """State and sentence of a job; asserts that `list` shows the same state."""
        found = self.scheduler.describe(self.app_id)
        (row,) = self.scheduler.list()
        assert (row.app_id, row.state) == (self.app_id, found.state)
        return found.state, found.msg

    def cause(self):
        return parse_failure(self.scheduler.describe(self.app_id).structured_error_msg)

    def states(self):
        return [r.state for role in self.scheduler.describe(self.app_id).roles_statuses for r in role.replicas]


# -- who is to blame -------------------------------------------------------------------------------


def test_the_one_that_lost_its_peer_is_not_blamed():
    """Rank 0 dies first, because of rank 1: rank 1's replica is the cause. No additional call is made."""
    job = Submitted()
    job.pods(failed(LOST_PEER, at=10), failed(BAD_BATCH, at=11))
    job.end(condition("Failed", reason="BackoffLimitExceeded"))
    before = len(job.cluster.calls)
    assert job.scheduler.describe(job.app_id).msg == "trainer/1 on n1: exit code 1: ValueError: bad batch"
    assert len(job.cluster.calls) - before == 2  # the Jobs, and the pods
    assert job.told()[0] is AppState.FAILED
    cause = job.cause()
    assert (cause.role, cause.replica, cause.kind, cause.host) == ("trainer", 1, "error", "n1")


def test_a_pod_that_was_ended_because_of_others_is_not_blamed():
    """A pod that was deleted before it ended by a signal is not the cause, whatever the order of the ends."""
    job = Submitted()
    job.pods(failed(at=10, code=137), failed(BAD_BATCH, at=10))
    told = job.cluster.of("pods")[0]["metadata"]
    told.update(deletionTimestamp="2026-01-01T00:00:39Z", deletionGracePeriodSeconds=30)
    job.end(condition("Failed", reason="BackoffLimitExceeded"))
    assert job.told() == (AppState.FAILED, "trainer/1 on n1: exit code 1: ValueError: bad batch")
    assert job.states() == [AppState.CANCELLED, AppState.FAILED]


def test_the_box_of_torchrun_that_was_cut_is_read_from_the_log():
    """If the 2 KiB in a pod's status do not contain the worker's error, the log is read once."""
    job = Submitted(role(replicas=1))
    box = (
        f"torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\n{'=' * 60}\nt.py FAILED\n{'-' * 60}\n"
        f"Failures:\n  <NO_OTHER_FAILURES>\n{'-' * 60}\nRoot Cause (first observed failure):\n[0]:\n"
        "  time      : 2026-01-01_00:00:09\n  host      : n0\n  rank      : 1 (local_rank: 1)\n"
        "  exitcode  : 3 (pid: 12)\n  error_file: <N/A>\n"
        f"  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html\n{'=' * 60}\n"
    )
    job.pods(failed(("." * 2000 + "\n" + box)[-2048:]))
    job.end(condition("Failed", reason="BackoffLimitExceeded"))
    name = job.cluster.of("pods")[0]["metadata"]["name"]
    job.cluster.logs[name, ""] = f"[rank1]: no data in /data\n{box}".encode()
    before = len(job.cluster.calls)
    assert job.scheduler.describe(job.app_id).msg == "trainer/0 rank 1 on n0: exit code 3: no data in /data"
    assert [path.rpartition("/")[2] for _, path, _ in job.cluster.calls[before:]] == ["jobs", "pods", "log"]


def test_logs_of_few_are_asked_for_where_the_status_of_many_says_nothing():
    """At most a few logs are read for many failed pods, and missing rights to logs are tolerated."""
    job = Submitted(role(replicas=40))
    job.pods(*[failed() for _ in range(40)])
    job.end(condition("Failed", reason="BackoffLimitExceeded"))
    before = len(job.cluster.calls)
    job.scheduler.describe(job.app_id)
    assert sum(path.endswith("/log") for _, path, _ in job.cluster.calls[before:]) == 4
    job.cluster.faults += [("GET", "/log", refusal(403, "Forbidden", "no"), "before")] * 4
    assert job.told() == (AppState.FAILED, "trainer/0 on n0: exit code 1")


def test_a_pod_of_somebody_else_with_our_label_spoils_nothing():
    """A pod with our label but an unknown role index is ignored."""
    job = Submitted()
    job.pods(RUNNING, RUNNING)
    (foreign, _) = job.cluster.of("pods")
    metadata = {**foreign["metadata"], "name": "x", "uid": "x"}
    metadata["labels"] = {**metadata["labels"], "torchx.pytorch.org/role-index": "7"}
    job.cluster.objects["api/v1/pods", "default", "x"] = {**foreign, "metadata": metadata, "status": failed()}
    assert job.told() == (AppState.RUNNING, NONE)


# -- states ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("statuses", "state"),
    [
        ([PENDING, PENDING], AppState.PENDING),
        ([PENDING, RUNNING], AppState.RUNNING),
        ([RUNNING, DONE], AppState.RUNNING),
        ([failed(), RUNNING], AppState.RUNNING),
        ([failed(), PENDING], AppState.RUNNING),
        ([DONE, DONE], AppState.RUNNING),
    ],
)
@pytest.mark.parametrize("kind", ["job", "jobset"])
def test_list_says_what_status_says(statuses, state, kind):
    """`list` shows the state of `status`, although a Job also counts waiting pods as `active`."""
    job = Submitted(groups=[JOBSETS], kind="job")
    job.pods(*statuses)
    job.jobs()[0]["status"] = {"active": 2, "ready": 0}
    if kind == "jobset":  # the same pods, of a JobSet
        (item,) = job.jobs()
        item["metadata"]["ownerReferences"] = [{"kind": "JobSet", "uid": "js"}]
        metadata = {**item["metadata"], "ownerReferences": [], "name": job.app_id.partition(":")[2], "uid": "js"}
        spec = {"replicatedJobs": [{"name": "trainer", "template": {"spec": item["spec"]}}]}
        key = (f"apis/{JOBSETS}/jobsets", "default", metadata["name"])
        job.cluster.objects[key] = {"kind": "JobSet", "metadata": metadata, "spec": spec}
    assert job.told()[0] is state


def test_list_asks_once_for_the_pods_of_many_jobs():
    """For jobs that have ended, only running pods are fetched."""
    job = Submitted()
    for _ in range(59):
        job.scheduler.submit(AppDef("train", [role()]), {})
    before = len(job.cluster.calls)
    assert len(job.scheduler.list()) == 60
    kinds, pods = len(job.scheduler.owners), 2 + 1
    assert len(job.cluster.calls) - before == kinds + pods
    for item in job.jobs():
        item["status"] = {"conditions": [condition("Complete")]}
    before = len(job.cluster.calls)
    assert {row.state for row in job.scheduler.list()} == {AppState.SUCCEEDED}
    assert len(job.cluster.calls) - before == kinds + 1


def test_nothing_is_over_while_a_pod_of_it_runs():
    """A Job before 1.31, and a JobSet, are Failed while their last pods still run: the job has not ended."""
    job = Submitted()
    job.pods(failed(BAD_BATCH), RUNNING)
    job.end(condition("Failed", reason="BackoffLimitExceeded"))
    said = "trainer/0 on n0: exit code 1: ValueError: bad batch; the others are being ended"
    assert job.told() == (AppState.RUNNING, said)
    assert job.states() == [AppState.FAILED, AppState.RUNNING]
    job.cluster.of("pods")[1]["status"] = DONE
    assert job.told() == (AppState.FAILED, "trainer/0 on n0: exit code 1: ValueError: bad batch")


def test_a_job_that_is_being_cancelled_says_so_until_its_pods_are_gone():
    """The states of the job and of its replicas do not contradict each other during cancellation."""
    job = Submitted()
    job.pods(RUNNING, RUNNING)
    job.scheduler.cancel(job.app_id)
    assert job.told() == (AppState.RUNNING, "cancelling")
    for pod, in_s in zip(job.cluster.of("pods"), (-5, 20), strict=True):
        pod["metadata"]["deletionTimestamp"] = (
            f"{datetime.now(timezone.utc) + timedelta(seconds=in_s):%Y-%m-%dT%H:%M:%SZ}"
        )
    assert re.fullmatch("cancelling, SIGKILL in (18|19|20) s", job.told()[1])
    for key in [key for key in job.cluster.objects if key[0].endswith("/pods")]:
        del job.cluster.objects[key]
    assert job.told()[0] is AppState.CANCELLED
    assert job.states() == [AppState.CANCELLED] * 2


# -- plain Jobs of several roles -------------------------------------------------------------------


def test_of_plain_jobs_the_others_run_on_until_somebody_waits():
    """Jobs know nothing of one another: what runs is shown as running. Whoever waits ends them, and they are shown as
    ended when their pods are gone."""
    job = Submitted(role(replicas=1), role("reader", 1))
    job.pods(failed(BAD_BATCH), job=0)
    job.pods(RUNNING, job=1)
    job.end(condition("Failed", reason="BackoffLimitExceeded"), job=0)
    why = "trainer/0 on n0: exit code 1: ValueError: bad batch"
    assert job.told() == (AppState.RUNNING, f"{why}; the others are still running")
    assert job.states() == [AppState.FAILED, AppState.RUNNING]
    job.scheduler.wait_for_end(job.app_id, 0.01)
    assert job.jobs()[1]["spec"]["suspend"] is True
    assert job.told() == (AppState.RUNNING, f"{why}; the others are being ended")
    del job.cluster.objects["api/v1/pods", "default", f"{job.jobs()[1]['metadata']['name']}-0-abcde"]
    assert job.told() == (AppState.FAILED, why)
    assert job.states() == [AppState.FAILED, AppState.CANCELLED]


def test_a_role_whose_pods_have_yet_to_start_is_not_called_ended():
    """A job whose pods will still run has not ended."""
    job = Submitted(role(replicas=1), role("reader", 1))
    job.pods(failed(BAD_BATCH), job=0)
    job.end(condition("Failed", reason="BackoffLimitExceeded"), job=0)
    assert job.told()[0] is AppState.RUNNING


# -- why pods are missing --------------------------------------------------------------------------


def test_a_quota_that_lets_in_some_of_the_pods_is_named():
    """Events are queried if a Job has fewer pods than it wants."""
    job = Submitted(role(replicas=3))
    job.pods(RUNNING, RUNNING)
    job.cluster.warn(job.jobs()[0], "FailedCreate", 'pods "x" is forbidden: exceeded quota: small')
    said = 'trainer/2: its pods cannot be created: pods "x" is forbidden: exceeded quota: small'
    assert job.told() == (AppState.RUNNING, said)


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        ("Killing", "its pod was deleted, and will be replaced"),
        ("TaintManagerEviction", "its pod was evicted from its node, which became unfit, and will be replaced"),
        ("Preempted", "its pod was preempted by a pod of higher priority, and will be replaced"),
    ],
)
def test_that_a_pod_was_taken_away_is_said_until_there_is_another_one(reason, said):
    """While a Job waits to replace a deleted pod, the status shows the reason from the pod's events."""
    job = Submitted(role(replicas=2))
    job.pods(RUNNING, RUNNING)
    (item,) = job.jobs()
    item["status"] = {"startTime": "2026-01-01T00:00:00Z", "active": 1}
    key = ("api/v1/pods", "default", f"{item['metadata']['name']}-1-abcde")
    pod = job.cluster.objects.pop(key)
    job.cluster.warn({"kind": "Pod", **pod}, "Scheduled", "Successfully assigned", "Normal")
    assert job.told() == (AppState.RUNNING, NONE)
    other = {**pod["metadata"], "name": "other-1-abcde"}
    job.cluster.warn({"kind": "Pod", "metadata": other}, "Preempted", "Preempted by another pod", "Normal")
    job.cluster.warn({"kind": "Pod", **pod}, "Killing", "Stopping container main", "Normal")
    job.cluster.warn({"kind": "Pod", **pod}, reason, "as it says", "Normal")
    assert job.told() == (AppState.RUNNING, f"trainer/1: {said}")
    job.cluster.objects[key] = pod
    assert job.told() == (AppState.RUNNING, NONE)


@pytest.mark.parametrize("on", ["jobset", "job"])
def test_a_jobset_whose_pods_are_refused_says_why(on):
    """The reason is in `JobCreationFailed` of the JobSet, or in `FailedCreate` of its Job."""
    job = Submitted(groups=[JOBSETS])
    (item,) = job.cluster.of("jobsets")
    if on == "jobset":
        job.cluster.warn(item, "JobCreationFailed", "exceeded quota: jobs")
    else:
        metadata = {**item["metadata"], "name": f"{item['metadata']['name']}-trainer-0", "uid": "child"}
        job.cluster.warn({"kind": "Job", "metadata": metadata}, "FailedCreate", "exceeded quota: jobs")
        other = {**metadata, "name": "other-trainer-0", "uid": "other"}
        job.cluster.warn({"kind": "Job", "metadata": other}, "FailedCreate", "another quota")
    assert job.told() == (AppState.PENDING, "its pods cannot be created: exceeded quota: jobs")


def test_events_are_asked_for_only_where_pods_are_missing():
    """Pods that have succeeded, or failed for good, do not count as missing."""
    job = Submitted(role(replicas=3, max_retries=1, retry_policy=RetryPolicy.REPLICA))
    job.pods(DONE, failed(), RUNNING)
    job.jobs()[0]["status"] = {"active": 1, "succeeded": 1, "completedIndexes": "0", "failedIndexes": "1"}
    before = len(job.cluster.calls)
    job.scheduler.describe(job.app_id)
    asked = [path.rpartition("/")[2] for _, path, _ in job.cluster.calls[before:]]
    assert "events" not in asked


def test_pods_without_a_number_are_not_missing():
    """Pods without an index, as from a server that drops the field, do not count as missing."""
    job = Submitted(role(replicas=3))
    job.pods(PENDING, PENDING, PENDING)
    for pod in job.cluster.of("pods"):
        del pod["metadata"]["annotations"]
    before = len(job.cluster.calls)
    job.scheduler.describe(job.app_id)
    assert [path.rpartition("/")[2] for _, path, _ in job.cluster.calls[before:]] == ["jobs", "pods"]


def volcano(**cfg):
    job = Submitted(groups=[VOLCANO, PODGROUPS, "bus.volcano.sh/v1alpha1"], kind="volcano", **cfg)
    (item,) = job.jobs()
    item["status"] = {"state": {"phase": "Pending"}}
    return job, item


def test_what_volcano_says_of_a_gang_that_waits_stands_on_its_pod_group():
    """The message of the pod group's condition is shown."""
    job, item = volcano()
    name = f"{item['metadata']['name']}-{item['metadata']['uid']}"
    said = "2/2 tasks in gang unschedulable: pod group is not ready, 2 Pending, 2 minAvailable"
    conditions = [condition("Unschedulable", reason="NotEnoughResources", message=said)]
    group = {"metadata": {"name": name, "namespace": "default"}, "status": {"conditions": conditions}}
    job.cluster.objects[f"apis/{PODGROUPS}/podgroups", "default", name] = group
    assert job.told() == (AppState.PENDING, f"its pod group cannot be scheduled: {said}")


def test_a_queue_of_volcano_that_is_not_there_is_named():
    """A queue that does not exist is reported; one that exists or may not be read is not."""
    job, _ = volcano(queue="gpu")
    assert job.told() == (AppState.PENDING, "its queue `gpu` does not exist")
    job.cluster.faults += [("GET", "/queues", refusal(403, "Forbidden", "no"), "before")]
    assert "queue" not in job.scheduler.describe(job.app_id).msg
    job.cluster.objects[f"apis/{PODGROUPS}/queues", None, "gpu"] = {"metadata": {"name": "gpu"}}
    assert "queue" not in job.told()[1]


def test_volcano_aborts_a_job_that_failed():
    """A job that Volcano's policy aborted has failed; one that a user aborted was cancelled."""
    job, item = volcano()
    item["status"] = {"state": {"phase": "Aborted"}, "failed": 1}
    assert job.told()[0] is AppState.FAILED
    item["status"] = {"state": {"phase": "Running"}}
    job.scheduler.cancel(job.app_id)
    item["status"] = {"state": {"phase": "Aborted"}, "failed": 1}
    assert job.told()[0] is AppState.CANCELLED


@pytest.mark.parametrize(
    ("status", "said"),
    [({}, "its pods are not created yet"), ({"failed": 1}, "its pods are gone, and are not created again yet")],
)
def test_a_job_without_pods(status, said):
    """One that has run is not said to wait for its first pods."""
    job = Submitted()
    job.jobs()[0]["status"] = status
    assert job.told() == (AppState.PENDING, said)


def test_volcano_no_longer_counts_failed_pods():
    """A job that its policy aborted has failed if a pod has, with the cause of that pod; one that a user aborted was
    cancelled.
    """
    job, item = volcano()
    failed = {
        "phase": "Failed",
        "containerStatuses": [{"name": "main", "state": {"terminated": {"exitCode": 9, "message": "the reason"}}}],
    }
    task = item["spec"]["tasks"][1]  # the pods of others are deleted
    job.cluster.run_pods({**item, "spec": {**task, "completions": 1}}, failed)
    item["status"] = {"state": {"phase": "Aborted"}, "terminating": 1}
    state, said = job.told()
    assert state is AppState.FAILED and "exit code 9" in said
    found = job.scheduler.describe(job.app_id)
    states = [replica.state for role in found.roles_statuses for replica in role.replicas]
    assert states == [AppState.CANCELLED, AppState.FAILED]
    assert [one.state for one in job.scheduler.list()] == [AppState.FAILED]
    item["metadata"].setdefault("annotations", {})["torchx.pytorch.org/cancelled"] = "now"
    assert job.told()[0] is AppState.CANCELLED


@pytest.mark.parametrize(("least", "state"), [(2, AppState.SUCCEEDED), (3, AppState.FAILED)])
@pytest.mark.parametrize("kind", ["job", "jobset", "volcano"])
def test_an_elastic_job_ends_alike_whatever_it_is_made_of(kind, least, state):
    """With two of 2:3 replicas succeeded, the job has succeeded, although a Job and a JobSet report a failure."""
    job = Submitted(role(replicas=3, min_replicas=least), groups=[JOBSETS, VOLCANO], kind=kind)
    (item,) = job.cluster.of("jobsets" if kind == "jobset" else "jobs")
    template = {
        "job": lambda spec: spec["template"],
        "jobset": lambda spec: spec["replicatedJobs"][0]["template"]["spec"]["template"],
        "volcano": lambda spec: spec["tasks"][0]["template"],
    }[kind](item["spec"])
    made = {**item, "spec": {"completions": 3, "template": template}}
    job.cluster.run_pods(made, DONE)
    for k, pod in enumerate(job.cluster.of("pods")):
        pod["metadata"]["labels"] = {**pod["metadata"]["labels"], "torchx.pytorch.org/replica-id": str(k)}
    job.cluster.of("pods")[1]["status"] = failed(BAD_BATCH)
    item["status"] = {
        "job": {
            "conditions": [condition("Failed", reason="FailedIndexes")],
            "completedIndexes": "0,2",
            "failedIndexes": "1",
        },
        "jobset": {"conditions": [condition("Failed", reason="FailedJobs", message="jobset failed")]},
        "volcano": {"state": {"phase": "Completed" if least == 2 else "Failed"}, "failed": 1},
    }[kind]
    told = job.told()
    assert told[0] is state
    if state is AppState.SUCCEEDED:
        assert told[1] == "1 of 3 replicas lost (trainer/1); the job went on with the others"
    else:
        assert told[1].startswith("trainer/1 on n1: exit code 1: ValueError: bad batch")


def test_a_jobset_whose_time_is_over_has_failed_however_elastic():
    """The deadline applies to the whole job."""
    job = Submitted(role(replicas=2, min_replicas=1), groups=[JOBSETS], kind="jobset")
    (item,) = job.cluster.of("jobsets")
    item["status"] = {"conditions": [condition("Failed", reason="DeadlineExceeded")]}
    template = item["spec"]["replicatedJobs"][0]["template"]["spec"]
    job.cluster.run_pods({**item, "spec": template}, DONE, most=1)
    assert job.told()[0] is AppState.FAILED


def test_the_cause_is_on_record_with_its_class():
    """`--json` shows the class that the cluster's reason determines."""
    job = Submitted(role(replicas=1))
    job.pods(failed(code=137, reason="OOMKilled"))
    job.end(condition("Failed", reason="BackoffLimitExceeded"))
    assert json.loads(job.scheduler.describe(job.app_id).structured_error_msg)["class"] == "oom"
    assert job.told()[1].endswith("used more memory than its limit, and was killed (OOMKilled)")
