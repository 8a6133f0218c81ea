"""The answers of Batch as facts: states and reasons, lists, logs."""

from __future__ import annotations

import concurrent.futures
import datetime
import threading

import pytest

pytest.importorskip("botocore")

from tests.schedulers.aws.batch_cloud import ARN, Cloud
from tests.schedulers.aws.test_aws_batch_scheduler import role, scheduler, submit
from torchx.cli.log_targets import parse_target
from torchx.errors import NotFoundError, NotSupportedError
from torchx.schedulers.aws.batch import node_command
from torchx.schedulers.aws_batch_scheduler import to_datetime
from torchx.schedulers.kit.logs import LogQuery
from torchx.specs.api import AppDef, AppState, Resource, macros
from torchx.specs.failures import parse_failure


@pytest.fixture
def batch():
    return scheduler()


# -- states ---------------------------------------------------------------------------------------------


def test_roles_are_rebuilt(batch):
    """Name, image, words, environment, resource, replicas and retries are returned as they were submitted."""
    given = role(f"n={macros.replica_id}", "a b", n=3, env={"K": macros.replica_id, "A": "1"}, max_retries=2)
    found = batch.describe(submit(batch, given, role(name="ps")))
    first, second = found.roles
    assert (first.name, first.image, first.entrypoint, first.args) == ("w", "img:1", "echo", given.args)
    assert (first.env, first.num_replicas, first.max_retries) == (given.env, 3, 2)
    assert (first.resource.cpu, first.resource.memMB) == (2, 1024)
    assert (second.name, second.num_replicas) == ("ps", 1)
    assert [len(r.replicas) for r in found.roles_statuses] == [3, 1]


ENDS = [
    ({"exitCode": 7}, "Essential container in task exited", "w/0: exit code 7"),
    (
        {"exitCode": 137, "reason": "OutOfMemoryError: Container killed due to memory usage"},
        "Essential container in task exited",
        "ran out of the memory",
    ),
    ({"reason": "CannotPullContainerError: pull access denied"}, "Task failed to start", "image cannot be pulled"),
    ({}, "Host EC2 (instance i-0abc) terminated.", "instance that it ran on was terminated"),
    ({"exitCode": 137}, "Job attempt duration exceeded timeout", "longer than its time limit"),
    ({}, "Something new", "Something new"),
]


@pytest.mark.parametrize(("inner", "reason", "said"), ENDS)
def test_why_a_job_failed(batch, inner, reason, said):
    """The reason is a sentence with the exit code, if there is one, and Batch's own reason."""
    app_id = submit(batch)
    job = batch.cloud.job(app_id)
    job.update(status="FAILED", statusReason=reason, startedAt=1000, stoppedAt=9000)
    job["container"].update(inner)
    found = batch.describe(app_id)
    assert found.state is AppState.FAILED
    assert said in found.msg
    assert (found.started_at, found.ended_at) == (1.0, 9.0)
    assert batch.describe_many([app_id])[app_id].state is AppState.FAILED


def test_the_traceback_is_told(batch):
    """The last lines of the failed replica's log explain the failure."""
    app_id = submit(batch)
    batch.cloud.job(app_id).update(status="FAILED", statusReason="Essential container in task exited", stoppedAt=9000)
    batch.cloud.job(app_id)["container"].update(exitCode=1, logStreamName="s1")
    lines = ["Traceback (most recent call last):", '  File "a.py", line 1', "ValueError: boom"]
    batch.cloud.logs.streams["/aws/batch/job", "s1"] = [(i, line) for i, line in enumerate(lines)]
    assert "ValueError: boom" in batch.describe(app_id).structured_error_msg


def test_the_first_node_that_failed(batch):
    """For a multi-node job, the node that failed first is reported by role and number."""
    app_id = submit(batch, role(name="a"), role(n=2, name="b"))
    batch.cloud.job(app_id).update(status="FAILED", stoppedAt=9000)
    batch.cloud.node(app_id, 0).update(status="FAILED", stoppedAt=8000, container={"exitCode": 1})
    batch.cloud.node(app_id, 1).update(status="SUCCEEDED", stoppedAt=1)
    batch.cloud.node(app_id, 2).update(status="FAILED", stoppedAt=7000, container={"exitCode": 3})
    found = batch.describe(app_id)
    assert found.msg == "b/1: exit code 3"
    assert [[r.state.name for r in s.replicas] for s in found.roles_statuses] == [["FAILED"], ["SUCCEEDED", "FAILED"]]
    assert found.roles_statuses[1].replicas[1].structured_error_msg != "<NONE>"


