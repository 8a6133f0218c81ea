"""Races of the engine's calls: a name that exists, a container that was removed, one that does not stop."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from torchx.errors import BackendError

docker_errors = pytest.importorskip("docker.errors")

from tests.schedulers.docker.fake_docker import refusal  # noqa: E402  # needs docker
from torchx.schedulers.docker import client as calls  # noqa: E402
from torchx.schedulers.docker.containers import LABEL_APP_ID, Container  # noqa: E402
from torchx.specs.api import AppState  # noqa: E402


class Engine:
    """Returns a test's answers, and records the requests."""

    def __init__(self, **answers: Any) -> None:
        self.answers, self.asked = answers, []  # type: tuple[dict[str, Any], list[Any]]
        self.api = self.containers = self

    def _answer(self, name: str, /, *args: Any, **kwargs: Any) -> Any:
        self.asked.append((name, *args, kwargs))
        answer = self.answers.get(name)
        if isinstance(answer, list):
            answer = answer.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer(*args) if callable(answer) else answer

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **kwargs: self._answer(name, *args, **kwargs)


def _request(app_id: str = "a-1") -> Any:
    return SimpleNamespace(image="img", command=["x"], kwargs={"name": "a-1-r-0", "labels": {LABEL_APP_ID: app_id}})


def _container(number: int = 0) -> Container:
    return Container(
        id=f"id{number}", name=f"a-1-r-{number}", role="r", k=number, raw="running", state=AppState.RUNNING,
        exit_code=None, created=0.0, labels={},
    )  # fmt: skip


TAKEN = (409, "Conflict. The container name is already in use")


def test_a_container_whose_answer_was_lost_is_taken() -> None:
    """It has the name and the job's id, so this submission created it."""
    there = SimpleNamespace(labels={LABEL_APP_ID: "a-1"})
    engine = Engine(create=refusal(*TAKEN), get=there)
    assert calls.create(engine, _request()) is there
    assert engine.asked[-1] == ("get", "a-1-r-0", {})


@pytest.mark.parametrize("labels", [None, {}, {LABEL_APP_ID: "a-2"}, {"other": "a-1"}])
def test_a_container_of_another_job_is_not_taken(labels: Any) -> None:
    """It only has the name: the error contains the engine's message."""
    engine = Engine(create=refusal(*TAKEN), get=SimpleNamespace(labels=labels))
    with pytest.raises(BackendError):
        calls.create(engine, _request())


def test_any_other_refusal_is_an_error() -> None:
    """No existing container is looked up."""
    engine = Engine(create=refusal(404, "No such image: img"))
    with pytest.raises(BackendError):
        calls.create(engine, _request())
    assert [name for name, *_ in engine.asked] == ["create"]


def test_stopping_what_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A container that was removed meanwhile causes no error."""
    gone = refusal(404, "No such container: id0")
    engine = Engine(rename=gone, inspect_container=gone, stop=gone)
    calls.stop_all(engine, None, [_container()], 7, cancelled=True)
    assert [(name, kwargs) for name, *_, kwargs in engine.asked if name == "stop"] == [("stop", {"timeout": 7})]


@pytest.mark.parametrize(("lost", "timeout"), [(True, 0), (False, 7)])
def test_a_grace_is_for_who_can_hear(monkeypatch: pytest.MonkeyPatch, lost: bool, timeout: int) -> None:
    """There is no grace period if SIGTERM would be lost."""
    monkeypatch.setattr(calls, "sigterm_is_lost", lambda inspected: lost)
    engine = Engine(inspect_container={})
    calls.stop_all(engine, None, [_container()], 7, cancelled=True)
    assert engine.asked[-1] == ("stop", "id0", {"timeout": timeout})


@pytest.mark.parametrize("name", ["rename", "stop"])
def test_an_engine_that_fails_is_heard(name: str) -> None:
    """Errors other than a missing container or a concurrent cancel are raised."""
    engine = Engine(inspect_container={}, **{name: refusal(500, "out of memory")})
    with pytest.raises(docker_errors.APIError):
        calls.stop_all(engine, None, [_container()], 7, cancelled=True)


def test_two_who_cancel_at_once() -> None:
    """The second one finds the name changed already, and stops the container all the same."""
    for said in (refusal(500, "Renaming a container with the same name as its current name"), refusal(*TAKEN)):
        engine = Engine(inspect_container={}, rename=said)
        calls.stop_all(engine, None, [_container()], 7, cancelled=True)
        assert engine.asked[-1][0] == "stop"


def test_several_are_stopped_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are stopped in one batch if the engine's address is known; those that fail are stopped one by one."""
    asked: list[Any] = []

    class Http:
        def __init__(self, environ: Any) -> None:
            asked.append(environ)

        def post(self, targets: list[str], *, timeout_s: float) -> list[int | None]:
            asked.append((targets, timeout_s))
            return [204, 304, 404, 500, None]

    monkeypatch.setattr(calls, "EngineHttp", Http)
    monkeypatch.setattr(calls, "sigterm_is_lost", lambda inspected: False)
    engine = Engine(inspect_container={})
    calls.stop_all(engine, {"DOCKER_HOST": "x"}, [_container(k) for k in range(5)], 7, cancelled=True)
    assert asked[0] == {"DOCKER_HOST": "x"}
    targets, timeout_s = asked[1]
    assert len(targets) == 5 and "id3" in targets[3] and "t=7" in targets[3]
    assert timeout_s > 7
    assert sorted(call[1] for call in engine.asked if call[0] == "stop") == ["id3", "id4"]
    asked.clear()
    calls.stop_all(engine, {"DOCKER_HOST": "x"}, [_container()], 7, cancelled=True)
    assert asked == []  # a single one needs no connection of its own


@pytest.mark.parametrize(
    "said", [refusal(404, "No such container"), refusal(409, "removal of container is already in progress")]
)
def test_removing_what_is_gone_or_going(said: Exception) -> None:
    """No error, and one request."""
    engine = Engine(remove_container=said)
    calls.remove(engine, "id0")
    assert engine.asked == [("remove_container", "id0", {"force": True, "v": True})]


def test_removing_what_the_engine_is_busy_with(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is retried a limited number of times; another error is raised at once."""
    pauses: list[int] = []
    monkeypatch.setattr(calls, "pause", pauses.append)
    busy = [refusal(500, "unable to remove filesystem") for _ in range(calls._REMOVALS)]
    calls.remove(Engine(remove_container=[*busy[1:], None]), "id0")
    assert pauses == list(range(calls._REMOVALS - 1))
    pauses.clear()
    with pytest.raises(docker_errors.APIError):
        calls.remove(Engine(remove_container=busy), "id0")
    assert len(pauses) == calls._REMOVALS - 1
    with pytest.raises(docker_errors.APIError):
        calls.remove(Engine(remove_container=refusal(500, "no")), "id0")
    assert len(pauses) == calls._REMOVALS - 1
