"""What Batch says of a job, as a sentence: why it ended, and why it does not start.

https://docs.aws.amazon.com/batch/latest/userguide/troubleshooting.html
https://docs.aws.amazon.com/AmazonECS/latest/developerguide/stopped-task-error-codes.html
"""

from __future__ import annotations

import re

# Beginning of `statusReason` of a job or an attempt, or of `reason` of its container -> a sentence. The first that is
# found counts: what is said of the container comes first, for it says more.
ENDED = {
    "OutOfMemoryError": "it ran out of the memory that its role asks for",
    "CannotPullContainerError": "its image cannot be pulled: is the name right, and may the execution role read it?",
    "CannotPullECRContainerError": "its image cannot be pulled from ECR: may the execution role read it?",
    "CannotPullImageManifestError": "its image cannot be pulled: there is none of that name for this platform",
    "CannotStartContainerError": "its container could not be started: is the entrypoint in the image?",
    "CannotCreateContainerError": "its container could not be made",
    "CannotCreateVolumeError": "one of its volumes could not be mounted",
    "CannotInspectContainerError": "the host does not answer for its container",
    "ContainerRuntimeError": "the host's container runtime failed",
    "ContainerRuntimeTimeoutError": "the host did not start or end its container in time",
    "DockerTimeoutError": "the host did not start or end its container in time",
    "DockerStateError": "the host failed to bring its container into another state",
    "ResourceInitializationError": "secrets, network or volumes are not to be had: may the execution role use them?",
    "TaskFailedToStart": "its task could not be started",
    "InternalError": "the agent on the host failed",
    "SpotInterruptionError": "the spot instance that it ran on was reclaimed",
    "Host EC2": "the instance that it ran on was terminated (a spot instance that was reclaimed, or a failure)",
    "Your Spot Task was interrupted": "the spot capacity that it ran on was reclaimed",
    "Job attempt duration exceeded timeout": "it ran longer than its time limit",
    "Job queue deleted": "its queue was deleted",
    "Dependent Job failed": "a job that it depends on failed",
    "Task failed to start": "its task could not be started",
    "Essential container in task exited": "",
}

# `statusReason` of a job that waits in RUNNABLE:
# https://docs.aws.amazon.com/batch/latest/userguide/job_stuck_in_runnable.html
WAITS = {
    "CAPACITY:INSUFFICIENT_INSTANCE_CAPACITY": "AWS has no such instances left at the moment",
    "MISCONFIGURATION:COMPUTE_ENVIRONMENT_MAX_RESOURCE": "it asks for more vCPUs than `maxvCpus` of the compute "
    "environment allows",
    "MISCONFIGURATION:JOB_RESOURCE_REQUIREMENT": "no instance type of the compute environment is large enough",
    "MISCONFIGURATION:SERVICE_ROLE_PERMISSIONS": "the service role of the compute environment lacks permissions",
    "MISCONFIGURATION:EKS_NODE_GROUP": "the nodes of the EKS cluster cannot take it",
    "ACTION_REQUIRED - CE(s) associated with the job queue are invalid": "the compute environments of its queue are "
    "invalid",
    "ACTION_REQUIRED - Compute environment is invalid": "the compute environment of its queue is invalid",
    "ACTION_REQUIRED": "the queue is blocked, and somebody has to act",
    "UNDETERMINED": "it does not start, and Batch does not know why",
}


def why_ended(*said: str | None) -> str:
    """A sentence without full stop on why a job or a node ended, with what Batch said; empty when it said nothing.

    Args:
        said: reasons of the container and of the job, the one that says more first.

    >>> why_ended("OutOfMemoryError: Container killed due to memory usage", "Essential container in task exited")
    'it ran out of the memory that its role asks for (OutOfMemoryError: Container killed due to memory usage)'
    >>> why_ended(None, "Essential container in task exited")
    ''
    """
    texts = [text.strip() for text in said if text and text.strip()]
    for text in texts:
        sentence = _look_up(ENDED, text)
        if sentence:
            return f"{sentence} ({text})"
    unknown = [text for text in texts if _look_up(ENDED, text) is None]
    return unknown[0] if unknown else ""


def why_waits(said: str | None) -> str:
    """A sentence without full stop on why a job waits, with what Batch said; empty when it said nothing.

    >>> why_waits("CAPACITY:INSUFFICIENT_INSTANCE_CAPACITY - Service cannot fulfill the capacity request")
    'AWS has no such instances left at the moment (Service cannot fulfill the capacity request)'
    """
    text = (said or "").strip()
    sentence = _look_up(WAITS, text)
    if not sentence:
        return text
    key = next(key for key in WAITS if text.startswith(key))
    more = text[len(key) :].strip(" -:.")
    return f"{sentence} ({more})" if more else f"{sentence} ({key})"


def _look_up(table: dict[str, str], text: str) -> str | None:
    # What came before a colon may be the name of the container.
    bare = re.sub(r"^\S+: (?=\w+Error)", "", text)
    return next((sentence for key, sentence in table.items() if bare.startswith(key) or text.startswith(key)), None)
