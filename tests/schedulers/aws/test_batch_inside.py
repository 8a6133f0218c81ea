"""The ECS task of a replica, and access to it."""

from __future__ import annotations

import pytest

from tests.schedulers.aws.batch_cloud import Cloud
from torchx.errors import ConfigError, NotFoundError, NotSupportedError
from torchx.schedulers.aws.batch import inside
from torchx.schedulers.aws.batch.inside import task_of
from torchx.schedulers.aws_batch_scheduler import AWSBatchScheduler
from torchx.specs.api import AppDef, Resource, Role
from torchx.specs.tasks import TaskList

OPEN = {"queue": "q", "execute_command": True, "job_role_arn": "arn:aws:iam::123456789012:role/job"}
TASK = "arn:aws:ecs:us-east-1:123456789012:task/AWSBatch-ce-1/0123456789abcdef"


@pytest.fixture
def cloud():
    return Cloud()


@pytest.fixture
def scheduler(cloud):
    return AWSBatchScheduler("s", cloud, cloud.logs)


def submit(scheduler, cfg=OPEN, replicas=1):
    resource = Resource(cpu=1, gpu=0, memMB=128)
    roles = [Role("r", "img:1", entrypoint="sleep", args=["9"], num_replicas=replicas, resource=resource)]
    return scheduler.submit(AppDef("job", roles), cfg)


def start(job, task=TASK):
    job["status"] = "RUNNING"
    job["container"]["taskArn"] = task


def test_the_request_lets_in_only_who_asks_for_it(cloud, scheduler):
    """The field is in the definition of each node only on request, and botocore's model has it."""
    submit(scheduler)
    submit(scheduler, replicas=2)
    submit(scheduler, {"queue": "q"})
    single, several, closed = cloud.definitions.values()
    assert single["containerProperties"]["enableExecuteCommand"] is True
    (nodes,) = several["nodeProperties"]["nodeRangeProperties"]
    assert nodes["container"]["enableExecuteCommand"] is True
    assert "enableExecuteCommand" not in closed["containerProperties"]


def test_without_a_role_nothing_is_submitted(scheduler):
    """ECS Exec opens its channels with the role of the job, so it could never work."""
    with pytest.raises(ConfigError, match="execute_command needs `job_role_arn`"):
        submit(scheduler, {"queue": "q", "execute_command": True})


def test_a_job_without_it_is_refused(cloud, scheduler):
    """One line, and a hint how to submit it."""
    app_id = submit(scheduler, {"queue": "q"})
    start(cloud.job(app_id))
    with pytest.raises(NotSupportedError, match="submitted without ECS Exec") as refused:
        scheduler.enter(app_id, "r", 0, ["true"])
    assert "-cfg execute_command=true,job_role_arn=ARN" in refused.value.hint


def test_the_task_of_a_replica(cloud, scheduler):
    """For a single job, a node, and a task of an array."""

    def task(app_id, k):
        job = scheduler._look(app_id)
        return task_of(scheduler._clients, job, (app_id, "r", k))

    app_id = submit(scheduler)
    start(cloud.job(app_id))
    assert task(app_id, 0) == ("AWSBatch-ce-1", "0123456789abcdef")

    app_id = submit(scheduler, replicas=2)
    cloud.job(app_id)["status"] = "RUNNING"
    start(cloud.node(app_id, 0), TASK)
    start(cloud.node(app_id, 1), TASK[:-1] + "0")
    assert task(app_id, 1)[1] == "0123456789abcde0"
    cloud.node(app_id, 1)["status"] = "FAILED"
    with pytest.raises(NotFoundError, match=r"replica r/1 of .* is not running: it is FAILED"):
        task(app_id, 1)


def test_the_task_of_a_sweep(cloud, scheduler, monkeypatch):
    """A replica of a sweep is a child of the array."""
    app = AppDef("job", [Role("r", "img:1", entrypoint="echo", args=["{x}"], resource=Resource(1, 0, 128))])
    info = scheduler.submit_dryrun(app, OPEN)
    app_id = scheduler.submit_tasks(info, TaskList(names=["x"], points=[("1",), ("2",)]))
    cloud.job(app_id)["status"] = "PENDING"
    start(cloud.child(app_id, 0))
    cloud.child(app_id, 1)["container"] = {**cloud.child(app_id, 1)["container"]}
    start(cloud.child(app_id, 1), TASK[:-1] + "1")
    monkeypatch.setattr(inside, "TaskProcess", lambda clients, task, argv, tty: (task, argv, tty))
    for asked, k in ((app_id, 1), (f"{app_id}/1", 0)):
        assert scheduler.enter(asked, "r", k, ["true"]) == (("AWSBatch-ce-1", "0123456789abcde1"), ["true"], None)


@pytest.mark.parametrize("status", ["RUNNABLE", "STARTING", "SUCCEEDED"])
def test_a_replica_that_does_not_run(cloud, scheduler, status):
    """The error has its state, whatever the job's options."""
    app_id = submit(scheduler)
    cloud.job(app_id)["status"] = status
    with pytest.raises(NotFoundError, match=r"replica r/0 of .* is not running") as refused:
        scheduler.enter(app_id, "r", 0, ["true"])
    assert refused.value.exit_code == 3
    for role, k in (("r", 1), ("other", 0)):
        with pytest.raises(NotFoundError, match=f"replica {role}/{k}"):
            scheduler.enter(app_id, role, k, ["true"])
    with pytest.raises(NotFoundError, match="there is no job"):
        scheduler.enter("q:none", "r", 0, ["true"])
