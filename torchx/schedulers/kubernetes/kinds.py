"""An app as objects of the Kubernetes API, of the kind that was chosen.

==============  ===========================================================================================
``job``         ``batch/v1`` Jobs, one per role, whose pods are numbered (Indexed), and a headless Service that gives
                every pod a name; the Service owns the Jobs
``jobset``      one ``jobset.x-k8s.io/v1alpha2`` JobSet with a replicated Job per role
``volcano``     one ``batch.volcano.sh/v1alpha1`` Job with a task per replica
``kubeflow``    one ``trainer.kubeflow.org/v1alpha1`` TrainJob, of one role
``pytorchjob``  one ``kubeflow.org/v1`` PyTorchJob, of one role
==============  ===========================================================================================

All but those of Volcano have one template for all replicas of a role, so that the request does not grow with them.
"""

from __future__ import annotations

from collections.abc import Mapping

from torchx.errors import SpecError
from torchx.schedulers.kubernetes import attempts, names, request, trainjob
from torchx.schedulers.kubernetes.inline_code import objects_of
from torchx.schedulers.kubernetes.names import JOB, JOBSET, KUBEFLOW, MAIN_CONTAINER, PYTORCH, VOLCANO, Object
from torchx.schedulers.kubernetes.pods import JobRules
from torchx.specs.api import AppDef, RetryPolicy, Role
from torchx.util.records import replace

INDEXED_SINCE = (1, 22)
"""Since then a Job numbers its pods; before, each replica is a Job of its own."""


def render(kind: str, app: AppDef, app_id: str, rules: JobRules) -> list[Object]:
    """The objects of an app, the one that owns the others first.

    Args:
        app_id: name of the owner; at most :data:`~torchx.schedulers.kubernetes.request.MAX_APP_ID` characters.

    Raises:
        SpecError: the kind cannot be what a role asks for.
    """
    owner, *others = _RENDERERS[kind](app, app_id, rules)
    return [owner, *objects_of(rules.codes, owner["metadata"]), *others]


# -- plain Jobs ---------------------------------------------------------------------------------------


def _jobs(app: AppDef, app_id: str, rules: JobRules) -> list[Object]:
    """A headless Service and the Jobs. See https://kubernetes.io/docs/concepts/workloads/controllers/job/"""
    objects = [request.headless_service(app, app_id, rules)]
    for role, name, labels in request.each_role(app, app_id, rules):
        job_name = f"{app_id}-{name}"
        if rules.retries is attempts.OURS:
            labels[names.LABEL_ATTEMPT] = "1"
        if rules.version >= INDEXED_SINCE:
            template = request.shared_template(role, rules, app_id, labels, rank0=f"{job_name}-0.{app_id}")
            template["spec"]["subdomain"] = app_id
            objects.append(_job(job_name, role, rules, labels, template))
        else:
            objects += _separate_jobs(role, rules, app_id, job_name, labels)
    # A TTL takes each Job by itself: those of the other roles know all of the app.
    firsts = {item["metadata"]["labels"][names.LABEL_ROLE_INDEX]: item for item in reversed(objects[1:])}
    for item in firsts.values() if rules.opts.ttl_s is not None else objects[1:2]:
        item["metadata"]["annotations"].update(rules.metadata)
    return objects


def _job(name: str, role: Role, rules: JobRules, labels: Mapping[str, str], template: Object) -> Object:
    metadata, spec = request.metadata_of(name, rules, labels), _job_spec(role, rules, template)
    request.hold(metadata, spec, rules)
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec}


def _job_spec(role: Role, rules: JobRules, template: Object) -> Object:
    spec: Object = {
        "parallelism": role.num_replicas,
        "completions": role.num_replicas,
        "completionMode": "Indexed",
        **_limits(role, rules, template),
        "template": template,
    }
    if rules.opts.ttl_s is not None:
        spec["ttlSecondsAfterFinished"] = rules.opts.ttl_s
    if rules.opts.deadline_s is not None:
        spec["activeDeadlineSeconds"] = rules.opts.deadline_s
    return spec


