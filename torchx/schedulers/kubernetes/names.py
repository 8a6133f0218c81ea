"""Names of kinds, labels and annotations."""

from __future__ import annotations

import re
import zlib
from typing import Any

Object = dict[str, Any]
"""An object of the API, or a part of one."""

JOB = "job"
JOBSET = "jobset"
VOLCANO = "volcano"
KUBEFLOW = "kubeflow"
PYTORCH = "pytorchjob"
APPWRAPPER = "appwrapper"
OLD_APPWRAPPER = "appwrapper-v1beta1"

OWNERS = {
    JOB: "Job",
    JOBSET: "JobSet",
    VOLCANO: "VolcanoJob",
    KUBEFLOW: "TrainJob",
    PYTORCH: "PyTorchJob",
    APPWRAPPER: "AppWrapper",
    OLD_APPWRAPPER: "AppWrapperV1Beta1",
}
"""Kind of a job -> kind of the owner of its pods, a key of :data:`torchx.schedulers.kubernetes.client.PLURALS`."""

HOSTS = {JOB: "{role}-{k}", JOBSET: "{role}-0-{k}", VOLCANO: "{role}-{k}-0"}
"""Kind of a job -> host name of a replica, after the job's name and a dash. JobSet and Volcano number Jobs and pods."""

FAILURE_POLICY_SINCE = (1, 26)
PER_INDEX_SINCE = (1, 29)

V1BETA1 = "mcad.ibm.com/v1beta1"
V1BETA2 = "workload.codeflare.dev/v1beta2"

LABEL_VERSION = "torchx.pytorch.org/version"
LABEL_APP_NAME = "torchx.pytorch.org/app-name"
LABEL_ROLE_INDEX = "torchx.pytorch.org/role-index"
LABEL_ROLE_NAME = "torchx.pytorch.org/role-name"
LABEL_REPLICA_ID = "torchx.pytorch.org/replica-id"
LABEL_ATTEMPT = "torchx.pytorch.org/attempt"
"""On a Job whose retries torchx creates: the number of the attempt, from 1. See :mod:`.our_retries`."""
LABEL_SESSION = "torchx.pytorch.org/session"
LABEL_KUBE_APP_NAME = "app.kubernetes.io/name"
LABEL_ORGANIZATION = "app.kubernetes.io/managed-by"
LABEL_UNIQUE_NAME = "app.kubernetes.io/instance"
LABEL_INSTANCE_TYPE = "node.kubernetes.io/instance-type"
LABEL_QUEUE = "kueue.x-k8s.io/queue-name"
ORGANIZATION = "torchx.pytorch.org"
SELECTOR = f"{LABEL_ORGANIZATION}={ORGANIZATION}"
"""Label selector of all objects of torchx."""

ANNOTATION_ISTIO_SIDECAR = "sidecar.istio.io/inject"
ANNOTATION_APP = "torchx.pytorch.org/appdef"
"""On the first object that owns pods: the app's definition as JSON, with secrets masked."""
ANNOTATION_SUBMISSION = "torchx.pytorch.org/submission"
"""On all objects: the id of the submission, by which a retry after a lost response recognizes its own objects."""
ANNOTATION_CANCELLED = "torchx.pytorch.org/cancelled"
"""When a user cancelled the job. It distinguishes a cancelled Job from one that is suspended in a queue."""
ANNOTATION_ATTEMPTS = "torchx.pytorch.org/attempts"
"""On the first Job of a later attempt: the previous attempts, a line each."""
ANNOTATION_STOPPED = "torchx.pytorch.org/stopped"
"""When a Job was suspended because the Job of another role had failed."""
INDEX_ANNOTATION = "batch.kubernetes.io/job-completion-index"
"""Set by the Job controller on pods of an Indexed Job, since 1.21."""
INDEX_LABEL = "training.kubeflow.org/replica-index"
"""Set by Training Operator on pods of a PyTorchJob."""
ANNOTATION_SWEEP = "torchx.pytorch.org/sweep"
"""On the Job of a sweep: the maximum number of tasks that run at a time."""
ANNOTATION_PACK = "torchx.pytorch.org/pack"
"""On the Job of a sweep and its pods, if a pod runs several tasks: how many, and the number of all tasks."""
ANNOTATION_SKIPPED = "torchx.pytorch.org/skipped"
"""On the Job of a sweep: the numbers of the tasks that were cancelled separately."""
RETRY_LIMIT = "workload.codeflare.dev.appwrapper/retryLimit"
FAILURE_GRACE = "workload.codeflare.dev.appwrapper/failureGracePeriodDuration"
"""How long a pod of an AppWrapper may be failed before the AppWrapper is."""
DELETION_GRACE = "workload.codeflare.dev.appwrapper/deletionOnFailureGracePeriodDuration"
"""How long the pods of a failed AppWrapper are kept, with their exit codes and logs."""

MAIN_CONTAINER = "main"
"""Name of the container that runs the role."""
WAITER = "wait"
"""Name of the init container that waits for other roles."""
PYTORCH_CONTAINER = "pytorch"
"""The name that Training Operator requires for it."""
NODE = "node"
"""Trainer's name of the replicated job that trains, and of its container."""


def host(kind: str, app_id: str, role: str, k: int | str) -> str:
    """Return the name by which other pods reach a replica, in the network of the job.

    >>> host(JOBSET, "train-x1", "server", 2)
    'train-x1-server-0-2.train-x1'
    """
    return f"{app_id}-{HOSTS[kind].format(role=role, k=k)}.{app_id}"


def label_value(text: str) -> str:
    """Convert ``text`` to a valid label value: at most 63 characters, with letters or digits at both ends.

    https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/#syntax-and-character-set

    >>> label_value("a b/ü c")
    'a-b-c'
    """
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", text).strip("-._")[:63].rstrip("-._")


def is_label(key: str, value: str) -> bool:
    """Return whether a cluster takes ``key`` and ``value`` as a label unchanged, and the key is nobody's own.

    >>> is_label("team", "nlp"), is_label("example.com/team", "nlp"), is_label("team", "a b"), is_label("a b", "c")
    (True, True, False, False)
    """
    prefix, slash, name = key.rpartition("/")
    reserved = re.search(r"(^|\.)(kubernetes\.io|k8s\.io|volcano\.sh|torchx\.pytorch\.org)$", prefix)
    domain = not slash or (len(prefix) <= 253 and re.fullmatch(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?", prefix))
    return bool(name) and label_value(name) == name and label_value(value) == value and bool(domain) and not reserved


def role_label(name: str) -> str:
    """Return the label of a role: its name, or if that is not a valid label value, one that differs for each name.

    >>> role_label("trainer"), role_label("a/1"), role_label("тренер")
    ('trainer', 'a-1-f5964052', '5ba4e307')
    """
    value = label_value(name)
    return value if value == name else f"{value[:54]}-{zlib.crc32(name.encode()):08x}".lstrip("-")


def labels_of(item: Object) -> dict[str, Any]:
    """Return the labels of an object."""
    return (item.get("metadata") or {}).get("labels") or {}


def annotations_of(item: Object) -> dict[str, Any]:
    """Return the annotations of an object."""
    return (item.get("metadata") or {}).get("annotations") or {}
