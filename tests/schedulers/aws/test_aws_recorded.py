"""Answers of AWS as they come over the wire, read by boto3's own parsers: states, reasons, errors, retries.

Where they are from: `tests/recorded/aws/README.md`. Nothing is sent: each request is answered where it would be.
"""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("boto3")

import boto3
from botocore.awsrequest import AWSResponse
from botocore.exceptions import ParamValidationError
from botocore.stub import Stubber

from torchx.errors import BackendError, TransientError
from torchx.schedulers.aws.client import Clients, call
from torchx.schedulers.aws_batch_scheduler import AWSBatchScheduler
from torchx.schedulers.aws_sagemaker_scheduler import AWSSageMakerScheduler
from torchx.specs.api import AppState

RECORDED = Path(__file__).parents[2] / "recorded/aws"


def recorded(name):
    return json.loads((RECORDED / name).read_text())


class Raw(io.BytesIO):
    def stream(self, **_):
        yield self.read()


def answer(status, body, headers=()):
    text = body if isinstance(body, str) else json.dumps(body)
    return AWSResponse("https://aws.test/", status, dict(headers), Raw(text.encode()))


@pytest.fixture
def aws(monkeypatch):
    """Real clients; a function of service, operation and request provides the responses."""
    for name, value in (
        ("AWS_ACCESS_KEY_ID", "a"),
        ("AWS_SECRET_ACCESS_KEY", "b"),
        ("AWS_EC2_METADATA_DISABLED", "true"),
    ):
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("AWS_PROFILE", raising=False)
    monkeypatch.setattr("botocore.endpoint.time.sleep", lambda seconds: None)
    opened = []

    def make(respond):
        clients = Clients(options={"aws_region": "us-east-1"})
        original = clients.client

        def client(service, **options):
            made = original(service, **options)
            made.meta.events.register(
                f"before-send.{service}",
                lambda request, **_: respond(service, made_operation(request), request),
                unique_id=f"recorded-{id(clients)}",
            )
            return made

        clients.client = client  # type: ignore[method-assign]  # the answers are recorded ones
        opened.append(clients)
        return clients

    yield make
    for clients in opened:
        clients.close()


def made_operation(request):
    return request.headers.get("X-Amz-Target", b"").decode().rpartition(".")[2] or request.url.rpartition("/")[2]


# -- jobs -----------------------------------------------------------------------------------------------


def batch_of(aws, jobs):
    listed = {"jobSummaryList": [{"jobId": jobs[0]["jobId"], "jobName": "example"}]}

    def respond(service, operation, request):
        if operation == "describejobs":
            wanted = json.loads(request.body)["jobs"]
            return answer(200, {"jobs": [job for job in jobs if job["jobId"] in wanted]})
        if operation == "describejobqueues":
            return answer(403, {"message": "no"}, {"x-amzn-ErrorType": "AccessDeniedException"}.items())
        return answer(200, listed)

    return AWSBatchScheduler("s", clients=aws(respond))


@pytest.mark.parametrize("name", recorded("batch_jobs.json"))
def test_batch(aws, name):
    """A description of Batch becomes a state and a sentence."""
    case = recorded("batch_jobs.json")[name]
    found = batch_of(aws, case["jobs"]).describe("HighPriority:example")
    if case["state"] is None:
        assert found is None
        return
    assert found.state is AppState[case["state"]]
    assert case["says"] in found.msg
    assert found.num_restarts == case.get("restarts", found.num_restarts)
    assert found.ui_url.endswith("#jobs/detail/24fa2d7a-64c4-49d2-8b47-f8da4fbde8e9")
    states = {r.role: [replica.state.name for replica in r.replicas] for r in found.roles_statuses}
    assert states == case.get("roles", states)
    assert found.roles_statuses[0].replicas[0].hostname == case.get("host", "")
    assert found.roles[0].args == ["60"]


@pytest.mark.parametrize("name", recorded("sagemaker_jobs.json"))
def test_sagemaker(aws, name):
    """A description of SageMaker becomes a state and a sentence."""
    case = recorded("sagemaker_jobs.json")[name]

    def respond(service, operation, request):
        return answer(200, case["job"] if operation == "DescribeTrainingJob" else {"logStreams": []})

    found = AWSSageMakerScheduler("s", clients=aws(respond)).describe("example")
    assert found.state is AppState[case["state"]]
    assert case["says"] in found.msg
    assert found.num_restarts == case.get("restarts", 0)
    assert (found.ended_at is not None) == ("TrainingEndTime" in case["job"])
    assert [r.id for r in found.roles_statuses[0].replicas] == [0, 1]
    assert (found.roles[0].entrypoint, found.roles[0].args) == ("python", ["train.py"])


