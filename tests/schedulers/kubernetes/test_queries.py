"""Watches for the end of a job and for changes, and what calls of verbs do when the cluster is only half there."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from tests.schedulers.kubernetes.fake_cluster import Cluster, Response, refusal
from torchx.errors import BackendError, NotFoundError, TransientError
from torchx.schedulers.kubernetes import lifecycle, names
from torchx.schedulers.kubernetes.api import queries
from torchx.schedulers.kubernetes.client import KubeApi, path_of
from torchx.schedulers.kubernetes.names import JOB, JOBSET, OLD_APPWRAPPER, PYTORCH, VOLCANO
from torchx.schedulers.kubernetes.owners import JobObjects

DONE = {"conditions": [{"type": "Complete", "status": "True"}]}
FAILED = {"conditions": [{"type": "Failed", "status": "True"}]}


def job(name: str = "j", status: Any = None, spec: Any = None, kind: str = "Job", **metadata: Any) -> dict[str, Any]:
    versions = {"Job": "batch/v1", "JobSet": "jobset.x-k8s.io/v1alpha2", "PyTorchJob": "kubeflow.org/v1"}
    return {
        "apiVersion": versions.get(kind, "x/v1"),
        "kind": kind,
        "metadata": {"name": name, "namespace": "n", **metadata},
        "spec": spec or {},
        **({"status": status} if status is not None else {}),
    }


# -- the end of a job ----------------------------------------------------------------------------------------


class Watch:
    """A client whose watch tells these events; time goes on by a second with each, and with each sleep."""

    def __init__(self, events: Sequence[tuple[str, Any] | Exception]) -> None:
        self.given, self.left = events, len(events)
        self.now = 100.0
        self.slept: list[float] = []
        self.asked: list[Any] = []

    def events(self, *asked: Any, timeout_s: float) -> Iterator[tuple[str, Any]]:
        self.asked.append((*asked, timeout_s))
        for event in self.given:
            self.left -= 1
            self.now += 1
            if isinstance(event, Exception):
                raise event
            yield event

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)


def watch(
    monkeypatch: pytest.MonkeyPatch, owners: list[Any], *events: tuple[str, Any] | Exception, timeout_s: float = 30.0
) -> tuple[Watch, JobObjects]:
    watching, found = Watch(events), JobObjects(JOB, owners, [], "v7")
    monkeypatch.setattr(time, "monotonic", lambda: watching.now)
    monkeypatch.setattr(time, "sleep", watching.sleep)
    api: Any = watching
    queries.watch_for_the_end(api, "n", "app", found, timeout_s)
    return watching, found


TWO = [job("a", {}), job("b", {})]
GONE = {"code": 410}


@pytest.mark.parametrize(
    ("events", "left", "slept"),
    [
        ([("MODIFIED", job("a", DONE)), ("MODIFIED", job("b", DONE)), ("X", job("a", {}))], 1, []),
        ([("MODIFIED", job("a", FAILED)), ("X", job("a", {}))], 1, []),
        ([("DELETED", job("a", {})), ("X", job("a", {}))], 1, []),
        ([("MODIFIED", job("a", {})), ("ADDED", job("b", {})), ("MODIFIED", job("b", FAILED))], 0, []),
        ([("MODIFIED", job("a", DONE)), ("MODIFIED", job("a", DONE)), ("MODIFIED", job("b", DONE))], 0, []),
        ([("BOOKMARK", job("x")), ("MODIFIED", job("b", FAILED))], 0, []),
        ([("ERROR", GONE), ("X", {})], 1, []),
        ([("ERROR", {"code": 500}), ("X", {})], 1, [2.0]),
        ([], 0, [2.0]),
        ([("MODIFIED", job("a", DONE))], 0, [2.0]),
        ([TransientError("lost")], 0, [2.0]),
    ],
)
def test_waiting_for_the_end(monkeypatch: pytest.MonkeyPatch, events: list[Any], left: int, slept: list[float]) -> None:
    """Until all have succeeded, one has failed, or is deleted; after a watch that fails there is a pause."""
    watching, _ = watch(monkeypatch, TWO, *events)
    assert (watching.left, watching.slept) == (left, slept)
    ((path, query, version, timeout_s),) = watching.asked
    assert (path, version, timeout_s) == (path_of("Job", "n"), "v7", 30.0)
    assert query == {"labelSelector": "app.kubernetes.io/instance=app", "timeoutSeconds": 31}


def test_the_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """After an owner has ended, or in the pause."""
    one = ("MODIFIED", job("a", DONE))
    watching, _ = watch(monkeypatch, TWO, one, one, one, one, timeout_s=1.5)
    assert (watching.left, watching.slept) == (2, [])
    watching, _ = watch(monkeypatch, TWO, one, timeout_s=1.5)
    assert watching.slept == [0.5]
    watching, _ = watch(monkeypatch, TWO, ("MODIFIED", job("a", {})), ("MODIFIED", job("a", {})), timeout_s=1.5)
    assert watching.slept == [0]


@pytest.mark.parametrize("owners", [[], [job("a", DONE)]])
@pytest.mark.parametrize(("timeout_s", "slept"), [(30.0, [2.0]), (0.5, [0.5])])
def test_nothing_to_wait_for(
    monkeypatch: pytest.MonkeyPatch, owners: list[Any], timeout_s: float, slept: list[float]
) -> None:
    """A short pause, and no watch."""
    watching, _ = watch(monkeypatch, owners, timeout_s=timeout_s)
    assert (watching.asked, watching.slept) == ([], slept)


def test_what_was_seen_last_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of a Job that its TTL deletes; an event without a status changes nothing."""
    _, found = watch(
        monkeypatch, [*TWO], ("ADDED", job("b")), ("MODIFIED", job("x", DONE)), ("DELETED", job("b", DONE))
    )
    assert [owner.get("status") for owner in found.owners] == [{}, DONE]


