"""Run options of ``kubernetes`` and ``kubernetes_mcad``, and their checks."""

from __future__ import annotations

from torchx.errors import ConfigError, SpecError
from torchx.schedulers.api import StructuredOpts
from torchx.schedulers.kubernetes import placement
from torchx.schedulers.kubernetes.bucket_code import check_bucket
from torchx.schedulers.kubernetes.inline_code import AUTO, BUCKET, REGISTRY, WAYS
from torchx.schedulers.kubernetes.names import JOB, JOBSET, KUBEFLOW, PYTORCH, V1BETA1, V1BETA2, VOLCANO, Object
from torchx.specs.overlays import read_file
from torchx.util.records import dataclass

RESERVED_MILLICPU = 100
"""Of the CPUs that a role asks for, so many thousandths are left to what runs on every node."""
RESERVED_MEMMB = 1024

KINDS = (AUTO, JOB, JOBSET, VOLCANO, KUBEFLOW, PYTORCH)
FORMS = {"v1beta2": V1BETA2, "v1beta1": V1BETA1}


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
    """what to make of the job: auto, job, jobset, volcano, kubeflow (a TrainJob) or pytorchjob"""

    local_queue: str | None = None
    """queue of Kueue to wait in (a LocalQueue of the namespace)"""

    runtime: str | None = None
    """runtime of a TrainJob: a ClusterTrainingRuntime, by default `torch-distributed`, or TrainingRuntime/NAME"""

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

    deadline_s: int | None = None
    """seconds after its start at which the cluster ends the job; never by default"""

    node_selector: dict[str, str] | None = None
    """labels that the nodes must have: KEY=VALUE"""

    tolerations: list[str] | None = None
    """taints of nodes that do not keep the pods away: KEY[=VALUE][:EFFECT], or `*` for all"""

    spread: list[str] | None = None
    """labels of nodes over whose values the replicas of a role are spread evenly; KEY! where they must be"""

    pack: str | None = None
    """label of nodes that all pods should have in common, such as that of a rack; KEY! where they must"""

    claims: dict[str, str] | None = None
    """devices of each replica (DRA): NAME=TEMPLATE, a ResourceClaimTemplate of the namespace"""

    topology: str | None = None
    """level of Kueue's topology in which all pods of a role should be; KEY! where they must"""

    code: str = AUTO
    """how the workspace gets there: registry, as an image; inline, as a ConfigMap; bucket, by `bucket`; auto: inline
    without `image_repo`, or by `bucket` what is too large for that"""

    bucket: str | None = None
    """place in an object store for the workspace, such as `s3://my-bucket/code`"""

    def check(self) -> None:
        """Refuses options that nobody knows, or that contradict one another.

        Raises:
            ConfigError: which, and why.
        """
        if self.kind not in KINDS:
            raise ConfigError(f"kind `{self.kind}` is not one of {', '.join(KINDS)}")
        if self.kind in (JOB, JOBSET, KUBEFLOW, PYTORCH) and self.queue:
            raise ConfigError(
                f"`queue` belongs to Volcano, but kind is `{self.kind}`", hint="Kueue takes `local_queue`"
            )
        if self.runtime and self.kind != KUBEFLOW:
            raise ConfigError(f"`runtime` belongs to `kind=kubeflow`, but kind is `{self.kind}`")
        if self.topology and not self.local_queue:
            raise ConfigError("`topology` is a request to Kueue, and needs `local_queue`", hint="`pack` needs no Kueue")
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
        """Whether the workspace goes into an image."""
        return self.code == REGISTRY or (self.code == AUTO and bool(self.image_repo))


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
    """priority in MCAD's queue; AppWrappers of v1beta1 have one"""

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

    def form(self) -> str:
        """The ``apiVersion`` of the AppWrapper.

        Raises:
            ConfigError: nobody knows the form, or it cannot hold what is asked for.
        """
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
    """An overlay of a file: YAML, or JSON.

    Raises:
        ConfigError: the file cannot be read, or is not a mapping.
    """
    try:
        found = read_file(path, "pod_overlay")
    except SpecError as e:
        raise ConfigError(str(e), hint=e.hint) from None
    if not isinstance(found, dict):
        raise ConfigError(f"pod_overlay `{path}` is not a mapping", hint="write it like a pod: `spec:` ...")
    return dict(found)
