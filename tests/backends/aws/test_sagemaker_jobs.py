"""Training jobs at moto's server, which keeps their records and runs nothing: that real clients and answers fit."""

from __future__ import annotations

import boto3
import pytest

from tests.backends.aws import moto
from torchx.schedulers.aws_sagemaker_scheduler import create_scheduler
from torchx.schedulers.kit.aws.clients import Clients
from torchx.schedulers.kit.aws.ecr import EcrLogins
from torchx.specs.api import AppDef, AppState, Role


@pytest.fixture
def sagemaker(queue):
    """The scheduler; the role `train` is there."""
    iam = boto3.client("iam", endpoint_url=moto.ENDPOINT)
    iam.create_role(RoleName="train", AssumeRolePolicyDocument="{}")
    iam.close()
    made = create_scheduler("aws-tests")
    yield made
    made.close()


def test_a_job_is_created_described_and_deleted(sagemaker):
    """A role by its name, the account's bucket, the record and its words; unknown jobs are none."""
    app = AppDef("train", [Role("w", "img:1", entrypoint="python", args=["-c", "x" * 600], num_replicas=2)])
    app_id = sagemaker.submit(app, {"role": "train", "instance_type": "ml.m5.xlarge"})
    found = sagemaker.describe(app_id)
    assert found.state is AppState.SUCCEEDED  # moto's jobs are Completed at once
    assert (found.roles[0].args, found.roles[0].num_replicas) == (["-c", "x" * 600], 2)
    record = sagemaker._clients.client("sagemaker").describe_training_job(TrainingJobName=app_id)
    assert record["OutputDataConfig"]["S3OutputPath"] == "s3://sagemaker-us-east-1-123456789012/"
    assert record["RoleArn"].endswith(":role/train")
    assert app_id in {line.app_id for line in sagemaker.list()}
    assert sagemaker.describe("no-such-job-1") is None
    sagemaker.cancel(app_id)
    sagemaker.cancel("no-such-job-1")


def test_ecr(queue):
    """A login and a repository of the service; a repository that is there is no error."""
    clients = Clients()
    logins = EcrLogins(clients)
    registry = "123456789012.dkr.ecr.us-east-1.amazonaws.com"
    for _ in range(2):
        logins.prepare([(f"{registry}/team/jobs", "1")], None, create=True)
    assert logins.credentials(registry).username == "AWS"
    names = [r["repositoryName"] for r in clients.client("ecr").describe_repositories()["repositories"]]
    assert names == ["team/jobs"]
    for region in (None, "us-east-1"):
        clients.client("ecr", region=region)
    clients.close()
