"""What became of a training job, out of the answers of DescribeTrainingJob and Search.

https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_DescribeTrainingJob.html
"""

from __future__ import annotations

import re

from torchx.schedulers.api import DescribeAppResponse
from torchx.schedulers.aws import sagemaker_command as command
from torchx.schedulers.aws.marks import DEFAULT_ROLE_NAME, ENV_ROLE_NAME, OURS, console_url
from torchx.settings import ENV_IMAGE
from torchx.specs.api import NONE, AppState, ReplicaStatus, Resource, Role, RoleStatus, is_terminal
from torchx.specs.failures import Failure

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    _Object = dict[str, Any]

LOG_GROUP = "/aws/sagemaker/TrainingJobs"

JOB_STATE = {
    "InProgress": AppState.RUNNING,
    "Completed": AppState.SUCCEEDED,
    "Failed": AppState.FAILED,
    "Stopping": AppState.RUNNING,
    "Stopped": AppState.CANCELLED,
}
# While InProgress the secondary status says more. What has no sentence is nothing to wait for.
WAITS = {
    "Pending": "it waits for capacity",
    "Starting": "its instances are being made ready",
    "LaunchingMLInstances": "its instances are being launched",
    "PreparingTrainingStack": "its instances are being made ready",
    "Downloading": "its data is being downloaded",
    "DownloadingTrainingImage": "its image is being pulled",
    "Interrupted": "its spot instances were reclaimed, and it waits for others",
}
# Ends that nobody asked for, though their status is Stopped.
TOO_LONG = {
    "MaxRuntimeExceeded": "it ran longer than `max_run`",
    "MaxWaitTimeExceeded": "it waited and ran longer than `max_wait`",
}
# https://docs.aws.amazon.com/sagemaker/latest/dg/model-train-storage.html and the guide to troubleshooting
FAILURES = {
    "AlgorithmError": "",
    "CapacityError": "AWS has no such instances left at the moment",
    "InternalServerError": "SageMaker failed",
    "ClientError": "SageMaker cannot run such a job",
}


def state_of(job: _Object) -> AppState:
    """The state of a job as DescribeTrainingJob, Search or ListTrainingJobs tells it."""
    status, secondary = str(job.get("TrainingJobStatus")), str(job.get("SecondaryStatus") or "")
    if status == "InProgress" and secondary in WAITS:
        return AppState.PENDING
    if status == "Stopped" and secondary in TOO_LONG:
        return AppState.FAILED
    return JOB_STATE.get(status, AppState.UNKNOWN)


def role_of(job: _Object) -> Role:
    """The role as it was submitted, as far as the job shows it."""
    algorithm = job.get("AlgorithmSpecification") or {}
    env = {str(k): str(v) for k, v in (job.get("Environment") or {}).items()}
    words, late = command.read(
        list(algorithm.get("ContainerEntrypoint") or ()), list(algorithm.get("ContainerArguments") or ())
    )
    if not words:
        words = _script(job.get("HyperParameters") or {})
    resources = job.get("ResourceConfig") or {}
    capabilities = {"sagemaker/instance-type": resources["InstanceType"]} if resources.get("InstanceType") else {}
    return Role(
        name=env.get(ENV_ROLE_NAME) or DEFAULT_ROLE_NAME,
        image=env.get(ENV_IMAGE) or str(algorithm.get("TrainingImage") or ""),
        entrypoint=words[0] if words else "",
        args=words[1:],
        env={name: value for name, value in env.items() if name not in OURS} | late,
        num_replicas=int(resources.get("InstanceCount") or 1),
        resource=Resource(cpu=-1, gpu=-1, memMB=-1, capabilities=capabilities),
    )


def _script(hyperparameters: _Object) -> list[str]:
    """In script mode: the script that the toolkit runs."""
    import json

    program = str(hyperparameters.get("sagemaker_program") or "")
    try:
        return [str(json.loads(program))] if program else []
    except ValueError:
        return [program]


def describe(job: _Object, *, region: str, log_tail: str = "") -> DescribeAppResponse:
    """State, replicas and definition of a job.

    Args:
        log_tail: the end of the log of its first host.
    """
    name, state = str(job.get("TrainingJobName")), state_of(job)
    role = role_of(job)
    failure = _failure(job, log_tail) if state is AppState.FAILED else None
    hosts = [
        ReplicaStatus(k, state, role.name, f"algo-{k + 1}", failure.to_structured_msg() if failure and k == 0 else NONE)
        for k in range(role.num_replicas)
    ]
    starts = sum(t.get("Status") == "Training" for t in job.get("SecondaryStatusTransitions") or ())
    return DescribeAppResponse(
        app_id=name,
        state=state,
        num_restarts=max(starts - 1, 0),
        msg=_message(job, state) or NONE,
        structured_error_msg=failure.to_structured_msg() if failure else NONE,
        ui_url=console_url(str(job.get("TrainingJobArn") or ""), region, f"sagemaker/home#/jobs/{name}"),
        roles_statuses=[RoleStatus(role.name, hosts)],
        roles=[role],
        started_at=_seconds(job.get("TrainingStartTime")) or _seconds(job.get("CreationTime")),
        ended_at=_seconds(job.get("TrainingEndTime")) if is_terminal(state) else None,
    )


def exit_code(job: _Object) -> int | None:
    """The program's, out of the text of the failure; None when it says none.

    >>> exit_code({"FailureReason": "AlgorithmError: , exit code: 3"})
    3
    """
    found = re.search(r"exit code: (\d+)", str(job.get("FailureReason") or ""))
    return int(found[1]) if found else None


def _failure(job: _Object, log_tail: str) -> Failure:
    from torchx.schedulers.kit.causes import failure_in

    ended = _seconds(job.get("TrainingEndTime")) or 0.0
    found = failure_in(None, log_tail, exit_code=exit_code(job), ended=ended)
    return Failure(found.message or _why_failed(job), exit_code(job), "", found.traceback, ended)


def _message(job: _Object, state: AppState) -> str:
    secondary = str(job.get("SecondaryStatus") or "")
    if state is AppState.FAILED:
        return _why_failed(job)
    if state is AppState.PENDING:
        return WAITS.get(secondary, "")
    if state is AppState.UNKNOWN:
        return f"its status is `{job.get('TrainingJobStatus')}`"
    return "it is being stopped" if job.get("TrainingJobStatus") == "Stopping" else ""


def _why_failed(job: _Object) -> str:
    said = " ".join(str(job.get("FailureReason") or "").split())
    late = TOO_LONG.get(str(job.get("SecondaryStatus") or ""))
    if late:
        return f"{late}{f' ({said})' if said else ''}"
    sentence = next((text for key, text in FAILURES.items() if said.startswith(key)), "")
    code = exit_code(job)
    told = ": ".join(text for text in (f"exit code {code}" if code is not None else "", sentence) if text)
    return f"{told} ({said})" if told and said else told or said


def _seconds(moment: Any) -> float | None:
    return moment.timestamp() if moment else None