LOST_PEER = ["Traceback (most recent call last):", '  File "a.py", line 1', "RuntimeError: Connection closed by peer"]
BAD_BATCH = ["Traceback (most recent call last):", '  File "a.py", line 2', "ValueError: bad batch"]


def end_node(batch, app_id, index, at, code, *lines, **more):
    """Ends a node after `at` seconds, with this output."""
    stream = f"n{index}"
    node = {"status": "FAILED" if code else "SUCCEEDED", "stoppedAt": at * 1000, **more}
    batch.cloud.node(app_id, index).update(node, container={"exitCode": code, "logStreamName": stream})
    batch.cloud.logs.streams["/aws/batch/job", stream] = list(enumerate(lines))


def test_the_node_with_a_reason_of_its_own_is_named(batch):
    """The main node ended first, but only lost its peer; the logs of several nodes are found by one call."""
    app_id = submit(batch, role(n=2))
    end_node(batch, app_id, 0, 10, 1, *LOST_PEER)
    end_node(batch, app_id, 1, 11, 1, *BAD_BATCH)
    batch.cloud.job(app_id).update(status="FAILED", stoppedAt=12000)
    batch.cloud.calls.clear()
    found = batch.describe(app_id)
    assert found.msg == "w/1: exit code 1: ValueError: bad batch"
    cause = parse_failure(found.structured_error_msg)
    assert (cause.role, cause.replica, cause.kind) == ("w", 1, "error")
    assert [name for name, _ in batch.cloud.calls] == ["describe_jobs"] * 3 + ["get_log_events"] * 2
    assert [line.state for line in batch.list()] == [found.state]


def test_a_lost_node_does_not_end_the_job(batch):
    """Batch runs a job until its main node ends: a note reports that, and no replica is reported as ending."""
    app_id = submit(batch, role(n=2))
    batch.cloud.job(app_id).update(status="RUNNING")
    batch.cloud.node(app_id, 0).update(status="RUNNING")
    end_node(batch, app_id, 1, 11, 1, *BAD_BATCH)
    found = batch.describe(app_id)
    assert found.state is AppState.RUNNING
    assert found.msg == "1 of 2 nodes failed; Batch runs the job until its main node 0 ends"
    end_node(batch, app_id, 0, 12, 1, *LOST_PEER)
    assert batch.describe(app_id).msg == "w/1: exit code 1: ValueError: bad batch; the others are being ended"


def test_a_time_limit_is_the_whole_jobs(batch):
    """A node that Batch killed at the time limit is not the cause."""
    app_id = submit(batch, role(n=2))
    late = "Job attempt duration exceeded timeout"
    for index in (0, 1):
        end_node(batch, app_id, index, 60 + index, 137, "step 7")
    batch.cloud.job(app_id).update(status="FAILED", stoppedAt=62000, statusReason=late)
    found = batch.describe(app_id)
    assert found.msg == f"it ran longer than its time limit ({late})"
    assert parse_failure(found.structured_error_msg).kind == "timeout"


def test_a_node_that_was_lost_with_its_host(batch):
    """The cause is the node whose host was terminated, not those that lost it as their peer."""
    app_id = submit(batch, role(n=2))
    end_node(batch, app_id, 0, 10, 1, *LOST_PEER)
    gone = "Host EC2 (instance i-1) terminated."
    batch.cloud.node(app_id, 1).update(status="FAILED", stoppedAt=11000, statusReason=gone)
    batch.cloud.job(app_id).update(status="FAILED", stoppedAt=12000, statusReason="Essential container in task exited")
    found = batch.describe(app_id)
    assert found.msg.startswith("w/1: the instance that it ran on was terminated")
    assert parse_failure(found.structured_error_msg).kind == "node"


def test_nodes_that_nobody_asked_about_are_not_blamed(batch):
    """Many jobs are described without their nodes: the reason is the job's, and no node is the cause."""
    app_id = submit(batch, role(n=3))
    end_node(batch, app_id, 2, 11, 1, *BAD_BATCH)
    batch.cloud.job(app_id).update(status="FAILED", stoppedAt=12000, statusReason="Host EC2 (i-1) terminated.")
    found = batch.describe_many([app_id])[app_id]
    assert found.state is AppState.FAILED
    assert found.msg.startswith("the instance that it ran on was terminated")
    assert parse_failure(found.structured_error_msg).replica is None


