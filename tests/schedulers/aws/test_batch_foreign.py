"""Jobs of AWS Batch that torchx did not submit, on a service in memory."""

from __future__ import annotations

import pytest

from tests.schedulers.aws.batch_cloud import ARN, Cloud
from torchx.errors import NotSupportedError
from torchx.schedulers.aws_batch_scheduler import create_scheduler
from torchx.schedulers.kit.logs import LogQuery
from torchx.specs import AppState

ID = "6f2c1d7e-1111-2222-3333-0123456789ab"


@pytest.fixture
def cloud():
    cloud = Cloud()
    cloud.jobs[ID] = {
        "jobId": ID,
        "jobName": "nightly",
        "jobQueue": f"{ARN}:job-queue/q",
        "jobDefinition": f"{ARN}:job-definition/nightly:3",
        "status": "FAILED",
        "statusReason": "Essential container in task exited",
        "container": {"image": "img", "command": ["python", "x.py"], "exitCode": 3, "logStreamName": "nightly/1"},
        "attempts": [],
    }
    return cloud


@pytest.fixture
def jobs(cloud):
    return create_scheduler("foreign", cloud, cloud.logs).foreign()


def test_why_it_failed(cloud, jobs):
    """State, cause and output are read like those of torchx jobs."""
    cloud.logs.streams["/aws/batch/job", "nightly/1"] = [(1000, "ValueError: no such frob")]
    assert jobs.find(ID).app_id == ID
    found = jobs.describe(ID)
    assert found.state is AppState.FAILED
    assert "node/0: exit code 3: ValueError: no such frob" in found.msg
    assert jobs.about(ID) == {"name": "nightly", "queue": "q", "image": "img", "command": "python x.py"}
    (log,) = jobs.open_logs(ID, [("node", 0)], LogQuery())
    assert [line.strip() for line in log] == ["ValueError: no such frob"]


def test_what_is_no_id_is_not_asked_for(cloud, jobs):
    """Numbers, names, and unknown ids are not found."""
    assert jobs.find("4711") is jobs.find("nightly") is None
    assert cloud.calls == []
    assert jobs.find(ID.replace("6", "7")) is None


def test_a_job_of_ours_is_told_from_others(cloud, jobs):
    """Its definition identifies it, and it is found under its own id."""
    cloud.jobs[ID]["jobDefinition"] = f"{ARN}:job-definition/torchx-x-1:1"
    assert (jobs.find(ID).app_id, jobs.find(ID).ours) == ("q:nightly", True)


def test_nothing_is_done_to_it(cloud, jobs):
    """It is terminated only with `forced`; its definition stays."""
    cloud.jobs[ID]["status"] = "RUNNING"
    for end in (jobs.cancel, jobs.delete):
        with pytest.raises(NotSupportedError):
            end(ID)
    assert cloud.count("terminate_job") == 0
    jobs.forced().delete(ID)
    assert (cloud.count("terminate_job"), cloud.count("deregister_job_definition")) == (1, 0)
