"""What asking costs does not grow with the number of replicas."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.backends.docker.conftest import Job, at, ended, running, state_of
from torchx.schedulers.docker.plain_http import EngineHttp
from torchx.schedulers.docker_scheduler import DockerScheduler
from torchx.specs.api import AppState, Resource

MANY = 50
TINY = Resource(cpu=0.1, gpu=0, memMB=32)  # type: ignore[arg-type]  # a part of a CPU: more than the annotation promises


@pytest.fixture
def calls(scheduler: DockerScheduler, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Any]:
    """Counts the requests that go to the engine while the context lasts, by either of the two clients."""
    api = scheduler._docker_client.api
    send, request = api.send, EngineHttp._request
    made: list[str] = []

    def by_docker(sent: Any, **kwargs: Any) -> Any:
        made.append(f"{sent.method} {sent.url}")
        return send(sent, **kwargs)

    def by_torchx(engine: EngineHttp, method: str, target: str, *rest: Any) -> Any:
        made.append(f"{method} {target}")
        return request(engine, method, target, *rest)

    monkeypatch.setattr(api, "send", by_docker)
    monkeypatch.setattr(EngineHttp, "_request", by_torchx)

    @contextmanager
    def counting() -> Iterator[list[str]]:
        made.clear()
        yield made

    return counting


def test_fifty_replicas(scheduler: DockerScheduler, submit: Job, meet: Path, calls: Callable[[], Any]) -> None:
    """Starting takes three calls a replica and a few more; a description of all of them, a list, a cause: a few."""
    with calls() as made:
        program = "until test -e /meet/go; do sleep 2; done; exit ${replica_id}"
        app_id = submit(program, MANY, resource=TINY, mounts=at(meet))
    starting = [c for c in made if "/containers/" in c and "json?" not in c]
    assert len(starting) <= 3 * MANY
    assert len(made) <= 3 * MANY + 6
    assert state_of(running(scheduler, app_id, 300)) == [AppState.RUNNING] * MANY
    with calls() as made:
        assert scheduler.describe(app_id) is not None
        assert len(made) == 1, made
    with calls() as made:
        assert app_id in {job.app_id for job in scheduler.list()}
        assert len(made) == 1, made
    with calls() as made:
        answers = scheduler.describe_many([app_id, "other-1", "other-2"])
        assert len(made) == 1, made
    assert [answers[name] is not None for name in (app_id, "other-1", "other-2")] == [True, False, False]
    (meet / "go").touch()
    found = ended(scheduler, app_id, 300)
    assert found.state is AppState.FAILED
    with calls() as made:
        scheduler.describe(app_id)
        assert len(made) <= 9, made  # four of them only where the engine has forgotten when replicas have failed
    assert state_of(found)[0] in {AppState.SUCCEEDED, AppState.CANCELLED}
    assert set(state_of(found)[1:]) <= {AppState.FAILED, AppState.CANCELLED}
    assert AppState.FAILED in state_of(found)
