"""An app as a PyTorchJob of Kubeflow's Training Operator 1: one role, whose replicas are the job's workers.

Workers alone, and no master: the operator numbers the pods of each of the two apart, and a template that all replicas
share knows its number only where they are of one kind. A job of workers is elastic to the operator, which gives the
first of them a name (``<job>-worker-0``), and says that the job has succeeded as soon as one of them has.
https://www.kubeflow.org/docs/components/trainer/legacy-v1/user-guides/pytorch/
"""

from __future__ import annotations

from torchx.errors import SpecError
from torchx.schedulers.kubernetes import pods, request
from torchx.schedulers.kubernetes.names import INDEX_LABEL, LABEL_QUEUE, MAIN_CONTAINER, Object
from torchx.schedulers.kubernetes.request import JobRules
from torchx.specs.api import AppDef

CONTAINER = "pytorch"
"""What the operator calls the container that trains; it refuses pods without."""
_HINT = "`-cfg kind=job` and `kind=jobset` can have it"


def render(app: AppDef, app_id: str, rules: JobRules) -> Object:
    """A PyTorchJob, whose pods are a template still; :func:`folded` makes of it what a cluster takes.

    Raises:
        SpecError: a PyTorchJob cannot be what the app asks for.
    """
    if len(app.roles) != 1:
        raise SpecError(f"a PyTorchJob has one role, and `{app.name}` has {len(app.roles)}", hint=_HINT)
    (role,) = app.roles
    if role.max_retries:
        raise SpecError(f"role `{role.name}`: a PyTorchJob counts restarts of all its pods together", hint=_HINT)
    labels = pods.role_labels(app, 0, app_id, session=rules.session)
    number = f"metadata.labels['{INDEX_LABEL}']"
    template = request.shared_template(role, rules, app_id, labels, rank0=f"{app_id}-worker-0", number=number)
    if rules.deadline_s is not None:  # the operator's own holds for pods alone that are started again
        own = template["spec"].get("activeDeadlineSeconds", rules.deadline_s)
        template["spec"]["activeDeadlineSeconds"] = min(rules.deadline_s, own)
    metadata = request.metadata_of(
        app_id, rules, pods.object_labels(app, app_id, session=rules.session), rules.metadata
    )
    policy: Object = {"cleanPodPolicy": "None"}
    if rules.ttl_s is not None:
        policy["ttlSecondsAfterFinished"] = rules.ttl_s
    if rules.local_queue:
        metadata["labels"][LABEL_QUEUE] = rules.local_queue
        policy["suspend"] = True
    least = role.num_replicas if role.min_replicas is None else role.min_replicas
    spec = {
        "runPolicy": policy,
        "elasticPolicy": {"minReplicas": least, "maxReplicas": role.num_replicas, "rdzvBackend": "c10d"},
        "pytorchReplicaSpecs": {"Worker": {"replicas": role.num_replicas, "restartPolicy": "Never"}},
        "template": template,
    }
    return {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": metadata, "spec": spec}


def folded(objects: list[Object]) -> list[Object]:
    """The objects, with the template where the operator wants it."""
    job, *others = objects
    spec = dict(job["spec"])
    template = spec.pop("template")
    pod = {key: value for key, value in template["spec"].items() if key != "restartPolicy"}
    pod["containers"] = [
        {**one, "name": CONTAINER} if one["name"] == MAIN_CONTAINER else one for one in pod["containers"]
    ]
    workers = {**spec["pytorchReplicaSpecs"]["Worker"], "template": {**template, "spec": pod}}
    return [{**job, "spec": {**spec, "pytorchReplicaSpecs": {"Worker": workers}}}, *others]
