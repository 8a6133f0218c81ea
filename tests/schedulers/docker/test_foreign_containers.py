"""Containers that torchx did not create, on an engine in memory."""

from __future__ import annotations

import pytest

from tests.schedulers.docker.fake_docker import FakeDocker
from torchx.errors import NotSupportedError
from torchx.schedulers.docker.containers import LABEL_APP_ID, LABEL_REPLICA_ID, LABEL_ROLE_NAME
from torchx.schedulers.docker_scheduler import DockerScheduler
from torchx.schedulers.kit.logs import LogQuery
from torchx.specs import AppState


@pytest.fixture
def engine() -> FakeDocker:
    return FakeDocker()


@pytest.fixture
def jobs(engine: FakeDocker):
    return DockerScheduler("foreign", engine).foreign()


def made(engine: FakeDocker, name: str, labels: dict[str, str] | None = None) -> str:
    """A running container."""
    container = engine.containers.create("img", ["serve"], name=name, labels=labels or {})
    container.start()
    engine.containers_made[container.id] |= {"Image": "img", "Command": "serve --port 80"}
    return container.id


def frame(text: str, stream: int = 2) -> bytes:
    """A line of the engine's stream."""
    line = f"1970-01-01T00:00:12.0Z {text}\n".encode()
    return bytes([stream, 0, 0, 0]) + len(line).to_bytes(4, "big") + line


def test_by_name_and_id(engine: FakeDocker, jobs) -> None:
    """A container has one replica, whose role has its name."""
    one = made(engine, "web")
    made(engine, "web2")
    assert jobs.find("web").app_id == jobs.find(one).app_id == one[:12]
    assert jobs.find("nobody") is jobs.find("k8s/x") is None
    assert jobs.log_replicas(one) == [("web", 0)]
    assert jobs.describe(one).state is AppState.RUNNING
    assert jobs.about(one) == {"name": "web", "image": "img", "command": "serve --port 80"}


def test_a_dot_in_a_name_is_a_dot(engine: FakeDocker, jobs) -> None:
    """An engine takes the name to look for as a regular expression, in which a dot matches any character."""
    made(engine, "web-1")
    assert jobs.find("web.1") is None
    one = made(engine, "web.1")
    assert jobs.find("web.1").app_id == one[:12]


def test_a_name_like_one_of_ours(engine: FakeDocker, jobs) -> None:
    """Only names of torchx's containers have marks: the end of another name does not mean that torchx stopped it."""
    one = made(engine, "web.app2.cancelled")
    engine.set(one, "exited", 3)
    found = jobs.describe(one)
    assert (found.state, found.num_restarts, jobs.log_replicas(one)) == (
        AppState.FAILED,
        0,
        [("web.app2.cancelled", 0)],
    )


def test_a_number_is_asked_of_nobody(engine: FakeDocker, jobs) -> None:
    """It is a job of another system, though container ids may begin like that."""
    assert jobs.find("4711") is None
    assert engine.calls == []


def test_why_it_failed(engine: FakeDocker, jobs) -> None:
    """Exit code, last lines, and log."""
    one = made(engine, "web")
    engine.set(one, "exited", 3)
    path = f"/containers/{one}/logs"
    engine.streams[path] = [frame("ValueError: no such frob"), b"", frame("ValueError: no such frob")]
    found = jobs.describe(one)
    assert (found.state, found.msg) == (AppState.FAILED, "web/0: exit code 3: ValueError: no such frob")
    (log,) = jobs.open_logs(one, [("web", 0)], LogQuery())
    assert list(log) == ["ValueError: no such frob\n"]


def test_the_run_before_the_last_restart(engine: FakeDocker, jobs) -> None:
    """The engine restarts containers of others, too."""
    one = made(engine, "web")
    engine.containers_made[one]["inspect"] |= {"RestartCount": 1, "State": {"StartedAt": "1970-01-01T00:00:20Z"}}
    engine.streams["/events"] = [b'{"timeNano": 15000000000}\n']
    engine.streams[f"/containers/{one}/logs"] = [frame("first run")]
    (log,) = jobs.open_logs(one, [("web", 0)], LogQuery(previous=True))
    assert list(log) == ["first run\n"]
    assert engine.filters == [{"type": ["container"], "event": ["die", "died"], "container": [one]}]


def test_a_container_of_ours_is_told_from_others(engine: FakeDocker, jobs) -> None:
    """It is a replica, so its job is returned."""
    made(engine, "job-x1-w-0", {LABEL_APP_ID: "job-x1", LABEL_ROLE_NAME: "w", LABEL_REPLICA_ID: "0"})
    assert (jobs.find("job-x1-w-0").app_id, jobs.find("job-x1-w-0").ours) == ("job-x1", True)


def test_nothing_is_done_to_it(engine: FakeDocker, jobs) -> None:
    """It is stopped and removed only with `forced`; others are not affected."""
    one, other = made(engine, "web"), made(engine, "db")
    for end in (jobs.cancel, jobs.delete):
        with pytest.raises(NotSupportedError):
            end(one)
    assert not {"stop", "remove_container"} & set(engine.calls)
    jobs.forced().cancel(one)
    assert engine.containers_made[one]["State"] == "exited"
    jobs.forced().delete(one)
    assert list(engine.containers_made) == [other]
