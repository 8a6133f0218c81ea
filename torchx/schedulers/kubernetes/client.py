"""A client for the part of the Kubernetes API that a launcher needs. Objects are plain dicts.

The official client (the extra ``kubernetes``) loads kubeconfig, with contexts, exec plugins and certificates, or the
service account of a pod. Its models are not used: they support the fields of one Kubernetes version only.
"""

from __future__ import annotations

import json
import re
import time
from _thread import allocate_lock
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar
from urllib.parse import quote, urlencode

from torchx.errors import BackendError, NotFoundError, TransientError
from torchx.schedulers.kubernetes.api.credentials import connect
from torchx.schedulers.kubernetes.api.errors import (
    CONFLICT,
    ApiError,
    BusyError,
    MissingError,
    refusal,
    unless_forbidden,
)
from torchx.schedulers.kubernetes.names import Object
from torchx.util.notices import logger
from torchx.util.records import dataclass

_T = TypeVar("_T")

PLURALS = {
    "Service": ("api/v1", "services"),
    "Secret": ("api/v1", "secrets"),
    "ConfigMap": ("api/v1", "configmaps"),
    "Pod": ("api/v1", "pods"),
    "Event": ("api/v1", "events"),
    "Job": ("apis/batch/v1", "jobs"),
    "JobSet": ("apis/jobset.x-k8s.io/v1alpha2", "jobsets"),
    "VolcanoJob": ("apis/batch.volcano.sh/v1alpha1", "jobs"),
    "PyTorchJob": ("apis/kubeflow.org/v1", "pytorchjobs"),
    "TrainJob": ("apis/trainer.kubeflow.org/v1alpha1", "trainjobs"),
    "TrainingRuntime": ("apis/trainer.kubeflow.org/v1alpha1", "trainingruntimes"),
    "ClusterTrainingRuntime": ("apis/trainer.kubeflow.org/v1alpha1", "clustertrainingruntimes"),
    "RayJob": ("apis/ray.io/v1", "rayjobs"),
    "RayCluster": ("apis/ray.io/v1", "rayclusters"),
    "PodGroup": ("apis/scheduling.volcano.sh/v1beta1", "podgroups"),
    "CoschedulingPodGroup": ("apis/scheduling.sigs.k8s.io/v1alpha1", "podgroups"),
    "PodGroupV1Beta1": ("apis/scheduling.k8s.io/v1beta1", "podgroups"),
    "PodGroupV1Alpha3": ("apis/scheduling.k8s.io/v1alpha3", "podgroups"),
    "PodGroupV1Alpha2": ("apis/scheduling.k8s.io/v1alpha2", "podgroups"),
    "Queue": ("apis/scheduling.volcano.sh/v1beta1", "queues"),
    "Command": ("apis/bus.volcano.sh/v1alpha1", "commands"),
    "AppWrapper": ("apis/workload.codeflare.dev/v1beta2", "appwrappers"),
    "AppWrapperV1Beta1": ("apis/mcad.ibm.com/v1beta1", "appwrappers"),
    "Workload": ("apis/kueue.x-k8s.io/v1beta2", "workloads"),
    "LocalQueue": ("apis/kueue.x-k8s.io/v1beta2", "localqueues"),
    "LocalQueueV1Beta1": ("apis/kueue.x-k8s.io/v1beta1", "localqueues"),
    "ClusterQueue": ("apis/kueue.x-k8s.io/v1beta2", "clusterqueues"),
    "ClusterQueueV1Beta1": ("apis/kueue.x-k8s.io/v1beta1", "clusterqueues"),
    "WorkloadV1Beta1": ("apis/kueue.x-k8s.io/v1beta1", "workloads"),
}
"""Our name of a kind -> its base path and plural in the API."""

GANGS = ("PodGroupV1Beta1", "PodGroupV1Alpha3", "PodGroupV1Alpha2")
"""Kubernetes' own kinds of a gang, newest first."""
WORKLOADS = ("Workload", "WorkloadV1Beta1")
"""Kueue's kinds of a job in a queue, newest first."""

