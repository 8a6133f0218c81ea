"""``kubernetes``: runs replicas as pods on any cluster, with or without a gang scheduler.

The option ``kind`` selects the objects of a job: plain ``batch/v1`` Jobs (``job``), a JobSet (``jobset``), a Volcano
job (``volcano``), a TrainJob of Kubeflow Trainer (``kubeflow``) or a PyTorchJob (``pytorchjob``). The default ``auto``
selects Volcano if a ``queue`` is given. Otherwise it selects JobSet, Volcano or plain Jobs at the submission, in this
order, by what the cluster supports. One object owns all others; all have the label
``app.kubernetes.io/instance=<name>``.

``torchx run --dryrun --manifest`` prints a manifest for ``kubectl apply -f -``. It needs neither a cluster nor
the Kubernetes client.

Limits: stdout and stderr share one log. Cancelling a job deletes its running pods and keeps those that have ended. With
plain Jobs, failed pods are replaced one by one, whatever the retry policy.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from torchx.errors import BackendError, ConfigError, NotSupportedError, SpecError, Unsent
from torchx.schedulers.api import DescribeAppResponse
from torchx.schedulers.kit.allocations import refuse_export
from torchx.schedulers.kit.export import Export, bases_of
from torchx.schedulers.kit.findings import Check, once, probe_app
from torchx.schedulers.kit.foreign import ForeignJobs
from torchx.schedulers.kit.nodes import Pool, pools_of
from torchx.schedulers.kit.tasks import as_replicas
from torchx.schedulers.kubernetes import doctor, gang, job_retries, names, request, sweeps
from torchx.schedulers.kubernetes.api.errors import unless_forbidden
from torchx.schedulers.kubernetes.api.rights import needed, role_manifest
from torchx.schedulers.kubernetes.base import CAPABILITIES, KubeScheduler
from torchx.schedulers.kubernetes.client import KubeApi
from torchx.schedulers.kubernetes.export import export as as_manifests
from torchx.schedulers.kubernetes.foreign import ForeignKubeJobs
from torchx.schedulers.kubernetes.kinds import kinds, trainjob
from torchx.schedulers.kubernetes.names import JOB, JOBSET, KUBEFLOW, PYTORCH, VOLCANO
from torchx.schedulers.kubernetes.options import KubernetesOpts
from torchx.schedulers.kubernetes.owners import is_sweep
from torchx.schedulers.kubernetes.packed import unpacked
from torchx.schedulers.kubernetes.pods.facts import read_pods
from torchx.schedulers.kubernetes.pods.order import PROBES
from torchx.schedulers.kubernetes.pods.specs import NEWEST
from torchx.schedulers.kubernetes.request import KubernetesJob
from torchx.schedulers.kubernetes.shipped_code import AUTO, BUCKET, BucketCode, Code, TooLargeError, pack, plan
from torchx.settings import ENV_WORKSPACE_HASH
from torchx.specs.api import AppDef, AppDryRunInfo, CfgVal, Resource, Role, Workspace
from torchx.specs.images import set_workspace_hash
from torchx.specs.ready import has_order
from torchx.specs.tasks import TaskList
from torchx.specs.wishes import Wishes
from torchx.util.notices import logger
from torchx.util.records import replace
from torchx.util.reexports import reexports

reexports(
    __name__,
    {
        "torchx.compat.kubernetes": """
            BLUE ENDC JOB_STATE TASK_STATE app_to_resource pod_labels prefix_container_name role_to_pod
            sanitize_for_serialization""",
        "torchx.schedulers.kubernetes.names": """
            ANNOTATION_ISTIO_SIDECAR LABEL_APP_NAME LABEL_INSTANCE_TYPE LABEL_KUBE_APP_NAME
            LABEL_ORGANIZATION LABEL_REPLICA_ID LABEL_ROLE_INDEX LABEL_ROLE_NAME LABEL_UNIQUE_NAME LABEL_VERSION""",
        "torchx.schedulers.kubernetes.kinds.kinds": "RETRY_POLICIES",
        "torchx.schedulers.kubernetes.options": "RESERVED_MEMMB RESERVED_MILLICPU",
        "torchx.schedulers.kubernetes.pods.specs": "PLACEHOLDER_FIELD_PATH",
    },
)

__all__ = ["KubernetesJob", "KubernetesOpts", "KubernetesScheduler", "Opts", "create_scheduler"]

Opts = KubernetesOpts
_Decision = tuple[str, tuple[int, int]]


class KubernetesScheduler(KubeScheduler):
    """Runs jobs on a Kubernetes cluster. An app id is ``<namespace>:<name>``.

    Args:
        client: a ``kubernetes.client.ApiClient``; by default created from kubeconfig on first use.
    """

    owners = (JOB, JOBSET, VOLCANO, KUBEFLOW, PYTORCH)
    options = KubernetesOpts
    capabilities = replace(CAPABILITIES, retry_actions=("retry", "avoid", "mem"), order=PROBES)

    def __init__(self, session_name: str, client: Any | None = None, docker_client: Any | None = None) -> None:
        super().__init__("kubernetes", session_name, client, docker_client)
        self._codes: dict[str, Code | BucketCode] = {}  # by hash

    def _submit_dryrun(self, app: AppDef, cfg: Mapping[str, CfgVal]) -> AppDryRunInfo[KubernetesJob]:
        opts = KubernetesOpts.from_cfg(cfg)
        opts.check()
        if opts.in_:
            from torchx.schedulers.kubernetes import allocations

            return AppDryRunInfo(allocations.request(app, opts, self._codes), str)  # type: ignore[arg-type]  # a job of another kind
        images = self.dryrun_push_images(app, cfg)
        app_id = request.unique_id(app)
        kind = opts.expected_kind()
        job = KubernetesJob(
            images,
            self._render(kind, app, app_id, opts),
            app_id,
            kind,
            opts,
            secret=request.secret_of(app, app_id, namespace=opts.namespace, session=self.session_name),
            by_cause=Wishes.of(app).retry is not None,
        )
        return AppDryRunInfo(job, str)

    def _render(
        self, kind: str, app: AppDef, app_id: str, opts: KubernetesOpts, version: tuple[int, int] = NEWEST
    ) -> dict[str, Any]:
        retries = None
        if app.metadata:
            retries = job_retries.policy(app, kind, self.capabilities, version)
            if retries is job_retries.BY_TORCHX and opts.ttl_s is not None:
                raise SpecError(
                    "`ttl_s` would delete a failed job before its retry policy restarts it",
                    hint="omit `ttl_s`, or the rules of `--retry` that the cluster does not support by itself",
                )
        packed = {i: self._codes.get(role.env.get(ENV_WORKSPACE_HASH, "")) for i, role in enumerate(app.roles)}
        codes = {} if opts.is_image() else {i: code for i, code in packed.items() if code is not None}
        session = self.session_name
        rules = request.rules_of(app, app_id, opts, session=session, version=version, retries=retries, codes=codes)
        if retries is job_retries.BY_TORCHX and not rules.metadata:
            raise SpecError(
                f"the definition of `{app.name}` is too large for an annotation, from which its retry policy is read",
                hint="shorten arguments and environment, or omit rules of `--retry` that the cluster does not support",
            )
        objects = kinds.render(kind, app, app_id, rules)
        return objects[0] if len(objects) == 1 else {"apiVersion": "v1", "kind": "List", "items": objects}

    def caching_build_workspace_and_update_role(
        self, role: Role, cfg: Mapping[str, CfgVal], build_cache: dict[object, object]
    ) -> None:
        """Pack the workspace of one role, or build its image if there is a registry for it."""
        opts = KubernetesOpts.from_cfg(cfg)
        opts.check()
        own = type(self).build_workspace_and_update_role is not KubeScheduler.build_workspace_and_update_role
        if not role.workspace or own or opts.is_image():
            super().caching_build_workspace_and_update_role(role, cfg, build_cache)
            return
        key = (opts.code, *role.workspace.projects.items())
        if key not in build_cache:
            build_cache[key] = self._code_of(role.workspace, opts, quiet=bool(cfg.get("quiet")))
        code: Any = build_cache[key]
        self._codes[code.hash] = code
        set_workspace_hash(role, code.hash)

    def view_of(self, app_id: str) -> KubeScheduler:
        if "." not in app_id:
            return self
        from torchx.schedulers.kubernetes.allocations import AllocatedJobs

        return AllocatedJobs.of(self)

    def _code_of(self, workspace: Workspace, opts: KubernetesOpts, *, quiet: bool) -> Code | BucketCode:
        """Return the code of a workspace that is not shipped in an image."""
        if opts.in_:
            try:
                return pack(workspace)
            except TooLargeError as e:
                raise ConfigError(e.message, hint="exclude what the job does not need in `.torchxignore`") from e
        if opts.code != BUCKET:
            try:
                return pack(workspace)
            except TooLargeError:
                if opts.code != AUTO or not opts.bucket:
                    raise
        code = plan(workspace, opts.bucket or "", quiet=quiet)
        self._in_buckets[code.url] = code
        return code

    def export(self, dryrun_info: AppDryRunInfo[KubernetesJob]) -> Export:
        """See :class:`torchx.schedulers.kit.abilities.Exports`."""
        if dryrun_info.request.opts.in_:
            refuse_export("running pods")
        return as_manifests(dryrun_info.request, bases_of(dryrun_info))

    def schedule(self, dryrun_info: AppDryRunInfo[KubernetesJob]) -> str:
        """Create the objects; if one is rejected, delete those created before it, and raise its BackendError."""
        job = dryrun_info.request
        if job.opts.in_:
            view: Any = self.view_of(job.app_id)
            found: str = view.start(job, dryrun_info.submission.app or dryrun_info._app, dryrun_info.submission.secrets)
            return found
        api = self._api(job.opts.context)
        with Unsent():
            objects = self._objects(api, dryrun_info)
        return self._make(api, dryrun_info, objects)

    def _objects(
        self,
        api: KubeApi,
        dryrun_info: AppDryRunInfo[KubernetesJob],
        decided: tuple[str, tuple[int, int]] | None = None,
    ) -> list[dict[str, Any]]:
        """Return the objects of a job on this cluster; BackendError if it does not support the job.

        ``decided``: the result of :meth:`_decide`, if it is known.
        """
        job, app = dryrun_info.request, dryrun_info.submission.app or dryrun_info._app
        resource, kind = job.resource, job.kind
        version = NEWEST
        if app is not None and kind != VOLCANO:
            kind, version = decided or self._decide(api, job.opts, by_cause=job.by_cause)
            if kind == JOB and job.opts.local_queue and version < request.SUSPEND_SINCE:
                raise BackendError(
                    f"Kubernetes {version[0]}.{version[1]} cannot suspend a Job until Kueue admits it; this needs 1.22"
                )
            if job.opts.claims and version < request.CLAIMS_SINCE:
                raise BackendError(f"Kubernetes {version[0]}.{version[1]} does not support `claims`; this needs 1.34")
            if kind != job.kind or version < names.PER_INDEX_SINCE:
                resource = self._render(kind, app, job.app_id, job.opts, version)
        objects = resource["items"] if resource["kind"] == "List" else [resource]
        if app is not None and kind == JOB:
            objects = gang.grouped(api, objects, app, job.opts, version)
        if names.LABEL_ATTEMPT in objects[-1]["metadata"]["labels"]:
            logger("torchx.schedulers").warning(
                "after a failure, the next torchx command that reads its state (status, wait, ...) starts the job again"
            )
        if job.opts.claims and objects[0]["kind"] not in ("Service", "Job"):
            kinds.check_claims(api, objects[0])
        if kind == JOBSET and app is not None and has_order(app):
            objects = [kinds.without_depends_on(api, objects[0]), *objects[1:]]
        if job.kind == KUBEFLOW:
            objects = [trainjob.fitted(api, objects[0]), *objects[1:]]
            if said := trainjob.restarts(api, objects[0]):
                logger("torchx.schedulers").warning("%s", said)
        return objects

    def nodes(self, cfg: Mapping[str, CfgVal], need: Resource | None, count: int) -> Sequence[Pool]:  # noqa: ARG002
        """See :class:`torchx.schedulers.kit.abilities.ListsNodes`."""
        from torchx.schedulers.kubernetes import quotas
        from torchx.schedulers.kubernetes.nodes import nodes

        opts = KubernetesOpts.from_cfg(cfg)
        api = self._api(opts.context)
        queues = quotas.pools(api, opts.namespace, need)
        # whoever uses queues may often not see the nodes
        found = unless_forbidden(lambda: nodes(api), []) if queues else nodes(api)
        return [*pools_of(found, need), *queues]

    def diagnose(self, cfg: Mapping[str, CfgVal], job: AppDryRunInfo[KubernetesJob] | None = None) -> list[Check]:
        """See :class:`torchx.schedulers.kit.abilities.Diagnoses`."""
        opts = KubernetesOpts.from_cfg(cfg)
        opts.check()
        api = doctor.HastyApi(self._given_client, context=opts.context)
        if job is not None:
            return doctor.of_job(api, opts.namespace, job, lambda: self._objects(api, job))

        decide = once(lambda: self._decide(api, opts, by_cause=False))
        probe = self.submit_dryrun(probe_app("probe"), cfg)

        def rights() -> dict[str, str]:
            return needed(decide()[0], queued=bool(opts.local_queue), inline=opts.is_inline())

        queues = {"localqueues": opts.local_queue or "", "queues": opts.queue or ""}
        objects = functools.partial(self._objects, api, probe)
        small = doctor.of_small_job(api, lambda: objects(decide()))
        return [*doctor.of_cluster(api, opts.namespace, opts.kind, rights, queues), small]

    # -- sweeps ----------------------------------------------------------------------------------

    def check_tasks(self, dryrun_info: AppDryRunInfo[KubernetesJob], tasks: TaskList) -> None:
        job = dryrun_info.request
        if job.opts.in_:
            raise NotSupportedError("an Indexed Job does not run within running pods")
        sweeps.check(job, dryrun_info._app, tasks, self._api(job.opts.context).version())

    def check_pack(self, dryrun_info: AppDryRunInfo[KubernetesJob]) -> None:
        """See :class:`torchx.schedulers.kit.abilities.PacksTasks`. All tasks of an Indexed Job can share a pod."""

    def submit_tasks(self, dryrun_info: AppDryRunInfo[KubernetesJob], tasks: TaskList) -> str:
        """Create one Indexed Job, and the ConfigMap with the values."""
        job, app = dryrun_info.request, dryrun_info.submission.app or dryrun_info._app
        assert app is not None  # the dry run of the Runner sets it
        api = self._api(job.opts.context)
        with Unsent():
            resource = self._render(JOB, as_replicas(app, tasks), job.app_id, job.opts, api.version())
        return self._make(api, dryrun_info, sweeps.with_values(resource["items"], tasks))

    def describe_tasks(self, app_id: str, numbers: Sequence[int]) -> list[DescribeAppResponse] | None:
        found = self._find(app_id, [JOB])
        if found is None or not any(map(is_sweep, found.owners)):
            return None
        return sweeps.describe_some(
            self._api_of(app_id), app_id, found.owners[0], read_pods(unpacked(found.pods)), numbers
        )

    def cancel_task(self, app_id: str, number: int) -> None:
        if (found := self._find(app_id, [JOB])) is not None:
            sweeps.cancel_task(self._api_of(app_id), found.owners[0], found.pods, number)

    def foreign(self) -> ForeignJobs:
        """See :class:`torchx.schedulers.kit.abilities.KnowsForeign`."""
        return ForeignKubeJobs.of(self)

    def rights(self, cfg: Mapping[str, CfgVal]) -> str:
        """Return a Role for jobs of the kind in ``cfg``; with ``kind=auto``, for the kind that needs no operator."""
        opts = KubernetesOpts.from_cfg(cfg)
        opts.check()
        queued = bool(opts.local_queue)
        return role_manifest(opts.expected_kind(), opts.namespace, queued=queued, inline=opts.is_inline())

    @staticmethod
    def _decide(api: KubeApi, opts: KubernetesOpts, *, by_cause: bool) -> _Decision:
        """Return the kind to create, and the cluster's version. Only plain Jobs support retries by cause, and gangs."""
        kind = JOB if (by_cause or opts.gang == "yes") and opts.kind == AUTO else opts.kind
        if kind == AUTO:
            groups = api.groups()
            # Kueue does not support Volcano jobs.
            order = [(JOBSET, "jobset.x-k8s.io"), *([] if opts.local_queue else [(VOLCANO, "batch.volcano.sh")])]
            there = [k for k, group in order if any(g.startswith(f"{group}/") for g in groups)]
            kind = next((k for k in there if api.may("create", names.OWNERS[k], opts.namespace)), JOB)
            if there and kind != there[0]:
                logger("torchx.schedulers").info(
                    "you may not create a %s in `%s`", names.OWNERS[there[0]], opts.namespace
                )
        if kind not in (JOB, opts.kind):
            what = "a JobSet" if kind == JOBSET else "a job of Volcano"
            logger("torchx.schedulers").info(
                "the job becomes %s, since the cluster supports it (or `-cfg kind=job`)", what
            )
        return kind, api.version()


def create_scheduler(
    session_name: str,
    client: Any | None = None,
    docker_client: Any | None = None,
    **kwargs: Any,  # noqa: ARG001  # all schedulers get the options of all
) -> KubernetesScheduler:
    """Return the factory in the table of schedulers."""
    return KubernetesScheduler(session_name, client=client, docker_client=docker_client)
