"""The schedulers on AWS keep the contract, against services in memory whose requests botocore's models check."""

from collections.abc import Mapping
from typing import Any

import pytest

pytest.importorskip("botocore")

from tests.schedulers.aws.batch_cloud import Cloud
from tests.schedulers.aws.sagemaker_cloud import SageMaker
from torchx.schedulers.api import Scheduler
from torchx.schedulers.aws.batch.answers import state_of
from torchx.schedulers.aws.client import Clients
from torchx.schedulers.aws.sagemaker.answers import state_of as training_state_of
from torchx.schedulers.aws_batch_scheduler import JOB_STATE, AWSBatchScheduler
from torchx.schedulers.aws_sagemaker_scheduler import JOB_STATE as SAGEMAKER_STATE
from torchx.schedulers.aws_sagemaker_scheduler import AWSSageMakerScheduler
from torchx.specs import AppState
from torchx.testing import SchedulerContract


class TestBatch(SchedulerContract):
    """Batch, with its own states."""

    cfg: Mapping[str, Any] = {"queue": "q"}
    unknown_id = "q:no-such-job"
    name_rule = r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}"
    runtime_macros = frozenset({"replica_id"})
    raw_states = JOB_STATE

    def create_scheduler(self, folder: str) -> Scheduler[Any]:
        cloud = Cloud()
        return AWSBatchScheduler("contract", cloud, cloud.logs)

    def request_name(self, info: Any) -> str:
        return info.request.name

    def rendered(self, info: Any) -> str:
        return f"{info.request.job_def}\n{info.request.request()}"

    def map_state(self, raw: str) -> AppState:
        return state_of({"status": raw})


class TestSageMaker(SchedulerContract):
    """SageMaker; its states."""

    cfg: Mapping[str, Any] = {"role": "arn:aws:iam::123456789012:role/train", "instance_type": "ml.m5.xlarge"}
    name_rule = r"[a-zA-Z0-9](-*[a-zA-Z0-9]){0,62}"
    runtime_macros = frozenset({"replica_id"})
    raw_states = SAGEMAKER_STATE

    def create_scheduler(self, folder: str) -> Scheduler[Any]:
        cloud = SageMaker()
        clients = Clients(dict.fromkeys(("sagemaker", "logs", "iam", "sts"), cloud))
        return AWSSageMakerScheduler("contract", clients=clients)

    def request_name(self, info: Any) -> str:
        return info.request.job_name

    def rendered(self, info: Any) -> str:
        # A long command is cut in pieces: put together, as its hosts do.
        return (
            f"{''.join(info.request.job_def['AlgorithmSpecification']['ContainerArguments'])}\n{info.request.request()}"
        )

    def map_state(self, raw: str) -> AppState:
        return training_state_of({"TrainingJobStatus": raw})
