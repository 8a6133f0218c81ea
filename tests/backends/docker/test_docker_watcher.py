"""What becomes of a job when a replica fails: the others are ended, or all are started again; by a process that stays."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.backends import leftovers
from tests.backends.docker.conftest import (
    MEET,
    PATIENCE_S,
    Job,
    at,
    ended,
    lines,
    put_file,
    reached,
    role_of,
    running,
    state_of,
    watcher_gone,
    wrote,
)
from tests.backends.shell import Shell
from torchx.schedulers.docker import watchers
from torchx.schedulers.docker.logs import seconds
from torchx.schedulers.docker_scheduler import DockerScheduler
from torchx.specs.api import AppDef, AppState, RetryPolicy, Role

SLEEP = "trap 'exit 0' TERM; sleep 600 & wait $!"
"""It runs for long, and ends at SIGTERM."""
UNTIL_GO = "until test -e /meet/go; do sleep 0.1; done"


def watchers_of(app_id: str) -> list[int]:
    return [process.pid for process in leftovers.living(f"watcher.py {app_id}")]


def gang(n: int, *ks: int, then: str = "", fail: str = "exit 3", term: str = "exit 0") -> str:
    """All ``n`` replicas begin, and would hear SIGTERM; then these fail, and the others run for long.

    Args:
        then: what they all do instead at their second attempt.
        fail: how these fail; ``$try`` is the number of the attempt.
        term: what a replica does at SIGTERM.
    """
    mine = "|".join(f"*-{k}" for k in ks)
    second = f"test $try = 2 && {{ {then}; }}; " if then else ""
    return (
        f"{MEET}trap '{term}' TERM; echo try; echo >> /tmp/tries; try=$(wc -l < /tmp/tries); meet try$try {n}; "
        f"{second}case $(hostname) in {mine}) {fail};; esac; sleep 600 & wait $!"
    )


@pytest.fixture
def attempts(scheduler: DockerScheduler) -> Callable[[str, int], int]:
    """How often a replica of role ``r`` was started, by what it wrote."""
    return lambda app_id, k: lines(scheduler, app_id, k).count("try\n")


def test_a_failed_replica_ends_the_others(
    docker_image: str, shell: Shell, meet: Path, eventually: Callable[..., object]
) -> None:
    """The command that submitted is gone, the others are ended all the same, and the status says why."""
    handle = shell.launch(
        *("-s", "local_docker", "--workspace=", "utils.sh", "--image", docker_image, "--num_replicas", "3"),
        *("--mounts", f"type=bind,src={meet},dst=/meet", "--", gang(3, 1)),
    )
    app_id = handle.rpartition("/")[2]

    def all_is_said() -> bool:
        status = shell.torchx("status", handle, check=False)
        return "2 CANCELLED, 1 FAILED" in status and "sh/1: exit code 3" in status

    try:
        eventually(all_is_said, timeout_s=PATIENCE_S)
        watcher_gone(app_id)
    finally:
        shell.torchx("delete", handle)


def test_the_failure_comes_first(scheduler: DockerScheduler, submit: Job, meet: Path) -> None:
    """By the engine's own times the others have ended after it; by themselves they would still run."""
    app_id = submit(gang(4, 2), 4, mounts=at(meet))
    found = ended(scheduler, app_id)
    assert found.msg == "r/2: exit code 3: try"
    assert found.state is AppState.FAILED
    assert state_of(found) == [AppState.CANCELLED, AppState.CANCELLED, AppState.FAILED, AppState.CANCELLED]
    times = finished(scheduler, app_id)
    assert times[2] == min(times)


def test_an_elastic_role_goes_on(scheduler: DockerScheduler, submit: Job) -> None:
    """Down to its least number of replicas; with one less, the rest is ended."""
    script = (
        f"case $(hostname) in *-0) exit 1;; *-1) until test -e /tmp/fail; do sleep 0.1; done; exit 2;; esac; {SLEEP}"
    )
    app_id = submit(script, 3, min_replicas=2)
    expected = [AppState.FAILED, AppState.RUNNING, AppState.RUNNING]
    reached(scheduler, app_id, lambda states: states == expected)
    time.sleep(1)  # in which nothing is to happen
    found = scheduler.describe(app_id)
    assert found is not None
    assert (state_of(found), found.state) == (expected, AppState.RUNNING)
    put_file(scheduler, f"{app_id}-r-1", "fail")
    found = ended(scheduler, app_id)
    assert state_of(found) == [AppState.FAILED, AppState.FAILED, AppState.CANCELLED]
    assert found.state is AppState.FAILED


