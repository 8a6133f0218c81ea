"""What becomes of a job when a replica fails: the others are ended, or all are started again; by a process that stays."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.backends import leftovers
from tests.backends.docker.conftest import Job, ended, lines, put_file, reached, role_of, running, state_of
from tests.backends.shell import Shell
from torchx.schedulers.docker_scheduler import DockerScheduler
from torchx.schedulers.kit.docker import wardens
from torchx.schedulers.kit.docker.logs import seconds
from torchx.specs.api import AppDef, AppState, RetryPolicy, Role

SLEEP = "trap 'exit 0' TERM; sleep 120 & wait $!"
"""It runs for long, and ends at SIGTERM."""


def wardens_of(app_id: str) -> list[int]:
    return [process.pid for process in leftovers.living(f"warden.py {app_id}")]


def fails(*ks: int, once: bool = False, then: str = "exit 0") -> str:
    """These replicas fail, each attempt or the first one only; the others run for long, or do ``then`` the second time."""
    mine = "|".join(f"*-{k}" for k in ks)
    if not once:
        return f"case $(hostname) in {mine}) sleep 1; exit 3;; esac; {SLEEP}"
    return (
        "echo try; test -e /tmp/again && again=1; touch /tmp/again; "
        f'test -n "$again" && {{ {then}; }}; case $(hostname) in {mine}) sleep 1; exit 3;; esac; {SLEEP}'
    )


@pytest.fixture
def attempts(scheduler: DockerScheduler) -> Callable[[str, int], int]:
    """How often a replica of role ``r`` was started, by what it wrote."""
    return lambda app_id, k: lines(scheduler, app_id, k).count("try\n")


def test_a_failed_replica_ends_the_others(docker_image: str, shell: Shell, eventually: Callable[..., object]) -> None:
    """The command that submitted is gone, the others are ended within moments all the same, and the status says why."""
    handle = shell.launch(
        *("-s", "local_docker", "--workspace=", "utils.sh", "--image", docker_image, "--num_replicas", "3"),
        *("--", fails(1)),
    )
    app_id = handle.rpartition("/")[2]
    try:
        eventually(lambda: "1 FAILED" in shell.torchx("status", handle, check=False))
        began = time.monotonic()
        eventually(lambda: "2 CANCELLED, 1 FAILED" in shell.torchx("status", handle, check=False))
        assert time.monotonic() - began < 10  # the status alone takes about one
        assert "sh/1: exit code 3" in shell.torchx("status", handle, check=False)
        eventually(lambda: not wardens_of(app_id))
    finally:
        shell.torchx("delete", handle)


def test_how_soon_the_others_are_ended(scheduler: DockerScheduler, submit: Job) -> None:
    """By the engine's own times: within two seconds of the failure."""
    app_id = submit(fails(2), 4)
    found = ended(scheduler, app_id)
    assert found.msg == "r/2: exit code 3"
    assert found.state is AppState.FAILED
    assert state_of(found) == [AppState.CANCELLED, AppState.CANCELLED, AppState.FAILED, AppState.CANCELLED]
    times = finished(scheduler, app_id)
    assert max(times) - min(times) < 2


def test_an_elastic_role_goes_on(scheduler: DockerScheduler, submit: Job) -> None:
    """Down to its least number of replicas; with one less, the rest is ended."""
    script = (
        f"case $(hostname) in *-0) exit 1;; *-1) until test -e /tmp/fail; do sleep 0.1; done; exit 2;; esac; {SLEEP}"
    )
    app_id = submit(script, 3, min_replicas=2)
    expected = [AppState.FAILED, AppState.RUNNING, AppState.RUNNING]
    reached(scheduler, app_id, lambda states: states == expected)
    time.sleep(1)
    found = scheduler.describe(app_id)
    assert found is not None
    assert (state_of(found), found.state) == (expected, AppState.RUNNING)
    put_file(scheduler, f"{app_id}-r-1", "fail")
    found = ended(scheduler, app_id)
    assert state_of(found) == [AppState.FAILED, AppState.FAILED, AppState.CANCELLED]
    assert found.state is AppState.FAILED


def test_replicas_that_succeed_end_nobody(scheduler: DockerScheduler, submit: Job) -> None:
    """One is done at once, the other runs on; then nobody watches any more."""
    app_id = submit("case $(hostname) in *-1) sleep 3;; esac", 2)
    assert wardens_of(app_id)
    assert ended(scheduler, app_id).state is AppState.SUCCEEDED
    leftovers.gone(f"warden.py {app_id}")