@pytest.mark.parametrize("n", [1, 16, 64])
def test_logs_of_many_nodes_cost_one_look(batch, n):
    """The job is described once for all nodes, and their streams are found once; each log is then read to its end."""
    app_id = submit(batch, role(n=n))
    batch.cloud.job(app_id).update(status="SUCCEEDED")
    if n == 1:
        with_log(batch, app_id, (1, "hello 0"))
    for index in range(n if n > 1 else 0):
        end_node(batch, app_id, index, 10, 0, f"hello {index}")
    other = scheduler(batch.cloud)
    batch.cloud.calls.clear()
    replicas = other.log_replicas(app_id)
    opened = other.open_logs(app_id, replicas, LogQuery())
    assert batch.cloud.count("get_log_events") == 0
    assert [list(lines) for lines in opened] == [[f"hello {k}\n"] for k in range(n)]
    assert batch.cloud.count("describe_jobs") == (2 if n == 1 else 3)
    assert batch.cloud.count("list_jobs") == 1
    assert batch.cloud.count("get_log_events") == 2 * n  # CloudWatch shows its end by a second answer
    assert len(batch.cloud.calls) <= 2 * n + 4


def test_followed_logs_share_their_looks(batch):
    """Threads that follow three replicas share each description of the job."""
    app_id = submit(batch, role(n=3))
    batch.cloud.job(app_id).update(status="SUCCEEDED")
    for index in range(3):
        end_node(batch, app_id, index, 10, 0, f"hello {index}")
    together = threading.Barrier(3, timeout=60)
    batch._sleep = lambda seconds: together.wait()
    batch.cloud.calls.clear()
    opened = batch.open_logs(app_id, [("w", k) for k in range(3)], LogQuery(follow=True))
    with concurrent.futures.ThreadPoolExecutor(3) as threads:
        assert list(threads.map(list, opened)) == [["hello 0\n"], ["hello 1\n"], ["hello 2\n"]]
    # four looks: with the lines, and three for late ones; each at the job and at its nodes
    assert batch.cloud.count("describe_jobs") == 2 * 4


WAITS = [
    ("CAPACITY:INSUFFICIENT_INSTANCE_CAPACITY - no", {}, {}, "no such instances left"),
    ("MISCONFIGURATION:JOB_RESOURCE_REQUIREMENT - x", {}, {}, "large enough"),
    ("", {"state": "DISABLED"}, {}, "queue `q` is disabled"),
    ("", {}, {"status": "INVALID", "statusReason": "no role"}, "`ce` is invalid: no role"),
    ("", {}, {"state": "DISABLED"}, "`ce` is disabled"),
    ("", {}, {"computeResources": {"type": "EC2", "maxvCpus": 1}}, "`maxvCpus` of compute environment `ce` is 1"),
    (
        "",
        {},
        {"computeResources": {"type": "EC2", "maxvCpus": 99, "instanceTypes": ["t3.medium"]}},
        "the largest instance of compute environment `ce`, t3.medium, has 2",
    ),
    ("", {}, {}, "it waits for an instance"),
]


@pytest.mark.parametrize(("reason", "queue", "environment", "said"), WAITS)
def test_why_a_job_waits(batch, reason, queue, environment, said):
    """A RUNNABLE job reports what it waits for: Batch's reason, or one derived from its queue."""
    app_id = submit(batch, role(resource=Resource(4, 0, 64)))
    batch.cloud.job(app_id).update(status="RUNNABLE", statusReason=reason)
    batch.cloud.queues["q"].update(queue)
    batch.cloud.environment.update(environment)
    found = batch.describe(app_id)
    assert found.state is AppState.PENDING
    assert said in found.msg


def test_attempts(batch):
    """A restarted job reports the number of its attempt and why the last one ended."""
    app_id = submit(batch, role(max_retries=2))
    lost = {"stoppedAt": 5, "statusReason": "Host EC2 (instance i-1) terminated.", "container": {}}
    batch.cloud.job(app_id).update(
        status="RUNNABLE", attempts=[lost], statusReason="CAPACITY:INSUFFICIENT_INSTANCE_CAPACITY"
    )
    found = batch.describe(app_id)
    assert found.msg.startswith(
        "AWS has no such instances left at the moment (CAPACITY:INSUFFICIENT_INSTANCE_CAPACITY); "
        "attempt 2 of 3, the last one ended: the instance that it ran on was terminated"
    )
    assert found.num_restarts == 1


