"""What is done with Batch as several calls that belong together: a job is submitted once, found by its name, ended."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from torchx.errors import TorchXError
from torchx.schedulers.aws.client import call, call_once, pages
from torchx.schedulers.aws.errors import AwsError, LostAnswerError, is_missing
from torchx.util.notices import logger

_Object = dict[str, Any]

PREFIX = "torchx-"
"""Begins the name of each job definition of ours: by it jobs of ours are found."""
_PER_CALL = 100  # of DescribeJobs and, with a filter, ListJobs
_CHILDREN_PER_CALL = 1000
# ListJobs may know a job a moment later than SubmitJob.
_LOOKS_S = (0.0, 1.0, 2.0, 4.0)


def need_definition(client: Any, definition: _Object) -> tuple[str, bool]:
    """ARN of a job definition that is as this one, whose name has a hash of it; and whether it was made just now."""
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
    """Registers the definition, unless it is there, and submits the job; returns its id.

    SubmitJob takes no token by which Batch would know a request again. So it is asked once, and where the answer is
    lost the job is looked for by its name, which no other has.

    Args:
        once: a client that tries nothing again by itself.

    Raises:
        TorchXError: nothing was submitted; or, a LostAnswerError, it is not known whether it was.
    """
    arn, made = need_definition(client, definition)
    doing = f"job `{request['jobName']}` could not be submitted"
    try:
        try:
            return _submit_once(client, once, {**request, "jobDefinition": arn}, doing, sleep)
        except AwsError as e:
            if made or not is_missing(e) or "definition" not in str(e).lower():
                raise
        # Somebody has deregistered it since we looked.
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
    """Takes a job definition away; jobs that were submitted with it go on. Quiet when that fails: it costs nothing."""
    try:
        call(client, "deregister_job_definition", f"`{arn}` could not be deregistered", jobDefinition=arn)
    except TorchXError as e:
        logger("torchx").info("%s", e)


def find_id(client: Any, queue: str, name: str) -> str | None:
    """Id of the job of that name; None when there is none, or no such queue."""
    wanted = [{"name": "JOB_NAME", "values": [name]}]
    found = summaries(client, queue, wanted)
    return next((str(job["jobId"]) for job in found if job["jobName"] == name and ":" not in str(job["jobId"])), None)


def ours(client: Any, queue: str) -> Iterator[_Object]:
    """Lines of ListJobs for the jobs that torchx has submitted to a queue, newest first."""
    for job in summaries(client, queue, [{"name": "JOB_DEFINITION", "values": [f"{PREFIX}*"]}]):
        if is_ours(job):
            yield job


def summaries(client: Any, queue: str, filters: list[_Object]) -> Iterator[_Object]:
    """Lines of ListJobs, of all pages."""
    doing = f"jobs of queue `{queue}` cannot be listed"
    try:
        yield from pages(
            client, "list_jobs", doing, "jobSummaryList", jobQueue=queue, filters=filters, maxResults=_PER_CALL
        )
    except AwsError as e:
        if not is_missing(e):
            raise


def children(client: Any, array_id: str, status: str) -> Iterator[_Object]:
    """Lines of ListJobs for the children of an array job that are in this status."""
    doing = f"tasks of `{array_id}` cannot be listed"
    wanted = {"arrayJobId": array_id, "jobStatus": status, "maxResults": _CHILDREN_PER_CALL}
    yield from pages(client, "list_jobs", doing, "jobSummaryList", **wanted)


def is_ours(job: _Object) -> bool:
    """Whether a job, or a line of ListJobs, was submitted by torchx: not a node, nor the child of an array."""
    definition = str(job.get("jobDefinition") or "").rpartition("/")[2]
    return definition.startswith(PREFIX) and not {"#", ":"} & set(str(job.get("jobId")))


def details(client: Any, ids: Iterable[str]) -> dict[str, _Object]:
    """Descriptions by id, a hundred a call; jobs that Batch does not know are left out."""
    wanted = list(ids)
    found: dict[str, _Object] = {}
    for i in range(0, len(wanted), _PER_CALL):
        answer = call(client, "describe_jobs", "the state of jobs is not known", jobs=wanted[i : i + _PER_CALL])
        found.update({str(job["jobId"]): job for job in answer.get("jobs") or ()})
    return found


def nodes(client: Any, job: _Object) -> dict[int, _Object]:
    """Descriptions of the nodes of a multi-node job, by index; empty for any other."""
    if not job.get("nodeProperties"):
        return {}
    count = int(job["nodeProperties"]["numNodes"])
    found = details(client, [f"{job['jobId']}#{i}" for i in range(count)])
    return {int(i.rpartition("#")[2]): node for i, node in found.items() if "#" in i}


def terminate(client: Any, job_id: str, reason: str) -> None:
    """Ends a job, whether it runs or waits."""
    try:
        call(client, "terminate_job", f"job `{job_id}` could not be cancelled", jobId=job_id, reason=reason)
    except AwsError as e:
        if not is_missing(e):
            raise