def test_replicas_that_succeed_end_nobody(scheduler: DockerScheduler, submit: Job) -> None:
    """One is done at once, the other runs on; then nobody watches any more."""
    app_id = submit("case $(hostname) in *-1) until test -e /tmp/go; do sleep 0.1; done;; esac", 2)
    reached(scheduler, app_id, lambda states: states == [AppState.SUCCEEDED, AppState.RUNNING])
    assert watchers_of(app_id)
    put_file(scheduler, f"{app_id}-r-1", "go")
    assert ended(scheduler, app_id).state is AppState.SUCCEEDED
    watcher_gone(app_id)


class TestRetries:
    def test_a_role_succeeds_the_second_time(
        self, scheduler: DockerScheduler, docker_image: str, meet: Path, attempts: Callable[[str, int], int]
    ) -> None:
        """All of its replicas are started again, those of the other role are not; the names still lead to them."""
        # A name goes with its replica: nobody ends before all have looked.
        look = "for name in r-0 $APP-r-0; do until getent hosts $name; do sleep 0.1; done; done; meet looked 3; exit 0"
        role = again(gang(3, 1, then=look, term=f"{UNTIL_GO}; exit 0"), 3, image=docker_image, mounts=at(meet))
        role.env["APP"] = "${app_id}"
        wait = "until [ $(ls /meet | grep -c ^looked-) -ge 3 ]; do sleep 0.1; done"
        other = role_of(f"echo try; {wait}", name="o", image=docker_image, mounts=at(meet))
        app_id = scheduler.submit(AppDef("job", [role, other]), {"cancel_grace_s": 600})
        reached(scheduler, app_id, lambda states: AppState.PENDING in states)
        assert scheduler.describe(app_id).state in {AppState.RUNNING, AppState.PENDING}
        (meet / "go").touch()
        found = ended(scheduler, app_id)
        assert found.state is AppState.SUCCEEDED, [lines(scheduler, app_id, k) for k in range(3)]
        assert found.num_restarts == 1
        assert [attempts(app_id, k) for k in range(3)] == [2, 2, 2]
        wrote(scheduler, app_id, ["try\n"], 0, "o")

    def test_an_application_fails_after_the_last_time(
        self, scheduler: DockerScheduler, docker_image: str, meet: Path, attempts: Callable[[str, int], int]
    ) -> None:
        """All replicas of all roles are started three times; the status never says in between that the job has failed."""
        script = gang(3, 0, fail="until test -e /meet/fail$try; do sleep 0.1; done; exit 3")
        role = again(script, 2, RetryPolicy.APPLICATION, image=docker_image, max_retries=2, mounts=at(meet))
        role.args[1] = role.args[1].replace("*-0)", "r-0)")
        other = role_of(role.args[1], name="o", image=docker_image, mounts=at(meet))
        app_id = scheduler.submit(AppDef("job", [role, other]), {})
        for attempt in range(3):
            while (found := scheduler.describe(app_id)).num_restarts < attempt:
                assert found.state is not AppState.FAILED
                time.sleep(0.05)
            assert found.num_restarts == attempt
            (meet / f"fail{attempt + 1}").touch()
        while (found := scheduler.describe(app_id)).state is not AppState.FAILED:
            assert found.num_restarts == 2
            time.sleep(0.05)
        found = ended(scheduler, app_id)
        assert found.msg == "r/0: exit code 3: try; after 2 restarts"
        assert found.num_restarts == 2
        assert state_of(found) == [AppState.FAILED, AppState.CANCELLED, AppState.CANCELLED]
        assert [attempts(app_id, k) for k in range(2)] == [3, 3]
        wrote(scheduler, app_id, ["try\n"] * 3, 0, "o")
        watcher_gone(app_id)

    def test_logs_are_followed_over_attempts(self, scheduler: DockerScheduler, docker_image: str, meet: Path) -> None:
        """A follower of a replica that fails sees its second attempt as well."""
        role = again(gang(2, 1, then="echo done; exit 0"), 2, image=docker_image, mounts=at(meet))
        app_id = scheduler.submit(AppDef("job", [role]), {})
        assert lines(scheduler, app_id, 1, should_tail=True) == ["try\n", "try\n", "done\n"]

    def test_cancel_while_it_is_started_again(self, scheduler: DockerScheduler, docker_image: str) -> None:
        """Whenever the cancellation comes, nothing of the job is started after it."""
        role = again(f"case $(hostname) in *-1) exit 3;; esac; {SLEEP}", 3, image=docker_image, max_retries=1000)
        app_id = scheduler.submit(AppDef("job", [role]), {})
        reached(scheduler, app_id, lambda states: AppState.PENDING in states)
        scheduler.cancel(app_id)
        found = ended(scheduler, app_id)
        assert found.state is AppState.CANCELLED
        watcher_gone(app_id)
        assert ended(scheduler, app_id, 0).state is AppState.CANCELLED


