"""Converts the answers of DescribeTrainingJob and Search into facts.

https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_DescribeTrainingJob.html
"""

from __future__ import annotations

import json
import re
from typing import Any

from torchx.schedulers.aws.sagemaker import command
from torchx.schedulers.aws.sagemaker.reasons import JOB_STATE, TOO_LONG, WAITS, why_failed
from torchx.schedulers.aws.tags import DEFAULT_ROLE_NAME, OURS, console_url
from torchx.schedulers.kit.facts import JobFacts, ReplicaFacts, RoleFacts
from torchx.settings import ENV_IMAGE, ENV_ROLE_NAME
from torchx.specs.api import AppState, Resource, Role

_Object = dict[str, Any]

_PROGRAM_FAILED = "AlgorithmError"
"""Prefix of the FailureReason of a job whose program failed."""


def facts_of(job: _Object, *, region: str = "") -> JobFacts:
    """Return the facts of a job. SageMaker reports nothing about single hosts, so all of them have the job's state.

    ``region`` is used if the job's ARN does not contain it.
    """
    name, state, role = str(job.get("TrainingJobName")), state_of(job), role_of(job)
    reason, kind = _why(job, state)
    # SageMaker does not report which of several programs failed. At a time limit, none did.
    by_itself = str(job.get("FailureReason") or _PROGRAM_FAILED).startswith(_PROGRAM_FAILED) and kind != "timeout"
    alone = role.num_replicas == 1 and by_itself
    code = exit_code(job)
    hosts = [
        ReplicaFacts(
            role=role.name,
            replica=k,
            state=state,
            native=str(job.get("SecondaryStatus") or ""),
            exit_code=code if alone and state is AppState.FAILED else None,
            host=f"algo-{k + 1}",
            ended=_seconds(job.get("TrainingEndTime")) or 0,
            stopped=not alone,
        )
        for k in range(role.num_replicas)
    ]
    starts = sum(t.get("Status") == "Training" for t in job.get("SecondaryStatusTransitions") or ())
    return JobFacts(
        app_id=name,
        roles=[RoleFacts(name=role.name, replicas=hosts)],
        state=state,
        native=str(job.get("TrainingJobStatus")),
        reason=reason,
        kind=kind,
        cancelled=job.get("TrainingJobStatus") == "Stopping" or state is AppState.CANCELLED,
        restarts=max(starts - 1, 0),
        started=_seconds(job.get("TrainingStartTime")) or _seconds(job.get("CreationTime")),
        ended=_seconds(job.get("TrainingEndTime")),
        definition=[role],
        ui_url=console_url(str(job.get("TrainingJobArn") or ""), region, f"sagemaker/home#/jobs/{name}"),
    )


def state_of(job: _Object) -> AppState:
    """Return the state of a job."""
    status, secondary = str(job.get("TrainingJobStatus")), str(job.get("SecondaryStatus") or "")
    if status == "InProgress" and secondary in WAITS:
        return AppState.PENDING
    if status == "Stopped" and secondary in TOO_LONG:
        return AppState.FAILED
    return JOB_STATE.get(status, AppState.UNKNOWN)


def role_of(job: _Object) -> Role:
    """Return the role as it was submitted, as far as the description contains it."""
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
    """Return the script that the toolkit runs in script mode."""
    program = str(hyperparameters.get("sagemaker_program") or "")
    try:
        return [str(json.loads(program))] if program else []
    except (ValueError, RecursionError):
        return [program]


def exit_code(job: _Object) -> int | None:
    """Return the program's exit code, from the text of the FailureReason; None if it has none.

    >>> exit_code({"FailureReason": "AlgorithmError: , exit code: 3"})
    3
    """
    found = re.search(r"exit code: (\d+)", str(job.get("FailureReason") or ""))
    return int(found[1]) if found else None


def _why(job: _Object, state: AppState) -> tuple[str, str]:
    """Why a job is in its state, and the class of the cause if it failed."""
    secondary = str(job.get("SecondaryStatus") or "")
    if state is AppState.FAILED:
        return why_failed(secondary, str(job.get("FailureReason") or ""))
    if state is AppState.UNKNOWN:
        return f"its status is `{job.get('TrainingJobStatus')}`", ""
    return (WAITS.get(secondary, "") if state is AppState.PENDING else ""), ""


def _seconds(moment: Any) -> float | None:
    return moment.timestamp() if moment else None
