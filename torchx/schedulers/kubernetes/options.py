"""Run options of ``kubernetes`` and ``kubernetes_mcad``, and their checks."""

from __future__ import annotations

from torchx.errors import ConfigError, SpecError
from torchx.schedulers.api import StructuredOpts
from torchx.schedulers.kubernetes import placement
from torchx.schedulers.kubernetes.names import JOB, JOBSET, KUBEFLOW, PYTORCH, V1BETA1, V1BETA2, VOLCANO, Object
from torchx.schedulers.kubernetes.overlays import pod_form
from torchx.schedulers.kubernetes.shipped_code import AUTO, BUCKET, REGISTRY, WAYS, check_bucket
from torchx.util.records import dataclass

RESERVED_MILLICPU = 100
RESERVED_MEMMB = 1024
"""Defaults of the options: reserved for the system pods of each node."""

KINDS = (AUTO, JOB, JOBSET, VOLCANO, KUBEFLOW, PYTORCH)
GANG = ("auto", "yes", "no")
FORMS = {"v1beta2": V1BETA2, "v1beta1": V1BETA1}


@dataclass
class KubernetesOpts(StructuredOpts):
    """Run options of ``kubernetes``."""

    _names = (("in_", "in"),)

    queue: str | None = None
    """Volcano queue to submit to"""

    namespace: str = "default"
    """namespace to run in"""

    service_account: str | None = None
    """service account of the pods"""

    priority_class: str | None = None
    """priority class of the pods"""

    validate_spec: bool = True
    """validate the job with a server-side dry run before creating it"""

    reserved_millicpu: int = RESERVED_MILLICPU
    """millicores subtracted from the CPU request of each replica, for system pods of the node"""

    reserved_memmb: int = RESERVED_MEMMB
    """MB subtracted from the memory request of each replica, for system pods of the node"""

    image_repo: str | None = None
    """repository to push the image with the workspace to, such as `ghcr.io/me/jobs`"""

    efa_device_count: int | None = None
    """EFA devices of each replica, overriding its resource; 0 for none"""

    kind: str = AUTO
    """kind of object to create: auto, job, jobset, volcano, kubeflow (a TrainJob) or pytorchjob"""

    gang: str = "auto"
    """schedule the pods of plain Jobs all together, or none: yes, no, or auto, where the cluster can (1.36)"""

    local_queue: str | None = None
    """Kueue queue to submit to (a LocalQueue of the namespace)"""

    runtime: str | None = None
    """runtime of a TrainJob: a ClusterTrainingRuntime (`torch-distributed` by default) or TrainingRuntime/NAME"""

    context: str | None = None
    """context of kubeconfig; the current one by default"""

    in_: str | None = None
    """run at once inside the running pods of a job, such as `utils.session`: its handle"""

    image_secret: str | None = None
    """secret in the namespace with the credentials to pull the images"""

    secret_files: dict[str, str] | None = None
    """secrets to mount as files: PATH=SECRET mounts the keys of SECRET below PATH"""

    pod_overlay: str | None = None
    """YAML or JSON file to apply to each pod as a strategic merge patch"""

    ttl_s: int | None = None
    """seconds after its end at which the cluster deletes the job; never by default"""

    deadline_s: int | None = None
    """seconds after its start at which the cluster ends the job; never by default"""

    node_selector: dict[str, str] | None = None
    """labels that the nodes must have: KEY=VALUE"""

    tolerations: list[str] | None = None
    """node taints that the pods tolerate: KEY[=VALUE][:EFFECT], or `*` for all"""

    spread: list[str] | None = None
    """node labels over whose values to spread the replicas of a role evenly; KEY! to require it"""

    pack: str | None = None
    """node label whose value all pods of the job should share, such as a rack; KEY! to require it"""

    claims: dict[str, str] | None = None
    """devices of each replica (DRA): NAME=TEMPLATE, a ResourceClaimTemplate of the namespace"""

    topology: str | None = None
    """level of Kueue's topology in which to place all pods of a role; KEY! to require it"""

    code: str = AUTO
    """how to ship the workspace: registry (in an image), inline (in a ConfigMap), bucket (in `bucket`), or auto: in an
    image with `image_repo`, else inline, or if it is too large for that, in `bucket`"""

    bucket: str | None = None
    """location in an object store for the workspace, such as `s3://my-bucket/code`"""

    def check(self) -> None:
        """Raise ConfigError for options that are unknown or contradict one another."""
        if self.kind not in KINDS:
            raise ConfigError(f"kind `{self.kind}` is not one of {', '.join(KINDS)}")
        if self.kind in (JOB, JOBSET, KUBEFLOW, PYTORCH) and self.queue:
            raise ConfigError(
                f"`queue` is an option of Volcano, but kind is `{self.kind}`",
                hint="the option of Kueue is `local_queue`",
            )
        if self.gang not in GANG:
            raise ConfigError(f"gang `{self.gang}` is not one of {', '.join(GANG)}")
        if self.gang == "yes" and self.expected_kind() != JOB:
            raise ConfigError(
                f"`gang=yes` is for plain Jobs, but kind is `{self.expected_kind()}`",
                hint="Volcano always starts gangs; for other kinds, a queue of Kueue (`local_queue`) does",
            )
        if self.local_queue and self.expected_kind() == VOLCANO:
            raise ConfigError(
                "`local_queue` is an option of Kueue, which does not admit Volcano jobs",
                hint="the option of Volcano is `queue`; with Kueue, use `kind=job` or `kind=jobset`",
            )
        if self.runtime and self.kind != KUBEFLOW:
            raise ConfigError(f"`runtime` is an option of `kind=kubeflow`, but kind is `{self.kind}`")
        if self.topology and not self.local_queue:
            raise ConfigError("`topology` is an option of Kueue, and needs `local_queue`", hint="`pack` needs no Kueue")
        if self.deadline_s is not None and self.deadline_s <= 0:
            raise ConfigError(f"deadline_s `{self.deadline_s}` is not a positive number of seconds")
        placement.check(self)
        if self.code not in WAYS:
            raise ConfigError(f"code `{self.code}` is not one of {', '.join(WAYS)}")
        if self.code == BUCKET and not self.bucket:
            raise ConfigError("`code=bucket` needs `bucket`", hint="for example `-cfg bucket=s3://my-bucket/code`")
        if self.bucket:
            check_bucket(self.bucket)

    def is_image(self) -> bool:
        """Whether the workspace is shipped in an image."""
        return not self.in_ and (self.code == REGISTRY or (self.code == AUTO and bool(self.image_repo)))

    def is_inline(self) -> bool:
        """Whether the workspace may be shipped in a ConfigMap."""
        return self.code != BUCKET and not self.is_image()

    def expected_kind(self) -> str:
        """Return the kind of the job as far as the options determine it."""
        return self.kind if self.kind != AUTO else VOLCANO if self.queue else JOB


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
    """priority in MCAD's queue; for v1beta1 AppWrappers only"""

    priority_class_name: str | None = None
    """priority class of the pods"""

    image_secret: str | None = None
    """secret in the namespace with the credentials to pull the images"""

    coscheduler_name: str | None = None
    """scheduler with the coscheduling plugin, which starts the pods of a role together"""

    network: str | None = None
    """additional network for every pod (Multus)"""

    context: str | None = None
    """context of kubeconfig; the current one by default"""

    appwrapper_version: str = "v1beta2"
    """version of the AppWrapper: v1beta2, or v1beta1 for an older MCAD"""

    def form(self) -> str:
        """Return the ``apiVersion`` of the AppWrapper; ConfigError if it is unknown, or does not support an option."""
        form = FORMS.get(self.appwrapper_version)
        if form is None:
            raise ConfigError(f"appwrapper_version `{self.appwrapper_version}` is not one of {', '.join(FORMS)}")
        if self.priority is not None and self.appwrapper_version != "v1beta1":
            raise ConfigError(
                f"priority `{self.priority}` is of AppWrappers of v1beta1, and `{self.appwrapper_version}` has none",
                hint="use `priority_class_name`, or `appwrapper_version=v1beta1` for an older MCAD",
            )
        return form


def read_overlay(path: str) -> Object:
    """Read an overlay from a YAML or JSON file; ConfigError if it cannot be read, or is not like a pod."""
    try:
        return pod_form(path, f"pod_overlay `{path}`")
    except SpecError as e:
        raise ConfigError(str(e), hint=e.hint) from None
