"""Renders an app as a TrainJob of Kubeflow Trainer, which runs one role in a training runtime of the cluster.

The runtime defines the pods. A TrainJob may override a few of their fields, with ``runtimePatches`` since Trainer 2.2,
with ``podTemplateOverrides`` in 2.1; other fields are rejected. Trainer creates a JobSet with an Indexed Job.
https://www.kubeflow.org/docs/components/trainer/
"""

from __future__ import annotations

from torchx.errors import BackendError, NotFoundError, SpecError
from torchx.schedulers.kubernetes import request
from torchx.schedulers.kubernetes.api.errors import unless_forbidden
from torchx.schedulers.kubernetes.client import KubeApi, path_of
from torchx.schedulers.kubernetes.names import MAIN_CONTAINER, NODE, Object
from torchx.schedulers.kubernetes.pods.specs import JobRules
from torchx.specs.api import AppDef, Role

RUNTIME = "torch-distributed"
"""The default runtime of Trainer."""

_MANAGER = "torchx.pytorch.org/launcher"
_NAMESPACED = "TrainingRuntime/"
_OVERRIDES = "podTemplateOverrides"
_PATCHES = "runtimePatches"
_BACKOFF = 6
"""The default of a Job's ``backoffLimit``."""

# Fields that a TrainJob may set, and fields that Trainer and its runtimes set.
_POD = {
    *("affinity", "imagePullSecrets", "nodeSelector", "schedulingGates", "securityContext", "serviceAccountName"),
    *("tolerations", "volumes"),
}
_POD_IMPLIED = {"containers", "restartPolicy"}
_TRAINER = ("image", "env")
_CONTAINER = {"securityContext", "volumeMounts"}
_CONTAINER_IMPLIED = {"name", "command", "resources", "ports", "terminationMessagePolicy", *_TRAINER}


