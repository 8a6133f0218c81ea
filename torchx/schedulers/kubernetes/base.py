"""What the Kubernetes backends share as schedulers: jobs are asked for, followed and ended by their labels.

A backend says what its jobs are made of; everything after the submission is here.
"""

from __future__ import annotations

import functools
import time

from torchx.schedulers.api import Capabilities, DescribeAppResponse, ListAppResponse, Scheduler, Stream
from torchx.schedulers.kubernetes import finding, verbs
from torchx.schedulers.kubernetes.api import KubeApi
from torchx.schedulers.kubernetes.finding import Found
from torchx.schedulers.kubernetes.pods import LABEL_APP_NAME
from torchx.specs.api import AppState, is_terminal, make_app_handle
from torchx.workspace.docker_workspace import DockerWorkspaceMixin

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from datetime import datetime
    from typing import Any

    from torchx.schedulers.kubernetes.logs import Glance
    from torchx.specs.api import AppDryRunInfo, CfgVal

    _Object = dict[str, Any]
    _Jobs = list[ListAppResponse]
    _Look = tuple[list[_Object], bool]

_AT_ONCE = 50
"""Jobs of one question: their names are part of its address."""
_PATIENCE_S = 5.0  # a pod that has been starting for longer is asked about


CAPABILITIES = Capabilities(
    logs=True,
    log_streams=("combined",),
    log_since=True,
    log_follow=True,
    cancel=True,
    delete=True,
    list=True,
    retries=("REPLICA", "ROLE", "APPLICATION"),
    elastic=True,
    multi_role=True,
    mounts=("bind", "volume", "device"),
    workspaces=True,
    priority=True,
    gpus=True,
    resources=True,
    durable=True,
    describe_many=True,
)


