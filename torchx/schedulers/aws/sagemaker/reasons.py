"""Maps SageMaker's statuses and reasons to states, sentences and classes: what a job waits for, and why it ended.

https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_DescribeTrainingJob.html
"""

from __future__ import annotations

from torchx.specs.api import AppState

JOB_STATE = {
    "InProgress": AppState.RUNNING,
    "Completed": AppState.SUCCEEDED,
    "Failed": AppState.FAILED,
    "Stopping": AppState.RUNNING,
    "Stopped": AppState.CANCELLED,
}

# Secondary statuses of InProgress jobs whose program does not run.
WAITS = {
    "Pending": "it waits for capacity",
    "Starting": "its instances are being prepared",
    "LaunchingMLInstances": "its instances are being launched",
    "PreparingTrainingStack": "its instances are being prepared",
    "Downloading": "its data is being downloaded",
    "DownloadingTrainingImage": "its image is being pulled",
    "Interrupted": "its spot instances were reclaimed, and it waits for others",
}

# Secondary statuses of Stopped jobs that reached a time limit.
TOO_LONG = {
    "MaxRuntimeExceeded": "it ran longer than `max_run`",
    "MaxWaitTimeExceeded": "it waited and ran longer than `max_wait`",
}

# Prefix of FailureReason -> a sentence and a class:
# https://docs.aws.amazon.com/sagemaker/latest/dg/model-train-storage.html and the guide to troubleshooting
FAILURES = {
    "AlgorithmError": ("", "error"),
    "CapacityError": ("AWS has no such instances left at the moment", "quota"),
    "InternalServerError": ("SageMaker failed", "node"),
    "ClientError": ("SageMaker cannot run such a job", "error"),
}


def why_failed(secondary: str, reason: str) -> tuple[str, str]:
    """Why a job failed: a sentence without full stop, with SageMaker's reason, and the class of the cause.

    >>> why_failed("Failed", "CapacityError: Unable to provision requested ML compute capacity")[1]
    'quota'
    >>> why_failed("MaxRuntimeExceeded", "")
    ('it ran longer than `max_run`', 'timeout')
    """
    reason = " ".join(reason.split())
    if secondary in TOO_LONG:
        sentence, kind = TOO_LONG[secondary], "timeout"
    else:
        sentence, kind = next((row for key, row in FAILURES.items() if reason.startswith(key)), ("", ""))
    return (f"{sentence} ({reason})" if sentence and reason else sentence or reason), kind