def test_cancel(batch):
    """`describe` and `list` report a cancelled job as CANCELLED, not FAILED; cancelling it again makes no request."""
    app_id = submit(batch, role(n=2))
    batch.cancel(app_id)
    batch.cancel(app_id)
    assert batch.cloud.count("terminate_job") == 1
    assert batch.describe(app_id).state is AppState.CANCELLED
    assert [line.state for line in batch.list({"queue": "q"})] == [AppState.CANCELLED]


def test_jobs_of_others_are_left_alone(batch):
    """A job that torchx did not submit is not listed, described, cancelled or deleted."""
    app_id = submit(batch)
    batch.cloud.job(app_id)["jobDefinition"] = f"{ARN}:job-definition/nightly:3"
    assert batch.describe(app_id) is None
    assert batch.list() == []
    batch.cancel(app_id)
    batch.delete(app_id)
    assert batch.cloud.count("terminate_job") == batch.cloud.count("deregister_job_definition") == 0


# -- lists ----------------------------------------------------------------------------------------------


def test_500_jobs_cost_pages(batch):
    """500 jobs are listed by five calls and described by five; another process needs five more to find them."""
    ids = [submit(batch) for _ in range(500)]
    batch.cloud.calls.clear()
    assert sorted(line.app_id for line in batch.list({"queue": "q"})) == sorted(ids)
    assert [name for name, _ in batch.cloud.calls] == ["list_jobs"] * 5
    batch.cloud.calls.clear()
    assert all(found.state is AppState.SUBMITTED for found in batch.describe_many(ids).values())
    assert [name for name, _ in batch.cloud.calls] == ["describe_jobs"] * 5
    other = scheduler(batch.cloud)
    batch.cloud.calls.clear()
    assert None not in other.describe_many(ids).values()
    assert [name for name, _ in batch.cloud.calls] == ["list_jobs"] * 5 + ["describe_jobs"] * 5


def test_a_multi_node_job_costs_a_page_per_hundred_nodes(batch):
    """250 replicas: one call for the job, three for its nodes."""
    app_id = submit(batch, role(n=250))
    batch.cloud.calls.clear()
    assert len(batch.describe(app_id).roles_statuses[0].replicas) == 250
    assert [name for name, _ in batch.cloud.calls] == ["describe_jobs"] * 4


def test_list_filters():
    """By queue, by state, and by submitting user."""
    batch = scheduler(Cloud(queues=("a", "b")))
    mine = submit(batch, queue="a", user="ada")
    other = submit(batch, queue="b", user="bob")
    batch.cloud.job(other).update(status="RUNNING")
    assert {line.app_id for line in batch.list()} == {mine, other}
    assert [line.app_id for line in batch.list({"queue": "b"})] == [other]
    assert [line.app_id for line in batch.list({"state": "RUNNING"})] == [other]
    assert [line.app_id for line in batch.list({"user": "ada"})] == [mine]
    assert batch.list({"queue": "nowhere"}) == []


# -- logs -----------------------------------------------------------------------------------------------


def with_log(batch, app_id, *events, stream="s1", state="SUCCEEDED"):
    batch.cloud.job(app_id).update(status=state)
    batch.cloud.job(app_id)["container"]["logStreamName"] = stream
    batch.cloud.logs.streams["/aws/batch/job", stream] = list(events)


def test_logs_page_by_page(batch):
    """All pages are read, including empty ones, until CloudWatch returns the same token."""
    app_id = submit(batch)
    with_log(batch, app_id, *[(i, f"line {i}") for i in range(5)])
    assert list(batch.log_iter(app_id, "w")) == [f"line {i}\n" for i in range(5)]
    assert list(batch.log_iter(app_id, "w", regex="[13]")) == ["line 1\n", "line 3\n"]
    assert batch.cloud.count("get_log_events") == 2 * 4


