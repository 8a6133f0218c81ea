"""Secrets on a real engine: the program has them, and what everybody can look at has not."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.backends.canaries import SHOW, Canaries
from tests.backends.docker.conftest import SESSION, Job, at, ended, lines, role_of, running, state_of, wrote
from torchx.errors import BackendError
from torchx.schedulers.docker_scheduler import LABEL_APP_ID, DockerScheduler
from torchx.specs.api import AppDef, AppState, RetryPolicy


@pytest.fixture
def canaries(monkeypatch: pytest.MonkeyPatch) -> Canaries:
    """Values of this test; one is in our environment, as ``export`` puts it there."""
    made = Canaries()
    monkeypatch.setenv("MY_CANARY", made.values[0])
    return made


def shown(scheduler: DockerScheduler, app_id: str) -> list[str]:
    """What the engine shows of the job's containers, of their image, and of its events."""
    api = scheduler._docker_client.api
    found = api.containers(all=True, filters={"label": [f"{LABEL_APP_ID}={app_id}"]})
    about = [api.inspect_container(c["Id"]) for c in found]
    images = [f(c["Image"]) for c in about for f in (api.inspect_image, api.history)]
    return [json.dumps(item) for item in (*found, *about, *images)]


def kept(scheduler: DockerScheduler, canaries: Canaries) -> list[Path]:
    """The files of the engine, on this machine, with a value in them."""
    return canaries.files_below(scheduler._docker_client.info()["DockerRootDir"])


@pytest.fixture
def image_of_nobody(scheduler: DockerScheduler, docker_image: str) -> Iterator[str]:
    """An image whose programs do not run as root."""
    api = scheduler._docker_client.api
    container = api.create_container(docker_image, "true")
    api.commit(container, "torchx-test-nobody", "1", changes=["USER 65534"])
    api.remove_container(container)
    yield "torchx-test-nobody:1"
    api.remove_image("torchx-test-nobody:1", force=True)


@pytest.mark.parametrize(("code", "user"), [(0, "root"), (3, "65534")])
def test_the_program_has_them_and_nothing_else(
    canaries: Canaries, scheduler: DockerScheduler, image_of_nobody: str, meet: Path, code: int, user: str
) -> None:
    """Two replicas, whoever they run as; no file has them while they run, nor after the end."""
    image = {} if user == "root" else {"image": image_of_nobody}
    script = f"id -u; {SHOW}; until [ -e /meet/go ]; do sleep 0.1; done; exit {code}"
    app_id = scheduler.submit(AppDef("job", [role_of(script, 2, env=canaries.env, mounts=at(meet), **image)]), {})
    running(scheduler, app_id)
    for k in (0, 1):
        wrote(scheduler, app_id, ["0\n" if user == "root" else "65534\n", *canaries.shown()], k)
    assert canaries.command_lines() == []
    assert kept(scheduler, canaries) == []
    (meet / "go").touch()
    assert state_of(ended(scheduler, app_id))[0] is (AppState.FAILED if code else AppState.SUCCEEDED)
    assert canaries.found_in(shown(scheduler, app_id)) == []
    assert canaries.files_below(os.environ["TORCHX_HOME"]) == []
    assert kept(scheduler, canaries) == []


@pytest.mark.parametrize("policy", ["REPLICA", "APPLICATION"])
def test_they_are_there_again(
    canaries: Canaries, scheduler: DockerScheduler, submit: Job, meet: Path, policy: str
) -> None:
    """A container that the engine starts again, and a gang that the watcher does; `delete` leaves nothing."""
    app_id = submit(
        f"{SHOW}; mkdir /meet/$(hostname) 2>/dev/null && exit 1; exit 0",
        2,
        env=canaries.env,
        mounts=at(meet),
        max_retries=2,
        retry_policy=RetryPolicy(policy),
    )
    assert state_of(ended(scheduler, app_id)) == [AppState.SUCCEEDED] * 2
    for k in (0, 1):
        assert lines(scheduler, app_id, k)[-2:] == canaries.shown()
    assert canaries.found_in(shown(scheduler, app_id)) == []
    assert {path.name for path in kept(scheduler, canaries)} <= {".torchx-secrets"}
    scheduler.delete(app_id)
    assert kept(scheduler, canaries) == []


def test_cancel(canaries: Canaries, scheduler: DockerScheduler, submit: Job) -> None:
    """SIGTERM reaches the program: the shell that read the file has become it."""
    app_id = submit(f"trap 'echo bye; exit 0' TERM; {SHOW}; while :; do sleep 0.1; done", env=canaries.env)
    wrote(scheduler, app_id, canaries.shown())
    scheduler.cancel(app_id)
    ended(scheduler, app_id)
    wrote(scheduler, app_id, [*canaries.shown(), "bye\n"])
    assert canaries.found_in(shown(scheduler, app_id)) == []
    assert kept(scheduler, canaries) == []


def test_an_image_without_a_shell(canaries: Canaries, scheduler: DockerScheduler, meet: Path) -> None:
    """The submission fails, says why, and leaves nothing."""
    scheduler._docker_client.api.import_image_from_data(b"\0" * 10240, repository="torchx-test-empty", tag="1")
    try:
        with pytest.raises(BackendError, match="its image has no `/bin/sh`") as e:
            scheduler.submit(AppDef("job", [role_of("true", image="torchx-test-empty:1", env=canaries.env)]), {})
        assert canaries.found_in([f"{e.value} {e.value.hint}"]) == []
        assert [job.app_id for job in scheduler.list() if f"//{SESSION}/" in job.app_handle] == []
    finally:
        scheduler._docker_client.api.remove_image("torchx-test-empty:1")
