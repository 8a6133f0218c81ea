"""Renders an app as objects of the Kubernetes API; docs/kubernetes.md has a table of the kinds of jobs.

All kinds except Volcano have one pod template per role, so that the size of the request does not depend on the number
of replicas.
"""

from __future__ import annotations

from collections.abc import Mapping

from torchx.errors import BackendError, SpecError
from torchx.schedulers.kubernetes import chains, job_retries, names, request
from torchx.schedulers.kubernetes.client import KubeApi
from torchx.schedulers.kubernetes.kinds import trainjob
from torchx.schedulers.kubernetes.names import JOB, JOBSET, KUBEFLOW, PYTORCH, VOLCANO, Object, host
from torchx.schedulers.kubernetes.pods.facts import main_container
from torchx.schedulers.kubernetes.pods.order import order_for
from torchx.schedulers.kubernetes.pods.specs import JobRules
from torchx.schedulers.kubernetes.shipped_code import objects_of
from torchx.specs.api import AppDef, RetryPolicy, Role
from torchx.specs.wishes import Wishes
from torchx.util.records import replace

INDEXED_SINCE = (1, 22)
"""Since this version a Job has indexed pods; before, each replica is a separate Job."""


def render(kind: str, app: AppDef, app_id: str, rules: JobRules) -> list[Object]:
    """Return the objects of an app, the owner of the others first;
    SpecError if the kind does not support what it needs.
    """
    rules = replace(rules, order=order_for(kind, app, app_id, request.role_names(app)))
    if rules.order and (rules.retries is job_retries.BY_TORCHX or not rules.metadata):
        why = "its definition is too large" if rules.retries is not job_retries.BY_TORCHX else "torchx retries it"
        raise SpecError(f"roles of `{app.name}` cannot wait for each other: {why}", hint=_ORDER_HINT)
    owner, *others = _RENDERERS[kind](app, app_id, rules)
    services = rules.order.services(owner["metadata"]) if rules.order else []
    return [owner, *objects_of(rules.codes, owner["metadata"]), *services, *others]


_ORDER_HINT = "shorten arguments and environment, or omit rules of `--retry` that the cluster does not support"
"""The definition, an annotation, says in which order the roles are."""


def check_claims(api: KubeApi, item: Object) -> None:
    """Raise BackendError if the cluster's definition of a kind lacks the claims of its pods, which it would drop."""
    kept = api.create(item, dry_run=True, unknown_fields="Ignore")
    if _claims(kept) != _claims(item):
        raise BackendError(
            f"the cluster's definition of {item['kind']} is too old for `claims`, and would drop them",
            hint="use `-cfg kind=job`, or a newer release of its operator",
        )


def without_depends_on(api: KubeApi, item: Object) -> Object:
    """Return a JobSet as the cluster's version takes it: without ``dependsOn`` if it lacks that, or has a lower limit.

    The pods of later roles wait by themselves, too.
    """
    asked = item["spec"]["replicatedJobs"]
    parts = [{key: value for key, value in part.items() if key != "dependsOn"} for part in asked]
    if parts == asked:
        return item
    try:
        kept = api.create(item, dry_run=True, unknown_fields="Ignore")["spec"]["replicatedJobs"]
    except BackendError:  # if it has another reason, the next dry run says so
        kept = []
    if [part.get("dependsOn") for part in kept] == [part.get("dependsOn") for part in asked]:
        return item
    return {**item, "spec": {**item["spec"], "replicatedJobs": parts}}


def _claims(item: object) -> list[object]:
    """Return all claims within an object."""
    values = item.values() if isinstance(item, dict) else item if isinstance(item, list) else ()
    own = item.get("resourceClaims") if isinstance(item, dict) else None
    return [*([own] if own else []), *(one for value in values for one in _claims(value))]


# -- plain Jobs ---------------------------------------------------------------------------------------


