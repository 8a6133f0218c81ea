"""Names by which jobs and what belongs to them are known in a cluster: kinds, labels, annotations."""

from __future__ import annotations

import re
from typing import Any

Object = dict[str, Any]
"""What the API takes and answers: an object, or a part of one."""

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
"""What owns the pods, of each kind of job: a key of :data:`torchx.schedulers.kubernetes.client.PLURALS`."""

FAILURE_POLICY_SINCE = (1, 26)
PER_INDEX_SINCE = (1, 29)

V1BETA1 = "mcad.ibm.com/v1beta1"
V1BETA2 = "workload.codeflare.dev/v1beta2"

LABEL_VERSION = "torchx.pytorch.org/version"
LABEL_APP_NAME = "torchx.pytorch.org/app-name"
LABEL_ROLE_INDEX = "torchx.pytorch.org/role-index"
LABEL_ROLE_NAME = "torchx.pytorch.org/role-name"
LABEL_FOREIGN_ROLE = "torchx.pytorch.org/foreign-role"
"""Of a pod that torchx did not make, which gets labels here and not in the cluster: see :mod:`.foreign`."""
LABEL_REPLICA_ID = "torchx.pytorch.org/replica-id"
LABEL_ATTEMPT = "torchx.pytorch.org/attempt"
"""Of a job whose attempts are made by whoever looks at it: which one it is, from 1. See :mod:`.next_attempts`."""
LABEL_SESSION = "torchx.pytorch.org/session"
LABEL_KUBE_APP_NAME = "app.kubernetes.io/name"
LABEL_ORGANIZATION = "app.kubernetes.io/managed-by"
LABEL_UNIQUE_NAME = "app.kubernetes.io/instance"
LABEL_INSTANCE_TYPE = "node.kubernetes.io/instance-type"
LABEL_QUEUE = "kueue.x-k8s.io/queue-name"
ORGANIZATION = "torchx.pytorch.org"

ANNOTATION_ISTIO_SIDECAR = "sidecar.istio.io/inject"
ANNOTATION_APP = "torchx.pytorch.org/appdef"
"""On the first object that owns pods: the app's definition as JSON, secrets masked."""
ANNOTATION_SUBMISSION = "torchx.pytorch.org/submission"
"""On everything: which submission made it. A lost answer is told from a name that somebody else took by it."""
ANNOTATION_CANCELLED = "torchx.pytorch.org/cancelled"
"""Set when a person cancelled the job: a suspended Job may also be one that waits in a queue."""
ANNOTATION_ATTEMPTS = "torchx.pytorch.org/attempts"
"""On the first Job of a later attempt: those before it, a line each."""
ANNOTATION_STOPPED = "torchx.pytorch.org/stopped"
"""On a Job that was suspended because that of another role had failed: when."""
INDEX_ANNOTATION = "batch.kubernetes.io/job-completion-index"
"""Set by the Job controller on pods of an Indexed Job, since 1.21."""
INDEX_LABEL = "training.kubeflow.org/replica-index"
"""Set by Training Operator on pods of a PyTorchJob."""
ANNOTATION_SWEEP = "torchx.pytorch.org/sweep"
"""On the Job of a sweep: how many tasks run at a time."""
ANNOTATION_SKIPPED = "torchx.pytorch.org/skipped"
"""On that Job: the tasks that were cancelled one by one."""
RETRY_LIMIT = "workload.codeflare.dev.appwrapper/retryLimit"

MAIN_CONTAINER = "main"
"""Name of the container that runs the role: what an overlay calls it."""


def label_value(text: str) -> str:
    """``text`` as the value of a label: at most 63 characters, with letters and digits at both ends.

    https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/#syntax-and-character-set

    >>> label_value("a b/ü c")
    'a-b-c'
    """
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", text).strip("-._")[:63].rstrip("-._")


def labels_of(item: Object) -> dict[str, Any]:
    """The labels of an object."""
    return (item.get("metadata") or {}).get("labels") or {}


def annotations_of(item: Object) -> dict[str, Any]:
    """The annotations of an object."""
    return (item.get("metadata") or {}).get("annotations") or {}
