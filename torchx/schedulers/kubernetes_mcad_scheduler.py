"""``kubernetes_mcad``: runs replicas as pods of an AppWrapper, which MCAD (CodeFlare) queues and starts as a whole.

An AppWrapper contains a headless Service, a pod per replica, and with ``coscheduler_name``, a PodGroup per role. The
pods are those of ``kubernetes``. ``appwrapper_version=v1beta1`` selects the older version.

Limits: those of ``kubernetes``. Cancelling deletes a v1beta1 AppWrapper, which cannot be suspended.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torchx.schedulers.kit.findings import Check, probe_app
from torchx.schedulers.kubernetes import doctor, request
from torchx.schedulers.kubernetes.api.rights import needed, role_manifest
from torchx.schedulers.kubernetes.base import KubeScheduler
from torchx.schedulers.kubernetes.kinds import appwrapper
from torchx.schedulers.kubernetes.names import APPWRAPPER, OLD_APPWRAPPER, V1BETA2
from torchx.schedulers.kubernetes.options import KubernetesMCADOpts, KubernetesOpts
from torchx.schedulers.kubernetes.request import KubernetesJob
from torchx.specs.api import AppDef, AppDryRunInfo, CfgVal
from torchx.util.records import dataclass
from torchx.util.reexports import reexports

reexports(
    __name__,
    {
        "torchx.compat.kubernetes": "sanitize_for_serialization",
        "torchx.compat.kubernetes_mcad": """
            JOB_STATE RETRY_POLICIES TASK_STATE app_to_resource cleanup_str create_pod_group enable_retry
            get_appwrapper_status get_port_for_service get_role_information get_tasks_status_description
            get_unique_truncated_appid mcad_svc object_labels pod_labels role_to_pod""",
        "torchx.schedulers.kubernetes.names": """
            ANNOTATION_ISTIO_SIDECAR LABEL_APP_NAME LABEL_INSTANCE_TYPE LABEL_KUBE_APP_NAME
            LABEL_ORGANIZATION LABEL_REPLICA_ID LABEL_ROLE_INDEX LABEL_ROLE_NAME LABEL_UNIQUE_NAME LABEL_VERSION""",
        "torchx.schedulers.kubernetes.options": "RESERVED_MEMMB RESERVED_MILLICPU",
    },
)

__all__ = ["KubernetesMCADJob", "KubernetesMCADOpts", "KubernetesMCADScheduler", "Opts", "create_scheduler"]

Opts = KubernetesMCADOpts


@dataclass
class KubernetesMCADJob(KubernetesJob):
    """The request: an AppWrapper, and the images to push before."""

    kind: str = APPWRAPPER


class KubernetesMCADScheduler(KubeScheduler):
    """Runs jobs on a Kubernetes cluster with MCAD. An app id is ``<namespace>:<name>``.

    Args:
        client: a ``kubernetes.client.ApiClient``; by default created from kubeconfig on first use.
    """

    options = KubernetesMCADOpts
    owners = (APPWRAPPER, OLD_APPWRAPPER)

    def __init__(self, session_name: str, client: Any | None = None, docker_client: Any | None = None) -> None:
        super().__init__("kubernetes_mcad", session_name, client, docker_client)

    def _submit_dryrun(self, app: AppDef, cfg: Mapping[str, CfgVal]) -> AppDryRunInfo[KubernetesJob]:
        opts = KubernetesMCADOpts.from_cfg(cfg)
        form = opts.form()
        images = self.dryrun_push_images(app, cfg)
        app_id = request.unique_id(app)
        own = KubernetesOpts(
            namespace=opts.namespace,
            service_account=opts.service_account,
            image_secret=opts.image_secret,
            priority_class=opts.priority_class_name,
            context=opts.context,
            validate_spec=False,
        )
        session = self.session_name
        rules = request.rules_of(app, app_id, own, session=session, scheduler_name=opts.coscheduler_name)
        wrapper = appwrapper.render(app, app_id, rules, form=form, priority=opts.priority, network=opts.network)
        secret = request.secret_of(app, app_id, namespace=opts.namespace, session=session)
        return AppDryRunInfo(KubernetesMCADJob(images, wrapper, app_id, _kind(opts), own, secret), str)

    def schedule(self, dryrun_info: AppDryRunInfo[KubernetesJob]) -> str:
        job = dryrun_info.request
        return self._make(self._api(job.opts.context), dryrun_info, [job.resource])

    def diagnose(self, cfg: Mapping[str, CfgVal], job: AppDryRunInfo[KubernetesJob] | None = None) -> list[Check]:
        """See :class:`torchx.schedulers.kit.abilities.Diagnoses`."""
        opts = KubernetesMCADOpts.from_cfg(cfg)
        kind = _kind(opts)
        api = doctor.HastyApi(self._given_client, context=opts.context)
        if job is not None:
            return doctor.of_job(api, opts.namespace, job, lambda: [job.request.resource])
        probe = self.submit_dryrun(probe_app("probe"), cfg).request.resource
        small = doctor.of_small_job(api, lambda: [probe])
        return [*doctor.of_cluster(api, opts.namespace, kind, lambda: _rights(opts), {}), small]

    def rights(self, cfg: Mapping[str, CfgVal]) -> str:
        """Return a Role for AppWrappers of the version in ``cfg``."""
        opts = KubernetesMCADOpts.from_cfg(cfg)
        return role_manifest(_kind(opts), opts.namespace, queued=False, coscheduled=bool(opts.coscheduler_name))


def _rights(opts: KubernetesMCADOpts) -> dict[str, str]:
    return needed(_kind(opts), queued=False, coscheduled=bool(opts.coscheduler_name))


def _kind(opts: KubernetesMCADOpts) -> str:
    return APPWRAPPER if opts.form() == V1BETA2 else OLD_APPWRAPPER


def create_scheduler(
    session_name: str,
    client: Any | None = None,
    docker_client: Any | None = None,
    **kwargs: Any,  # noqa: ARG001  # all schedulers get the options of all
) -> KubernetesMCADScheduler:
    """Return the factory in the table of schedulers."""
    return KubernetesMCADScheduler(session_name, client=client, docker_client=docker_client)