PAGE = 500
"""Objects in one page of a list; kubectl uses the same limit."""

_ATTEMPTS = 5
_CONNECT_S = 10.0
_ANSWER_S = 30.0


def path_of(kind: str, namespace: str | None, name: str = "") -> str:
    """Return the API path of an object, or without a name, of all objects of a kind. A namespace of None means all of
    them.

    >>> path_of("Job", "team a", "train")
    '/apis/batch/v1/namespaces/team%20a/jobs/train'
    """
    base, plural = PLURALS[kind]
    within = f"namespaces/{quote(namespace, safe='')}/" if namespace else ""
    return f"/{base}/{within}{plural}{'/' + quote(name, safe='') if name else ''}"


def path_to(kind: str, item: Object) -> str:
    """Return the API path of an existing object."""
    return path_of(kind, item["metadata"]["namespace"], item["metadata"]["name"])


def group_of(kind: str) -> str:
    """Return the API group of a kind; empty for the core group.

    >>> group_of("Job"), group_of("Pod")
    ('batch', '')
    """
    base = PLURALS[kind][0]
    return base.split("/")[1] if base.startswith("apis/") else ""


def kind_of(item: Mapping[str, Any]) -> str:
    """Return the key of :data:`PLURALS` for an object that has ``apiVersion`` and ``kind``."""
    group = str(item["apiVersion"])
    kind = str(item["kind"])
    if kind == "Job" and group.startswith("batch.volcano.sh"):
        return "VolcanoJob"
    if kind == "AppWrapper" and group.startswith("mcad.ibm.com"):
        return "AppWrapperV1Beta1"
    if kind == "PodGroup":
        return next((name for name in GANGS if PLURALS[name][0] == f"apis/{group}"), kind)
    return kind


@dataclass(frozen=True)
class _Request:
    method: str
    path: str
    query: Mapping[str, object]
    body: Object | None = None
    timeout_s: float | None = _ANSWER_S
    headers: Mapping[str, str] | None = None