def _limits(role: Role, rules: JobRules, template: Object) -> Object:
    """How often failed pods are replaced, and which do not count.

    A Job replaces single pods: a policy for the whole role or app comes to the same for torchelastic, whose other
    agents restart their workers when a new member joins.
    """
    if rules.retries is not None:
        return attempts.render(role, rules.retries, template)
    # A policy on failed pods, and limits for each index, are refused for pods whose containers are started again.
    never = template["spec"].get("restartPolicy") == "Never"
    found: Object = {}
    if never and rules.version >= names.FAILURE_POLICY_SINCE:
        # A pod that the cluster took away is replaced, and is no failure of the job's.
        found["podFailurePolicy"] = {"rules": [{"action": "Ignore", "onPodConditions": attempts.DISRUPTED}]}
    spare = attempts.spare_of(role)
    if not spare and (role.retry_policy is not RetryPolicy.REPLICA or not role.max_retries):
        return {**found, "backoffLimit": role.max_retries}
    if not never or rules.version < names.PER_INDEX_SINCE:
        return {**found, "backoffLimit": role.max_retries * role.num_replicas + spare}
    # without `maxFailedIndexes`, the others would run to their ends after one has used up its retries
    return {**found, "backoffLimitPerIndex": role.max_retries, "maxFailedIndexes": spare}


def _separate_jobs(role: Role, rules: JobRules, app_id: str, job_name: str, labels: Mapping[str, str]) -> list[Object]:
    """A Job for each replica, for clusters older than 1.22, which do not number the pods of a Job."""
    jobs = []
    for k in range(role.num_replicas):
        own = {**labels, names.LABEL_REPLICA_ID: str(k)}
        template = request.template_of(role, rules, app_id, own, replica_id=str(k), rank0=f"{job_name}-0.{app_id}")
        template["spec"].update(hostname=f"{job_name}-{k}", subdomain=app_id)
        job = _job(f"{job_name}-{k}", role, rules, own, template)
        job["spec"].update(parallelism=1, completions=1)
        del job["spec"]["completionMode"]
        jobs.append(job)
    return jobs


# -- operators ----------------------------------------------------------------------------------------


def _jobset(app: AppDef, app_id: str, rules: JobRules) -> list[Object]:
    """A JobSet. See https://jobset.sigs.k8s.io/docs/reference/jobset.v1alpha2/"""
    replicated = []
    for role, name, labels in request.each_role(app, app_id, rules):
        # <jobset>-<replicated job>-<job>-<pod>.<subdomain>
        template = request.shared_template(role, rules, app_id, labels, rank0=f"{app_id}-{name}-0-0.{app_id}")
        spec = _job_spec(role, rules, template)
        if _whole_app(role):
            spec["backoffLimit"] = 0
        replicated.append({"name": name, "replicas": 1, "template": {"metadata": {"labels": labels}, "spec": spec}})
    spec = {
        "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True, "subdomain": app_id},
        "failurePolicy": {"maxRestarts": max((r.max_retries for r in app.roles if _whole_app(r)), default=0)},
        "replicatedJobs": replicated,
    }
    if rules.opts.deadline_s is not None:  # the only rule: what ends by it ran too long, and is not started again
        rule = {"name": "deadline", "action": "FailJobSet", "onJobFailureReasons": ["DeadlineExceeded"]}
        spec["failurePolicy"]["rules"] = [rule]
    metadata = request.metadata_of_app(app, app_id, rules, rules.metadata)
    request.hold(metadata, spec, rules)
    if rules.opts.ttl_s is not None:
        spec["ttlSecondsAfterFinished"] = rules.opts.ttl_s
    return [{"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": metadata, "spec": spec}]


def _whole_app(role: Role) -> bool:
    return not attempts.each_by_itself(role)


_RESTART = [{"event": "PodEvicted", "action": "RestartJob"}, {"event": "PodFailed", "action": "RestartJob"}]
RETRY_POLICIES: dict[str, list[dict[str, str]]] = {
    RetryPolicy.REPLICA: [],
    RetryPolicy.ROLE: _RESTART,
    RetryPolicy.APPLICATION: _RESTART,
}
"""What Volcano does when a pod fails; without policy it replaces the pod: https://volcano.sh/en/docs/vcjob/#policies"""