@pytest.mark.parametrize(("kind", "plural"), [("Pod", "pods"), (JOB, "jobs"), (JOBSET, "jobsets")])
def test_changes_of_jobs(kind: str, plural: str) -> None:
    """By the app id, from now on; bookmarks and errors are not changes."""
    cluster: Any = Cluster(groups=["jobset.x-k8s.io/v1alpha2"])
    labels = {names.LABEL_UNIQUE_NAME: "app"}
    cluster.watched = [
        {"type": what, "object": job("p", labels=labels if what != "DELETED" else {})}
        for what in ("ADDED", "BOOKMARK", "ERROR", "DELETED")
    ]
    first = {"metadata": {"resourceVersion": "7"}, "items": []}
    cluster.away = lambda method, path: None if len(cluster.calls) > 1 else Response(200, first)
    assert list(queries.changes(KubeApi(cluster), kind, "n")) == ["n:app", "n:p"]
    (_, path, query), (_, _, watched) = cluster.calls
    assert path.endswith(f"/namespaces/n/{plural}")
    assert query == {"labelSelector": names.SELECTOR, "limit": "1"}
    assert (watched["resourceVersion"], watched["watch"], watched["labelSelector"]) == ("7", "true", names.SELECTOR)


# -- which jobs there are ------------------------------------------------------------------------------------


def test_how_jobs_are_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    """By their names; all of them, if they are many."""
    assert queries.selector(["a"]) == {"labelSelector": "app.kubernetes.io/instance=a"}
    assert queries.selector(["a", "b"]) == {"labelSelector": "app.kubernetes.io/instance in (a,b)"}
    assert (queries.MANY, queries.AT_ONCE) == (500, 50)
    monkeypatch.setattr(queries, "MANY", 3)
    cluster = Cluster()
    for count, all_ in ((2, False), (3, True)):
        cluster.calls.clear()
        queries.parts_of(KubeApi(cluster), "Pod", "n", ["a", "b", "c"][:count])
        assert (cluster.calls[0][2]["labelSelector"] == names.SELECTOR) is all_


def put(cluster: Cluster, plural: str, item: dict[str, Any]) -> dict[str, Any]:
    item["metadata"] = {"uid": f"uid-{len(cluster.objects)}", **item["metadata"]}
    cluster.objects[plural, item["metadata"]["namespace"], item["metadata"]["name"]] = item
    return item


