"""Calls of Batch: submits a job exactly once, finds, lists, describes and terminates jobs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from torchx.errors import TorchXError
from torchx.schedulers.aws.client import call, call_if_there, call_once, pages
from torchx.schedulers.aws.errors import AwsError, LostAnswerError, is_missing
from torchx.util.notices import logger

_Object = dict[str, Any]

PREFIX = "torchx-"
"""Prefix of torchx's job definitions, by which its jobs are found."""
_PER_CALL = 100  # the limit of DescribeJobs and, with a filter, of ListJobs
_CHILDREN_PER_CALL = 1000
# ListJobs may show a job some time after SubmitJob.
_LOOKS_S = (0.0, 1.0, 2.0, 4.0)


def need_definition(client: Any, definition: _Object) -> tuple[str, bool]:
    """Register a job definition unless it exists (its name has a hash). Returns its ARN, and whether it is new."""
    name = definition["jobDefinitionName"]
    doing = f"job definition `{name}` could not be registered"
    there = call(client, "describe_job_definitions", doing, jobDefinitionName=name, status="ACTIVE")
    found = there.get("jobDefinitions") or ()
    if found:
        return max(found, key=lambda d: d["revision"])["jobDefinitionArn"], False
    return call(client, "register_job_definition", doing, **definition)["jobDefinitionArn"], True


def submit(
    client: Any, once: Any, definition: _Object, request: _Object, *, sleep: Callable[[float], None] = time.sleep
) -> str:
    """Register the job definition unless it exists, and submit the job; return its id.

    SubmitJob has no idempotency token. So ``once``, a client without automatic retries, calls it once; if its answer is
    lost, the job is looked up by its unique name. LostAnswerError: it is not known whether it was submitted.
    """
    arn, made = need_definition(client, definition)
    doing = f"job `{request['jobName']}` could not be submitted"
    try:
        try:
            return _submit_once(client, once, {**request, "jobDefinition": arn}, doing, sleep)
        except AwsError as e:
            if made or not is_missing(e) or "definition" not in str(e).lower():
                raise
        # It was deregistered meanwhile.
        arn = call(client, "register_job_definition", doing, **definition)["jobDefinitionArn"]
        made = True
        return _submit_once(client, once, {**request, "jobDefinition": arn}, doing, sleep)
    except LostAnswerError:
        raise
    except TorchXError:
        if made:
            deregister(client, arn)
        raise


def _submit_once(client: Any, once: Any, request: _Object, doing: str, sleep: Callable[[float], None]) -> str:
    try:
        return str(call_once(once, "submit_job", doing, sleep=sleep, **request)["jobId"])
    except LostAnswerError as lost:
        for pause_s in _LOOKS_S:
            sleep(pause_s)
            found = find_id(client, request["jobQueue"], request["jobName"])
            if found:
                return found
        raise LostAnswerError(
            f"{lost}; the queue does not show a job of that name so far",
            hint=f"check before you submit it again: aws batch list-jobs --job-queue {request['jobQueue']} "
            f"--filters name=JOB_NAME,values={request['jobName']}",
        ) from None


def deregister(client: Any, arn: str) -> None:
    """Deregisters a job definition; its jobs continue. Only logs a failure: a leftover definition costs nothing."""
    try:
        call(client, "deregister_job_definition", f"`{arn}` could not be deregistered", jobDefinition=arn)
    except TorchXError as e:
        logger("torchx").info("%s", e)


def find_id(client: Any, queue: str, name: str) -> str | None:
    """Id of the job with this name; None if the job or the queue does not exist."""
    wanted = [{"name": "JOB_NAME", "values": [name]}]
    found = summaries(client, queue, wanted)
    return next((str(job["jobId"]) for job in found if job["jobName"] == name and ":" not in str(job["jobId"])), None)


def ours(client: Any, queue: str) -> Iterator[_Object]:
    """Summaries of the jobs that torchx has submitted to a queue, newest first."""
    return filter(is_ours, summaries(client, queue, [{"name": "JOB_DEFINITION", "values": [f"{PREFIX}*"]}]))


def summaries(client: Any, queue: str, filters: list[_Object]) -> Iterator[_Object]:
    """Summaries of ListJobs, of all pages; none if the queue does not exist."""
    doing = f"jobs of queue `{queue}` cannot be listed"
    try:
        yield from pages(
            client, "list_jobs", doing, "jobSummaryList", jobQueue=queue, filters=filters, maxResults=_PER_CALL
        )
    except AwsError as e:
        if not is_missing(e):
            raise


def children(client: Any, array_id: str, status: str) -> Iterator[_Object]:
    """Summaries of the children of an array job with this status."""
    doing = f"tasks of `{array_id}` cannot be listed"
    wanted = {"arrayJobId": array_id, "jobStatus": status, "maxResults": _CHILDREN_PER_CALL}
    yield from pages(client, "list_jobs", doing, "jobSummaryList", **wanted)


def is_ours(job: _Object) -> bool:
    """Whether a job was submitted by torchx, and is neither a node nor the child of an array."""
    definition = str(job.get("jobDefinition") or "").rpartition("/")[2]
    return definition.startswith(PREFIX) and not {"#", ":"} & set(str(job.get("jobId")))


def details(client: Any, ids: Iterable[str]) -> dict[str, _Object]:
    """Descriptions by id, a hundred per call. Jobs that do not exist are left out."""
    wanted = list(ids)
    found: dict[str, _Object] = {}
    for i in range(0, len(wanted), _PER_CALL):
        answer = call(client, "describe_jobs", "the state of jobs is not known", jobs=wanted[i : i + _PER_CALL])
        found.update({str(job["jobId"]): job for job in answer.get("jobs") or ()})
    return found


def nodes(client: Any, job: _Object) -> dict[int, _Object]:
    """Descriptions of the nodes of a multi-node job, by index; empty for any other job."""
    if not job.get("nodeProperties"):
        return {}
    count = int(job["nodeProperties"]["numNodes"])
    found = details(client, [f"{job['jobId']}#{i}" for i in range(count)])
    return {int(i.rpartition("#")[2]): node for i, node in found.items() if "#" in i}


def terminate(client: Any, job_id: str, reason: str) -> None:
    """Terminates a job, whether it runs or waits; does nothing if it does not exist."""
    call_if_there(client, "terminate_job", f"job `{job_id}` could not be cancelled", jobId=job_id, reason=reason)
