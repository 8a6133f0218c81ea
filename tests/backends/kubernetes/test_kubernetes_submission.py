"""A submission whose connection is cut at any of its calls: one job, or none and a word about it."""

from __future__ import annotations

import time

import pytest

from tests.backends.kubernetes import cluster
from tests.backends.kubernetes.proxy import way
from torchx.errors import TorchXError
from torchx.schedulers.kubernetes_scheduler import create_scheduler
from torchx.specs import AppDef, AppState, Resource, Role

CALLS = 6
"""Two dry runs, the version, whether there are JobSets, and the Service and the Job for good."""


@pytest.fixture
def road(kubeconfig, tmp_path, monkeypatch):
    with way(tmp_path) as (plan, path):
        monkeypatch.setenv("KUBECONFIG", path)
        yield plan


def app(image):
    role = Role("worker", image, entrypoint="true", resource=Resource(1, 0, 64))
    return AppDef("cut", [role])


def submit(image, namespace):
    scheduler = create_scheduler("cut")
    try:
        return scheduler.submit(app(image), {"namespace": namespace})
    finally:
        scheduler.close()


def made(namespace):
    jobs = cluster.call("GET", f"/apis/batch/v1/namespaces/{namespace}/jobs")["items"]
    services = cluster.call("GET", f"/api/v1/namespaces/{namespace}/services")["items"]
    return [i for i in jobs + services if not i["metadata"].get("deletionTimestamp")]


def test_a_submission_is_so_many_calls(road, image, namespace):
    """The tests below cut each of them; this one fails when there are more."""
    road.plan(0, after=False)
    submit(image, namespace)
    assert len(road.calls) == CALLS, road.calls


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("call", range(1, CALLS + 1))
def test_a_cut_is_mended(road, image, namespace, call, after):
    """The call is made again: one Service and one Job, whether or not the server had acted."""
    road.plan(call, after=after)
    submit(image, namespace)
    assert sorted(i["metadata"]["name"].count("-") for i in made(namespace)) == [1, 3]


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("call", range(1, CALLS + 1))
def test_a_cut_for_good_is_said(road, image, namespace, call, after, monkeypatch):
    """Nothing is left, or the message names what may be."""
    from torchx.schedulers.kubernetes import client as api

    monkeypatch.setattr(api, "_pause", lambda *_: 0.01)
    road.plan(call, after=after, for_good=True)
    if (call, after) == (CALLS, True):
        pytest.skip("all is made, and only the answer is lost: the next test")
    with pytest.raises(TorchXError) as error:
        submit(image, namespace)
    left = made(namespace)
    hint = error.value.hint
    assert not left or all(f"kubectl delete -n {namespace}" in hint for _ in left), (str(error.value), hint)


def test_when_only_the_last_answer_is_lost_for_good_it_is_said(road, image, namespace, monkeypatch):
    """The job may run: the message names what would remove it."""
    from torchx.schedulers.kubernetes import client as api

    monkeypatch.setattr(api, "_pause", lambda *_: 0.01)
    road.plan(CALLS, after=True, for_good=True)
    with pytest.raises(TorchXError) as error:
        submit(image, namespace)
    assert made(namespace)
    assert f"kubectl delete -n {namespace} Service cut-" in error.value.hint


def test_code_reaches_a_pod_without_a_registry(jobs, tmp_path, capsys):
    """As a ConfigMap: a changed file is in the next pod within seconds, and goes with its job."""
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "data").write_text("x" * 100_000)
    took = []
    for word in ("first", "second"):
        (tmp_path / "hello.sh").write_text(f"echo {word}; date +%s.%N; wc -c < lib/data\n")
        app = AppDef("job", [jobs.role("sh hello.sh")])
        begun = time.time()
        app_id = jobs.scheduler.submit(app, {"namespace": jobs.namespace}, workspace=str(tmp_path))
        found = jobs.until(app_id)
        assert found.state is AppState.SUCCEEDED, found.msg
        said, at, size = jobs.log(app_id)
        assert (said, int(size)) == (word, 100_000)
        took.append(float(at) - begun)
    with capsys.disabled():
        print(f"\nfrom a changed file to a started program: {', '.join(f'{seconds:.1f} s' for seconds in took)}")
    names = [item["metadata"]["name"] for item in cluster.call("GET", jobs.path("configmaps"))["items"]]
    assert sum("-code-" in name for name in names) == 2
    jobs.scheduler.delete(app_id)