def render(app: AppDef, app_id: str, rules: JobRules) -> list[Object]:
    """Render a TrainJob in the form of Trainer 2.2; SpecError for what a TrainJob does not support."""
    if len(app.roles) != 1:
        raise SpecError(f"a TrainJob has one role, and `{app.name}` has {len(app.roles)}", hint=_HINT)
    ((role, _, labels),) = request.each_role(app, app_id, rules)
    _check(role, rules)
    template = request.shared_template(role, rules, app_id, labels, rank0=f"{app_id}-{NODE}-0-0.{app_id}")
    pod = template["spec"]
    metadata = request.metadata_of_app(app, app_id, rules, rules.metadata)
    spec: Object = {"runtimeRef": _runtime(rules.opts.runtime or RUNTIME)}
    limits = [limit for limit in (rules.opts.deadline_s, pod.pop("activeDeadlineSeconds", None)) if limit]
    if limits:
        spec["activeDeadlineSeconds"] = min(limits)
    request.set_lifetime(metadata, spec, rules)
    main = _only_container(pod)
    first, *rest = main["command"]
    spec["trainer"] = {
        "numNodes": role.num_replicas,
        **{name: main[name] for name in _TRAINER},
        "command": [first],
        **({"args": rest} if rest else {}),
        "resourcesPerNode": main["resources"],
    }
    own = {key: value for key, value in main.items() if key in _CONTAINER}
    of_pod = {**{key: value for key, value in pod.items() if key in _POD}, "containers": [{"name": NODE, **own}]}
    job_patch = {"name": NODE, "template": {"spec": {"template": {"metadata": template["metadata"], "spec": of_pod}}}}
    runtime = {"template": {"spec": {"replicatedJobs": [job_patch]}}}
    spec[_PATCHES] = [{"manager": _MANAGER, "trainingRuntimeSpec": runtime}]
    return [{"apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "TrainJob", "metadata": metadata, "spec": spec}]


_HINT = "use `-cfg kind=jobset`, which every cluster with Trainer supports"


def _check(role: Role, rules: JobRules) -> None:
    cannot = {
        "retries, which its runtime defines": role.max_retries,
        "`min_replicas`": role.min_replicas is not None,
        "`ttl_s`": rules.opts.ttl_s is not None,
    }
    what = next((what for what, wanted in cannot.items() if wanted), None)
    if what is not None:
        raise SpecError(f"role `{role.name}`: a TrainJob does not support {what}", hint=_HINT)


def _runtime(name: str) -> Object:
    kind = "TrainingRuntime" if name.startswith(_NAMESPACED) else "ClusterTrainingRuntime"
    return {"apiGroup": "trainer.kubeflow.org", "kind": kind, "name": name.removeprefix(_NAMESPACED)}


def _only_container(pod: Object) -> Object:
    containers = pod["containers"]
    main: Object = next(c for c in containers if c["name"] == MAIN_CONTAINER)
    others = [f"spec.containers[{c['name']}]" for c in containers if c is not main]
    odd = [f"spec.{key}" for key in pod if key not in _POD | _POD_IMPLIED]
    odd += [f"spec.containers[main].{key}" for key in main if key not in _CONTAINER | _CONTAINER_IMPLIED]
    if others + odd:
        said = f"a TrainJob cannot set `{(others + odd)[0]}` of its pods, which its runtime defines"
        raise SpecError(said, hint=f"{_HINT}; or another runtime: `-cfg runtime=NAME`")
    return main


def fitted(api: KubeApi, job: Object) -> Object:
    """Return the TrainJob in the form that the cluster's version of Trainer supports; BackendError if it is too old.

    A dry run shows which fields the server keeps.
    """
    kept = api.create(job, dry_run=True, unknown_fields="Ignore")["spec"]
    if _PATCHES not in kept:
        job = _for_2_1(job)
        kept = api.create(job, dry_run=True, unknown_fields="Ignore")["spec"]
    if _OVERRIDES not in kept and _PATCHES not in kept:
        raise BackendError("the cluster's Kubeflow Trainer is older than 2.1", hint=_HINT)
    if "activeDeadlineSeconds" in job["spec"] and "activeDeadlineSeconds" not in kept:
        raise BackendError("the cluster's Kubeflow Trainer does not support time limits; this needs 2.2", hint=_HINT)
    return job


def restarts(api: KubeApi, job: Object) -> str:
    """Return how the runtime of a TrainJob restarts failed pods, as a sentence without full stop; empty if it does not,
    or we may not read it.
    """
    kind, name = (str(job["spec"]["runtimeRef"][key]) for key in ("kind", "name"))
    namespace = job["metadata"]["namespace"] if kind == "TrainingRuntime" else None
    try:
        runtime = unless_forbidden(lambda: api.get(path_of(kind, namespace, name)), None)
    except NotFoundError:  # the server has the last word
        return ""
    spec = (((runtime or {}).get("spec") or {}).get("template") or {}).get("spec") or {}
    inner = [job.get("template", {}).get("spec", {}) for job in spec.get("replicatedJobs") or () if job["name"] == NODE]
    ways = {
        "each failed pod": max((int(one.get("backoffLimit", _BACKOFF)) for one in inner), default=0),
        "all pods after a failure": int((spec.get("failurePolicy") or {}).get("maxRestarts") or 0),
    }
    said = [f"{what} up to {count} time{'s' * (count > 1)}" for what, count in ways.items() if count]
    return f"the runtime `{name}` restarts {', and '.join(said)}" if said else ""


def _for_2_1(job: Object) -> Object:
    spec = dict(job["spec"])
    (patch,) = spec.pop(_PATCHES)
    (of_job,) = patch["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
    pod = of_job["template"]["spec"]["template"]
    if "securityContext" in pod["spec"] or any("securityContext" in c for c in pod["spec"]["containers"]):
        raise BackendError("the cluster's Kubeflow Trainer cannot set `securityContext`; this needs 2.2", hint=_HINT)
    spec[_OVERRIDES] = [{"targetJobs": [{"name": of_job["name"]}], **pod}]
    return {**job, "spec": spec}
