"""Sweeps as array jobs of Batch: the request, what each task runs, and the answers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

pytest.importorskip("botocore")

from tests.schedulers.aws.batch_cloud import Cloud
from torchx.errors import NotFoundError, NotSupportedError
from torchx.schedulers.aws_batch_scheduler import AWSBatchScheduler
from torchx.schedulers.kit.logs import LogQuery
from torchx.settings import ENV_JOB_ID
from torchx.specs.api import AppDef, AppState, Resource, Role
from torchx.specs.tasks import TaskList

VALUES = ["plain", "its $HOME", "a'b", 'q"uo`te', "a\nb", "", "ünï,%I {x}"]
TELL = "import json, os, sys; print(json.dumps([*sys.argv[1:], *(os.environ[n] for n in sys.argv[2:])]))"
NAMES = ["V", "TORCHX_TASK", ENV_JOB_ID]


def job(*args, entrypoint="echo", **more):
    more.setdefault("resource", Resource(cpu=2, gpu=0, memMB=1024))
    return AppDef("app", [Role("w", "img:1", entrypoint=entrypoint, args=list(args), **more)])


@pytest.fixture
def batch():
    cloud = Cloud()
    made: Any = AWSBatchScheduler("s", cloud, cloud.logs)
    made._sleep = lambda seconds: None
    made.cloud = cloud
    return made


def tasks_of(values, width=0):
    return TaskList(names=["v"], points=[(value,) for value in values], max_parallel=width)


def submitted(batch, app, values):
    info = batch.submit_dryrun(app, {"queue": "q"})
    batch.check_tasks(info, tasks_of(values))
    return batch.submit_tasks(info, tasks_of(values))


def test_one_request_has_all_values(batch):
    """They arrive unchanged in words and variables, including those with the job's own id."""
    env = {"V": "={v}={{v}}", ENV_JOB_ID: "aws_batch://s/${app_id}"}
    app = job("-c", TELL, "<{v}>", *NAMES, entrypoint=sys.executable, env=env)
    app_id = submitted(batch, app, VALUES)
    ((_, request),) = [call for call in batch.cloud.calls if call[0] == "submit_job"]
    assert request["arrayProperties"] == {"size": len(VALUES)}
    container = batch.cloud.job(app_id)["container"]
    known = {item["name"]: item["value"] for item in container["environment"]}
    for k, value in enumerate(VALUES):
        own = {**os.environ, **known, "AWS_BATCH_JOB_ARRAY_INDEX": str(k)}
        done = subprocess.run(container["command"], env=own, capture_output=True, text=True, check=True)
        told = [f"<{value}>", *NAMES, f"={value}={{v}}", str(k), f"aws_batch://s/{app_id}/{k}"]
        assert json.loads(done.stdout) == told


@pytest.mark.parametrize(
    ("app", "values", "width", "why"),
    [
        (job("{v}", num_replicas=2), "ab", 0, "2 replicas"),
        (job("{v}", max_retries=1), "ab", 0, "cannot have retries"),
        (job("{v}"), "a", 0, "2 to 10,000 tasks"),
        (job("{v}"), "abc", 2, "does not limit how many"),
        (job("{v}"), ["x" * 100] * 300, 0, "22 kB of a job definition"),
    ],
)
def test_what_is_no_array(batch, app, values, width, why):
    """It is rejected, so that single jobs are submitted; a limit at the number of tasks is ignored."""
    with pytest.raises(NotSupportedError, match=why):
        batch.check_tasks(batch.submit_dryrun(app, {"queue": "q"}), tasks_of(values, width))
    batch.check_tasks(batch.submit_dryrun(job("{v}"), {"queue": "q"}), tasks_of("abc", 3))


def test_what_became_of_the_tasks(batch):
    """One page per status; a task is a job like any other, and is cancelled alone."""
    app_id = submitted(batch, job("{v}"), "abcd")
    states = ["SUCCEEDED", "FAILED", "RUNNING", "RUNNABLE"]
    for k, status in enumerate(states):
        batch.cloud.child(app_id, k).update(status=status)
    ended = {"stoppedAt": 1_700_000_009_000, "container": {**batch.cloud.job(app_id)["container"], "exitCode": 3}}
    batch.cloud.child(app_id, 1).update(ended, statusReason="Essential container in task exited")
    batch.cloud.job(app_id)["status"] = "PENDING"
    batch.cloud.calls.clear()
    found = batch.describe(app_id)
    assert [s.name for s in found.tasks.states] == ["SUCCEEDED", "FAILED", "RUNNING", "PENDING"]
    assert (found.state, found.tasks.exit_codes[1], found.tasks.ended[1]) == (AppState.RUNNING, 3, 1_700_000_009)
    assert [name for name, _ in batch.cloud.calls] == ["describe_jobs", *["list_jobs"] * 4]
    assert batch.describe_many([app_id])[app_id].tasks.states == found.tasks.states
    assert [(line.app_id, line.state) for line in batch.list()] == [(app_id, AppState.RUNNING)]
    (one,) = batch.describe_tasks(app_id, [1])
    assert (one.app_id, one.state, "exit code 3" in one.msg) == (f"{app_id}/1", AppState.FAILED, True)
    with pytest.raises(NotFoundError, match="no task `4`"):
        batch.describe_tasks(app_id, [4])
    batch.cancel_task(app_id, 2)
    assert [params["jobId"][-2:] for name, params in batch.cloud.calls if name == "terminate_job"] == [":2"]
    assert batch.describe(app_id).tasks.states[2] is AppState.CANCELLED


def test_it_is_found_from_another_shell(batch):
    """Its name identifies it, although its children share the name; logs are those of the children."""
    app_id = submitted(batch, job("{v}"), "abc")
    for k in range(3):
        child = batch.cloud.child(app_id, k)
        child.update(status="SUCCEEDED", container={**child["container"], "logStreamName": f"stream{k}"})
        batch.cloud.logs.streams["/aws/batch/job", f"stream{k}"] = [(1, f"line {k}")]
    batch.cloud.job(app_id)["status"] = "SUCCEEDED"
    other = AWSBatchScheduler("s", batch.cloud, batch.cloud.logs)
    (log,) = other.open_logs(app_id, [("w", 2)], LogQuery())
    assert list(log) == ["line 2\n"]
    assert other.log_replicas(app_id) == [("w", 0), ("w", 1), ("w", 2)]
    assert other.describe(app_id).state is AppState.SUCCEEDED
    batch.cancel(app_id)
    assert not [name for name, _ in batch.cloud.calls if name == "terminate_job"]