def test_answers_have_the_members_that_aws_documents():
    """botocore's models of the services reject unknown members and wrong types."""
    given = {"region_name": "us-east-1", "aws_access_key_id": "a", "aws_secret_access_key": "b"}
    clients = {name: boto3.client(name, **given) for name in ("batch", "sagemaker")}
    batch, sagemaker = Stubber(clients["batch"]), Stubber(clients["sagemaker"])
    for case in recorded("batch_jobs.json").values():
        batch.add_response("describe_jobs", {"jobs": case["jobs"]})
    for case in recorded("sagemaker_jobs.json").values():
        # The model has it in every answer; a job that makes none has none.
        made = {"ModelArtifacts": {"S3ModelArtifacts": "s3://b"}}
        sagemaker.add_response("describe_training_job", _with_times({**made, **case["job"]}))
    with pytest.raises(ParamValidationError, match="nosuch"):
        batch.add_response("describe_jobs", {"jobs": [{"nosuch": 1}]})
    for client in clients.values():
        client.close()


def _with_times(value):
    """Numbers on the wire become `datetime`, as in the parser."""
    import datetime

    if isinstance(value, list):
        return [_with_times(item) for item in value]
    if not isinstance(value, dict):
        return value
    of = datetime.datetime.fromtimestamp
    return {
        key: of(item, datetime.timezone.utc) if key.endswith("Time") else _with_times(item)
        for key, item in value.items()
    }


# -- errors ---------------------------------------------------------------------------------------------

REQUESTS: dict[str, dict[str, Any]] = {
    "submit_job": {"jobName": "x", "jobQueue": "q", "jobDefinition": "d"},
    "register_job_definition": {"jobDefinitionName": "d", "type": "container"},
    "create_training_job": {
        "TrainingJobName": "x",
        "AlgorithmSpecification": {"TrainingInputMode": "File"},
        "RoleArn": "arn:aws:iam::012345678910:role/train",
        "OutputDataConfig": {"S3OutputPath": "s3://b"},
        "StoppingCondition": {},
    },
    "get_log_events": {"logStreamName": "s"},
    "get_role": {"RoleName": "none"},
    "put_object": {"Bucket": "b-u", "Key": "k", "Body": b"x"},
}
ERRORS = recorded("errors.json")


@pytest.mark.parametrize("case", ERRORS, ids=[f"{e['service']}-{e['says'][:30]}" for e in ERRORS])
def test_errors(aws, case):
    """One line with the rejected action, and a hint, in any protocol of AWS."""
    told = case["answer"]
    clients = aws(lambda *_: answer(told["status"], told["body"], told["headers"].items()))
    client = clients.client(case["service"], retries=False)
    with pytest.raises(BackendError) as e:
        call(client, case["operation"], "it could not be done", **REQUESTS.get(case["operation"], {}))
    assert str(e.value).startswith("it could not be done: ")
    assert case["says"] in str(e.value)
    assert case["hint"] in e.value.hint
    assert "\n" not in str(e.value)


# -- retries --------------------------------------------------------------------------------------------


def test_questions_are_asked_again(aws):
    """botocore retries a throttled read, with backoff, invisibly to the user."""
    asked = []

    def respond(service, operation, request):
        asked.append(operation)
        if len(asked) == 1:
            return answer(
                429, {"message": "Too Many Requests"}, {"x-amzn-ErrorType": "TooManyRequestsException"}.items()
            )
        return answer(200, {"jobs": []})

    client = aws(respond).client("batch")
    assert call(client, "describe_jobs", "x", jobs=["1"])["jobs"] == []
    assert asked == ["describejobs"] * 2
    assert client.meta.config.retries == {"mode": "adaptive", "total_max_attempts": 8}


def test_a_submission_is_sent_once(aws):
    """botocore would repeat it after a lost answer; the client for submissions does not."""
    asked = []

    def respond(service, operation, request):
        asked.append(operation)
        return answer(500, {"message": "?"}, {"x-amzn-ErrorType": "ServerException"}.items())

    once = aws(respond).client("batch", retries=False)
    with pytest.raises(TransientError, match="AWS failed"):
        call(once, "submit_job", "x", **REQUESTS["submit_job"])
    assert asked == ["submitjob"]
