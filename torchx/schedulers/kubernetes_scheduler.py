"""``kubernetes``: replicas as pods of any cluster, with or without a gang scheduler.

A job becomes, by the option ``kind``: plain ``batch/v1`` Jobs (``job``), a JobSet (``jobset``), or a Volcano job
(``volcano``). ``auto``, the default, takes Volcano where a ``queue`` is named, a JobSet where the cluster has them,
Volcano where it has that alone, and plain Jobs otherwise; it is decided, and said, at the submission. Everything that
belongs to a job is owned by one object and carries the label ``app.kubernetes.io/instance=<name>``.

A dry run prints what ``kubectl apply -f -`` takes, and needs neither a cluster nor the Kubernetes client.

Limits: stdout and stderr are one log. The pods of a job that is cancelled are removed; those that had ended stay. With
plain Jobs a failed pod is replaced by itself, whatever the retry policy.
"""

from __future__ import annotations

from torchx.errors import BackendError, ConfigError
from torchx.schedulers.api import ListAppResponse, StructuredOpts
from torchx.schedulers.kubernetes import kinds, verbs
from torchx.schedulers.kubernetes.aliases import (
    BLUE,
    ENDC,
    JOB_STATE,
    TASK_STATE,
    app_to_resource,
    pod_labels,
    prefix_container_name,
    role_to_pod,
    sanitize_for_serialization,
)
from torchx.schedulers.kubernetes.api import KubeApi
from torchx.schedulers.kubernetes.base import KubeScheduler
from torchx.schedulers.kubernetes.kinds import JOB, JOBSET, RETRY_POLICIES, VOLCANO, JobRules
from torchx.schedulers.kubernetes.pods import (
    ANNOTATION_ISTIO_SIDECAR,
    LABEL_APP_NAME,
    LABEL_INSTANCE_TYPE,
    LABEL_KUBE_APP_NAME,
    LABEL_ORGANIZATION,
    LABEL_REPLICA_ID,
    LABEL_ROLE_INDEX,
    LABEL_ROLE_NAME,
    LABEL_UNIQUE_NAME,
    LABEL_VERSION,
    PLACEHOLDER_FIELD_PATH,
    RESERVED_MEMMB,
    RESERVED_MILLICPU,
    PodRules,
)
from torchx.specs.api import AppDef, AppDryRunInfo, runopts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from dataclasses import dataclass, field
    from typing import Any

    from torchx.specs.api import CfgVal

    _Object = dict[str, Any]
    _Jobs = list[ListAppResponse]
else:
    from torchx.util.records import dataclass, field

__all__ = [
    "ANNOTATION_ISTIO_SIDECAR",
    "BLUE",
    "ENDC",
    "JOB_STATE",
    "LABEL_APP_NAME",
    "LABEL_INSTANCE_TYPE",
    "LABEL_KUBE_APP_NAME",
    "LABEL_ORGANIZATION",
    "LABEL_REPLICA_ID",
    "LABEL_ROLE_INDEX",
    "LABEL_ROLE_NAME",
    "LABEL_UNIQUE_NAME",
    "LABEL_VERSION",
    "PLACEHOLDER_FIELD_PATH",
    "RESERVED_MEMMB",
    "RESERVED_MILLICPU",
    "RETRY_POLICIES",
    "TASK_STATE",
    "KubernetesJob",
    "KubernetesOpts",
    "KubernetesScheduler",
    "Opts",
    "app_to_resource",
    "create_scheduler",
    "pod_labels",
    "prefix_container_name",
    "role_to_pod",
    "sanitize_for_serialization",
]

AUTO = "auto"
KINDS = (AUTO, JOB, JOBSET, VOLCANO)


@dataclass
class KubernetesOpts(StructuredOpts):
    """Run options of ``kubernetes``."""

    queue: str | None = None
    """queue of Volcano to submit to"""

    namespace: str = "default"
    """namespace to run in"""

    service_account: str | None = None
    """service account of the pods"""

    priority_class: str | None = None
    """priority class of the pods"""

    validate_spec: bool = True
    """have the API server check everything before anything is made"""

    reserved_millicpu: int = RESERVED_MILLICPU
    """taken off the CPU request of each replica for what runs on every node, in thousandths of a core"""

    reserved_memmb: int = RESERVED_MEMMB
    """taken off the memory request of each replica for what runs on every node, in MB"""

    image_repo: str | None = None
    """repository to push the image with the workspace to, such as `ghcr.io/me/jobs`"""

    efa_device_count: int | None = None
    """EFA devices of each replica, instead of those that its resource names; 0: none"""

    kind: str = AUTO
    """what to make of the job: auto, job, jobset or volcano"""

    local_queue: str | None = None
    """queue of Kueue to wait in (a LocalQueue of the namespace)"""

    context: str | None = None
    """context of kubeconfig; its current one by default"""

    image_secret: str | None = None
    """secret in the namespace with the credentials to pull the images"""

    secret_files: dict[str, str] | None = None
    """secrets as files: PATH=SECRET mounts the keys of SECRET below PATH"""

    pod_overlay: str | None = None
    """YAML or JSON file to lay over each pod, by the rules of a strategic merge"""

    ttl_s: int | None = None
    """seconds after its end at which the cluster removes the job; never by default"""


Opts = KubernetesOpts


@dataclass
class KubernetesJob:
    """What is submitted.

    Attributes:
        images_to_push: image id -> repository and tag.
        resource: one object, or a ``List`` of them, the one that owns the others first.
    """

    images_to_push: dict[str, tuple[str, str]]
    resource: _Object
    app_id: str = ""
    kind: str = JOB
    opts: KubernetesOpts = field(default_factory=KubernetesOpts)

    def __str__(self) -> str:
        """YAML that ``kubectl apply`` takes, secrets masked."""
        from torchx.schedulers.kubernetes.show import to_yaml

        note = (
            "# kind=auto: a JobSet or a Volcano job instead, where the cluster has them\n"
            if self.opts.kind == AUTO
            else ""
        )
        return (note if self.kind == JOB else "") + to_yaml(self.resource)