class KubeScheduler(DockerWorkspaceMixin, Scheduler["Mapping[str, CfgVal]"]):
    """Base of the backends whose replicas are pods. An app id is ``<namespace>:<name>``.

    Args:
        client: a ``kubernetes.client.ApiClient``; by default it is made of kubeconfig when it is first needed.
    """

    owners: tuple[str, ...] = ()
    """What the jobs of this backend are: keys of :data:`finding.OWNERS`."""

    capabilities = CAPABILITIES
    wait_hint = 15.0  # who waits is told of the end by a watch

    def __init__(
        self, backend: str, session_name: str, client: Any | None = None, docker_client: Any | None = None
    ) -> None:
        super().__init__(backend, session_name, docker_client=docker_client)
        self._given_client = client
        self._apis: dict[str | None, KubeApi] = {}
        self._contexts: dict[str, str | None] = {}
        self._found: dict[str, Found] = {}
        self._glances: dict[str, Glance] = {}
        self._defaults: Callable[[], Mapping[str, CfgVal]] = dict

    def _api(self, context: str | None = None) -> KubeApi:
        if context not in self._apis:
            self._apis[context] = KubeApi(self._given_client, context=context)
        return self._apis[context]

    def _push(self, info: AppDryRunInfo[Any], images: dict[str, tuple[str, str]]) -> None:
        """Pushes the images with workspaces, and tells the record what they are called for good."""
        from torchx.specs.images import report_image_digest

        self.push_images(images)
        for role in info._app.roles if images and info._app is not None else ():
            report_image_digest(info, role.name, self.pushed_digest(role.image))

    # -- which cluster ---------------------------------------------------------------------------

    def configure(self, defaults: Callable[[], Mapping[str, CfgVal]]) -> None:
        """Says where the run options of jobs that are not on record come from: config files and the environment."""
        self._defaults = defaults

    def _submitted(self, context: str | None, app_id: str) -> str:
        """Remembers where a job went. Returns its id."""
        self._contexts[app_id] = context
        return app_id

    def _api_of(self, app_id: str) -> KubeApi:
        """The cluster that a job was submitted to: by the record of runs, or else by the configuration."""
        if app_id not in self._contexts:
            self._contexts[app_id] = self._recorded_context(app_id)
        return self._api(self._contexts[app_id])

    def _recorded_context(self, app_id: str) -> str | None:
        from torchx.runs import default_registry

        run = default_registry().get(make_app_handle(self.backend, self.session_name, app_id))
        if run is None:
            return _context_in(self._defaults())
        recorded = run.cfg.get("context")
        return _context_in({"context": recorded.get("value")} if isinstance(recorded, dict) else {})

    # -- what became of it -----------------------------------------------------------------------

    def describe(self, app_id: str) -> DescribeAppResponse | None:
        return self.describe_many([app_id])[app_id]

    def describe_many(self, app_ids: Iterable[str]) -> dict[str, DescribeAppResponse | None]:
        ids = list(app_ids)
        answers: dict[str, DescribeAppResponse | None] = dict.fromkeys(ids)
        together: dict[tuple[int, str], list[str]] = {}
        for app_id in ids:
            together.setdefault((id(self._api_of(app_id)), split_id(app_id)[0]), []).append(app_id)
        for (_, namespace), group in together.items():
            for i in range(0, len(group), _AT_ONCE):
                chunk = {split_id(app_id)[1]: app_id for app_id in group[i : i + _AT_ONCE]}
                api = self._api_of(group[0])
                for name, found in finding.look(api, namespace, chunk, self._likeliest(group)).items():
                    if name in chunk:
                        answers[chunk[name]] = self._described(api, chunk[name], found)
        return answers

    def _described(self, api: KubeApi, app_id: str, found: Found) -> DescribeAppResponse:
        from torchx.schedulers.kubernetes import status
        from torchx.schedulers.kubernetes.pod_states import read_pods

        namespace, _ = split_id(app_id)
        views = read_pods(found.pods)
        waits = finding.why_it_waits(api, namespace, found) if found.owners and not views else ""
        starting = next((v for v in views if v.starting and time.time() - v.started > _PATIENCE_S), None)
        if starting is not None:
            pod = next(pod for pod in found.pods if pod["metadata"]["name"] == starting.name)
            waits = finding.why_it_does_not_start(api, namespace, pod)
        answer = status.describe(app_id, found.kind, found.owners, views, waits=waits)
        if is_terminal(answer.state):
            self._found.pop(app_id, None)
        else:
            self._found[app_id] = Found(found.kind, found.owners, version=found.version)
        return answer

    def _likeliest(self, app_ids: Iterable[str]) -> Iterable[str]:
        """The kinds to look for, those first that these jobs had last time."""
        known = {found.kind for app_id in app_ids if (found := self._found.get(app_id)) and found.owners}
        return sorted(self.owners, key=lambda kind: kind not in known)

    def list(self, cfg: Mapping[str, CfgVal] | None = None) -> _Jobs:
        """The jobs of torchx, in the namespace of ``cfg`` or else in all that we may look into."""
        from torchx.schedulers.kit.verdict import fold
        from torchx.schedulers.kubernetes import status

        given = dict(cfg or {})
        namespace = str(given["namespace"]) if given.get("namespace") else None
        api = self._api(_context_in(given or self._defaults()))
        jobs: dict[str, tuple[str, list[AppState]]] = {}
        for kind, item in finding.all_jobs(api, namespace, self.owners):
            metadata = item["metadata"]
            app_id = f"{metadata['namespace']}:{finding.name_of(item)}"
            state = status.read_owner(kind, item).state or verbs.counted(item)
            name = (metadata.get("labels") or {}).get(LABEL_APP_NAME, "")
            jobs.setdefault(app_id, (name, []))[1].append(state)
        return [ListAppResponse(app_id, fold(states), name=name) for app_id, (name, states) in jobs.items()]

    def log_iter(  # noqa: PLR0917  # the contract's signature
        self,
        app_id: str,
        role_name: str,
        k: int = 0,
        regex: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        should_tail: bool = False,
        streams: Stream | None = None,
    ) -> Iterable[str]:
        from torchx.schedulers.kit.logs import LogQuery
        from torchx.schedulers.kubernetes.kept import Kept
        from torchx.schedulers.kubernetes.logs import Glance, replica_log

        query = LogQuery.of(regex=regex, since=since, until=until, should_tail=should_tail, streams=streams)
        # One for all replicas: that many followers ask no more often than one.
        glance = self._glances.setdefault(app_id, Glance(functools.partial(self._look, app_id)))
        kept = Kept(self.backend, app_id, role_name, k)
        lines = replica_log(self._api_of(app_id), glance, (role_name, k), query, kept=kept, sleep=time.sleep)
        return query.matching(lines)

    def _look(self, app_id: str) -> _Look:
        """The pods of a job, and whether it has ended."""
        namespace, name = split_id(app_id)
        api = self._api_of(app_id)
        found = finding.look(api, namespace, [name], self._likeliest([app_id])).get(name)
        if found is None:
            return [], True
        return found.pods, is_terminal(self._described(api, app_id, found).state)

    def wait_for_end(self, app_id: str, timeout_s: float) -> None:
        """Sleeps on a watch of what owns the job's pods, until the job ends or ``timeout_s`` are over."""
        if app_id not in self._found and self.describe(app_id) is None:
            return
        found = self._found.get(app_id)
        if found is not None:
            namespace, name = split_id(app_id)
            finding.watch_for_the_end(self._api_of(app_id), namespace, name, found, timeout_s)

    # -- the end ---------------------------------------------------------------------------------

    def _cancel_existing(self, app_id: str) -> None:
        api, found = self._owners(app_id)
        verbs.cancel(api, found)

    def _delete_existing(self, app_id: str) -> None:
        api, found = self._owners(app_id)
        verbs.delete(api, found, *split_id(app_id))

    def close(self) -> None:
        for api in self._apis.values():
            api.close()
        super().close()

    def _owners(self, app_id: str) -> tuple[KubeApi, Found]:
        namespace, name = split_id(app_id)
        api = self._api_of(app_id)
        found = finding.look(api, namespace, [name], self._likeliest([app_id]), pods=False)
        return api, found.get(name) or Found(self.owners[0])


def split_id(app_id: str) -> tuple[str, str]:
    """Namespace and name of a job.

    >>> split_id("team:train-x1"), split_id("train-x1")
    (('team', 'train-x1'), ('default', 'train-x1'))
    """
    namespace, colon, name = app_id.partition(":")
    return (namespace, name) if colon else ("default", namespace)


def _context_in(cfg: Mapping[str, CfgVal]) -> str | None:
    return str(cfg["context"]) if cfg.get("context") else None
