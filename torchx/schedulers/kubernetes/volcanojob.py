"""An app as one job of Volcano, with a task for each replica, started as a gang."""

from __future__ import annotations

from torchx.schedulers.kubernetes import pods, request
from torchx.schedulers.kubernetes.names import LABEL_REPLICA_ID, Object
from torchx.schedulers.kubernetes.request import JobRules
from torchx.specs.api import AppDef, RetryPolicy

_RESTART = [{"event": "PodEvicted", "action": "RestartJob"}, {"event": "PodFailed", "action": "RestartJob"}]
RETRY_POLICIES: dict[str, list[dict[str, str]]] = {
    RetryPolicy.REPLICA: [],
    RetryPolicy.ROLE: _RESTART,
    RetryPolicy.APPLICATION: _RESTART,
}
"""What Volcano does when a pod fails; without policy it replaces the pod: https://volcano.sh/en/docs/vcjob/#policies"""


def render(app: AppDef, app_id: str, rules: JobRules) -> Object:
    """A Volcano job. See https://volcano.sh/en/docs/vcjob/"""
    tasks = []
    for i, (role, name) in enumerate(zip(app.roles, request.role_names(app))):  # noqa: B905  # one name per role
        labels = pods.role_labels(app, i, app_id, session=rules.session)
        for k in range(role.num_replicas):
            own = {**labels, LABEL_REPLICA_ID: str(k)}
            rank0 = f"{app_id}-{name}-0-0.{app_id}"  # <job>-<task>-<index in the task>.<job>, by the plugin `svc`
            template = request.template_of(role, rules, app_id, own, replica_id=str(k), rank0=rank0)
            if rules.deadline_s is not None:
                template["spec"]["activeDeadlineSeconds"] = min(rules.deadline_s, rules.timeout_s or rules.deadline_s)
            task = {"name": f"{name}-{k}", "replicas": 1, "template": template}
            if role.max_retries:
                task.update(maxRetry=role.max_retries, policies=RETRY_POLICIES[role.retry_policy])
            # An elastic role starts, and goes on, with fewer.
            if role.min_replicas is not None and k >= role.min_replicas:
                task["minAvailable"] = 0
            tasks.append(task)
    spec: Object = {
        "schedulerName": rules.pods.scheduler_name or "volcano",
        "plugins": {"svc": ["--publish-not-ready-addresses=true"], "env": []},
        "minAvailable": sum(min(r.num_replicas, r.min_replicas or r.num_replicas) for r in app.roles),
        "maxRetry": max(role.max_retries for role in app.roles),
        "tasks": tasks,
    }
    if not spec["maxRetry"] and all(role.min_replicas is None for role in app.roles):
        spec["policies"] = [{"event": "PodFailed", "action": "AbortJob"}]
    for key, value in (
        ("queue", rules.queue),
        ("priorityClassName", rules.priority_class),
        ("ttlSecondsAfterFinished", rules.ttl_s),
    ):
        if value is not None:
            spec[key] = value
    labels = pods.object_labels(app, app_id, session=rules.session)
    metadata = request.metadata_of(app_id, rules, labels, rules.metadata)
    return {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "metadata": metadata, "spec": spec}
