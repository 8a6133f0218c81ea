"""The engine is restarted, or killed, in the middle of a job; and it runs out of networks. On an engine of the test's own."""

from __future__ import annotations

import gc
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.backends import leftovers
from tests.backends.docker import engine
from tests.backends.docker.conftest import SESSION, ended, lines, put_file, role_of, running, state_of
from torchx.schedulers.docker_scheduler import DockerScheduler, create_scheduler
from torchx.specs.api import AppDef, AppState, RetryPolicy

pytestmark = [
    pytest.mark.timeout(300),
    # The `docker` package leaves a socket to the garbage collector when nobody listens at its path.
    pytest.mark.filterwarnings("ignore:Exception ignored in. <socket.socket:pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore:unclosed <socket.socket:ResourceWarning"),
]

# Four networks are all it has room for.
_OPTIONS = ("--default-address-pool", "base=10.213.0.0/22,size=24")


@pytest.fixture
def start(own_engine: engine.Engine, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., DockerScheduler]]:
    """Starts the engine with these options; returns a scheduler for it."""
    made: list[DockerScheduler] = []

    def start(*options: str) -> DockerScheduler:
        try:
            own_engine.start(*_OPTIONS, *options)
        except engine.Unavailable as e:
            pytest.skip(f"no second engine can be started here: {e}")
        engine.image(host=own_engine.host)
        monkeypatch.setenv("DOCKER_HOST", own_engine.host)
        made.append(create_scheduler(SESSION))
        return made[-1]

    yield start
    for scheduler in made:
        scheduler.close()
    gc.collect()  # see the filters above


def submit(scheduler: DockerScheduler, command: str, n: int = 1, **role: Any) -> str:
    return scheduler.submit(AppDef("job", [role_of(command, n, **role)]), {})


def test_a_job_goes_on_while_its_engine_is_restarted(
    own_engine: engine.Engine, start: Callable[..., DockerScheduler]
) -> None:
    """With `live-restore` containers run on: states come back, a follower of the log misses no line; and a replica that
    fails afterwards ends the others."""
    scheduler = start("--live-restore")
    fails = "case $(hostname) in *-1) until test -e /tmp/fail; do sleep 0.1; done; exit 3;; esac"
    watched = submit(scheduler, f"{fails}; trap 'exit 0' TERM; sleep 300 & wait $!", 2)
    [warden] = [process.pid for process in leftovers.living(f"warden.py {watched}")]
    app_id = submit(scheduler, "for i in $(seq 1 60); do echo $i; sleep 0.2; done; exit 4", 2)
    running(scheduler, app_id)
    followed: list[str] = []
    follower = threading.Thread(target=lambda: followed.extend(lines(scheduler, app_id, should_tail=True)))
    follower.start()
    own_engine.stop(signal.SIGTERM)
    own_engine.start(*_OPTIONS, "--live-restore")
    found = scheduler.describe(app_id)
    assert found is not None
    assert found.state is AppState.RUNNING
    assert ended(scheduler, app_id).msg.startswith(("r/0: exit code 4", "r/1: exit code 4"))
    follower.join(60)
    assert followed == [f"{i}\n" for i in range(1, 61)] == lines(scheduler, app_id)
    assert [process.pid for process in leftovers.living(f"warden.py {watched}")] == [warden]
    put_file(scheduler, f"{watched}-r-1", "fail")
    found = ended(scheduler, watched, 20)
    assert state_of(found) == [AppState.CANCELLED, AppState.FAILED]
    leftovers.gone(f"warden.py {watched}")


@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGKILL], ids=["stopped", "killed"])
def test_states_after_an_engine_that_took_its_containers_along(
    own_engine: engine.Engine, start: Callable[..., DockerScheduler], sig: int
) -> None:
    """Without `live-restore` the engine ends its containers: the job that ran has failed, one that had ended has not
    changed, those that may be tried again go on: a replica by itself by the engine, a role by its warden."""
    scheduler = start()
    done, runs = submit(scheduler, "echo done"), submit(scheduler, "sleep 300", 2)
    again = submit(scheduler, "echo try; sleep 300", max_retries=5, retry_policy=RetryPolicy.REPLICA)
    role = submit(scheduler, "echo try; sleep 300", 2, max_retries=5, retry_policy=RetryPolicy.ROLE)
    ended(scheduler, done)
    for app_id in (runs, again, role):
        running(scheduler, app_id)
    own_engine.stop(sig)
    own_engine.start(*_OPTIONS)
    found = ended(scheduler, runs)
    assert found.state is AppState.FAILED
    assert state_of(found) == [AppState.FAILED] * 2
    assert "killed by SIG" in found.msg
    assert found.ended_at is not None
    first = scheduler.describe(done)
    assert first is not None
    assert first.state is AppState.SUCCEEDED
    assert lines(scheduler, done) == ["done\n"]
    assert {job.app_id for job in scheduler.list()} == {done, runs, again, role}
    assert running(scheduler, again).state is AppState.RUNNING
    found = running(scheduler, role)
    assert found.num_restarts == 1
    assert [lines(scheduler, role, k) for k in range(2)] == [["try\n"] * 2] * 2


def test_networks_of_ended_jobs_make_room(own_engine: engine.Engine, start: Callable[..., DockerScheduler]) -> None:
    """An engine has room for few networks, and ended jobs stay for their logs: theirs are given up, those of running
    jobs are not."""
    scheduler = start()
    runs = submit(scheduler, "sleep 300")
    apps = []
    for i in range(6):
        apps.append(submit(scheduler, f"echo {i}"))
        ended(scheduler, apps[-1])
    assert [lines(scheduler, app_id) for app_id in apps] == [[f"{i}\n"] for i in range(6)]
    names = {n["Name"] for n in scheduler._docker_client.api.networks()}
    assert runs in names
    assert apps[-1] in names
    assert apps[0] not in names