def _jobs(app: AppDef, app_id: str, rules: JobRules) -> list[Object]:
    """Return a headless Service and the Jobs. See https://kubernetes.io/docs/concepts/workloads/controllers/job/"""
    objects = [request.headless_service(app, app_id, rules)]
    for role, name, labels in request.each_role(app, app_id, rules):
        job_name = f"{app_id}-{name}"
        if rules.retries is job_retries.BY_TORCHX:
            labels[names.LABEL_ATTEMPT] = "1"
        if rules.version >= INDEXED_SINCE:
            template = request.shared_template(role, rules, app_id, labels, rank0=host(JOB, app_id, name, 0))
            template["spec"]["subdomain"] = app_id
            objects.append(_job(job_name, role, rules, labels, template))
        else:
            objects += _separate_jobs(role, rules, app_id, job_name, labels)
    if rules.retries is job_retries.BY_TORCHX and (policy := Wishes.of(app).retry) is not None and policy.total:
        for item in objects[1:]:
            chains.ask_for_checkpoint(item["spec"]["template"])
    # A TTL deletes each Job separately, so that each role needs the definition of the app.
    firsts = {item["metadata"]["labels"][names.LABEL_ROLE_INDEX]: item for item in reversed(objects[1:])}
    for item in firsts.values() if rules.opts.ttl_s is not None else objects[1:2]:
        item["metadata"]["annotations"].update(rules.metadata)
    return objects


def _job(name: str, role: Role, rules: JobRules, labels: Mapping[str, str], template: Object) -> Object:
    metadata, spec = request.metadata_of(name, rules, labels), _job_spec(role, rules, template)
    request.set_lifetime(metadata, spec, rules)
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec}


def _job_spec(role: Role, rules: JobRules, template: Object) -> Object:
    spec: Object = {
        "parallelism": role.num_replicas,
        "completions": role.num_replicas,
        "completionMode": "Indexed",
        **_limits(role, rules, template),
        "template": template,
    }
    if rules.opts.deadline_s is not None:
        spec["activeDeadlineSeconds"] = rules.opts.deadline_s
    return spec


def _limits(role: Role, rules: JobRules, template: Object) -> Object:
    """Return the limits of a Job for failed pods.

    A Job replaces single pods. For torchelastic this is equivalent to restarting the whole role or app, because the
    other agents restart their workers when a new member joins.
    """
    if rules.retries is not None:
        return job_retries.render(role, rules.retries, template)
    # Pod failure policies and limits per index require this restart policy.
    never = template["spec"].get("restartPolicy") == "Never"
    found: Object = {}
    if never and rules.version >= names.FAILURE_POLICY_SINCE:
        # A pod that the cluster disrupted is replaced and does not count as failed.
        found["podFailurePolicy"] = {"rules": [{"action": "Ignore", "onPodConditions": job_retries.DISRUPTED}]}
    spare = job_retries.spare_of(role)
    if not spare and (role.retry_policy is not RetryPolicy.REPLICA or not role.max_retries):
        return {**found, "backoffLimit": role.max_retries}
    if not never or rules.version < names.PER_INDEX_SINCE:
        return {**found, "backoffLimit": role.max_retries * role.num_replicas + spare}
    # without `maxFailedIndexes`, the other replicas would run on after one has used up its retries
    return {**found, "backoffLimitPerIndex": role.max_retries, "maxFailedIndexes": spare}


def _separate_jobs(role: Role, rules: JobRules, app_id: str, job_name: str, labels: Mapping[str, str]) -> list[Object]:
    """Return a Job for each replica, for clusters older than 1.22, which have no Indexed Jobs."""
    jobs, rank0 = [], f"{job_name}-0.{app_id}"
    for k in range(role.num_replicas):
        own = {**labels, names.LABEL_REPLICA_ID: str(k)}
        template = request.template_of(role, rules, app_id, own, replica_id=str(k), rank0=rank0)
        template["spec"].update(hostname=f"{job_name}-{k}", subdomain=app_id)
        job = _job(f"{job_name}-{k}", replace(role, num_replicas=1), rules, own, template)
        del job["spec"]["completionMode"]
        jobs.append(job)
    return jobs


# -- operators ----------------------------------------------------------------------------------------


def _jobset(app: AppDef, app_id: str, rules: JobRules) -> list[Object]:
    """Return a JobSet. See https://jobset.sigs.k8s.io/docs/reference/jobset.v1alpha2/"""
    replicated = []
    for role, name, labels in request.each_role(app, app_id, rules):
        template = request.shared_template(role, rules, app_id, labels, rank0=host(JOBSET, app_id, name, 0))
        spec = _job_spec(role, rules, template)
        if not job_retries.each_by_itself(role):
            spec["backoffLimit"] = 0
        part = {"name": name, "replicas": 1, "template": {"metadata": {"labels": labels}, "spec": spec}}
        if rules.order and (depends := rules.order.depends_on(role)):
            part["dependsOn"] = depends
        replicated.append(part)
    restarts = max((role.max_retries for role in app.roles if not job_retries.each_by_itself(role)), default=0)
    spec = {
        "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True, "subdomain": app_id},
        "failurePolicy": {"maxRestarts": restarts},
        "replicatedJobs": replicated,
    }
    if rules.order:
        spec["replicatedJobs"] = rules.order.sorted(replicated)
        if ending := rules.order.ending():
            spec["successPolicy"] = {"operator": "Any", "targetReplicatedJobs": ending}
    if rules.opts.deadline_s is not None:  # do not restart the JobSet after its deadline
        rule = {"name": "deadline", "action": "FailJobSet", "onJobFailureReasons": ["DeadlineExceeded"]}
        spec["failurePolicy"]["rules"] = [rule]
    metadata = request.metadata_of_app(app, app_id, rules, rules.metadata)
    request.set_lifetime(metadata, spec, rules)
    return [{"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": metadata, "spec": spec}]