def ours(app: str, **labels: str) -> dict[str, str]:
    return {names.LABEL_UNIQUE_NAME: app, names.LABEL_ORGANIZATION: names.ORGANIZATION, **labels}


def pod(name: str, app: str, phase: str = "Running", **metadata: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": "n", "labels": ours(app), **metadata}, "status": {"phase": phase}}


JOBS, PODS, SETS = "apis/batch/v1/jobs", "api/v1/pods", "apis/jobset.x-k8s.io/v1alpha2/jobsets"


@pytest.mark.parametrize(
    ("pods", "there"),
    [
        ([], False),
        ([pod("p", "a")], True),
        ([pod("p", "a", "Succeeded", deletionTimestamp="x")], False),
        ([pod("p", "a", "Failed", deletionTimestamp="x")], False),
        ([pod("p", "a", "Running", deletionTimestamp="x")], True),
        ([pod("p", "a", "Failed")], True),
        ([pod("p", "a", "Failed", deletionTimestamp="x"), pod("q", "a", "Failed")], True),
    ],
)
def test_a_job_without_its_owner(pods: list[Any], there: bool) -> None:
    """It is there as long as its pods are not being deleted."""
    cluster = Cluster()
    for item in pods:
        put(cluster, PODS, item)
    found = queries.look(KubeApi(cluster), "n", ["a"], [JOBSET, JOB])
    assert [(name, one.kind, len(one.pods)) for name, one in found.items()] == (
        [("a", JOBSET, len(pods))] if there else []
    )


def test_a_job_and_its_parts() -> None:
    """The Jobs of a JobSet are not jobs; pods only if they are asked for; other jobs are left out."""
    cluster = Cluster(groups=["jobset.x-k8s.io/v1alpha2"])
    put(cluster, SETS, job("s", kind="JobSet", labels=ours("s")))
    put(cluster, JOBS, job("s-0", labels=ours("s"), ownerReferences=[{"kind": "JobSet", "uid": "x"}]))
    put(cluster, JOBS, job("j", labels=ours("j"), ownerReferences=[{"kind": "Other", "uid": "x"}]))
    put(cluster, JOBS, job("k", labels=ours("k")))
    put(cluster, PODS, pod("p", "j"))
    api = KubeApi(cluster)
    found = queries.look(api, "n", ["s", "j"], [JOBSET, JOB])
    assert {name: (one.kind, len(one.owners), len(one.pods)) for name, one in found.items()} == {
        "s": (JOBSET, 1, 0),
        "j": (JOB, 1, 1),
    }
    cluster.calls.clear()
    assert [len(one.pods) for one in queries.look(api, "n", ["s"], [JOBSET, JOB], pods=False).values()] == [0]
    assert len(cluster.calls) == 1  # it was found among the first kind
    everything = queries.all_jobs(api, "n", [JOBSET, JOB])
    assert {name: (one.kind, len(one.owners), len(one.pods)) for name, one in everything.items()} == {
        "n:s": (JOBSET, 1, 0),
        "n:j": (JOB, 1, 1),
        "n:k": (JOB, 1, 0),
    }


def test_the_pods_of_all_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of those that go on, by chunks; of the others those that run. Without the right to pods, none."""
    monkeypatch.setattr(queries, "AT_ONCE", 2)
    cluster = Cluster()
    for name in "abc":
        put(cluster, JOBS, job(name, labels=ours(name)))
        put(cluster, PODS, pod(f"p{name}", name, "Failed"))
    put(cluster, JOBS, job("d", DONE, labels=ours("d")))
    put(cluster, PODS, pod("pd", "d", "Failed"))
    put(cluster, PODS, pod("qd", "d", "Running"))
    put(cluster, PODS, pod("x", "nobody", "Running"))
    found = queries.all_jobs(KubeApi(cluster), "n", [JOB])
    assert {name: [one["metadata"]["name"] for one in job_.pods] for name, job_ in found.items()} == {
        "n:a": ["pa"],
        "n:b": ["pb"],
        "n:c": ["pc"],
        "n:d": ["qd"],
    }
    assert [query.get("labelSelector") for _, path, query in cluster.calls if path.endswith("/pods")] == [
        "app.kubernetes.io/instance in (a,b)",
        "app.kubernetes.io/instance=c",
        names.SELECTOR,
    ]
    cluster.faults.append(("GET", "/pods", refusal(403, "Forbidden", "no"), "before"))
    assert [len(one.pods) for one in queries.all_jobs(KubeApi(cluster), "n", [JOB]).values()] == [0] * 4
    cluster.calls.clear()
    assert queries.all_jobs(KubeApi(Cluster()), "n", [JOB]) == {}


@pytest.mark.parametrize(
    ("answers", "found", "raised"),
    [
        ({}, ["n:j"], None),
        ({"jobsets": 403}, ["n:j"], None),
        ({"jobs": 403, "jobsets": 403}, [], BackendError),
        ({"jobs": 403}, [], BackendError),
        ({"jobs": 401}, [], BackendError),
    ],
)
def test_kinds_that_we_may_not_list(answers: dict[str, int], found: list[str], raised: type[Exception] | None) -> None:
    """One suffices; if there is none, the first refusal is the error. A kind that is not there is left out."""
    cluster = Cluster()
    put(cluster, JOBS, job("j", labels=ours("j")))

    def refuse(method: str, path: str) -> Any:
        status = answers.get(path.rpartition("/")[2])
        return refusal(status, "x", f"no {path}") if status else None

    cluster.away = refuse
    if raised is None:
        assert list(queries.all_jobs(KubeApi(cluster), "n", [JOBSET, JOB])) == found
    else:
        with pytest.raises(raised):
            queries.all_jobs(KubeApi(cluster), "n", [JOBSET, JOB])


def test_one_namespace_if_all_are_forbidden() -> None:
    """That of kubeconfig."""
    cluster = Cluster()
    item = job("j", labels=ours("j"))
    item["metadata"]["namespace"] = "default"
    put(cluster, JOBS, item)
    every = queries.all_jobs(KubeApi(cluster), None, [JOB])
    assert list(every) == ["default:j"] and cluster.calls[0][1] == "/apis/batch/v1/jobs"
    cluster.calls.clear()
    cluster.away = lambda method, path: None if "namespaces" in path else refusal(403, "Forbidden", "no")
    assert list(queries.all_jobs(KubeApi(cluster), None, [JOB])) == ["default:j"]
    assert cluster.calls[1][1] == "/apis/batch/v1/namespaces/default/jobs"


# -- creation, cancellation, deletion ------------------------------------------------------------------------


def part(name: str, kind: str = "ConfigMap") -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": kind, "metadata": {"name": name, "namespace": "n"}}


def created(mutual: bool) -> tuple[Cluster, dict[str, Any]]:
    cluster = Cluster()
    parts = [part("c"), part("s", "Secret"), part("w", "Service"), part("v", "Pod")]
    lifecycle.create_all(KubeApi(cluster), [job("j"), *parts], mutual=mutual)
    return cluster, {
        item["metadata"]["name"]: item["metadata"].get("ownerReferences") for item in cluster.objects.values()
    }


def test_the_first_object_owns_the_others() -> None:
    """If it is to go with the last of them, they own it as well: those that a TTL deletes."""
    _, owners = created(mutual=False)
    mine = [{"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "uid-0"}]
    assert owners == {"j": None, **dict.fromkeys("cswv", mine)}
    cluster, owners = created(mutual=True)
    assert owners["j"] == [{"apiVersion": "v1", "kind": "Pod", "name": "v", "uid": "uid-4"}]
    assert sum(method == "PATCH" for method, _, _ in cluster.calls) == 1
    cluster = Cluster()
    lifecycle.create_all(KubeApi(cluster), [job("j"), part("c")], mutual=True)
    assert all(method != "PATCH" for method, _, _ in cluster.calls)


@pytest.mark.parametrize("at", ["jobs", "configmaps", "pods", "PATCH"])
@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), TransientError("lost"), BackendError("no")], ids=["ctrl-c", "lost", "refused"]
)
def test_a_creation_that_fails_leaves_nothing(at: str, error: BaseException) -> None:
    """Whichever call it was, unless the first one was refused, when there is nothing."""
    cluster = Cluster()
    api: Any = KubeApi(cluster, sleep=lambda _: None)
    deleted: list[str] = []
    real: Any = {"create": api.create, "patch": api.patch, "delete": api.delete}

    def create(item: Any) -> Any:
        made = real["create"](item)
        if at.startswith(item["kind"].lower()):
            raise error
        return made

    def patch(path: str, changes: Any) -> Any:
        if at == "PATCH":
            raise error
        return real["patch"](path, changes)

    api.create, api.patch = create, patch
    api.delete = lambda path, **more: deleted.append(path) or real["delete"](path, **more)
    with pytest.raises(type(error)):
        lifecycle.create_all(api, [job("j"), part("c"), part("v", "Pod")], mutual=True)
    refused_at_once = at == "jobs" and type(error) is BackendError
    assert deleted == ([] if refused_at_once else ["/apis/batch/v1/namespaces/n/jobs/j"])
    assert cluster.objects == {} or refused_at_once


@pytest.mark.parametrize(
    ("error", "said"), [(KeyboardInterrupt(), "interrupted; and"), (TransientError("lost"), "lost; and")]
)
def test_what_cannot_be_undone_is_said(error: BaseException, said: str) -> None:
    """With the command that deletes it."""
    api: Any = KubeApi(Cluster())

    def fail(*_: Any, **__: Any) -> Any:
        raise error

    def refuse(*_: Any, **__: Any) -> Any:
        raise BackendError("no right")

    api.create, api.delete = fail, refuse
    with pytest.raises(
        BackendError, match=f"{said} objects that may have been created could not be deleted: no right"
    ) as e:
        lifecycle.create_all(api, [job("j")])
    assert e.value.hint == "kubectl delete -n n Job j"


class Recorded(KubeApi):
    """Writes down what is changed; a cluster that is too old drops `suspend`."""

    def __init__(self, cluster: Any = None, *, suspends: bool = True, refuse: Sequence[str] = ()) -> None:
        super().__init__(cluster or Cluster(), sleep=lambda seconds: self.did.append(("sleep", seconds)))
        self.did: list[Any] = []
        self._suspends, self._refuse = suspends, refuse

    def patch(self, path: str, patch: Any) -> Any:
        name = path.rpartition("/")[2]
        if name in self._refuse:
            raise BackendError(f"no right to {name}")
        marks = sorted((patch.get("metadata") or {}).get("annotations") or {})
        self.did.append((name, [m.rpartition("/")[2] for m in marks], patch.get("spec")))
        return patch if self._suspends else {}

    def delete(self, path: str, *, grace_s: int | None = None) -> None:
        self.did.append(("deleted", path.rpartition("/")[2]))

    def create(self, item: Any, **_: Any) -> Any:
        self.did.append((item["kind"], item["action"], item["target"]["name"]))
        return item


SUSPEND = {"suspend": True}


@pytest.mark.parametrize(
    ("kind", "item", "did"),
    [
        (JOB, job("j"), [("j", ["cancelled"], SUSPEND)]),
        (JOBSET, job("j", kind="JobSet"), [("j", ["cancelled"], SUSPEND)]),
        (PYTORCH, job("j", kind="PyTorchJob"), [("j", ["cancelled"], {"runPolicy": SUSPEND})]),
        (
            VOLCANO,
            job("j", {"state": {"phase": "Running"}}, uid="u"),
            [("j", ["cancelled"], None), ("Command", "AbortJob", "j")],
        ),
        (OLD_APPWRAPPER, job("j"), [("deleted", "j")]),
        (JOB, job("j", DONE), []),
    ],
)
def test_how_a_job_is_cancelled(kind: str, item: dict[str, Any], did: list[Any]) -> None:
    """Each kind in its own way; one that has ended is left alone."""
    api = Recorded()
    lifecycle.cancel(api, JobObjects(kind, [item]))
    assert api.did == did


def test_a_cluster_that_cannot_suspend() -> None:
    """A Job gets no pods instead; Training Operator has no other way."""
    api = Recorded(suspends=False)
    lifecycle.cancel(api, JobObjects(JOB, [job("j")]))
    assert [spec for _, _, spec in api.did] == [SUSPEND, {"parallelism": 0}]
    with pytest.raises(BackendError, match=r"Training Operator cannot suspend a job; this needs 1\.7"):
        lifecycle.cancel(Recorded(suspends=False), JobObjects(PYTORCH, [job("j")]))


def test_all_are_cancelled_though_one_is_refused() -> None:
    """The first refusal is the error."""
    api = Recorded(refuse=["a", "b"])
    with pytest.raises(BackendError, match="no right to a"):
        lifecycle.cancel(api, JobObjects(JOB, [job("a"), job("b"), job("c")]))
    assert [name for name, *_ in api.did] == ["c"]


@pytest.mark.parametrize(
    ("kind", "failed", "refuse", "did"),
    [(JOB, True, [], ["a", "b"]), (JOB, False, [], []), (JOBSET, True, [], []), (JOB, True, ["a"], [])],
)
def test_the_others_are_stopped(kind: str, failed: bool, refuse: list[str], did: list[str]) -> None:
    """If one of plain Jobs has failed; without the right to, nothing happens."""
    api = Recorded(refuse=refuse)
    lifecycle.stop_the_others(api, JobObjects(kind, [job("a"), job("x", DONE), job("b")], failed=failed))
    assert [name for name, *_ in api.did] == did
    assert all(marks == ["stopped"] for _, marks, _ in api.did)


@pytest.mark.parametrize(
    ("answers", "did"),
    [
        ([["v1beta1"]], [("w0", [], {"active": False}), ("j", ["cancelled"], None)]),
        ([[], [], ["v1beta2", "v1beta1"]], [("sleep", 1.0)] * 2 + [("w0", [], {"active": False}), ("w1", [], {"active": False}), ("j", ["cancelled"], None)]),
        ([[]] * 4, [("sleep", 1.0)] * 3 + [("j", ["cancelled"], SUSPEND)]),
        ([None], [("j", ["cancelled"], SUSPEND)]),
    ],
)  # fmt: skip
def test_a_job_in_a_queue_leaves_it_first(monkeypatch: pytest.MonkeyPatch, answers: list[Any], did: list[Any]) -> None:
    """Kueue may need a moment to see it; if it never does, or is not there, the job is suspended."""
    left = iter(answers)

    def workloads(*_: object) -> Any:
        versions = next(left)
        if versions is None:
            raise NotFoundError("no Kueue")
        return [{"apiVersion": f"kueue.x-k8s.io/{v}", "metadata": {"name": f"w{i}"}} for i, v in enumerate(versions)]

    monkeypatch.setattr(lifecycle, "workloads", workloads)
    api = Recorded()
    lifecycle.cancel(api, JobObjects(JOB, [job("j", labels={names.LABEL_QUEUE: "team"})]))
    assert api.did == did
    assert next(left, "none") == "none"


@pytest.mark.parametrize(("kind", "deleted"), [(JOB, ["a", "b", "app"]), (JOBSET, ["a", "b"])])
def test_a_job_is_deleted(kind: str, deleted: list[str]) -> None:
    """The Service of plain Jobs, too, which may have outlived them."""
    api = Recorded()
    lifecycle.delete(api, JobObjects(kind, [job("a"), job("b")]), "n", "app")
    assert [name for _, name in api.did] == deleted


def test_a_document_that_is_not_one() -> None:
    """An event that is cut ends the watch."""
    cluster: Any = Cluster()
    whole = json.dumps({"type": "ADDED", "object": {"a": 1}}).encode()
    cluster.away = lambda method, path: Response(200, b"\n".join([whole, b"", b" ", b'{"type": 7}', whole[:9], whole]))
    api = KubeApi(cluster)
    assert list(api.events("/api/v1/pods", {}, "7", timeout_s=1)) == [("ADDED", {"a": 1}), ("7", {})]
    assert cluster.calls[0][2] == {"watch": "true", "allowWatchBookmarks": "true", "resourceVersion": "7"}
