"""Starts of watchers for jobs of `local_docker`."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from torchx.errors import BackendError
from torchx.runner.notices.plans import Plan
from torchx.schedulers.docker import watchers
from torchx.schedulers.docker_scheduler import DockerScheduler, create_scheduler
from torchx.specs.api import AppDef, AppState, Resource, Role
from torchx.supervisor.at_end import parts


def role(n: int, **fields: Any) -> Role:
    return Role("r", "img", entrypoint="prog", num_replicas=n, resource=Resource(cpu=1, gpu=0, memMB=64), **fields)


@pytest.fixture
def fake() -> Any:
    """An engine in memory."""
    pytest.importorskip("docker")
    from tests.schedulers.docker.fake_docker import FakeDocker

    return FakeDocker()


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The messages to watchers: the job's id for a start, then what is written to its stdin. None is started."""
    told: list[str] = []
    process = SimpleNamespace(communicate=lambda message=b"": told.append(message.decode()))

    def start(app_id: str, environ: Any, every_s: float = 15, *, later: bool = False) -> Any:
        told.append(f"{app_id} later {every_s:g}" if later else app_id)
        return process

    monkeypatch.setattr(watchers, "start", start)
    monkeypatch.setattr(watchers, "lives", lambda app_id: False)
    return told


def own(fake: Any) -> DockerScheduler:
    """A scheduler that has created its client itself, so that a watcher can reach the engine, too."""
    scheduler = create_scheduler("s", docker_client=fake)
    scheduler._on_engine.given = None
    return scheduler


@pytest.mark.parametrize(("n", "hidden", "warns"), [(2, True, True), (1, True, False), (2, False, False)])
def test_who_watches(
    fake: Any, told: list[str], caplog: pytest.LogCaptureFixture, n: int, hidden: bool, warns: bool
) -> None:
    """A job of several containers has a watcher; where a program's own client hides the engine it is said that it has
    none."""
    scheduler = create_scheduler("s", docker_client=fake) if hidden else own(fake)
    with caplog.at_level(logging.WARNING, "torchx"):
        app_id = scheduler.submit(AppDef("a", [role(n, max_retries=1)]), {})
        scheduler.describe(app_id)
    assert len(caplog.records) == warns
    assert told == ([] if hidden else [app_id, "go", app_id, "go"])


@pytest.mark.parametrize(("given", "every"), [(None, "15"), (2.5, "2.5"), (0.0, "")])
def test_who_takes_samples(fake: Any, told: list[str], given: float | None, every: str) -> None:
    """A job of one container has a watcher only for samples, which begins when the first one is due."""
    scheduler = own(fake)
    info = scheduler.submit_dryrun(AppDef("a", [role(1)]), {})
    info.submission.sample_s = given
    app_id = scheduler.schedule(info)
    scheduler.describe(app_id)
    assert told == ([f"{app_id} later {every}", "go"] if every else [])


def test_a_failed_submission_has_none(fake: Any, told: list[str]) -> None:
    """Its watcher gets no message, and cancels what was submitted."""
    from tests.schedulers.docker.fake_docker import refusal

    fake.faults["start"] = [None, refusal(500, "no")]
    with pytest.raises(BackendError):
        own(fake).submit(AppDef("a", [role(2)]), {})
    assert told[1:] == [""]
    assert fake.containers_made == {}


def test_who_asks_starts_another(fake: Any, told: list[str]) -> None:
    """Each query of a running job starts a watcher at its place, if it has none."""
    scheduler = own(fake)
    app_id = scheduler.submit(AppDef("a", [role(2)]), {})
    for ask in (
        lambda: scheduler.describe(app_id),
        scheduler.list,
        lambda: scheduler.describe_many([app_id]),
        lambda: list(scheduler.log_iter(app_id, "r", 0)),
    ):
        told.clear()
        ask()
        assert told == [app_id, "go"]
    told.clear()
    scheduler.describe_many(["other"])
    for container in fake.containers_made.values():
        container["Labels"]["torchx.pytorch.org/rules"] = '{"retries":{},"grace_s":1,"place":"another"}'
    scheduler.describe(app_id)
    assert told == []


