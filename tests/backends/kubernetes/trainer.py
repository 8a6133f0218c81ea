"""Kubeflow Trainer, as far as a server needs it: TrainJobs with each field that 2.1 and 2.2 have, and no others.

Names of fields are those of the packages ``kubeflow-trainer-api`` 2.1.0 and 2.2.0, which are made of Trainer's schemas;
those of Training Operator's PyTorchJobs are of ``kubeflow-training`` 1.9.4. What Kubernetes itself defines (volumes,
affinity, variables) passes unchecked. Their controllers cannot be had here: a test plays them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.backends.kubernetes import cluster, operators

GROUP = "trainer.kubeflow.org"
PATH = f"apis/{GROUP}/v1alpha1"

_OPEN: dict[str, Any] = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
_OPENS = {"type": "array", "items": _OPEN}
_TEXT, _NUMBER, _FLAG = {"type": "string"}, {"type": "integer"}, {"type": "boolean"}
_TEXTS = {"type": "array", "items": _TEXT}
_MAP = {"type": "object", "additionalProperties": _TEXT}


def _object(*required: str, **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, **({"required": list(required)} if required else {})}


def _objects(*required: str, **properties: Any) -> dict[str, Any]:
    return {"type": "array", "items": _object(*required, **properties)}


_METADATA = _object(annotations=_MAP, labels=_MAP, name=_TEXT, namespace=_TEXT, finalizers=_TEXTS)
_RUNTIME = _object("name", apiGroup=_TEXT, kind=_TEXT, name=_TEXT)
_TRAINER = _object(
    args=_TEXTS,
    command=_TEXTS,
    env=_OPENS,
    image=_TEXT,
    numNodes=_NUMBER,
    numProcPerNode={"x-kubernetes-int-or-string": True},
    resourcesPerNode=_OPEN,
)
_COMMON = {
    "initializer": _OPEN,
    "managedBy": _TEXT,
    "runtimeRef": _RUNTIME,
    "suspend": _FLAG,
    "trainer": _TRAINER,
}


def _pod(**further: Any) -> dict[str, Any]:
    containers = _objects("name", env=_OPENS, name=_TEXT, volumeMounts=_OPENS, **further)
    return _object(
        affinity=_OPEN,
        containers=containers,
        initContainers=containers,
        imagePullSecrets=_OPENS,
        nodeSelector=_MAP,
        schedulingGates=_OPENS,
        serviceAccountName=_TEXT,
        tolerations=_OPENS,
        volumes=_OPENS,
        **further,
    )


def _patches() -> dict[str, Any]:
    template = _object(metadata=_METADATA, spec=_pod(securityContext=_OPEN))
    jobs = _objects("name", name=_TEXT, template=_object(metadata=_METADATA, spec=_object(template=template)))
    job_set = _object(metadata=_METADATA, spec=_object(replicatedJobs=jobs))
    return _objects("manager", manager=_TEXT, time=_TEXT, trainingRuntimeSpec=_object(template=job_set))


SPECS = {
    "2.1": _object(
        "runtimeRef",
        **_COMMON,
        annotations=_MAP,
        labels=_MAP,
        podTemplateOverrides=_objects("targetJobs", targetJobs=_objects(name=_TEXT), metadata=_METADATA, spec=_pod()),
    ),
    "2.2": _object("runtimeRef", **_COMMON, activeDeadlineSeconds=_NUMBER, runtimePatches=_patches()),
}


OPERATOR = "apis/kubeflow.org/v1"
_PYTORCH = _object(
    "pytorchReplicaSpecs",
    nprocPerNode=_TEXT,
    elasticPolicy=_object(
        **dict.fromkeys(("maxReplicas", "maxRestarts", "minReplicas", "nProcPerNode", "rdzvPort"), _NUMBER),
        **dict.fromkeys(("rdzvBackend", "rdzvHost", "rdzvId"), _TEXT),
        metrics=_OPENS,
        rdzvConf=_OPENS,
        standalone=_FLAG,
    ),
    runPolicy=_object(
        **dict.fromkeys(("activeDeadlineSeconds", "backoffLimit", "ttlSecondsAfterFinished"), _NUMBER),
        **dict.fromkeys(("cleanPodPolicy", "managedBy"), _TEXT),
        schedulingPolicy=_OPEN,
        suspend=_FLAG,
    ),
    pytorchReplicaSpecs={
        "type": "object",
        "additionalProperties": _object(replicas=_NUMBER, restartPolicy=_TEXT, template=_OPEN),
    },
)


@contextmanager
def served(version: str) -> Iterator[None]:
    """The cluster has TrainJobs of this version meanwhile."""
    row = {"group": GROUP, "version": "v1alpha1", "kind": "TrainJob", "plural": "trainjobs", "required": []}
    with _defined(row, SPECS[version]):
        yield


@contextmanager
def pytorch_served() -> Iterator[None]:
    """The cluster has PyTorchJobs meanwhile."""
    row = {"group": "kubeflow.org", "version": "v1", "kind": "PyTorchJob", "plural": "pytorchjobs", "required": []}
    with _defined(row, _PYTORCH):
        yield


@contextmanager
def _defined(row: dict[str, Any], spec: dict[str, Any]) -> Iterator[None]:
    definition = operators.definition(row)
    (served_version,) = definition["spec"]["versions"]
    served_version["schema"]["openAPIV3Schema"] = _object("spec", spec=spec, status=_OPEN)
    with operators.defined(definition):
        yield


def play_pytorch(jobs: Any, image: str = "") -> list[str]:
    """What Training Operator makes of the only PyTorchJob: its pods, by their names. Returns these."""
    (job,) = cluster.call("GET", jobs.path("pytorchjobs", group=OPERATOR))["items"]
    workers = job["spec"]["pytorchReplicaSpecs"]["Worker"]
    made = workers["template"]
    containers = [{**one, **({"image": image} if image else {})} for one in made["spec"]["containers"]]
    names = []
    for k in range(workers["replicas"]):
        names.append(f"{job['metadata']['name']}-worker-{k}")
        labels = {**made["metadata"]["labels"], "training.kubeflow.org/replica-index": str(k)}
        metadata = {"name": names[-1], "labels": labels, "annotations": made["metadata"]["annotations"]}
        pod = {**made["spec"], "containers": containers, "restartPolicy": workers["restartPolicy"]}
        cluster.call("POST", jobs.path("pods"), {"metadata": metadata, "spec": pod})
    return names


def play(jobs: Any, image: str = "") -> list[str]:
    """What Trainer, JobSet and the Job controller make of the only TrainJob: its pods. Returns their names.

    Args:
        image: of the pods; that of the TrainJob when empty.
    """
    (job,) = cluster.call("GET", jobs.path("trainjobs", group=PATH))["items"]
    spec, name = job["spec"], job["metadata"]["name"]
    if "runtimePatches" in spec:
        (of_job,) = spec["runtimePatches"][0]["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
        patch = of_job["template"]["spec"]["template"]
    else:
        (patch,) = spec["podTemplateOverrides"]
    trainer = spec["trainer"]
    (own,) = patch["spec"]["containers"]
    container = {**own, "image": image or trainer["image"], "command": trainer["command"], "args": trainer["args"]}
    container.update(env=trainer["env"], resources=trainer["resourcesPerNode"])
    names = []
    for k in range(trainer["numNodes"]):
        names.append(f"{name}-node-0-{k}-abcde")
        annotations = {**patch["metadata"]["annotations"], "batch.kubernetes.io/job-completion-index": str(k)}
        metadata = {"name": names[-1], "labels": patch["metadata"]["labels"], "annotations": annotations}
        pod = {**patch["spec"], "containers": [container], "restartPolicy": "Never"}
        cluster.call("POST", jobs.path("pods"), {"metadata": metadata, "spec": pod})
    return names
