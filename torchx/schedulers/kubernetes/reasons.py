"""States and reasons of Kubernetes and its operators -> torchx's states, classes of causes, and sentences."""

from __future__ import annotations

from torchx.specs.api import AppState

# -- states -----------------------------------------------------------------------------------------------

# https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/#pod-phase
POD_PHASES = {
    "Pending": AppState.PENDING,
    "Running": AppState.RUNNING,
    "Succeeded": AppState.SUCCEEDED,
    "Failed": AppState.FAILED,
    "Unknown": AppState.UNKNOWN,
}
# https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/job-v1/#JobStatus
# https://jobset.sigs.k8s.io/docs/reference/jobset.v1alpha2/, https://www.kubeflow.org/docs/components/trainer/
CONDITIONS = {
    "Failed": AppState.FAILED,
    "Complete": AppState.SUCCEEDED,  # a Job, a TrainJob
    "Completed": AppState.SUCCEEDED,  # a JobSet
    "Succeeded": AppState.SUCCEEDED,  # a PyTorchJob
}
FAILURE_TARGET = "FailureTarget"
"""Condition of a Job that will have the condition ``Failed`` after its last pod has ended; since 1.31."""
# https://volcano.sh/en/docs/vcjob/#status
VOLCANO_PHASES = {
    "Pending": AppState.PENDING,
    "Running": AppState.RUNNING,
    "Restarting": AppState.RUNNING,
    "Completing": AppState.RUNNING,
    "Completed": AppState.SUCCEEDED,
    "Failed": AppState.FAILED,
    "Aborting": AppState.RUNNING,
    "Aborted": AppState.CANCELLED,
    "Terminating": AppState.RUNNING,
    "Terminated": AppState.CANCELLED,
}
# https://project-codeflare.github.io/appwrapper/arch-controller/ (phases)
APPWRAPPER_PHASES = {
    "Suspended": AppState.PENDING,
    "Resuming": AppState.PENDING,
    "Running": AppState.RUNNING,
    "Resetting": AppState.PENDING,
    "Suspending": AppState.PENDING,
    "Succeeded": AppState.SUCCEEDED,
    "Failed": AppState.FAILED,
    "Terminating": AppState.CANCELLED,
}
APPWRAPPER_STATES = {
    "Pending": AppState.PENDING,
    "Running": AppState.RUNNING,
    "RunningHoldCompletion": AppState.RUNNING,
    "Completed": AppState.SUCCEEDED,
    "Failed": AppState.FAILED,
    "Deleted": AppState.CANCELLED,
}
"""States of v1beta1 AppWrappers."""

# https://project-codeflare.github.io/appwrapper/arch-controller/ (conditions), and `QueueJobCondType` of v1beta1
APPWRAPPER_SPEAKS = {
    AppState.FAILED: ("Unhealthy", "Failed"),
    AppState.PENDING: ("Unhealthy", "Backoff", "PreemptCandidate", "HeadOfLine", "Queueing"),
}
"""State of an AppWrapper -> types of its conditions that say why, if they are True."""

# -- why something waits ------------------------------------------------------------------------------------

CREATING = "ContainerCreating"
WAITING = {
    CREATING: "its container is being created",
    "PodInitializing": "its init containers run",
    "ImagePullBackOff": "its image cannot be pulled",
    "ErrImagePull": "its image cannot be pulled",
    "ErrImageNeverPull": "its image is not on the node, and pulling it is disabled",
    "InvalidImageName": "the name of its image is invalid",
    "RegistryUnavailable": "the registry of its image does not answer",
    "SignatureValidationFailed": "the signature of its image is not valid",
    "CrashLoopBackOff": "its container fails again and again: Kubernetes is backing off before the next start",
    "CreateContainerConfigError": "its container cannot be configured",
    "CreateContainerError": "its container cannot be created",
    "RunContainerError": "its container cannot be started",
    "PostStartHookError": "its postStart hook failed",
}
"""Reason of a waiting container -> sentence."""

STUCK = frozenset(WAITING) - {CREATING, "PodInitializing"}
"""Reasons that require an action of the user."""

NO_PODS = ("FailedCreate", "FailedCreatePod", "JobCreationFailed", "FailedJobCreation", "PodGroupError")
"""Reasons of events whose message explains why pods are not created."""
NO_START = ("FailedMount", "FailedAttachVolume", "FailedCreatePodSandBox", "FailedMapVolume", "FailedPostStartHook")
"""Reasons of events whose message explains why the containers of a pod are not created."""

# -- why something ended ------------------------------------------------------------------------------------