_RESTART = [{"event": "PodEvicted", "action": "RestartJob"}, {"event": "PodFailed", "action": "RestartJob"}]
RETRY_POLICIES: dict[str, list[dict[str, str]]] = {
    RetryPolicy.REPLICA: [],
    RetryPolicy.ROLE: _RESTART,
    RetryPolicy.APPLICATION: _RESTART,
}
"""Volcano's policies for failed pods; the default replaces the pod: https://volcano.sh/en/docs/vcjob/#policies"""


def volcano_job(app: AppDef, app_id: str, rules: JobRules) -> list[Object]:
    """Return a Volcano job with a task for each replica, started as a gang. See https://volcano.sh/en/docs/vcjob/"""
    opts, tasks = rules.opts, []
    rules = replace(rules, opts=replace(opts, priority_class=None))  # the job has it, not its pods
    for role, name, labels in request.each_role(app, app_id, rules):
        for k in range(role.num_replicas):
            own = {**labels, names.LABEL_REPLICA_ID: str(k)}
            rank0 = host(VOLCANO, app_id, name, 0)  # by the plugin `svc`
            template = request.template_of(role, rules, app_id, own, replica_id=str(k), rank0=rank0)
            _limit(template["spec"], opts.deadline_s)
            task: Object = {"name": f"{name}-{k}", "replicas": 1, "template": template}
            if role.max_retries:
                task.update(maxRetry=role.max_retries, policies=RETRY_POLICIES[role.retry_policy])
            if rules.order and name in rules.order.ending():
                task["policies"] = [*task.get("policies", ()), {"event": "TaskCompleted", "action": "CompleteJob"}]
            # An elastic role can run without these.
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


def _limit(pod: Object, deadline_s: int | None) -> None:
    """Apply the deadline of a job to each pod, for kinds without a deadline of their own."""
    if deadline_s is not None:
        pod["activeDeadlineSeconds"] = min(deadline_s, pod.get("activeDeadlineSeconds", deadline_s))


_PYTORCH_HINT = "use `-cfg kind=job` or `kind=jobset`"


def _pytorchjob(app: AppDef, app_id: str, rules: JobRules) -> list[Object]:
    """Return a PyTorchJob of Kubeflow's Training Operator 1: one role, whose replicas are the job's workers.

    There is no master, because the operator numbers masters and workers separately, and all replicas share a template.
    The operator treats a job without master as elastic: the first worker has a DNS name (``<job>-worker-0``), and the
    job has succeeded as soon as one worker has.
    https://www.kubeflow.org/docs/components/trainer/legacy-v1/user-guides/pytorch/
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
    main_container(pod["containers"])["name"] = names.PYTORCH_CONTAINER
    _limit(pod, rules.opts.deadline_s)  # the operator applies its own deadline only to restarted pods
    policy: Object = {"cleanPodPolicy": "None"}
    metadata = request.metadata_of_app(app, app_id, rules, rules.metadata)
    request.set_lifetime(metadata, policy, rules)
    least = role.num_replicas if role.min_replicas is None else role.min_replicas
    workers = {"replicas": role.num_replicas, "restartPolicy": "Never", "template": template}
    spec = {
        "runPolicy": policy,
        "elasticPolicy": {"minReplicas": least, "maxReplicas": role.num_replicas, "rdzvBackend": "c10d"},
        "pytorchReplicaSpecs": {"Worker": workers},
    }
    return [{"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": metadata, "spec": spec}]


_RENDERERS = {JOB: _jobs, JOBSET: _jobset, VOLCANO: volcano_job, KUBEFLOW: trainjob.render, PYTORCH: _pytorchjob}
