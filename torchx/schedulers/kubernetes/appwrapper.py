"""An app as an AppWrapper of MCAD (CodeFlare): one object that holds a Service and a pod for each replica.

Both forms are known: ``workload.codeflare.dev/v1beta2`` (https://project-codeflare.github.io/appwrapper/) and the older
``mcad.ibm.com/v1beta1``, whose parts are called generic items.
"""

from __future__ import annotations

from torchx.schedulers.kit.manifests import shown_yaml
from torchx.schedulers.kubernetes import pods, request
from torchx.schedulers.kubernetes.names import LABEL_REPLICA_ID, RETRY_LIMIT, V1BETA2, Object
from torchx.schedulers.kubernetes.request import JobRules
from torchx.schedulers.kubernetes.secrets import note as secret_note
from torchx.specs.api import AppDef, RetryPolicy, Role
from torchx.util.records import dataclass, field

NETWORKS = "k8s.v1.cni.cncf.io/networks"
"""Of Multus: which networks a pod is attached to besides the cluster's own."""
POD_GROUP_LABEL = "pod-group.scheduling.sigs.k8s.io"
"""Of the coscheduling plugin."""


@dataclass
class KubernetesMCADJob:
    """What is submitted: an AppWrapper, and the images that it needs pushed."""

    images_to_push: dict[str, tuple[str, str]]
    resource: dict[str, object]
    app_id: str = ""
    namespace: str = "default"
    context: str | None = None
    secret: Object | None = field(default=None, repr=False)

    def __str__(self) -> str:
        """YAML that ``kubectl apply`` takes, secrets masked."""
        return secret_note(self.secret) + shown_yaml(self.resource)


def render(
    app: AppDef,
    app_id: str,
    rules: JobRules,
    *,
    form: str = V1BETA2,
    priority: int | None = None,
    network: str | None = None,
) -> Object:
    """The AppWrapper of an app.

    Args:
        form: :data:`V1BETA2` or :data:`V1BETA1`.
        priority: of v1beta1; higher ones are dispatched first.
        network: attached to every pod, by Multus.
    """
    parts = [_service(app, app_id, rules)]
    for i, (role, name) in enumerate(zip(app.roles, request.role_names(app))):  # noqa: B905  # one name per role
        if rules.pods.scheduler_name:
            parts.append(pod_group(role, f"{app_id}-{name}", rules.namespace, pods.role_labels(app, i, app_id)))
        parts += _pods(app, i, app_id, rules, network)
    labels = pods.object_labels(app, app_id, session=rules.session)
    metadata = request.metadata_of(app_id, rules, labels, rules.metadata)
    wrapper: Object = {"apiVersion": form, "kind": "AppWrapper", "metadata": metadata}
    retries = max(role.max_retries for role in app.roles)
    if form == V1BETA2:
        metadata["annotations"][RETRY_LIMIT] = str(retries)
        wrapper["spec"] = {"components": [_component(part) for part in parts]}
        return wrapper
    spec: Object = {"resources": {"GenericItems": [_generic_item(part) for part in parts]}}
    if priority is not None:
        spec["priority"] = priority
    if retries:
        spec["schedulingSpec"] = scheduling_spec(retries, sum(r.num_replicas for r in app.roles))
    return {**wrapper, "spec": spec}


def scheduling_spec(retries: int, pods_needed: int) -> Object:
    """How often MCAD queues a v1beta1 job again when pods of it are lost."""
    return {"minAvailable": pods_needed, "requeuing": {"maxNumRequeuings": retries}}


def pod_group(role: Role, name: str, namespace: str, labels: dict[str, str]) -> Object:
    """What the coscheduling plugin starts together: the pods of one role.

    https://github.com/kubernetes-sigs/scheduler-plugins/tree/master/pkg/coscheduling
    """
    return {
        "apiVersion": "scheduling.sigs.k8s.io/v1alpha1",
        "kind": "PodGroup",
        "metadata": {"name": name, "namespace": namespace, "labels": labels},
        "spec": {"minMember": role.num_replicas if role.min_replicas is None else role.min_replicas},
    }


def _service(app: AppDef, app_id: str, rules: JobRules) -> Object:
    # The metadata of what lies in a wrapper is the wrapper's to mark.
    service = request.headless_service(app, app_id, rules)
    service["metadata"].pop("annotations", None)
    return service


def _pods(app: AppDef, index: int, app_id: str, rules: JobRules, network: str | None) -> list[Object]:
    found = []
    role, name = app.roles[index], request.role_names(app)[index]
    labels = pods.role_labels(app, index, app_id, session=rules.session)
    if rules.pods.scheduler_name:
        labels[POD_GROUP_LABEL] = f"{app_id}-{name}"
    for k in range(role.num_replicas):
        own = {**labels, LABEL_REPLICA_ID: str(k)}
        host = f"{app_id}-{name}-{k}"
        rank0 = f"{app_id}-{name}-0.{app_id}"
        template = request.template_of(role, rules, app_id, own, replica_id=str(k), rank0=rank0)
        template["metadata"].update(name=host, namespace=rules.namespace)
        if network:
            template["metadata"]["annotations"][NETWORKS] = network
        template["spec"].update(hostname=host, subdomain=app_id)
        if role.retry_policy is RetryPolicy.REPLICA and role.max_retries:
            template["spec"]["restartPolicy"] = "OnFailure"
        found.append({"apiVersion": "v1", "kind": "Pod", **template})
    return found


def _component(part: Object) -> Object:
    # Pods must be found in what may be anything: the path says where their template is.
    if part["kind"] == "Pod":
        return {"podSets": [{"replicas": 1, "path": "template"}], "template": part}
    return {"template": part}


def _generic_item(part: Object) -> Object:
    item: Object = {"replicas": 1, "generictemplate": part}
    if part["kind"] == "Pod":
        container = part["spec"]["containers"][0]
        item["completionstatus"] = "Complete"
        item["custompodresources"] = [{"replicas": 1, **container["resources"]}]
    return item
