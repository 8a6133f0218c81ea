"""What the Kubernetes backends share as schedulers: jobs are asked for, followed and ended by their labels.

A backend says what its jobs are made of; everything after the submission is here.
"""

from __future__ import annotations

import time

from torchx.schedulers.api import DescribeAppResponse, ListAppResponse, Scheduler, Stream
from torchx.schedulers.kit.kube import pods, verbs
from torchx.schedulers.kit.kube.api import KubeApi, path_of
from torchx.schedulers.kit.kube.pods import LABEL_APP_NAME, LABEL_ROLE_NAME, LABEL_UNIQUE_NAME
from torchx.specs.api import AppState
from torchx.workspace.docker_workspace import DockerWorkspaceMixin

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from datetime import datetime
    from typing import Any

    from torchx.specs.api import CfgVal

    _Object = dict[str, Any]
    _Jobs = list[ListAppResponse]


class KubeScheduler(DockerWorkspaceMixin, Scheduler["Mapping[str, CfgVal]"]):
    """Base of the backends whose replicas are pods. An app id is ``<namespace>:<name>``.

    Args:
        client: a ``kubernetes.client.ApiClient``; by default it is made of kubeconfig when it is first needed.
    """

    owners: tuple[str, ...] = ()
    """What the jobs of this backend are: keys of :data:`verbs.OWNERS`."""

    wait_hint = 2.0

    def __init__(
        self, backend: str, session_name: str, client: Any | None = None, docker_client: Any | None = None
    ) -> None:
        super().__init__(backend, session_name, docker_client=docker_client)
        self._given_client = client
        self._apis: dict[str | None, KubeApi] = {}

    def _api(self, context: str | None = None) -> KubeApi:
        if context not in self._apis:
            self._apis[context] = KubeApi(self._given_client, context=context)
        return self._apis[context]

    # -- what became of it -----------------------------------------------------------------------

    def describe(self, app_id: str) -> DescribeAppResponse | None:
        from torchx.schedulers.kit.kube import status
        from torchx.schedulers.kit.kube.pod_states import read_pods

        namespace, name = split_id(app_id)
        api = self._api()
        query = _selector(name)
        found = list(api.items(path_of("Pod", namespace), query))
        kind, owners = verbs.owners_of(api, namespace, query, found, self.owners)
        if not owners and not found:
            return None
        views = read_pods(found)
        waits = verbs.why_no_pods(api, namespace, owners) if owners and not views else ""
        return status.describe(app_id, kind, owners, views, waits=waits)

    def list(self, cfg: Mapping[str, CfgVal] | None = None) -> _Jobs:
        """The jobs of torchx, in the namespace of ``cfg`` or else in all that we may look into."""
        from torchx.schedulers.kit.kube import status

        given = dict(cfg or {})
        context = str(given["context"]) if given.get("context") else None
        namespace = str(given["namespace"]) if given.get("namespace") else None
        jobs: dict[str, tuple[str, list[AppState]]] = {}
        for kind, item in verbs.all_jobs(self._api(context), namespace, self.owners):
            metadata = item["metadata"]
            labels = metadata.get("labels") or {}
            app_id = f"{metadata['namespace']}:{labels.get(LABEL_UNIQUE_NAME, metadata['name'])}"
            state = status.read_owner(kind, item).state or verbs.counted(item)
            jobs.setdefault(app_id, (labels.get(LABEL_APP_NAME, ""), []))[1].append(state)
        from torchx.schedulers.kit.states import fold

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
        from torchx.schedulers.kit.kube.logs import replica_log
        from torchx.schedulers.kit.kube.pod_states import replica_of
        from torchx.schedulers.kit.logs import LogQuery
        from torchx.specs.api import is_terminal

        query = LogQuery.of(regex=regex, since=since, until=until, should_tail=should_tail, streams=streams)
        namespace, name = split_id(app_id)
        api = self._api()
        selector = f"{LABEL_UNIQUE_NAME}={name},{LABEL_ROLE_NAME}={pods.label_value(role_name)}"

        def find_pods() -> list[_Object]:
            found = api.items(path_of("Pod", namespace), {"labelSelector": selector})
            mine = [pod for pod in found if replica_of(pod["metadata"]) == k]
            return sorted(mine, key=lambda pod: str(pod["metadata"].get("creationTimestamp")))

        def over() -> bool:
            described = self.describe(app_id)
            return described is None or is_terminal(described.state)

        return query.matching(replica_log(api, find_pods, query, over=over, sleep=time.sleep))

    # -- the end ---------------------------------------------------------------------------------

    def _cancel_existing(self, app_id: str) -> None:
        namespace, name = split_id(app_id)
        api = self._api()
        kind, owners = verbs.owners_of(api, namespace, _selector(name), [], self.owners)
        verbs.cancel(api, kind, owners)

    def _delete_existing(self, app_id: str) -> None:
        namespace, name = split_id(app_id)
        api = self._api()
        kind, owners = verbs.owners_of(api, namespace, _selector(name), [], self.owners)
        verbs.delete(api, kind, owners, name)


def _selector(name: str) -> dict[str, object]:
    return {"labelSelector": f"{LABEL_UNIQUE_NAME}={name}"}


def split_id(app_id: str) -> tuple[str, str]:
    """Namespace and name of a job.

    >>> split_id("team:train-x1"), split_id("train-x1")
    (('team', 'train-x1'), ('default', 'train-x1'))
    """
    namespace, colon, name = app_id.partition(":")
    return (namespace, name) if colon else ("default", namespace)