class TestWithoutWatcher:
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
        api = scheduler._docker_client.api
        has_failed = {"label": [f"torchx.pytorch.org/app-id={app_id}"], "exited": ["3"]}
        eventually(lambda: api.containers(all=True, filters=has_failed), timeout_s=PATIENCE_S)
        time.sleep(1)  # in which nothing is to happen
        assert len(api.containers(filters={"label": has_failed["label"]})) == 2
        found = scheduler.describe(app_id)
        assert found is not None
        assert (found.state, found.msg) == (AppState.RUNNING, "r/1: exit code 3; the others are being ended")
        for _ in range(3):
            scheduler.describe(app_id)
        eventually(
            lambda: len(watchers_of(app_id)) <= 1, timeout_s=PATIENCE_S
        )  # one that finds another one at work ends at once
        assert state_of(ended(scheduler, app_id)) == [AppState.CANCELLED, AppState.FAILED, AppState.CANCELLED]
        watcher_gone(app_id)

    def test_one_killed_while_it_starts_replicas_again(
        self, scheduler: DockerScheduler, docker_image: str, meet: Path, attempts: Callable[[str, int], int]
    ) -> None:
        """The next one goes on where it was; the retry counts once."""
        script = gang(3, 1, then="exit 0", term=f"{UNTIL_GO}; exit 0")
        app_id = scheduler.submit(
            AppDef("job", [again(script, 3, image=docker_image, mounts=at(meet))]), {"cancel_grace_s": 600}
        )
        while scheduler.describe(app_id).num_restarts == 0:
            time.sleep(0.02)
        kill(app_id)
        (meet / "go").touch()
        found = ended(scheduler, app_id)
        assert (found.state, found.num_restarts) == (AppState.SUCCEEDED, 1)
        assert attempts(app_id, 1) == 2

    def test_a_second_one_ends_at_once(self, scheduler: DockerScheduler, submit: Job) -> None:
        """There is one for a job, however many are started."""
        app_id = submit(SLEEP, 2)
        first = watcher_of(app_id)
        for _ in range(3):
            watchers.start(app_id, os.environ).communicate(watchers.GO)
        assert watcher_of(app_id) == first

    def test_a_killed_submission_is_ended(self, scheduler: DockerScheduler, docker_image: str) -> None:
        """Nothing of a job runs on of which only a part was started."""
        from torchx.schedulers.docker import client as calls

        info = scheduler.submit_dryrun(AppDef("job", [role_of(SLEEP, 3, image=docker_image)]), {})
        app_id, client = info.request.app_id, scheduler._docker_client
        labels = {"torchx.pytorch.org/app-id": app_id}
        calls.make_network(client, app_id, labels, busy=set)
        made = [calls.create(client, container) for container in info.request.containers]
        calls.start((made[0], info.request.containers[0]))
        watchers.start(app_id, os.environ).communicate()  # stdin is closed, as that of a process that is killed
        found = ended(scheduler, app_id)
        assert found.state is AppState.CANCELLED
        assert state_of(found) == [AppState.CANCELLED] * 3
        watcher_gone(app_id)