class TestRetries:
    def test_a_role_succeeds_the_second_time(
        self, scheduler: DockerScheduler, docker_image: str, attempts: Callable[[str, int], int]
    ) -> None:
        """All of its replicas are started again, those of the other role are not; the names still lead to them."""
        meets = "getent hosts r-0 && getent hosts $APP-r-0 && sleep 5 && exit 0; exit 9"
        role = again(fails(1, once=True, then=meets), 3, RetryPolicy.ROLE, image=docker_image)
        role.env["APP"] = "${app_id}"
        other = role_of("echo try; sleep 8", name="o", image=docker_image)
        app_id = scheduler.submit(AppDef("job", [role, other]), {})
        reached(scheduler, app_id, lambda states: AppState.PENDING in states)
        assert scheduler.describe(app_id).state in {AppState.RUNNING, AppState.PENDING}  # type: ignore[union-attr]  # it is there
        found = ended(scheduler, app_id)
        assert found.state is AppState.SUCCEEDED, [lines(scheduler, app_id, k) for k in range(3)]
        assert found.num_restarts == 1
        assert [attempts(app_id, k) for k in range(3)] == [2, 2, 2]
        assert lines(scheduler, app_id, 0, "o") == ["try\n"]

    def test_an_application_fails_after_the_last_time(
        self, scheduler: DockerScheduler, docker_image: str, attempts: Callable[[str, int], int]
    ) -> None:
        """All replicas of all roles are started three times; the status never says in between that the job has failed."""
        role = again(f"echo try; {fails(0)}", 2, RetryPolicy.APPLICATION, image=docker_image, max_retries=2)
        other = role_of(f"echo try; {SLEEP}", name="o", image=docker_image)
        app_id = scheduler.submit(AppDef("job", [role, other]), {})
        seen = set()
        while (found := scheduler.describe(app_id)).state is not AppState.FAILED:  # type: ignore[union-attr]  # it is there
            seen.add(found.num_restarts)
            scheduler.wait_for_end(app_id, 0.2)
        assert {0, 1} <= seen
        found = ended(scheduler, app_id)
        assert found.msg == "r/0: exit code 3"
        assert found.num_restarts == 2
        assert state_of(found) == [AppState.FAILED, AppState.CANCELLED, AppState.CANCELLED]
        assert [attempts(app_id, k) for k in range(2)] == [3, 3]
        assert lines(scheduler, app_id, 0, "o") == ["try\n"] * 3
        leftovers.gone(f"warden.py {app_id}")

    def test_logs_are_followed_over_attempts(self, scheduler: DockerScheduler, docker_image: str) -> None:
        """A follower of a replica that fails sees its second attempt as well."""
        role = again(fails(1, once=True, then="echo done; exit 0"), 2, RetryPolicy.ROLE, image=docker_image)
        app_id = scheduler.submit(AppDef("job", [role]), {})
        assert lines(scheduler, app_id, 1, should_tail=True) == ["try\n", "try\n", "done\n"]

    def test_cancel_while_it_is_started_again(self, scheduler: DockerScheduler, docker_image: str) -> None:
        """Whenever the cancellation comes, nothing of the job is started after it."""
        role = again(fails(1).replace("sleep 1;", ""), 3, RetryPolicy.ROLE, image=docker_image, max_retries=50)
        app_id = scheduler.submit(AppDef("job", [role]), {})
        reached(scheduler, app_id, lambda states: AppState.PENDING in states)
        scheduler.cancel(app_id)
        found = ended(scheduler, app_id, 30)
        assert found.state is AppState.CANCELLED
        leftovers.gone(f"warden.py {app_id}")
        assert ended(scheduler, app_id, 0).state is AppState.CANCELLED


