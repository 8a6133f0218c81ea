"""``kubernetes_mcad``: replicas as pods in an AppWrapper, which MCAD (CodeFlare) queues and starts as a whole.

Produces an AppWrapper with a headless Service and a pod per replica; with ``coscheduler_name`` a PodGroup per role too.
``appwrapper_version=v1beta1`` makes the older form. The pods are those of ``kubernetes``.

Limits: as of ``kubernetes``; a v1beta1 AppWrapper that is cancelled is removed, for it cannot be held.
"""

from __future__ import annotations

from torchx.errors import ConfigError
from torchx.schedulers.api import StructuredOpts
from torchx.schedulers.kubernetes import appwrapper, kinds
from torchx.schedulers.kubernetes.base import KubeScheduler
from torchx.schedulers.kubernetes.mcad_aliases import (
    JOB_STATE,
    RETRY_POLICIES,
    TASK_STATE,
    app_to_resource,
    cleanup_str,
    create_pod_group,
    enable_retry,
    get_appwrapper_status,
    get_port_for_service,
    get_role_information,
    get_tasks_status_description,
    get_unique_truncated_appid,
    mcad_svc,
    object_labels,
    pod_labels,
    role_to_pod,
    sanitize_for_serialization,
)
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
    RESERVED_MEMMB,
    RESERVED_MILLICPU,
    PodRules,
)
from torchx.specs.api import AppDef, AppDryRunInfo, runopts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from dataclasses import dataclass
    from typing import Any

    from torchx.specs.api import CfgVal
else:
    from torchx.util.records import dataclass

__all__ = [
    "ANNOTATION_ISTIO_SIDECAR",
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
    "RESERVED_MEMMB",
    "RESERVED_MILLICPU",
    "RETRY_POLICIES",
    "TASK_STATE",
    "KubernetesMCADJob",
    "KubernetesMCADOpts",
    "KubernetesMCADScheduler",
    "Opts",
    "app_to_resource",
    "cleanup_str",
    "create_pod_group",
    "create_scheduler",
    "enable_retry",
    "get_appwrapper_status",
    "get_port_for_service",
    "get_role_information",
    "get_tasks_status_description",
    "get_unique_truncated_appid",
    "mcad_svc",
    "object_labels",
    "pod_labels",
    "role_to_pod",
    "sanitize_for_serialization",
]

FORMS = {"v1beta2": appwrapper.V1BETA2, "v1beta1": appwrapper.V1BETA1}


@dataclass
class KubernetesMCADOpts(StructuredOpts):
    """Run options of ``kubernetes_mcad``."""

    namespace: str = "default"
    """namespace to run in"""

    image_repo: str | None = None
    """repository to push the image with the workspace to, such as `ghcr.io/me/jobs`"""

    service_account: str | None = None
    """service account of the pods"""

    priority: int | None = None
    """priority in MCAD's queue (v1beta1)"""

    priority_class_name: str | None = None
    """priority class of the pods"""

    image_secret: str | None = None
    """secret in the namespace with the credentials to pull the images"""

    coscheduler_name: str | None = None
    """scheduler with the coscheduling plugin, which starts the pods of a role together"""

    network: str | None = None
    """network to attach every pod to besides the cluster's own (Multus)"""

    context: str | None = None
    """context of kubeconfig; its current one by default"""

    appwrapper_version: str = "v1beta2"
    """form of the AppWrapper: v1beta2, or v1beta1 for an older MCAD"""


Opts = KubernetesMCADOpts


@dataclass
class KubernetesMCADJob:
    """What is submitted: an AppWrapper, and the images that it needs pushed."""

    images_to_push: dict[str, tuple[str, str]]
    resource: dict[str, object]
    app_id: str = ""
    namespace: str = "default"
    context: str | None = None

    def __str__(self) -> str:
        """YAML that ``kubectl apply`` takes, secrets masked."""
        from torchx.schedulers.kubernetes.show import to_yaml

        return to_yaml(self.resource)


class KubernetesMCADScheduler(KubeScheduler):
    """Runs jobs on a Kubernetes cluster with MCAD. An app id is ``<namespace>:<name>``.

    Args:
        client: a ``kubernetes.client.ApiClient``; by default it is made of kubeconfig when it is first needed.
    """

    owners = (kinds.APPWRAPPER, kinds.OLD_APPWRAPPER)

    def __init__(self, session_name: str, client: Any | None = None, docker_client: Any | None = None) -> None:
        super().__init__("kubernetes_mcad", session_name, client, docker_client)

    def _run_opts(self) -> runopts:
        return KubernetesMCADOpts.as_runopts()

    def _submit_dryrun(self, app: AppDef, cfg: Mapping[str, CfgVal]) -> AppDryRunInfo[KubernetesMCADJob]:
        opts = KubernetesMCADOpts.from_cfg(cfg)
        form = FORMS.get(opts.appwrapper_version)
        if form is None:
            raise ConfigError(f"appwrapper_version `{opts.appwrapper_version}` is none of {', '.join(FORMS)}")
        images = self.dryrun_push_images(app, cfg)
        app_id = kinds.unique_id(app)
        rules = kinds.JobRules(
            pods=PodRules(
                service_account=opts.service_account,
                image_secrets=[opts.image_secret] if opts.image_secret else [],
                priority_class=opts.priority_class_name,
                scheduler_name=opts.coscheduler_name,
            ),
            namespace=opts.namespace,
            session=self.session_name,
            submission=app_id,
            metadata=kinds.definition_of(app),
        )
        wrapper = appwrapper.render(app, app_id, rules, form=form, priority=opts.priority, network=opts.network)
        return AppDryRunInfo(KubernetesMCADJob(images, wrapper, app_id, opts.namespace, opts.context), str)

    def schedule(self, dryrun_info: AppDryRunInfo[KubernetesMCADJob]) -> str:
        """Makes the AppWrapper: one object, so that there is all of the job or nothing.

        Raises:
            BackendError: the cluster does not answer, or refuses.
        """
        job = dryrun_info.request
        self._push(dryrun_info, job.images_to_push)
        self._api(job.context).create(job.resource)
        return self._submitted(job.context, f"{job.namespace}:{job.app_id}")


def create_scheduler(
    session_name: str,
    client: Any | None = None,
    docker_client: Any | None = None,
    **kwargs: Any,  # noqa: ARG001  # options of other schedulers are passed to all
) -> KubernetesMCADScheduler:
    """What the table of schedulers calls."""
    return KubernetesMCADScheduler(session_name, client=client, docker_client=docker_client)