ENDED = {
    "OOMKilled": ("oom", "used more memory than its limit, and was killed"),
    "ContainerCannotRun": ("image", "its program could not be started"),
    "StartError": ("image", "its program could not be started"),
    "ContainerStatusUnknown": ("node", "it is not known how its container ended: its node was lost or restarted"),
    "DeadlineExceeded": ("timeout", "ran longer than its deadline"),
    "Evicted": ("node", "was evicted from its node"),
    "NodeLost": ("node", "its node was lost"),
    "NodeAffinity": ("node", "no longer fits the labels of its node"),
    "NodeShutdown": ("node", "its node was shut down"),
    "Shutdown": ("node", "its node was shut down"),
    "Terminated": ("node", "its node was shut down"),
    "Preempting": ("preempted", "was preempted by a pod of the node itself"),
    "Preempted": ("preempted", "was preempted by a pod of higher priority"),
    "UnexpectedAdmissionError": ("node", "its node rejected it"),
    "OutOfcpu": ("node", "its node had no CPU left for it"),
    "OutOfmemory": ("node", "its node had no memory left for it"),
    "OutOfpods": ("node", "its node had room for no more pods"),
    # of the condition DisruptionTarget
    "PreemptionByScheduler": ("preempted", "was preempted by a pod of higher priority"),
    "DeletionByTaintManager": ("preempted", "was evicted from its node, which became unfit"),
    "EvictionByEvictionAPI": ("preempted", "was evicted, for example because its node is drained"),
    "DeletionByPodGC": ("node", "its node no longer exists"),
    "TerminationByKubelet": ("node", "was ended by its node, which shut down or lacked a resource"),
}
"""Reason of a failed pod or of a terminated container -> class of the cause, and sentence."""

TAKEN_AWAY = {
    "Preempted": "its pod was preempted by a pod of higher priority, and will be replaced",
    "TaintManagerEviction": "its pod was evicted from its node, which became unfit, and will be replaced",
    "Killing": "its pod was deleted, and will be replaced",
}
"""Reason of an event of a deleted pod -> sentence; the most specific reason comes first."""

NOT_STARTED = ("ContainerCannotRun", "StartError")
"""With these reasons, the termination message is from the container runtime instead of the program."""

WHY_FAILED = {
    "BackoffLimitExceeded": ("", "more pods failed than it retries"),
    "DeadlineExceeded": ("timeout", "it ran longer than its deadline"),
    "PodFailurePolicy": ("", "its pod failure policy ended it"),
    "FailedIndexes": ("", "some of its replicas failed"),
    "MaxFailedIndexesExceeded": ("", "more of its replicas failed than it tolerates"),
    "FailedJobs": ("", "one of its jobs failed"),
    "PyTorchJobFailed": ("", "some of its replicas failed"),
    "FoundFailedPods": ("", "some of its replicas failed"),
    "InsufficientPodsReady": ("", "not all of its pods were ready in time"),
    "FailJobSetFailurePolicyAction": ("timeout", "it ran longer than its deadline"),
    "ReachedMaxRestarts": ("", "it has reached its maximum number of restarts"),
}
"""Reason of the condition ``Failed`` of a Job or a JobSet -> class of the cause, and sentence."""

ONLY_PODS_FAILED = frozenset(
    (
        *("BackoffLimitExceeded", "FailedIndexes", "FailedJobs", "MaxFailedIndexesExceeded", "PodFailed"),
        *("PyTorchJobFailed", "FoundFailedPods"),
    )
)
"""Reasons that are omitted if a failed pod has its own."""


def waiting(reason: str, message: str) -> str:
    """Why a container waits, as a sentence.

    >>> waiting("InvalidImageName", "")
    'the name of its image is invalid (InvalidImageName)'
    """
    return _sentence(reason, WAITING.get(reason, ""), message)


def ended(reason: str, message: str) -> tuple[str, str]:
    """Why a pod or a container ended: class of the cause, and a sentence.

    >>> ended("Evicted", "The node was low on resource: memory.")
    ('oom', 'was evicted from its node (Evicted): The node was low on resource: memory.')
    """
    kind, known = ENDED.get(reason, ("", ""))
    if reason == "Evicted":
        kind = _evicted(message)
    return kind, _sentence(reason, known, message)


def why_failed(reason: str, message: str) -> tuple[str, str]:
    """Why a Job or a JobSet failed: class of the cause, and a sentence.

    >>> why_failed("DeadlineExceeded", "Job was active longer than specified deadline")
    ('timeout', 'it ran longer than its deadline (DeadlineExceeded)')
    """
    kind, known = WHY_FAILED.get(reason, ("", ""))
    return kind, f"{known} ({reason})" if known else f"{reason}: {message}".strip(": ")


def _evicted(message: str) -> str:
    # https://kubernetes.io/docs/concepts/scheduling-eviction/node-pressure-eviction/
    if "low on resource" in message:
        return "oom" if "resource: memory" in message else "node"
    return "quota" if " exceed" in message else "node"


def _sentence(reason: str, known: str, message: str) -> str:
    said = message.strip().partition("\n")[0].rpartition(" desc = ")[2]  # of an error that gRPC has wrapped
    return f"{known or 'reason'} ({reason}){f': {said}' if said else ''}"