def test_who_is_started_later_sends_notices(fake: Any, told: list[str]) -> None:
    """It sends what the first watcher would have sent, and nothing after all was sent."""
    scheduler = own(fake)
    app_id = scheduler.submit(AppDef("a", [role(2)]), {})
    plans = {name: Plan({"name": "a", "on": ["end"], "channels": {}}) for name in (app_id, "other")}
    words = {name: plan.arm(f"local_docker://s/{name}").decode() for name, plan in plans.items()}
    told.clear()
    scheduler.describe(app_id)
    assert told == [app_id, f"go{words[app_id]}"]
    assert parts(words[app_id].encode())[0][-1].decode() == f"local_docker://s/{app_id}"
    plans[app_id].disarm()
    told.clear()
    scheduler.describe(app_id)
    assert told == [app_id, "go"]


def test_an_ended_job_needs_none(fake: Any, told: list[str]) -> None:
    """However it has ended."""
    scheduler = own(fake)
    app_id = scheduler.submit(AppDef("a", [role(2)]), {})
    for container, code in zip(list(fake.containers_made), (0, 1), strict=True):
        fake.set(container, "exited", code)
    told.clear()
    found = scheduler.describe(app_id)
    assert found is not None
    assert (found.state, told) == (AppState.FAILED, [])


def test_no_process_can_be_started(fake: Any, monkeypatch: Any, caplog: pytest.LogCaptureFixture) -> None:
    """The job runs; a warning reports that it has no watcher."""

    def refuse(*_: object, **__: object) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(watchers, "start", refuse)
    with caplog.at_level(logging.WARNING, "torchx"):
        scheduler = own(fake)
        app_id = scheduler.submit(AppDef("a", [role(2)]), {})
        found = scheduler.describe(app_id)
    assert found is not None and found.state is AppState.RUNNING
    assert [r.state for r in found.roles_statuses[0].replicas] == [AppState.RUNNING] * 2
    assert "no process can be started: Resource temporarily unavailable" in caplog.messages[0]


@pytest.mark.parametrize(
    ("base_url", "path", "expected"),
    [
        ("http+docker://localhost", "/run/x.sock", "unix:///run/x.sock"),
        ("http://box:2375", None, "http://box:2375"),
        ("http://localhost:2375", None, "http://localhost:2375"),
        ("https://box:2376", None, None),
        ("http+docker://ssh", None, None),
    ],
)
def test_the_way_to_the_engine_of_a_client(base_url: str, path: str | None, expected: str | None) -> None:
    """As far as the client reveals it; it does not reveal TLS keys."""
    api = SimpleNamespace(base_url=base_url, _custom_adapter=SimpleNamespace(socket_path=path))
    found = watchers.engine_environment(SimpleNamespace(api=api), {"DOCKER_HOST": "unix:///other", "A": "b"})
    assert (found or {}).get("DOCKER_HOST") == expected
    assert watchers.engine_environment(None, {"DOCKER_HOST": "tcp://x:1"}) == {"DOCKER_HOST": "tcp://x:1"}


def test_there_is_one(tmp_path: Any, monkeypatch: Any) -> None:
    """The lock is held once, by an abstract socket name, or else by a file."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    for has_names in (watchers._HAS_NAMES, False):
        monkeypatch.setattr(watchers, "_HAS_NAMES", has_names)
        job = f"test-{os.getpid()}"
        assert not watchers.lives(job)
        held = watchers.hold(job)
        assert held is not None
        assert watchers.lives(job)
        assert watchers.hold(job) is None
        assert not watchers.lives(f"{job}-other")
        held.close()
        assert not watchers.lives(job)
        assert list(tmp_path.iterdir()) == []


def test_it_detaches_before_it_imports_anything() -> None:
    """Whoever submits the job waits for the process that detaches."""
    path = os.path.join(os.path.dirname(watchers.__file__), "watcher.py")
    program = (
        "import os, sys\n"
        "before = {*sys.modules}\n"
        "os.fork = lambda: sys.exit(' '.join({*sys.modules} - before))\n"
        f"exec(compile(open({path!r}).read(), {path!r}, 'exec'), {{'__name__': '__main__'}})"
    )
    done = subprocess.run([sys.executable, "-I", "-S", "-c", program], capture_output=True, text=True, check=False)
    assert done.stderr.split() == ["__future__"]
