"""The base class of the Kubernetes backends: everything after the submission of a job, which is found by its labels."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from torchx.errors import Unsent
from torchx.runs import Run, default_registry
from torchx.schedulers.api import DescribeAppResponse, ListAppResponse, Scheduler, shortcut
from torchx.schedulers.kit.caps import COMMON
from torchx.schedulers.kit.change_stream import ChangeStream
from torchx.schedulers.kit.facts import JobFacts
from torchx.schedulers.kit.inside import Duplex, InsideProcess, Tty, described
from torchx.schedulers.kit.inside.kept import Kept
from torchx.schedulers.kit.logs import LogQuery, refuse_streams
from torchx.schedulers.kit.metrics import ReplicaMetrics
from torchx.schedulers.kit.secrets import revealed
from torchx.schedulers.kit.simulations import Simulation
from torchx.schedulers.kit.verdict import describe, role_state, state_of
from torchx.schedulers.kit.views import by_view
from torchx.schedulers.kubernetes import answers, chains, gang, inside, lifecycle, our_retries, sweeps
from torchx.schedulers.kubernetes.api import queries
from torchx.schedulers.kubernetes.api.errors import unless_forbidden
from torchx.schedulers.kubernetes.client import KubeApi
from torchx.schedulers.kubernetes.in_order import is_decided
from torchx.schedulers.kubernetes.logs import EvidenceReader, JobPoller, ReplicaLog, Snapshot, what_it_left
from torchx.schedulers.kubernetes.metrics import read as read_metrics
from torchx.schedulers.kubernetes.names import JOB, JOBSET, KUBEFLOW, LABEL_APP_NAME, Object, labels_of
from torchx.schedulers.kubernetes.overlays import NAMESPACE, pod_overlay, without_tuples
from torchx.schedulers.kubernetes.owners import JobObjects, is_sweep, number_of
from torchx.schedulers.kubernetes.packed import unpacked
from torchx.schedulers.kubernetes.pods import events
from torchx.schedulers.kubernetes.pods.admission import evictions
from torchx.schedulers.kubernetes.pods.facts import Pod, read_pods
from torchx.schedulers.kubernetes.pods.kept_logs import KeptLog, forget
from torchx.schedulers.kubernetes.request import KubernetesJob
from torchx.schedulers.kubernetes.shipped_code import BucketCode, signed
from torchx.schedulers.kubernetes.simulate import simulation
from torchx.specs.api import AppDef, AppDryRunInfo, AppState, CfgVal, is_terminal, make_app_handle
from torchx.specs.images import report_image_digest
from torchx.util.notices import logger
from torchx.util.outages import Outage
from torchx.util.records import replace
from torchx.workspace.docker_workspace import DockerWorkspaceMixin

# In the class, `list` is a method.
_Metrics = list[ReplicaMetrics]
_Objects = list[Object]
_Jobs = list[ListAppResponse]
_Replicas = list[tuple[str, int]]

_SPECIAL_S = 2.0
"""How often the state of jobs is queried that no watch notices."""
_PATIENCE_S = 5.0  # after this time, events are queried for why a pod does not start


CAPABILITIES = replace(
    COMMON,
    timeout="yes",
    log_streams=("combined",),
    exec=True,
    log_keep=True,
    log_previous=True,
    metrics="live",
    mounts=("bind", "volume", "device"),
    secrets=("value", "k8s"),
    workspaces=True,
    overlays=NAMESPACE,
    priority=True,
    resources=True,
    describe_many=True,
)


class KubeScheduler(DockerWorkspaceMixin, Scheduler[Mapping[str, CfgVal]]):
    """Base of the backends whose replicas are pods. An app id is ``<namespace>:<name>``."""

    owners: tuple[str, ...] = ()
    """Kinds of the jobs of this backend: keys of :data:`names.OWNERS`."""

    rules = "torchx.schedulers.kubernetes.rules:RULES"
    capabilities = CAPABILITIES
    hears_all = True
    wait_hint = 15.0  # a watch reports the end of a job earlier

    def __init__(
        self, backend: str, session_name: str, client: Any | None = None, docker_client: Any | None = None
    ) -> None:
        super().__init__(backend, session_name, docker_client=docker_client)
        self._given_client = client
        self._apis: dict[str | None, KubeApi] = {}
        self._contexts: dict[str, str | None] = {}
        self._found: dict[str, JobObjects] = {}
        self._in_buckets: dict[str, BucketCode] = {}  # by URL
        self._ear = ChangeStream()
        self._pollers: dict[str, JobPoller] = {}
        self._defaults: Callable[[], Mapping[str, CfgVal]] = dict

    def _api(self, context: str | None = None) -> KubeApi:
        if context not in self._apis:
            self._apis[context] = KubeApi(self._given_client, context=context)
        return self._apis[context]

    def expected_id(self, dryrun_info: AppDryRunInfo[KubernetesJob]) -> str:
        app_id = dryrun_info.request.app_id
        return app_id if ":" in app_id else f"{dryrun_info.request.opts.namespace}:{app_id}"

    def _make(self, api: KubeApi, info: AppDryRunInfo[KubernetesJob], objects: _Objects) -> str:
        """Push the images of a job and create its objects, with its code and secrets. Returns its id."""
        job = info.request
        with Unsent():
            for item in objects if job.opts.validate_spec else ():
                # do not send the code twice; a Service is the first object, whose refusal leaves nothing behind
                if item["kind"] not in ("ConfigMap", "Service"):
                    api.create(item, dry_run=True)
            self.push_images(job.images_to_push)
        for role in info._app.roles if job.images_to_push and info._app is not None else ():
            report_image_digest(info, role.name, self.pushed_digest(role.image))
        objects = [signed(item, self._in_buckets) for item in objects]
        if job.secret is not None:
            objects.insert(1, {**job.secret, "stringData": revealed(job.secret["stringData"], info.submission.secrets)})
        lifecycle.create_all(api, objects, mutual=job.opts.ttl_s is not None)
        app_id = self.expected_id(info)
        self._contexts[app_id] = job.opts.context
        return app_id

    def _pre_build_validate(self, app: AppDef, scheduler: str, cfg: Any) -> None:  # noqa: ARG002  # as in the base class
        pod_overlay(app)
        for role in app.roles:
            pod_overlay(role)
            if isinstance(found := role.metadata.get(NAMESPACE), dict):
                role.metadata[NAMESPACE] = without_tuples(found)  # a record has no tuples

    # -- which cluster ---------------------------------------------------------------------------

    def configure(self, defaults: Callable[[], Mapping[str, CfgVal]]) -> None:
        """Set the source of run options for jobs that are not recorded: config files and the environment."""
        self._defaults = defaults

    def _api_of(self, app_id: str) -> KubeApi:
        """Return the cluster of a job, from the run registry, or else from the configuration."""
        if app_id not in self._contexts:
            run = self._record(app_id)
            cfg = self._defaults() if run is None else {"context": run.cfg.get("context", {}).get("value")}
            self._contexts[app_id] = _context_in(cfg)
        return self._api(self._contexts[app_id])

    def _locate(self, app_id: str) -> tuple[KubeApi, str, str]:
        """Return the cluster, the namespace and the name of a job."""
        return self._api_of(app_id), *split_id(app_id)

    def _record(self, app_id: str) -> Run | None:
        return default_registry().get(make_app_handle(self.backend, self.session_name, app_id))

    # -- state -----------------------------------------------------------------------------------

    def describe(self, app_id: str) -> DescribeAppResponse | None:
        return self._describe([app_id])[app_id]

    @shortcut
    def describe_many(self, app_ids: Iterable[str]) -> dict[str, DescribeAppResponse | None]:
        return self._describe(app_ids)

    def _describe(self, app_ids: Iterable[str]) -> dict[str, DescribeAppResponse | None]:
        """Describe jobs with few calls.

        :meth:`describe` cannot call :meth:`describe_many`, which in a subclass with its own ``describe`` calls that.
        """
        ids = list(app_ids)
        described: dict[str, DescribeAppResponse | None] = dict.fromkeys(ids)
        special = {app_id: view for app_id in ids if (view := self.view_of(app_id)) is not self}
        described.update({app_id: view.describe(app_id) for app_id, view in special.items()})
        ids = [app_id for app_id in ids if app_id not in special]
        together: dict[tuple[KubeApi, str], list[str]] = {}
        for app_id in ids:
            together.setdefault((self._api_of(app_id), split_id(app_id)[0]), []).append(app_id)
        for (api, namespace), group in together.items():
            many = len(group) >= queries.MANY
            most = len(group) if many else queries.AT_ONCE
            # Why a job waits takes a query for each job. Of many jobs only the oldest ones, which come last, get it.
            explained = set(group[-queries.AT_ONCE :] if many else group)
            for i in range(0, len(group), most):
                chunk = {split_id(app_id)[1]: app_id for app_id in group[i : i + most]}
                there = queries.look(api, namespace, chunk, self._likeliest(group))
                for name, app_id in chunk.items():
                    found = there.get(name) or self._seen_by_watch(app_id)
                    why = app_id in explained
                    described[app_id] = self._answer(api, app_id, found, why=why) if found is not None else None
        return described

    def view_of(self, app_id: str) -> KubeScheduler:  # noqa: ARG002  # a hook
        """Return the view of this job; itself, if nothing about the job is special."""
        return self

    def _seen_by_watch(self, app_id: str) -> JobObjects | None:
        """Return a job that has ended and was deleted since, as a watch has last seen it."""
        found = self._found.pop(app_id, None)
        return found if found is not None and found.owners and not found.going() else None

    @shortcut
    @by_view
    def exists(self, app_id: str) -> bool:
        api, namespace, name = self._locate(app_id)
        if self._owners(app_id)[1] is not None or queries.parts_of(api, "Pod", namespace, [name]):
            return True
        # the Service is left if only the Jobs were deleted
        services = functools.partial(queries.parts_of, api, "Service", namespace, [name])
        return JOB in self.owners and bool(unless_forbidden(services, []))

    def _answer(self, api: KubeApi, app_id: str, found: JobObjects, *, why: bool = True) -> DescribeAppResponse | None:
        last = found.newest()
        pods = read_pods(unpacked(last.pods))
        if any(map(is_sweep, found.owners)):
            self._found[app_id] = JobObjects(found.kind, found.owners, version=found.version)
            return sweeps.describe(app_id, found.owners[0], pods)
        queued = events.queued_as(api, split_id(app_id)[0], last) if why else []
        facts = self._facts(api, app_id, last, pods, why=why, queued=queued)
        names = dict(enumerate(role.name for role in facts.roles))
        by_replica = {(names.get(pod.role_index, ""), pod.facts.replica): pod for pod in pods}
        look = EvidenceReader(api, split_id(app_id)[0], by_replica)
        waits = chains.between(api, last, facts, time.time()) if any(map(number_of, last.owners)) else None
        if waits is not None:
            facts = waits
        elif any(map(number_of, last.owners)):
            if (attempt := our_retries.retry_failed(api, found, facts, look)) is not None and attempt.again:
                fresh = self._find(app_id, [JOB])
                return self._answer(api, app_id, fresh) if fresh is not None else None
            facts = facts if attempt is None else replace(facts, attempts=[*facts.attempts, attempt])
        if is_decided(facts):
            lifecycle.stop(api, last)
        attempts = sorted([*evictions(queued or ()), *facts.attempts], key=lambda attempt: attempt.ended)
        answer = describe(replace(facts, attempts=attempts), look)
        if is_terminal(answer.state):
            self._found.pop(app_id, None)
        else:
            failed = any(role_state(role) is AppState.FAILED for role in facts.roles)
            self._found[app_id] = JobObjects(found.kind, found.owners, version=found.version, failed=failed)
        if answer.state is AppState.UNKNOWN and any(role.state is AppState.UNKNOWN for role in facts.roles):
            return None  # a role was deleted before its final state was read, and the others have ended
        return answer

    @staticmethod
    def _facts(
        api: KubeApi,
        app_id: str,
        found: JobObjects,
        pods: Sequence[Pod],
        *,
        why: bool = True,
        queued: _Objects | None = None,
    ) -> JobFacts:
        """Facts of a job; with ``why``, events are queried for why pods are missing or do not start.

        ``queued`` are its Workloads of Kueue.
        """
        namespace, _ = split_id(app_id)
        lacks = why and answers.lacks_pods(found)
        missing = events.why_pods_are_missing(api, namespace, found, queued) if lacks else ""
        if why and not pods and found.kind in (JOBSET, KUBEFLOW) and answers.has_failed(found):
            missing = events.why_jobs_failed(api, namespace, found)
        starting = next((p for p in pods if why and p.starting and time.time() - p.facts.started > _PATIENCE_S), None)
        if starting is not None:
            item = next(item for item in found.pods if item["metadata"]["name"] == starting.name)
            if reason := events.why_it_does_not_start(api, namespace, item):
                facts = replace(starting.facts, reason=f"{starting.facts.reason}: {reason}")
                pods = [replace(pod, facts=facts) if pod is starting else pod for pod in pods]
        if why and found.kind == JOB and any(pod.facts.state is AppState.PENDING for pod in pods):
            pods = _waiting(pods, gang.why_it_waits(api, namespace, found.owners))
        ended = functools.partial(events.how_it_ended, api, namespace)
        left = functools.partial(what_it_left, api, namespace)
        begun = bool(evictions(queued or ()))
        return answers.facts_of(app_id, found, pods, missing=missing, begun=begun, ended=ended, left=left)

    def _state(self, api: KubeApi, app_id: str, found: JobObjects) -> AppState:
        """Return the state of a job as in :meth:`describe`, without querying reasons."""
        if any(map(is_sweep, found.owners)):
            return sweeps.table_of(found.owners[0], read_pods(unpacked(found.pods))).state()
        ended = functools.partial(events.how_it_ended, api, split_id(app_id)[0])
        return state_of(answers.facts_of(app_id, found, ended=ended))

    def _likeliest(self, app_ids: Iterable[str]) -> Sequence[str]:
        """Return the kinds to look for; those that these jobs had last time come first."""
        known = {found.kind for app_id in app_ids if (found := self._found.get(app_id)) and found.owners}
        return sorted(self.owners, key=lambda kind: kind not in known)

    def list(self, cfg: Mapping[str, CfgVal] | None = None) -> _Jobs:
        """List the jobs of torchx, in the namespace of ``cfg`` or else in all namespaces that we may list."""
        given = dict(cfg or {})
        namespace = str(given["namespace"]) if given.get("namespace") else None
        api = self._api(_context_in(given or self._defaults()))
        found = queries.all_jobs(api, namespace, self.owners)
        return [
            ListAppResponse(
                app_id, self._state(api, app_id, job), name=labels_of(job.owners[0]).get(LABEL_APP_NAME, "")
            )
            for app_id, job in found.items()
        ]

    # -- logs --------------------------------------------------------------------------------------

    @shortcut
    @by_view
    def log_replicas(self, app_id: str) -> _Replicas | None:
        found = self._owners(app_id)[1]
        app = answers.definition(found.owners) if found else None
        pods = [] if app else self._pods(app_id)
        if found is None and not pods:
            run = self._record(app_id)  # logs may be kept on this machine although the job was deleted
            app = run.appdef() if run is not None else None
            if app is None:
                return None
        if app is not None:
            return [(role.name, k) for role in app.roles for k in range(role.num_replicas)]
        facts = answers.facts_of(app_id, JobObjects(self.owners[0], pods=pods))
        return [(replica.role, replica.replica) for replica in facts.replicas()]

    @by_view
    def open_logs(self, app_id: str, replicas: Sequence[tuple[str, int]], query: LogQuery) -> Sequence[Iterable[str]]:
        refuse_streams(query, "Kubernetes")
        api = self._api_of(app_id)
        if query.follow:  # shared by all replicas, so that the number of followers does not increase polling
            outage = Outage(f"the log of `{app_id}`", logger("torchx.schedulers").warning)
            poller = self._pollers.setdefault(app_id, JobPoller(functools.partial(self._look, app_id), outage=outage))
        else:
            poller = JobPoller(functools.partial(self._look_at_pods, app_id), once=True)
        return [
            ReplicaLog(api, poller, (role, k), query, kept=KeptLog(self.backend, app_id, role, k))
            for role, k in replicas
        ]

    def _look(self, app_id: str) -> Snapshot:
        """Return the pods of a job, and whether it has ended."""
        found = self._find(app_id, self._likeliest([app_id]))
        if found is None:
            return Snapshot([], ended=True)
        ended = is_terminal(self._state(self._api_of(app_id), app_id, found))
        if ended and any(map(number_of, found.owners)):  # its next attempt may be due
            answer = self.describe(app_id)
            ended = answer is None or is_terminal(answer.state)
        return Snapshot(unpacked(found.pods), ended=ended)

    def _look_at_pods(self, app_id: str) -> Snapshot:
        return Snapshot(unpacked(self._pods(app_id)))

    def _pods(self, app_id: str) -> _Objects:
        api, namespace, name = self._locate(app_id)
        return queries.parts_of(api, "Pod", namespace, [name])

    @by_view
    def enter(self, app_id: str, role: str, k: int, argv: Sequence[str], tty: Tty | None = None) -> InsideProcess:
        return inside.PodProcess(self._api_of(app_id), self._running(app_id, role, k), argv, tty)

    @by_view
    def port_opener(self, app_id: str, role: str, k: int) -> Callable[[int], Duplex] | None:
        """See :class:`torchx.schedulers.kit.abilities.Forwards`."""
        return inside.port_opener(self._api_of(app_id), self._running(app_id, role, k))

    def _running(self, app_id: str, role: str, k: int) -> Object:
        """Return the pod of a running replica."""
        pods = self._look_at_pods(app_id).pods_of(role, k)
        if not inside.is_running(pods):
            raise described(self.describe(app_id), app_id, role, k)
        return pods[-1]

    @by_view
    def kept(self, app_id: str, role: str, k: int, cwd: str) -> Sequence[Kept]:  # noqa: ARG002  # the ability's signature
        """See :class:`torchx.schedulers.kit.abilities.KeepsFiles`: what is on claims, of pods that have ended."""
        from torchx.schedulers.kubernetes.claims import kept

        pods = self._look_at_pods(app_id).pods_of(role, k)
        return kept(self._api_of(app_id), pods[-1]) if pods and is_terminal(read_pods(pods)[-1].facts.state) else []

    @by_view
    def metrics(self, app_id: str) -> _Metrics | None:
        """See :class:`torchx.schedulers.kit.abilities.ReportsUsage`."""
        replicas = self.log_replicas(app_id)
        if replicas is None:
            return None
        seen = self._look_at_pods(app_id)
        pods = {(role, k): seen.pods_of(role, k) for role, k in replicas}
        running = {replica: found[-1] for replica, found in pods.items() if inside.is_running(found)}
        if not running:
            return []
        return read_metrics(self._api_of(app_id), split_id(app_id)[0], running, self._selector(app_id))

    @staticmethod
    def _selector(app_id: str) -> dict[str, object]:
        """Return a query that selects at least the pods of a job."""
        return queries.selector([split_id(app_id)[1]])

    @by_view
    def wait_for_end(self, app_id: str, timeout_s: float) -> None:
        """Watch the owners of the job's pods until the job ends or ``timeout_s`` have passed."""
        if app_id not in self._found and self.describe(app_id) is None:
            return
        found = self._found.get(app_id)
        if found is not None:
            api, namespace, name = self._locate(app_id)
            lifecycle.stop_the_others(api, found)
            queries.watch_for_the_end(api, namespace, name, found, timeout_s)

    def changed(self, app_ids: Sequence[str], most_s: float) -> set[str] | None:
        """See :class:`torchx.schedulers.kit.abilities.PushesChanges`: by a watch of jobs, and one of their pods."""
        streams: dict[str, Callable[[], Iterable[str]]] = {}
        for app_id in app_ids:
            if self.view_of(app_id) is not self:  # no object changes with it
                most_s = min(most_s, _SPECIAL_S)
                continue
            namespace, api = split_id(app_id)[0], self._api_of(app_id)
            for kind in (self._likeliest([app_id])[0], "Pod"):
                streams[f"{kind} {namespace} {id(api)}"] = functools.partial(queries.changes, api, kind, namespace)
        special = {app_id for app_id in app_ids if self.view_of(app_id) is not self}
        if not streams:
            time.sleep(most_s)
            return special
        found = self._ear.take(streams, most_s)
        return None if found is None else found | special

    @by_view
    def simulate(self, app_id: str, fault: str, replica: tuple[str, int]) -> Simulation:
        """See :class:`torchx.schedulers.kit.abilities.Simulates`."""
        roles = list(dict.fromkeys(role for role, _ in self.log_replicas(app_id) or ()))
        api, pods = self._api_of(app_id), self._pods(app_id)
        return simulation(api, pods, fault, replica, roles=roles, backend=self.backend)

    # -- cancellation and deletion -----------------------------------------------------------------

    @by_view
    def _cancel_existing(self, app_id: str) -> None:
        api, found = self._owners(app_id)
        if found is None or not any(map(number_of, found.owners)):
            return lifecycle.cancel(api, found) if found is not None else None
        seen = 0
        while found is not None and len(found.owners) != seen:  # another process may be creating the next attempt
            seen = len(found.owners)
            our_retries.cancel(api, found)
            found = self._owners(app_id)[1]
        return None

    def delete(self, app_id: str) -> None:
        super().delete(app_id)
        forget(self.backend, app_id)  # also if the job no longer exists in the cluster

    @by_view
    def _delete_existing(self, app_id: str) -> None:
        api, found = self._owners(app_id)
        lifecycle.delete(api, found or JobObjects(self.owners[0]), *split_id(app_id))
        self._found.pop(app_id, None)

    def close(self) -> None:
        for api in self._apis.values():
            api.close()
        super().close()

    def _owners(self, app_id: str) -> tuple[KubeApi, JobObjects | None]:
        """Return the cluster of a job, and the owners of its pods."""
        found = self._find(app_id, self._likeliest([app_id]), pods=False)
        if found is not None:
            self._found[app_id] = found
        return self._api_of(app_id), found

    def _find(self, app_id: str, kinds: Iterable[str], *, pods: bool = True) -> JobObjects | None:
        api, namespace, name = self._locate(app_id)
        return queries.look(api, namespace, [name], kinds, pods=pods).get(name)


def _waiting(pods: Sequence[Pod], said: str) -> Sequence[Pod]:
    """Return the pods, of which those that wait for a node do so because of ``said``, if it is not empty."""
    if not said:
        return pods
    return [
        replace(pod, facts=replace(pod.facts, reason=said))
        if pod.facts.state is AppState.PENDING and not pod.facts.host
        else pod
        for pod in pods
    ]


def split_id(app_id: str) -> tuple[str, str]:
    """Namespace and name of a job.

    >>> split_id("team:train-x1"), split_id("train-x1")
    (('team', 'train-x1'), ('default', 'train-x1'))
    """
    namespace, colon, name = app_id.partition(":")
    return (namespace, name) if colon else ("default", namespace)


def _context_in(cfg: Mapping[str, CfgVal]) -> str | None:
    return str(cfg["context"]) if cfg.get("context") else None
