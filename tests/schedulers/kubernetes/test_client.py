"""Calls of the Kubernetes API: retries, existing and missing objects, lists that change."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("urllib3")

from tests.schedulers.kubernetes.fake_cluster import Cluster, refusal  # needs urllib3
from torchx.errors import BackendError, NotFoundError, TransientError
from torchx.schedulers.kubernetes import client as module
from torchx.schedulers.kubernetes.api.errors import ApiError
from torchx.schedulers.kubernetes.client import KubeApi, path_of


def _pod(name: str, **annotations: str) -> Any:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "ns", "annotations": annotations},
    }


@pytest.fixture
def cluster() -> Any:
    return Cluster()


@pytest.fixture
def slept() -> list[float]:
    return []


@pytest.fixture
def api(cluster: Any, slept: list[float]) -> KubeApi:
    return KubeApi(cluster, sleep=slept.append)


PATH = path_of("Pod", "ns", "a")


def test_deleting_what_is_gone_is_quiet(api: KubeApi, cluster: Any) -> None:
    """Deleting a missing object succeeds; other failures are errors."""
    api.create(_pod("a"))
    api.delete(PATH, grace_s=0)
    assert cluster.objects == {}
    assert cluster.calls[-1] == ("DELETE", PATH, {"propagationPolicy": "Background", "gracePeriodSeconds": "0"})
    api.delete(PATH)
    assert cluster.calls[-1] == ("DELETE", PATH, {"propagationPolicy": "Background"})
    cluster.faults.append(("DELETE", "", refusal(403, "Forbidden", "no"), "before"))
    with pytest.raises(ApiError):
        api.delete(PATH)
    with pytest.raises(NotFoundError):
        api.get(PATH)


def test_what_is_there_already(api: KubeApi, cluster: Any) -> None:
    """An existing object is returned if it has all our annotations; otherwise its name is taken."""
    made = api.create(_pod("a", mine="1", more="2"))
    assert api.create(_pod("a", mine="1"))["metadata"]["uid"] == made["metadata"]["uid"]
    for other in (_pod("a", mine="2"), _pod("a", mine="1", third="3"), _pod("a")):
        with pytest.raises(ApiError) as e:
            api.create(other)
        assert e.value.status == 409
    with pytest.raises(ApiError):
        api.create(_pod("a", mine="1"), dry_run=True)


def test_a_lost_answer_is_asked_for_again(api: KubeApi, cluster: Any, slept: list[float]) -> None:
    """The retry returns the object that the first attempt created."""
    cluster.faults.append(("POST", "pods", refusal(500, "InternalError", "x"), "after"))
    assert api.create(_pod("a", mine="1"))["metadata"]["uid"]
    assert len(cluster.objects) == 1 and len(slept) == 1


def test_what_does_not_pass_is_given_up(api: KubeApi, cluster: Any, slept: list[float]) -> None:
    """Transient errors are retried with pauses, up to the limit; other errors are not retried."""
    cluster.faults += [("GET", "pods", refusal(503, "Unavailable", "x"), "before")] * module._ATTEMPTS
    with pytest.raises(BackendError):
        api.get(PATH)
    assert len(cluster.calls) == module._ATTEMPTS and len(slept) == module._ATTEMPTS - 1
    assert cluster.faults == []
    cluster.calls.clear()
    cluster.faults.append(("GET", "pods", refusal(403, "Forbidden", "x"), "before"))
    with pytest.raises(ApiError):
        api.get(PATH)
    assert len(cluster.calls) == 1


def test_an_answer_that_breaks_off(api: KubeApi, cluster: Any, slept: list[float]) -> None:
    """A broken response is retried, up to the limit; then it is a transient error."""
    api.create(_pod("a"))
    cluster.logs["a", ""] = b"x" * 100
    cluster.cuts[:] = [5]
    assert api._whole(module._Request("GET", PATH + "/log", {})) == b"x" * 100
    assert len(slept) == 1
    cluster.cuts[:] = [5] * module._ATTEMPTS
    with pytest.raises(TransientError, match="breaks off"):
        api._whole(module._Request("GET", PATH + "/log", {}))
    assert len(slept) == module._ATTEMPTS


def test_lists_of_pages(api: KubeApi, cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """All objects are returned once, also if the list expires between two pages."""
    monkeypatch.setattr(module, "PAGE", 2)
    for name in "abcde":
        api.create(_pod(name))
    path = path_of("Pod", "ns")
    cluster.calls.clear()
    assert [item["metadata"]["name"] for item in api.items(path)] == [*"abcde"]
    assert [call[2].get("continue") for call in cluster.calls] == [None, "2", "4"]
    cluster.calls.clear()
    real, calls = cluster._list, []

    def gone_once(base: str, namespace: Any, query: dict[str, str]) -> Any:
        calls.append(query)
        return refusal(410, "Expired", "too old") if len(calls) == 2 else real(base, namespace, query)

    cluster._list = gone_once
    assert [item["metadata"]["name"] for item in api.items(path)] == [*"abcde"]
    assert ["limit" in query for query in calls] == [True, True, False]
    calls[:] = [{}]
    with pytest.raises(ApiError):  # at the first page there is nothing to begin again
        list(api.items(path))


@pytest.mark.parametrize(("status", "found"), [(403, set()), (500, None)])
def test_a_cluster_that_does_not_say_what_it_has(api: KubeApi, cluster: Any, status: int, found: Any) -> None:
    """Without the right to list APIs the result is empty; other failures are errors."""
    cluster.faults += [("GET", "/apis", refusal(status, "x", "x"), "before")] * module._ATTEMPTS
    if found is not None:
        assert api.groups() == found
    else:
        with pytest.raises(BackendError):
            api.groups()


@pytest.mark.parametrize("target", ["http://[::bad", "https://elsewhere/", "/again"])
def test_an_api_that_leads_elsewhere(slept: list[float], target: str) -> None:
    """Redirects are not followed, so that our token is not sent elsewhere."""
    import socket
    import threading
    from types import SimpleNamespace

    import urllib3

    listener = socket.create_server(("127.0.0.1", 0))
    asked = []

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            asked.append(connection.recv(1 << 16))
            connection.sendall(f"HTTP/1.1 307 No\r\nLocation: {target}\r\nContent-Length: 0\r\n\r\n".encode())

    thread = threading.Thread(target=serve)
    thread.start()
    here = f"http://127.0.0.1:{listener.getsockname()[1]}"
    with urllib3.PoolManager() as pool:
        configuration = SimpleNamespace(host=here, auth_settings=dict)
        client = SimpleNamespace(configuration=configuration, rest_client=SimpleNamespace(pool_manager=pool))
        with pytest.raises(BackendError, match="307"):
            KubeApi(client, sleep=slept.append)._json("GET", "/version")
    thread.join(60)
    listener.close()
    assert len(asked) == 1


def test_an_answer_that_is_too_deep(cluster: Any, api: KubeApi) -> None:
    """JSON that is nested too deeply is treated as invalid JSON."""
    from tests.schedulers.kubernetes.fake_cluster import Response

    cluster.away = lambda method, path: Response(200, b"[" * 5000 + b"]" * 5000)
    with pytest.raises(BackendError, match="invalid JSON"):
        api._json("GET", PATH)
    cluster.away = lambda method, path: Response(404, b"[" * 5000 + b"]" * 5000)
    with pytest.raises(NotFoundError):
        api._json("GET", PATH)
