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
from tests.backends.docker.conftest import (
    PATIENCE_S,
    SESSION,
    ended,
    put_file,
    role_of,
    running,
    state_of,
    watcher_gone,
    wrote,
)
from tests.backends.shell import Shell
from torchx.schedulers.docker_scheduler import DockerScheduler, create_scheduler
from torchx.specs.api import AppDef, AppState, RetryPolicy

pytestmark = [
    pytest.mark.timeout(600),
    # The `docker` package leaves a socket to the garbage collector when nobody listens at its path.
    pytest.mark.filterwarnings("ignore:Exception ignored in. <socket.socket:pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore:unclosed <socket.socket:ResourceWarning"),
]

# Four networks are all it has room for. One that ends does not see its containers' ends through for more than 15 s
# by default; what it leaves, its next start cannot start again.
_OPTIONS = ("--default-address-pool", "base=10.213.0.0/22,size=24", "--shutdown-timeout", "100")


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
    own_engine: engine.Engine, start: Callable[..., DockerScheduler], eventually: Callable[..., object]
) -> None:
    """With `live-restore` containers run on: states come back, a follower of the log misses no line; and a replica that
    fails afterwards ends the others."""
    scheduler = start("--live-restore")
    fails = "case $(hostname) in *-1) until test -e /tmp/fail; do sleep 0.1; done; exit 3;; esac"
    watched = submit(scheduler, f"{fails}; trap 'exit 0' TERM; sleep 3000 & wait $!", 2)
    [watcher] = [process.pid for process in leftovers.living(f"watcher.py {watched}")]
    script = "i=0; until test -e /tmp/go; do i=$((i + 1)); echo $i; sleep 0.2; done; exit 4"
    app_id = submit(scheduler, script, 2)
    running(scheduler, app_id)
    followed: list[str] = []

    def follow() -> None:
        for line in scheduler.log_iter(app_id, "r", 0, should_tail=True):
            followed.append(line)  # one by one: the test looks at it

    follower = threading.Thread(target=follow)
    follower.start()
    eventually(lambda: followed, timeout_s=PATIENCE_S)
    own_engine.stop(signal.SIGTERM)
    own_engine.start(*_OPTIONS, "--live-restore")
    assert running(scheduler, app_id).state is AppState.RUNNING
    before = len(followed)
    eventually(lambda: len(followed) > before, timeout_s=PATIENCE_S)
    put_file(scheduler, f"{app_id}-r-0", "go")
    assert ended(scheduler, app_id).msg.startswith("r/0: exit code 4")
    follower.join(PATIENCE_S)
    assert not follower.is_alive()
    assert followed == [f"{i}\n" for i in range(1, len(followed) + 1)]
    wrote(scheduler, app_id, followed)
    assert [process.pid for process in leftovers.living(f"watcher.py {watched}")] == [watcher]
    put_file(scheduler, f"{watched}-r-1", "fail")
    found = ended(scheduler, watched)
    assert state_of(found) == [AppState.CANCELLED, AppState.FAILED]
    watcher_gone(watched)


def test_who_waits_goes_on_waiting_while_the_engine_is_restarted(
    own_engine: engine.Engine, start: Callable[..., DockerScheduler], shell: Shell
) -> None:
    """`torchx run --wait` says once that the engine does not answer, and then how the job ended."""
    scheduler = start("--live-restore")
    shell.env["DOCKER_HOST"] = own_engine.host
    script = "until test -e /tmp/go; do sleep 0.1; done"
    with shell.start(
        "run", "-s", "local_docker", "--wait", "--workspace=", "utils.sh", "--image", engine.IMAGE, script
    ) as run:
        assert run.stdout and run.stderr
        app_id = run.stdout.readline().strip().rpartition("/")[2]
        running(scheduler, app_id)
        own_engine.stop(signal.SIGTERM)
        said = run.stderr.readline()
        assert "the Docker engine no longer answers" in said
        assert f"{app_id}` continues; torchx retries for 10 minutes" in said
        own_engine.start(*_OPTIONS, "--live-restore")
        put_file(scheduler, f"{app_id}-sh-0", "go")
        assert (run.wait(PATIENCE_S), run.stderr.read()) == (0, "")


@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGKILL], ids=["stopped", "killed"])
def test_states_after_an_engine_that_took_its_containers_along(
    own_engine: engine.Engine, start: Callable[..., DockerScheduler], sig: int
) -> None:
    """Without `live-restore` the engine ends its containers: the job that ran has failed, one that had ended has not
    changed, those that may be tried again go on: a replica by itself by the engine, a role by its watcher."""
    scheduler = start()
    done, runs = submit(scheduler, "echo done"), submit(scheduler, "sleep 3000", 2)
    again = submit(scheduler, "echo try; sleep 3000", max_retries=5, retry_policy=RetryPolicy.REPLICA)
    role = submit(scheduler, "echo try; sleep 3000", 2, max_retries=5, retry_policy=RetryPolicy.ROLE)
    ended(scheduler, done)
    for app_id in (runs, again, role):
        running(scheduler, app_id)
    for k in range(2):
        wrote(scheduler, role, ["try\n"], k)
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
    wrote(scheduler, done, ["done\n"])
    assert {job.app_id for job in scheduler.list()} == {done, runs, again, role}
    assert running(scheduler, again).state is AppState.RUNNING
    found = running(scheduler, role)
    assert found.num_restarts == 1
    for k in range(2):
        wrote(scheduler, role, ["try\n"] * 2, k)


def test_networks_of_ended_jobs_make_room(own_engine: engine.Engine, start: Callable[..., DockerScheduler]) -> None:
    """An engine has room for few networks, and ended jobs stay for their logs: theirs are given up, those of running
    jobs are not."""
    scheduler = start()
    runs = submit(scheduler, "sleep 3000")
    apps = []
    for i in range(6):
        apps.append(submit(scheduler, f"echo {i}"))
        ended(scheduler, apps[-1])
    for i, app_id in enumerate(apps):
        wrote(scheduler, app_id, [f"{i}\n"])
    names = {n["Name"] for n in scheduler._docker_client.api.networks()}
    assert runs in names
    assert apps[-1] in names
    assert apps[0] not in names