def test_all_containers_are_ended_at_the_same_time(scheduler: DockerScheduler, submit: Job, meet: Path) -> None:
    """However many there are: each hears SIGTERM before any of them has ended."""
    script = f"{MEET}trap 'meet heard 20; exit 7' TERM; echo ready; while :; do sleep 1; done"
    app_id = submit(script, 20, mounts=at(meet), cfg={"cancel_grace_s": 200})
    for k in range(20):
        wrote(scheduler, app_id, ["ready\n"], k)
    scheduler.cancel(app_id)
    found = ended(scheduler, app_id, 0)
    assert state_of(found) == [AppState.CANCELLED] * 20
    assert exit_codes(scheduler, app_id) == [7] * 20


@pytest.mark.timeout(400)
def test_who_cannot_hear_is_not_waited_for(scheduler: DockerScheduler, submit: Job) -> None:
    """A first process without a handler would not get SIGTERM; one with a handler has its time."""
    deaf = submit("exec python3 -c 'import time; time.sleep(3600)'", 2, cfg={"cancel_grace_s": 3600})
    running(scheduler, deaf)
    scheduler.cancel(deaf)
    assert ended(scheduler, deaf, 0).state is AppState.CANCELLED
    script = "trap 'sleep 1; echo saved; exit 0' TERM; echo ready; while :; do sleep 0.1; done"
    hears = submit(script, cfg={"cancel_grace_s": 600})
    wrote(scheduler, hears, ["ready\n"])
    scheduler.cancel(hears)
    wrote(scheduler, hears, ["ready\n", "saved\n"])


def test_nothing_secret_is_kept(
    scheduler: DockerScheduler, submit: Job, monkeypatch: pytest.MonkeyPatch, eventually: Callable[..., object]
) -> None:
    """Its environment is what leads to the engine; it has no file open, no terminal, and a session of its own."""
    monkeypatch.setenv("HF_TOKEN", "hush-hush")
    app_id = submit(SLEEP, 2)
    pid = watcher_of(app_id)
    with open(f"/proc/{pid}/environ") as f:
        assert "hush" not in f.read()
    assert os.getsid(pid) == os.getpgid(pid) != os.getsid(0)
    # Until it is told that the job is submitted, it has a pipe, too.
    eventually(lambda: kinds_of_files(pid) <= {"/dev/null", "socket"}, timeout_s=PATIENCE_S)
    assert os.readlink(f"/proc/{pid}/cwd") == "/"
    assert leftovers.resident_peak_mb(pid) < 25


def again(command: str, n: int, policy: RetryPolicy = RetryPolicy.ROLE, *, max_retries: int = 1, **role: Any) -> Role:
    return role_of(command, n, retry_policy=policy, max_retries=max_retries, **role)


def watcher_of(app_id: str) -> int:
    """The one that is at work; another one, which a question in its first moments may have started, has ended."""
    deadline = time.monotonic() + PATIENCE_S
    while len(found := watchers_of(app_id)) != 1 or not watchers.lives(app_id):
        assert time.monotonic() < deadline, found
        time.sleep(0.02)
    return found[0]


def kill(app_id: str) -> None:
    os.kill(watcher_of(app_id), signal.SIGKILL)
    watcher_gone(app_id)


def kinds_of_files(pid: int) -> set[str]:
    found = set()
    for fd in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):  # it has closed it since
            found.add(os.readlink(f"/proc/{pid}/fd/{fd}").partition(":")[0])
    return found


def finished(scheduler: DockerScheduler, app_id: str) -> list[float]:
    """When the containers of role `r` have ended, by the engine."""
    return [seconds(state["FinishedAt"]) for state in states(scheduler, app_id)]


def exit_codes(scheduler: DockerScheduler, app_id: str) -> list[int]:
    return [state["ExitCode"] for state in states(scheduler, app_id)]


def states(scheduler: DockerScheduler, app_id: str) -> list[dict[str, Any]]:
    """What the engine tells of each replica of role `r`, in their order."""
    api = scheduler._docker_client.api
    found = api.containers(all=True, filters={"label": [f"torchx.pytorch.org/app-id={app_id}"]})
    found.sort(key=lambda c: int(c["Labels"]["torchx.pytorch.org/replica-id"]))
    return [api.inspect_container(c["Id"])["State"] for c in found]
