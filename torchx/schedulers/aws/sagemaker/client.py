"""Calls of SageMaker: creates a job exactly once, describes, searches, stops and deletes jobs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torchx.schedulers.aws.client import Clients, call, call_if_there, pages
from torchx.schedulers.aws.errors import AwsError
from torchx.schedulers.aws.sagemaker.answers import state_of
from torchx.schedulers.aws.sagemaker.request import DEFAULT_OUTPUT, MANAGED_BY, NAME_RULE, TAG_MANAGED_BY
from torchx.schedulers.aws.tags import TAG_USER
from torchx.specs.api import is_terminal

_Object = dict[str, Any]

_PAGE = 100


def complete(clients: Clients, request: _Object, region: str) -> tuple[_Object, str]:
    """Completes a request in place: the ARN of a role given by name, and the account's default bucket.

    Returns the request, and the account that owns the default bucket; empty if another bucket was given.
    """
    if not request["RoleArn"].startswith("arn:"):
        name = request["RoleArn"].rpartition("/")[2]
        found = call(clients.client("iam"), "get_role", f"role `{name}` is not found", RoleName=name)
        request["RoleArn"] = found["Role"]["Arn"]
    if request["OutputDataConfig"]["S3OutputPath"] != DEFAULT_OUTPUT:
        return request, ""
    doing = "the account's bucket is not known (or give `output_path`)"
    account = str(call(clients.client("sts"), "get_caller_identity", doing)["Account"])
    bucket = f"s3://sagemaker-{region}-{account}/"
    request["OutputDataConfig"] = {**request["OutputDataConfig"], "S3OutputPath": bucket}
    return request, account


def create(client: Any, request: _Object) -> None:
    """Create the job. Idempotent: its name is unique, so an existing job of that name is this one."""
    name = request["TrainingJobName"]
    try:
        call(client, "create_training_job", f"job `{name}` could not be submitted", **request)
    except AwsError as e:
        # boto3 repeated a request that had been executed, because its answer was lost.
        if e.code != "ResourceInUse" or describe(client, name) is None:
            raise


def describe(client: Any, name: str) -> _Object | None:
    """Return the description of a job; None if it does not exist."""
    if not NAME_RULE.obeys(name):
        return None
    doing = f"the state of job `{name}` is not known"
    return call_if_there(client, "describe_training_job", doing, TrainingJobName=name)


def search(client: Any, user: str = "") -> Iterator[_Object]:
    """Descriptions of all torchx jobs, or of one user's, newest first. (ListTrainingJobs cannot filter by tags.)"""
    filters = [{"Name": f"Tags.{TAG_MANAGED_BY}", "Operator": "Equals", "Value": MANAGED_BY}]
    if user:
        filters.append({"Name": f"Tags.{TAG_USER}", "Operator": "Equals", "Value": user})
    found = pages(
        client,
        "search",
        "jobs cannot be listed",
        "Results",
        Resource="TrainingJob",
        SearchExpression={"Filters": filters},
        SortBy="CreationTime",
        SortOrder="Descending",
        MaxResults=_PAGE,
    )
    return (result["TrainingJob"] for result in found if result.get("TrainingJob"))


def stop(client: Any, name: str) -> None:
    """Stop a job; does nothing if it has ended."""
    try:
        call(client, "stop_training_job", f"job `{name}` could not be cancelled", TrainingJobName=name)
    except AwsError:
        now = describe(client, name)
        if now is not None and not is_terminal(state_of(now)):
            raise


def delete(client: Any, name: str) -> None:
    """Remove a job that has ended."""
    call(client, "delete_training_job", f"job `{name}` could not be deleted", TrainingJobName=name)