def test_logs_between_times(batch):
    """`since` is inclusive and `until` exclusive, to the millisecond."""
    app_id = submit(batch)
    with_log(batch, app_id, (1000, "a"), (1999, "b"), (2000, "c"))
    at = datetime.datetime.fromtimestamp
    assert list(batch.log_iter(app_id, "w", since=at(1.999))) == ["b\n", "c\n"]
    assert list(batch.log_iter(app_id, "w", until=at(2))) == ["a\n", "b\n"]


def test_logs_of_all_attempts(batch):
    """A lost attempt has its own stream, which is read first."""
    app_id = submit(batch)
    with_log(batch, app_id, (1, "second"), stream="s2")
    batch.cloud.job(app_id)["attempts"] = [
        {"container": {"logStreamName": "s1"}},
        {"container": {"logStreamName": "s2"}},
    ]
    batch.cloud.logs.streams["/aws/batch/job", "s1"] = [(1, "first")]
    assert list(batch.log_iter(app_id, "w")) == ["first\n", "second\n"]
    with_times = batch.open_logs(app_id, [("w", 0)], LogQuery(timestamps=True))[0]
    assert list(with_times) == ["1970-01-01T00:00:00.001Z first\n", "1970-01-01T00:00:00.001Z second\n"]
    assert list(batch.open_logs(app_id, [("w", 0)], LogQuery(previous=True))[0]) == ["first\n"]


def test_a_job_of_one_attempt_has_none_before(batch):
    """`previous` raises an error."""
    app_id = submit(batch)
    with_log(batch, app_id, (1, "only"))
    with pytest.raises(NotFoundError, match="not started again"):
        list(batch.open_logs(app_id, [("w", 0)], LogQuery(previous=True))[0])


def test_logs_are_followed(batch):
    """New lines are printed once, and following ends with the job."""
    app_id = submit(batch)
    batch.cloud.job(app_id)["status"] = "RUNNABLE"  # no stream yet
    looks = []

    def step(seconds):
        looks.append(seconds)
        if len(looks) == 1:
            with_log(batch, app_id, (1, "a"), state="RUNNING")
        elif len(looks) == 2:
            batch.cloud.logs.streams["/aws/batch/job", "s1"].append((2, "b"))
        elif len(looks) == 3:
            batch.cloud.job(app_id)["status"] = "SUCCEEDED"
            batch.cloud.logs.streams["/aws/batch/job", "s1"].append((3, "late"))
        assert len(looks) < 20

    batch._sleep = step
    assert list(batch.log_iter(app_id, "w", should_tail=True)) == ["a\n", "b\n", "late\n"]


def test_logs_of_a_node(batch):
    """Each node has its own stream; the log group is the configured one."""
    app_id = submit(batch, role(name="a"), role(n=2, name="b"), log_group="/g")
    batch.cloud.node(app_id, 2)["container"]["logStreamName"] = "n2"
    batch.cloud.logs.streams["/g", "n2"] = [(1, "hello")]
    assert list(batch.log_iter(app_id, "b", 1)) == ["hello\n"]
    for name, k in (("b", 2), ("c", 0)):
        with pytest.raises(NotFoundError, match=f"{name}/{k}"):
            list(batch.log_iter(app_id, name, k))
    with pytest.raises(NotSupportedError, match="stdout and stderr"):
        list(batch.log_iter(app_id, "b", 1, streams="stderr"))


def test_console_and_times(batch):
    """The job has a page in AWS's console; times of AWS are in milliseconds."""
    url = batch.describe(submit(batch)).ui_url
    assert url.startswith("https://us-east-1.console.aws.amazon.com/batch/home?region=us-east-1#jobs/detail/")
    assert to_datetime(1500).timestamp() == 1.5


def test_wrapped_commands_of_others():
    """A command that only begins like ours is not changed."""
    assert node_command.unwrap(["/bin/sh", "-c", "ls"]) == (["/bin/sh", "-c", "ls"], {})


def test_a_queue_by_its_arn(batch):
    """The app id has the queue's name: with the slash of an ARN, the queue would be taken for the job."""
    arn = "arn:aws:batch:eu-west-1:123456789012:job-queue/q"
    app_id = batch.submit(AppDef("app", [role()]), {"queue": arn})
    assert app_id.startswith("q:app-")
    assert batch.describe(app_id) is not None
    assert [job.app_id for job in batch.list({"queue": arn})] == [app_id]
    target = parse_target(f"aws_batch://s/{app_id}/w/0")
    assert (target.reference, target.role) == (f"aws_batch://s/{app_id}", "w")