class KubeApi:
    """A client of one cluster.

    Calls raise a NotFoundError if the object or kind does not exist, a :class:`TransientError` if the cluster does not
    respond, even to retries, or another BackendError if it rejects the request.

    The ``client``, a ``kubernetes.client.ApiClient``, is created on first use by default: from kubeconfig with this
    ``context`` (None: the current one), or the service account of this pod. ``sleep`` waits before a retry.
    """

    _attempts = _ATTEMPTS
    _timeout_s: float | None = None
    websockets = True
    """Whether websockets into pods are worth a try: none was refused yet."""

    def __init__(self, client: Any = None, *, context: str | None = None, sleep: Any = time.sleep) -> None:
        self._client = client
        self._lock = allocate_lock()
        self._context = context
        self._namespace = ""
        self.sleep = sleep
        self._warned: set[str] = set()
        self._answered: set[tuple[str, str]] = set()
        self._served: dict[Sequence[str], str] = {}
        self._version: tuple[int, int] | None = None
        self._groups: set[str] | None = None

    @property
    def client(self) -> Any:
        """The configuration and connections, with the attributes of the official ``ApiClient`` that are used here."""
        with self._lock:
            if self._client is None:
                self._client, self._namespace = connect(self._context)
        return self._client

    def close(self) -> None:
        """Close the connections."""
        if self._client is not None:
            self._client.rest_client.pool_manager.clear()

    # -- verbs -------------------------------------------------------------------------------------------

    def get(self, path: str, query: Mapping[str, object] | None = None) -> Object:
        """Get one object, or one page of a list."""
        return self._json("GET", path, query)

    def create(self, item: Object, *, dry_run: bool = False, unknown_fields: str = "") -> Object:
        """Create an object; with ``dry_run`` the server only validates it.

        This is idempotent, so that it can be retried after a lost response: an existing object with all annotations
        of ``item`` is returned. Any other object of that name causes an error.

        Raises:
            ApiError: the server rejects the object, or its name is taken.
            MissingError: the namespace or the kind does not exist in the cluster.
        """
        kind, metadata = kind_of(item), item["metadata"]
        namespace = metadata["namespace"]
        query = {"dryRun": "All"} if dry_run else {}
        if unknown_fields:
            query["fieldValidation"] = unknown_fields
        try:
            return self._json("POST", path_of(kind, namespace), query, item)
        except NotFoundError as e:
            if "namespaces" in str(e).partition(": ")[2]:
                raise MissingError(
                    f"there is no namespace `{namespace}`", hint=f"kubectl create namespace {namespace}"
                ) from None
            said = f"the cluster has no `{item['kind']}` of `{item['apiVersion']}`"
            raise MissingError(said, hint="is its operator installed? `-cfg kind=job` does not need one") from None
        except ApiError as e:
            if dry_run and "does not support dry run" in str(e):  # an admission webhook that prevents the check
                return item
            if e.status != CONFLICT or dry_run:
                raise
            there = self.get(path_to(kind, item))
            annotations = there.get("metadata", {}).get("annotations") or {}
            if not metadata.get("annotations") or metadata["annotations"].items() - annotations.items():
                raise
            return there

    def patch(self, path: str, patch: Object) -> Object:
        """Merge ``patch`` into an object (RFC 7386)."""
        return self._json("PATCH", path, None, patch)

    def post(self, path: str, item: Object) -> Object:
        """Post an object that is not kept, such as an eviction of a pod."""
        return self._json("POST", path, None, item)

    def delete(self, path: str, *, grace_s: int | None = None) -> None:
        """Delete an object and those that it owns, if it exists. ``grace_s``: how long a pod has until SIGKILL."""
        grace = {} if grace_s is None else {"gracePeriodSeconds": grace_s}
        try:
            self._json("DELETE", path, {"propagationPolicy": "Background", **grace})
        except NotFoundError:
            return

    def items(self, path: str, query: Mapping[str, object] | None = None) -> list[Object]:
        """All objects of a list."""
        return self.listed(path, query)[0]

    def listed(self, path: str, query: Mapping[str, object] | None = None) -> tuple[list[Object], str]:
        """All objects of a list, which is fetched in pages, and the resource version from which a watch can continue.

        If the list changes too much between two pages (410), it is fetched again as a whole.
        """
        found: list[Object] = []
        asked: dict[str, object] = {"limit": PAGE, **(query or {})}
        while True:
            try:
                page = self.get(path, asked)
            except ApiError as e:
                if e.status != 410 or "continue" not in asked:  # Gone
                    raise
                found, asked = [], dict(query or {})
                continue
            found += page.get("items") or ()
            metadata = page.get("metadata") or {}
            if not metadata.get("continue"):
                return found, str(metadata.get("resourceVersion") or "")
            asked["continue"] = metadata["continue"]

    def of_any(self, kinds: Sequence[str], ask: Callable[[str], _T]) -> _T:
        """Return the result of ``ask`` for the first kind that the cluster has, which is remembered;
        NotFoundError if it has none.
        """
        *others, last = [self._served[kinds]] if kinds in self._served else kinds
        for kind in others:
            try:
                found = ask(kind)
            except NotFoundError:
                continue
            self._served[kinds] = kind
            return found
        found = ask(last)
        self._served[kinds] = last
        return found

    def groups(self) -> set[str]:
        """Return the APIs of the cluster, such as ``jobset.x-k8s.io/v1alpha2``; it is asked once. Empty if we may not
        list them.
        """
        if self._groups is None:
            found = unless_forbidden(lambda: self.get("/apis").get("groups") or (), ())
            self._groups = {str(v.get("groupVersion")) for group in found for v in group.get("versions") or ()}
        return self._groups

    def may(self, verb: str, kind: str, namespace: str) -> bool:
        """Whether we have a right to a kind, or to a subresource such as ``Pod/log``; True if this cannot be checked.

        https://kubernetes.io/docs/reference/access-authn-authz/authorization/#checking-api-access
        """
        kind, _, part = kind.partition("/")
        right = {"namespace": namespace, "verb": verb, "group": group_of(kind), "resource": PLURALS[kind][1]}
        right.update({"subresource": part} if part else {})
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": right},
        }
        try:
            answer = self.post("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", review)
        except (ApiError, NotFoundError):
            return True
        return bool((answer.get("status") or {}).get("allowed", True))

    def namespace(self) -> str:
        """Return the namespace of kubeconfig's context, or of this pod."""
        found = self.client and self._namespace  # `client` loads kubeconfig, which sets it
        return found or "default"

    def version(self) -> tuple[int, int]:
        """Major and minor version of the API server, which is asked once."""
        if self._version is None:
            found = self.get("/version")
            minor = re.match(r"\d+", str(found.get("minor")))
            self._version = int(found.get("major") or 1), int(minor[0]) if minor else 0
        return self._version

    def text(self, path: str, query: Mapping[str, object] | None = None) -> str:
        """Get a response as text."""
        return self._whole(_Request("GET", path, query or {})).decode("utf-8", "replace")

    def stream(self, path: str, query: Mapping[str, object] | None = None, *, timeout_s: float | None = None) -> Any:
        """Return an open ``urllib3`` response, which the caller closes;
        reading fails after ``timeout_s`` without data.
        """
        return self._retried(lambda: self._send(_Request("GET", path, query or {}, timeout_s=timeout_s)))

    def upgraded(
        self, path: str, query: Mapping[str, object], headers: Mapping[str, str], *, websocket: bool = False
    ) -> Any:
        """Request a switch from HTTP to another protocol. Returns the response, which the caller closes.

        With a ``websocket``, a command starts before its answer is there: this is never retried.
        """
        request = _Request("GET" if websocket else "POST", path, query, headers=headers)
        return self._send(request) if websocket else self._retried(lambda: self._send(request))

    def events(
        self, path: str, query: Mapping[str, object], version: str, *, timeout_s: float
    ) -> Iterator[tuple[str, Object]]:
        """Types and objects of a watch from a version on, until it ends, or no data comes for ``timeout_s`` seconds."""
        watch = {**query, "watch": "true", "allowWatchBookmarks": "true", "resourceVersion": version}
        response = self.stream(path, watch, timeout_s=timeout_s)
        import urllib3  # after the check whether `kubernetes`, which needs it, is installed

        try:
            for line in filter(bytes.strip, response):
                event = json.loads(line)
                yield str(event.get("type")), event.get("object") or {}
        except (urllib3.exceptions.HTTPError, ValueError, RecursionError):
            return
        finally:
            response.close()
            response.release_conn()

    # -- calls -------------------------------------------------------------------------------------------

    def _json(
        self, method: str, path: str, query: Mapping[str, object] | None = None, body: Object | None = None
    ) -> Object:
        text = self._whole(_Request(method, path, query or {}, body))
        try:
            found = json.loads(text)
        except (ValueError, RecursionError) as e:
            raise BackendError(f"the Kubernetes API answered `{method} {path}` with invalid JSON: {e}") from None
        return found if isinstance(found, dict) else {}

    def _whole(self, request: _Request) -> bytes:
        """Return the whole body of a response."""

        def read() -> bytes:
            response = self._send(request)
            import urllib3

            try:
                return bytes(response.read())
            except urllib3.exceptions.HTTPError as e:
                raise TransientError(
                    f"the Kubernetes API breaks off its answer to `{request.method} {request.path}`: {_cause(e)}"
                ) from None
            finally:
                response.release_conn()

        return self._retried(read)

    def _retried(self, call: Callable[[], _T]) -> _T:
        """Return the result of a call, which is repeated with exponential backoff if it fails transiently.

        Every verb can be retried, because each object that we create has a unique name.
        """
        attempt = 1
        while True:
            try:
                return call()
            except TransientError as e:
                if attempt == self._attempts:
                    raise
                self.sleep(_pause(e, attempt))
            attempt += 1

    def _send(self, request: _Request) -> Any:
        """Return a successful response to one request."""
        response = self._request(request)
        if response.status >= 300:
            # An API server that is starting does not know all rights and all kinds at once.
            raise refusal(request.method, request.path, response, known=_right(request) in self._answered)
        self._answered.add(_right(request))
        if request.body is not None:
            self._warn(response)
        return response

    def _warn(self, response: Any) -> None:
        """Log each warning of the server once, such as a policy that the pods violate, or a deprecated field.

        https://kubernetes.io/blog/2020/09/03/warnings/
        """
        for header in response.headers.getlist("Warning"):  # 299 - "text"
            found = re.match(r'\d+ \S+ "((?:[^"\\]|\\.)*)"', header)
            text = re.sub(r"\\(.)", r"\1", found[1]) if found else header
            if text not in self._warned:
                self._warned.add(text)
                logger("torchx.schedulers").warning("the cluster warns: %s", text)

    def _request(self, request: _Request) -> Any:
        import ssl

        configuration = self.client.configuration
        import urllib3

        query = {name: value for name, value in request.query.items() if value not in (None, "")}
        url = f"{configuration.host.rstrip('/')}{request.path}{'?' + urlencode(query, doseq=True) if query else ''}"
        content_type = "application/merge-patch+json" if request.method == "PATCH" else "application/json"
        about = {"Accept": "application/json, */*", "Content-Type": content_type, "User-Agent": "torchx"}
        headers = {**about, **(request.headers or {})}
        for auth in configuration.auth_settings().values():
            if auth.get("in") == "header" and auth.get("value"):
                headers[auth["key"]] = auth["value"]
        try:
            return self.client.rest_client.pool_manager.request(
                request.method,
                url,
                body=None if request.body is None else json.dumps(request.body).encode(),
                headers=headers,
                preload_content=False,
                retries=False,
                redirect=False,
                timeout=urllib3.Timeout(
                    connect=self._timeout_s or _CONNECT_S, read=self._timeout_s or request.timeout_s
                ),
            )
        except urllib3.exceptions.HTTPError as e:
            if isinstance(e, urllib3.exceptions.SSLError) and not isinstance(e.args[0], ssl.SSLEOFError):
                raise BackendError(
                    f"the Kubernetes API at `{configuration.host}` cannot be trusted: {_cause(e)}",
                    hint="`certificate-authority` in kubeconfig must be that of this cluster",
                ) from None
            raise TransientError(
                f"the Kubernetes API at `{configuration.host}` does not answer: {_cause(e)}",
                hint="is this the right cluster, and is it up? check with `kubectl cluster-info`",
            ) from None


def _right(request: _Request) -> tuple[str, str]:
    """Return the right that a request needs: the verb, and the path without the name of the object.

    >>> _right(_Request("GET", "/api/v1/namespaces/team/pods/a-0/log", {}))
    ('GET', '/api/v1/namespaces/team/pods/*/log')
    """
    of = r"(/(?:api/v1|apis/[^/]+/[^/]+)(?:/namespaces/[^/]+)?/[^/]+)/[^/]+"
    return f"{'WATCH ' if 'watch' in request.query else ''}{request.method}", re.sub(of, r"\1/*", request.path)


def _pause(error: TransientError, attempt: int) -> float:
    try:
        return min(float(error.retry_after if isinstance(error, BusyError) else ""), 30)
    except ValueError:
        return float(min(0.1 * 2**attempt, 5))


def _cause(error: BaseException) -> str:
    reason = getattr(error, "reason", None)
    # `HTTPSConnection(host='...', port=6443): Failed to ...`, or the connection's repr
    return re.sub(r"^(<[^>]*>|\w+\([^)]*\)|None): ", "", str(reason if reason is not None else error))