def volcano_job(app: AppDef, app_id: str, rules: JobRules) -> list[Object]:
    """One job of Volcano with a task for each replica, started as a gang. See https://volcano.sh/en/docs/vcjob/"""
    opts, tasks = rules.opts, []
    rules = replace(rules, opts=replace(opts, priority_class=None))  # that is the job's own
    for role, name, labels in request.each_role(app, app_id, rules):
        for k in range(role.num_replicas):
            own = {**labels, names.LABEL_REPLICA_ID: str(k)}
            rank0 = f"{app_id}-{name}-0-0.{app_id}"  # <job>-<task>-<index in the task>.<job>, by the plugin `svc`
            template = request.template_of(role, rules, app_id, own, replica_id=str(k), rank0=rank0)
            if opts.deadline_s is not None:
                template["spec"]["activeDeadlineSeconds"] = min(opts.deadline_s, rules.timeout_s or opts.deadline_s)
            task = {"name": f"{name}-{k}", "replicas": 1, "template": template}
            if role.max_retries:
                task.update(maxRetry=role.max_retries, policies=RETRY_POLICIES[role.retry_policy])
            # An elastic role starts, and goes on, with fewer.
            if role.min_replicas is not None and k >= role.min_replicas:
                task["minAvailable"] = 0
            tasks.append(task)
    spec: Object = {
        "schedulerName": "volcano",
        "plugins": {"svc": ["--publish-not-ready-addresses=true"], "env": []},
        "minAvailable": sum(min(r.num_replicas, r.min_replicas or r.num_replicas) for r in app.roles),
        "maxRetry": max(role.max_retries for role in app.roles),
        "tasks": tasks,
    }
    if not spec["maxRetry"] and all(role.min_replicas is None for role in app.roles):
        spec["policies"] = [{"event": "PodFailed", "action": "AbortJob"}]
    for key, value in (
        ("queue", opts.queue),
        ("priorityClassName", opts.priority_class),
        ("ttlSecondsAfterFinished", opts.ttl_s),
    ):
        if value is not None:
            spec[key] = value
    metadata = request.metadata_of_app(app, app_id, rules, rules.metadata)
    return [{"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "metadata": metadata, "spec": spec}]


_PYTORCH_CONTAINER = "pytorch"
"""What Training Operator calls the container that trains; it refuses pods without."""
_PYTORCH_HINT = "`-cfg kind=job` and `kind=jobset` can have it"


def _pytorchjob(app: AppDef, app_id: str, rules: JobRules) -> list[Object]:
    """A PyTorchJob of Kubeflow's Training Operator 1: one role, whose replicas are the job's workers.

    Workers alone, and no master: the operator numbers the pods of each of the two apart, and a template that all
    replicas share knows its number only where they are of one kind. A job of workers is elastic to the operator, which
    gives the first of them a name (``<job>-worker-0``), and says that the job has succeeded as soon as one of them has.
    https://www.kubeflow.org/docs/components/trainer/legacy-v1/user-guides/pytorch/

    Raises:
        SpecError: a PyTorchJob cannot be what the app asks for.
    """
    if len(app.roles) != 1:
        raise SpecError(f"a PyTorchJob has one role, and `{app.name}` has {len(app.roles)}", hint=_PYTORCH_HINT)
    ((role, _, labels),) = request.each_role(app, app_id, rules)
    if role.max_retries:
        raise SpecError(
            f"role `{role.name}`: a PyTorchJob counts restarts of all its pods together", hint=_PYTORCH_HINT
        )
    number = f"metadata.labels['{names.INDEX_LABEL}']"
    template = request.shared_template(role, rules, app_id, labels, rank0=f"{app_id}-worker-0", number=number)
    pod = template["spec"]
    pod.pop("restartPolicy", None)
    main = next(container for container in pod["containers"] if container["name"] == MAIN_CONTAINER)
    main["name"] = _PYTORCH_CONTAINER
    if rules.opts.deadline_s is not None:  # the operator's own holds for pods alone that are started again
        pod["activeDeadlineSeconds"] = min(
            rules.opts.deadline_s, pod.get("activeDeadlineSeconds", rules.opts.deadline_s)
        )
    policy: Object = {"cleanPodPolicy": "None"}
    if rules.opts.ttl_s is not None:
        policy["ttlSecondsAfterFinished"] = rules.opts.ttl_s
    metadata = request.metadata_of_app(app, app_id, rules, rules.metadata)
    request.hold(metadata, policy, rules)
    least = role.num_replicas if role.min_replicas is None else role.min_replicas
    workers = {"replicas": role.num_replicas, "restartPolicy": "Never", "template": template}
    spec = {
        "runPolicy": policy,
        "elasticPolicy": {"minReplicas": least, "maxReplicas": role.num_replicas, "rdzvBackend": "c10d"},
        "pytorchReplicaSpecs": {"Worker": workers},
    }
    return [{"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": metadata, "spec": spec}]


_RENDERERS = {JOB: _jobs, JOBSET: _jobset, VOLCANO: volcano_job, KUBEFLOW: trainjob.render, PYTORCH: _pytorchjob}