class KubernetesScheduler(KubeScheduler):
    """Runs jobs on a Kubernetes cluster. An app id is ``<namespace>:<name>``.

    Args:
        client: a ``kubernetes.client.ApiClient``; by default it is made of kubeconfig when it is first needed.
    """

    owners = (JOB, JOBSET, VOLCANO)

    def __init__(self, session_name: str, client: Any | None = None, docker_client: Any | None = None) -> None:
        super().__init__("kubernetes", session_name, client, docker_client)

    def _run_opts(self) -> runopts:
        return KubernetesOpts.as_runopts()

    def _submit_dryrun(self, app: AppDef, cfg: Mapping[str, CfgVal]) -> AppDryRunInfo[KubernetesJob]:
        opts = KubernetesOpts.from_cfg(cfg)
        if opts.kind not in KINDS:
            raise ConfigError(f"kind `{opts.kind}` is none of {', '.join(KINDS)}")
        if opts.kind in (JOB, JOBSET) and opts.queue:
            raise ConfigError(f"`queue` is of Volcano, and kind is `{opts.kind}`", hint="for Kueue: `local_queue`")
        images = self.dryrun_push_images(app, cfg)
        app_id = kinds.unique_id(app)
        kind = opts.kind if opts.kind != AUTO else VOLCANO if opts.queue else JOB
        job = KubernetesJob(images, self._render(kind, app, app_id, opts), app_id, kind, opts)
        return AppDryRunInfo(job, str)

    def _render(
        self, kind: str, app: AppDef, app_id: str, opts: KubernetesOpts, version: tuple[int, int] = kinds.NEWEST
    ) -> _Object:
        return as_resource(kinds.render(kind, app, app_id, self._rules(kind, app, app_id, opts, version)))

    def _rules(  # what there is to know of a submission
        self, kind: str, app: AppDef, app_id: str, opts: KubernetesOpts, version: tuple[int, int]
    ) -> JobRules:
        from torchx.schedulers.kubernetes.show import read_overlay

        return JobRules(
            pods=PodRules(
                service_account=opts.service_account,
                image_secrets=[opts.image_secret] if opts.image_secret else [],
                priority_class=None if kind == VOLCANO else opts.priority_class,
                reserved_millicpu=opts.reserved_millicpu,
                reserved_memmb=opts.reserved_memmb,
                efa_device_count=opts.efa_device_count,
                secret_files=opts.secret_files or {},
                overlay=read_overlay(opts.pod_overlay) if opts.pod_overlay else {},
            ),
            namespace=opts.namespace,
            session=self.session_name,
            submission=app_id,
            queue=opts.queue,
            local_queue=opts.local_queue,
            priority_class=opts.priority_class,
            ttl_s=opts.ttl_s,
            metadata=kinds.definition_of(app),
            version=version,
        )

    def schedule(self, dryrun_info: AppDryRunInfo[KubernetesJob]) -> str:
        """Makes the objects. Should one be refused, those made before it are removed.

        Raises:
            BackendError: the cluster does not answer, or refuses.
        """
        job, app = dryrun_info.request, dryrun_info._app
        api = self._api(job.opts.context)
        resource = job.resource
        if app is not None and job.kind != VOLCANO:
            kind, version = self._decide(api, job.opts)
            if kind == JOB and job.opts.local_queue and version < kinds.SUSPEND_SINCE:
                raise BackendError(
                    f"Kubernetes {version[0]}.{version[1]} cannot hold back a Job until Kueue admits it: 1.22 can"
                )
            if kind != job.kind or version < kinds.PER_INDEX_SINCE:
                resource = self._render(kind, app, job.app_id, job.opts, version)
        objects = resource["items"] if resource["kind"] == "List" else [resource]
        if job.opts.validate_spec:
            for item in objects:
                api.create(item, dry_run=True)
        self._push(dryrun_info, job.images_to_push)
        verbs.create_all(api, objects, mutual=job.opts.ttl_s is not None)
        return self._submitted(job.opts.context, f"{job.opts.namespace}:{job.app_id}")

    @staticmethod
    def _decide(api: KubeApi, opts: KubernetesOpts) -> tuple[str, tuple[int, int]]:
        """The kind to make, and the cluster's version."""
        kind = opts.kind
        if kind == AUTO:
            groups = api.groups()
            # Kueue knows nothing of Volcano's jobs.
            order = [(JOBSET, "jobset.x-k8s.io"), *([] if opts.local_queue else [(VOLCANO, "batch.volcano.sh")])]
            kind = next((k for k, group in order if any(g.startswith(f"{group}/") for g in groups)), JOB)
        if kind not in (JOB, opts.kind):
            import logging

            what = "a JobSet" if kind == JOBSET else "a job of Volcano"
            logging.getLogger("torchx.schedulers").info(
                "the job becomes %s, for the cluster has them (or `-cfg kind=job`)", what
            )
        return kind, api.version()


def as_resource(objects: list[_Object]) -> _Object:
    """One object for ``kubectl apply``."""
    if len(objects) == 1:
        return objects[0]
    return {"apiVersion": "v1", "kind": "List", "items": objects}


def create_scheduler(
    session_name: str,
    client: Any | None = None,
    docker_client: Any | None = None,
    **kwargs: Any,  # noqa: ARG001  # options of other schedulers are passed to all
) -> KubernetesScheduler:
    """What the table of schedulers calls."""
    return KubernetesScheduler(session_name, client=client, docker_client=docker_client)