class TestWithoutWarden:
    def test_a_killed_one_is_replaced(
        self, scheduler: DockerScheduler, submit: Job, eventually: Callable[..., object]
    ) -> None:
        """Nothing changes for the job; the first question starts another one, once, and it ends what is to be ended."""
        app_id = submit(
            f"case $(hostname) in *-1) until test -e /tmp/fail; do sleep 0.1; done; exit 3;; esac; {SLEEP}", 3
        )
        running(scheduler, app_id)
        kill(app_id)
        put_file(scheduler, f"{app_id}-r-1", "fail")
        time.sleep(2)
        api = scheduler._docker_client.api
        assert [c["State"] for c in api.containers(filters={"label": [f"torchx.pytorch.org/app-id={app_id}"]})] == [
            "running",
            "running",
        ]
        found = scheduler.describe(app_id)
        assert found is not None
        assert (found.state, found.msg) == (AppState.FAILED, "r/1: exit code 3; 2 replicas are still being ended")
        for _ in range(3):
            scheduler.describe(app_id)
        eventually(lambda: len(wardens_of(app_id)) <= 1)  # one that finds another one at work ends at once
        assert state_of(ended(scheduler, app_id)) == [AppState.CANCELLED, AppState.FAILED, AppState.CANCELLED]
        leftovers.gone(f"warden.py {app_id}")

    def test_one_killed_while_it_starts_replicas_again(
        self, scheduler: DockerScheduler, docker_image: str, attempts: Callable[[str, int], int]
    ) -> None:
        """The next one goes on where it was; the retry counts once."""
        role = again(fails(1, once=True).replace("trap 'exit 0'", "trap 'sleep 3; exit 0'"), 3, image=docker_image)
        app_id = scheduler.submit(AppDef("job", [role]), {})
        reached(scheduler, app_id, lambda states: AppState.PENDING in states)
        while scheduler.describe(app_id).num_restarts == 0:  # type: ignore[union-attr]  # it is there
            time.sleep(0.02)
        kill(app_id)
        found = ended(scheduler, app_id)
        assert (found.state, found.num_restarts) == (AppState.SUCCEEDED, 1)
        assert attempts(app_id, 1) == 2

    def test_a_second_one_ends_at_once(self, scheduler: DockerScheduler, submit: Job) -> None:
        """There is one for a job, however many are started."""
        app_id = submit(SLEEP, 2)
        [first] = wardens_of(app_id)
        for _ in range(3):
            wardens.start(app_id, os.environ).go()
        deadline = time.monotonic() + 60
        while wardens_of(app_id) != [first]:
            assert time.monotonic() < deadline
            time.sleep(0.05)

    def test_a_killed_submission_is_ended(self, scheduler: DockerScheduler, docker_image: str) -> None:
        """Nothing of a job runs on of which only a part was started."""
        from torchx.schedulers.kit.docker import calls, engine

        info = scheduler.submit_dryrun(AppDef("job", [role_of(SLEEP, 3, image=docker_image)]), {})
        app_id, client = info.request.app_id, scheduler._docker_client
        labels = {"torchx.pytorch.org/app-id": app_id}
        engine.make_network(client, app_id, labels, busy=set)
        made = [calls.create(client, container) for container in info.request.containers]
        calls.start((made[0], info.request.containers[0]))
        starting = wardens.start(app_id, os.environ)
        starting.drop()  # as the kernel does it for a process that is killed
        found = ended(scheduler, app_id)
        assert found.state is AppState.CANCELLED
        assert state_of(found) == [AppState.CANCELLED] * 3
        leftovers.gone(f"warden.py {app_id}")


def test_all_containers_are_ended_at_the_same_time(scheduler: DockerScheduler, submit: Job) -> None:
    """However many there are: the grace period is waited for once."""
    app_id = submit("trap '' TERM; while :; do sleep 1; done", 20, cfg={"cancel_grace_s": 4})
    running(scheduler, app_id)
    scheduler.cancel(app_id)
    found = ended(scheduler, app_id, 0)
    assert state_of(found) == [AppState.CANCELLED] * 20
    times = finished(scheduler, app_id)
    assert max(times) - min(times) < 4


def test_who_cannot_hear_is_not_waited_for(scheduler: DockerScheduler, submit: Job) -> None:
    """A first process without a handler would not get SIGTERM; one with a handler has its time."""
    deaf = submit("exec python3 -c 'import time; time.sleep(300)'", 2, cfg={"cancel_grace_s": 60})
    running(scheduler, deaf)
    began = time.monotonic()
    scheduler.cancel(deaf)
    assert time.monotonic() - began < 20
    assert ended(scheduler, deaf, 0).state is AppState.CANCELLED
    hears = submit("trap 'sleep 3; echo saved; exit 0' TERM; echo ready; while :; do sleep 0.1; done")
    while not lines(scheduler, hears):
        time.sleep(0.1)
    scheduler.cancel(hears)
    assert lines(scheduler, hears) == ["ready\n", "saved\n"]


def test_nothing_secret_is_kept(scheduler: DockerScheduler, submit: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its environment is what leads to the engine; it has no file open, no terminal, and a session of its own."""
    monkeypatch.setenv("HF_TOKEN", "hush-hush")
    app_id = submit(SLEEP, 2)
    [pid] = wardens_of(app_id)
    with open(f"/proc/{pid}/environ") as f:
        assert "hush" not in f.read()
    assert os.getsid(pid) == os.getpgid(pid) != os.getsid(0)
    targets = {os.readlink(f"/proc/{pid}/fd/{fd}").partition(":")[0] for fd in os.listdir(f"/proc/{pid}/fd")}
    assert targets <= {"/dev/null", "socket"}
    assert os.readlink(f"/proc/{pid}/cwd") == "/"
    assert leftovers.resident_peak_mb(pid) < 25


def again(command: str, n: int, policy: RetryPolicy = RetryPolicy.ROLE, *, image: str, max_retries: int = 1) -> Role:
    return role_of(command, n, image=image, retry_policy=policy, max_retries=max_retries)


def kill(app_id: str) -> None:
    [pid] = wardens_of(app_id)
    os.kill(pid, signal.SIGKILL)
    leftovers.gone(f"warden.py {app_id}")


def finished(scheduler: DockerScheduler, app_id: str) -> list[float]:
    """When the containers have ended, by the engine."""
    api = scheduler._docker_client.api
    found: list[dict[str, Any]] = api.containers(all=True, filters={"label": [f"torchx.pytorch.org/app-id={app_id}"]})
    return [seconds(api.inspect_container(c["Id"])["State"]["FinishedAt"]) for c in found]
