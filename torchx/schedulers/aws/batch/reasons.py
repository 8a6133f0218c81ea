"""Maps Batch's statuses and reasons to states, sentences and classes: why a job ended, and why it does not start.

https://docs.aws.amazon.com/batch/latest/userguide/troubleshooting.html
https://docs.aws.amazon.com/AmazonECS/latest/developerguide/stopped-task-error-codes.html
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TypeVar

from torchx.specs.api import AppState

_T = TypeVar("_T")

# https://docs.aws.amazon.com/batch/latest/userguide/job_states.html
JOB_STATE = {
    "SUBMITTED": AppState.SUBMITTED,
    "PENDING": AppState.PENDING,
    "RUNNABLE": AppState.PENDING,
    "STARTING": AppState.PENDING,
    "RUNNING": AppState.RUNNING,
    "SUCCEEDED": AppState.SUCCEEDED,
    "FAILED": AppState.FAILED,
}
CANCELLED_BY_US = "cancelled by torchx"
"""Prefix of the reason with which torchx terminates a job."""

# Prefix of `statusReason` of a job or an attempt, or of `reason` of its container -> a sentence and a class.
ENDED = {
    "OutOfMemoryError": ("it ran out of the memory that its role requests", "oom"),
    "CannotPullContainerError": ("its image cannot be pulled: wrong name, or denied to the execution role?", "image"),
    "CannotPullECRContainerError": ("its image cannot be pulled from ECR: denied to the execution role?", "image"),
    "CannotPullImageManifestError": ("its image cannot be pulled: not there for this platform", "image"),
    "CannotStartContainerError": ("its container could not be started: is the entrypoint in the image?", "image"),
    "CannotCreateContainerError": ("its container could not be created", "image"),
    "CannotCreateVolumeError": ("one of its volumes could not be mounted", ""),
    "CannotInspectContainerError": ("the host did not report the state of its container", "node"),
    "ContainerRuntimeError": ("the host's container runtime failed", "node"),
    "ContainerRuntimeTimeoutError": ("the host did not start or end its container in time", "node"),
    "DockerTimeoutError": ("the host did not start or end its container in time", "node"),
    "DockerStateError": ("the host failed to change the state of its container", "node"),
    "ResourceInitializationError": ("its secrets, network or volumes are denied to the execution role, or missing", ""),
    "TaskFailedToStart": ("its task could not be started", ""),
    "InternalError": ("the agent on the host failed", "node"),
    "SpotInterruptionError": ("the spot instance that it ran on was reclaimed", "preempted"),
    "Host EC2": ("the instance that it ran on was terminated (a spot reclaim, or a failure)", "node"),
    "Your Spot Task was interrupted": ("the spot capacity that it ran on was reclaimed", "preempted"),
    "Job attempt duration exceeded timeout": ("it ran longer than its time limit", "timeout"),
    "Job queue deleted": ("its queue was deleted", "cancelled"),
    "Dependent Job failed": ("a job that it depends on failed", ""),
    "Task failed to start": ("its task could not be started", ""),
    "Essential container in task exited": ("", ""),
}

# Prefix of `statusReason` of a job in RUNNABLE -> a sentence:
# https://docs.aws.amazon.com/batch/latest/userguide/job_stuck_in_runnable.html
WAITS = {
    "CAPACITY:INSUFFICIENT_INSTANCE_CAPACITY": "AWS has no such instances left at the moment",
    "MISCONFIGURATION:COMPUTE_ENVIRONMENT_MAX_RESOURCE": "it needs more vCPUs than `maxvCpus` of its environment",
    "MISCONFIGURATION:JOB_RESOURCE_REQUIREMENT": "no instance type of the compute environment is large enough",
    "MISCONFIGURATION:SERVICE_ROLE_PERMISSIONS": "the service role of the compute environment lacks permissions",
    "MISCONFIGURATION:EKS_NODE_GROUP": "the nodes of the EKS cluster cannot take it",
    "ACTION_REQUIRED - CE(s) associated with": "the compute environments of its queue are invalid",
    "ACTION_REQUIRED - Compute environment is invalid": "the compute environment of its queue is invalid",
    "ACTION_REQUIRED": "the queue is blocked until a user acts",
    "UNDETERMINED": "it does not start, and Batch does not know why",
}

WAITS_IN = {
    "PENDING": "it waits for jobs that it depends on",
    "RUNNABLE": "it waits for an instance",
    "STARTING": "its image is being pulled",
}
"""What a job with this status waits for, if Batch gives no reason."""


def why_ended(*reasons: str | None) -> tuple[str, str]:
    """Why a job or a node ended: a sentence without full stop, with Batch's reason, and its class; both may be empty.

    The container's reason, which is more specific, comes before the job's.

    >>> why_ended("OutOfMemoryError: Container killed due to memory usage", "Essential container in task exited")[0]
    'it ran out of the memory that its role requests (OutOfMemoryError: Container killed due to memory usage)'
    >>> why_ended(None, "Essential container in task exited")
    ('', '')
    """
    texts = [text.strip() for text in reasons if text and text.strip()]
    known = [(text, _look_up(ENDED, text)) for text in texts]
    for text, found in known:
        if found is not None and found[0]:
            return f"{found[0]} ({text})", found[1]
    return next((text for text, found in known if found is None), ""), ""


def why_waits(reason: str | None) -> str:
    """Why a job waits, as a sentence without full stop, with Batch's reason; empty if Batch gave none.

    >>> why_waits("CAPACITY:INSUFFICIENT_INSTANCE_CAPACITY - Service cannot fulfill the capacity request")
    'AWS has no such instances left at the moment (Service cannot fulfill the capacity request)'
    """
    text = (reason or "").strip()
    sentence = _look_up(WAITS, text)
    if not sentence:
        return text
    key = next(key for key in WAITS if text.startswith(key))
    more = text[len(key) :].strip(" -:.")
    return f"{sentence} ({more or key})"


def _look_up(table: Mapping[str, _T], text: str) -> _T | None:
    # The name of the container may precede an error.
    bare = re.sub(r"^\S+: (?=\w+Error)", "", text)
    return next((row for key, row in table.items() if bare.startswith(key) or text.startswith(key)), None)
