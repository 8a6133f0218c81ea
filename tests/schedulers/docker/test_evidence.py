"""The cause of a failed job in containers, its class, and the number of calls to find it."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from tests.schedulers.docker.fake_docker import FakeDocker, refusal
from torchx.runner import Runner
from torchx.schedulers.docker_scheduler import LABEL_REPLICA_ID, create_scheduler
from torchx.specs.api import AppDef, AppState, Resource, RetryPolicy, Role
from torchx.specs.failures import Failure, parse_failure

LOST_PEER = "Traceback (most recent call last):\nRuntimeError: Connection closed by peer [10.0.0.3]:4242\n"
BAD_BATCH = "Traceback (most recent call last):\nValueError: bad batch\n"


class Job:
    """A job on an engine in memory."""

    def __init__(self, n: int, **role: Any) -> None:
        self.fake = FakeDocker()
        self.scheduler = create_scheduler("s", docker_client=self.fake)
        resource = Resource(cpu=1, gpu=0, memMB=64)
        self.roles = [Role("r", "img", entrypoint="prog", num_replicas=n, resource=resource, **role)]
        self.app_id = self.scheduler.submit(AppDef("a", self.roles), {})
        self.ids = {int(c["Labels"][LABEL_REPLICA_ID]): i for i, c in self.fake.containers_made.items()}
        self.events: list[dict[str, Any]] = []

    def happens(self, kind: str, k: int, at: float) -> None:
        self.events.append({"status": kind, "id": self.ids[k], "timeNano": int(at * 1e9)})

    def fails(self, k: int, at: float, code: int = 1, stderr: str = "", stdout: str = "") -> None:
        self.fake.set(self.ids[k], "exited", code)
        self.happens("die", k, at)
        path = f"/containers/{self.ids[k]}/logs"
        self.fake.streams[path] = [frames(2, stderr), frames(1, stdout)]

    def watched(self) -> None:
        """Makes the job one whose watcher runs on another machine."""
        for container in self.fake.containers_made.values():
            container["Labels"]["torchx.pytorch.org/rules"] = '{"retries":{},"grace_s":1,"place":"elsewhere"}'

    def status(self) -> Any:
        self.fake.streams["/events"] = ["".join(json.dumps(e) + "\n" for e in self.events).encode()]
        self.fake.calls.clear()
        return self.scheduler.describe(self.app_id)

    def cause(self) -> Failure:
        found = parse_failure(self.status().structured_error_msg)
        assert found is not None
        return found


def frames(stream: int, text: str) -> bytes:
    line = f"1970-01-01T00:00:12Z {text}".encode()
    return bytes([stream, 0, 0, 0]) + len(line).to_bytes(4, "big") + line if text else b""


def test_the_victim_is_not_blamed_though_it_ended_first() -> None:
    """Rank 0 lost its peer at 10, rank 1 had its own error at 11: rank 1 is the cause, with class `error`."""
    job = Job(2)
    job.fails(0, 10, stderr=LOST_PEER)
    job.fails(1, 11, stderr=BAD_BATCH)
    found = job.status()
    assert (found.state, found.msg) == (AppState.FAILED, "r/1: exit code 1: ValueError: bad batch")
    cause = parse_failure(found.structured_error_msg)
    assert cause is not None
    assert (cause.role, cause.replica, cause.kind, cause.evidence) == ("r", 1, "error", "ValueError: bad batch")


@pytest.mark.parametrize(("n", "guilty", "calls"), [(1, 0, 6), (16, 0, 6), (64, 0, 6), (64, 1, 14), (64, 6, 30)])
def test_a_status_of_a_failed_job_takes_a_few_calls(n: int, guilty: int, calls: int) -> None:
    """The list, the events, and four for each replica that is looked into: for one, whatever the size of the job, and
    for more only behind victims."""
    job = Job(n)
    for k in range(n):
        job.fails(k, 10 + k, stderr=BAD_BATCH if k == guilty else LOST_PEER)
    found = job.status()
    assert found.msg == f"r/{guilty}: exit code 1: ValueError: bad batch"
    assert len(job.fake.calls) == calls, job.fake.calls


def test_a_list_says_what_the_status_says() -> None:
    """One call for all jobs; a job that is being stopped is RUNNING in both."""
    job = Job(3)
    job.watched()
    job.fails(1, 10, 3)
    found = job.status()
    assert (found.state, found.msg) == (AppState.RUNNING, "r/1: exit code 3; the others are being ended")
    assert found.ended_at is None
    assert [r.state.name for r in found.roles_statuses[0].replicas] == ["RUNNING", "FAILED", "RUNNING"]
    assert [line.state for line in job.scheduler.list()] == [AppState.RUNNING]
    for k in (0, 2):
        job.fake.set(job.ids[k], "exited", 137)
        job.fake.rename(job.ids[k], f"{job.app_id}-r-{k}.cancelled")
    found = job.status()
    assert (found.state, found.msg) == (AppState.FAILED, "r/1: exit code 3")
    assert [r.state.name for r in found.roles_statuses[0].replicas] == ["CANCELLED", "FAILED", "CANCELLED"]
    assert [line.state for line in job.scheduler.list()] == [AppState.FAILED]


def test_a_job_that_is_being_cancelled() -> None:
    """It runs until all containers have ended, and the status reports that."""
    job = Job(2)
    for k in (0, 1):
        job.fake.rename(job.ids[k], f"{job.app_id}-r-{k}.cancelled")
    job.fake.set(job.ids[0], "exited", 143)
    found = job.status()
    assert (found.state, found.msg) == (AppState.RUNNING, "cancelling")
    job.fake.set(job.ids[1], "exited", 143)
    assert job.status().state is AppState.CANCELLED


def test_a_removed_container_is_named_while_the_others_are_being_ended() -> None:
    """The watcher has marked the others already, but that is not a cancellation."""
    job = Job(3)
    job.watched()
    del job.fake.containers_made[job.ids[0]]
    for k in (1, 2):
        job.fake.rename(job.ids[k], f"{job.app_id}-r-{k}.cancelled")
    why = "r/0: its container was removed from the engine, how it ended is not known"
    found = job.status()
    assert (found.state, found.msg) == (AppState.RUNNING, why)
    for k in (1, 2):
        job.fake.set(job.ids[k], "exited", 143)
    found = job.status()
    assert (found.state, found.msg) == (AppState.FAILED, why)
    assert [r.state.name for r in found.roles_statuses[0].replicas] == ["FAILED", "CANCELLED", "CANCELLED"]


@pytest.mark.parametrize("said", ["event", "state"])
def test_memory_that_ran_out(said: str) -> None:
    """An engine reports it by an event, in the state, or in both."""
    job = Job(1)
    job.fails(0, 10, 137, stderr="step 7\n")
    if said == "event":
        job.happens("oom", 0, 9)
    else:
        job.fake.containers_made[job.ids[0]]["inspect"]["State"]["OOMKilled"] = True
    cause = job.cause()
    assert cause.kind == "oom"
    assert cause.summary() == "killed by SIGKILL: out of memory: the container reached its limit (`OOMKilled`)"


def test_memory_that_ran_out_in_an_attempt_before() -> None:
    """Only the last attempt of a restarted container counts; the cause of an unexplained SIGKILL is only guessed."""
    job = Job(1, max_retries=1, retry_policy=RetryPolicy.REPLICA)
    job.happens("oom", 0, 8)
    job.happens("die", 0, 9)
    job.happens("start", 0, 9.5)
    job.fails(0, 10, 137)
    job.fake.containers_made[job.ids[0]]["inspect"]["RestartCount"] = 1
    found = job.status()
    assert found.msg == "r/0: killed by SIGKILL (often: out of memory); after 1 restart"
    assert found.num_restarts == 1


@pytest.mark.parametrize(
    ("said", "summary", "kind"),
    [
        ('exec: "nope": executable file not found in $PATH', "its entrypoint is not a program of its image", "image"),
        ("driver failed: Bind for 0.0.0.0:80 failed: port is already allocated", "a port that it publishes", "error"),
        ("something new", "cannot start: something new", "error"),
    ],
)
def test_a_container_that_could_not_be_started_again(said: str, summary: str, kind: str) -> None:
    """The engine's message, and its meaning."""
    job = Job(1)
    job.fails(0, 10, 127)
    job.fake.containers_made[job.ids[0]]["inspect"]["State"]["Error"] = said
    cause = job.cause()
    assert summary in cause.summary()
    assert cause.kind == kind


def test_last_words_on_stdout() -> None:
    """They count if stderr is empty."""
    job = Job(1)
    job.fails(0, 10, 3, stdout="fatal: no data in /data\n")
    assert job.status().msg == "r/0: exit code 3: fatal: no data in /data"


def test_an_engine_that_refuses_what_is_asked_of_a_container() -> None:
    """The exit codes of the list are reported all the same."""
    job = Job(2)
    for k in (0, 1):
        job.fails(k, 10 + k, 3 + k)
    for call in (
        "get /events",
        "inspect_container",
        "get_archive",
        *(f"get /containers/{i}/logs" for i in job.ids.values()),
    ):
        job.fake.faults[call] = [refusal(500, "no")] * 10
    assert job.status().msg == "r/0: exit code 3"


@pytest.mark.parametrize("n", [1, 16, 64])
def test_the_logs_of_all_replicas_take_one_call_each(n: int) -> None:
    """Plus two descriptions of the failed job."""
    from torchx.cli.cmd_log import show_logs
    from torchx.schedulers.kit.logs import LogQuery

    job = Job(n)
    for k in range(n):
        job.fails(k, 10, 1, stderr=f"bye from {k}\n")
    with Runner("s", {"local_docker": lambda *_, **__: job.scheduler}) as runner:
        job.fake.calls.clear()
        shown = io.StringIO()
        show_logs(shown, f"local_docker://s/{job.app_id}", runner, query=LogQuery())
    assert shown.getvalue().splitlines() == [f"r/{k} bye from {k}" for k in range(n)]
    assert len(job.fake.calls) <= n + 4, job.fake.calls


def test_followers_share_what_they_see_of_the_job() -> None:
    """Each reads its log to the end and once more after the job's end, with few descriptions of the job."""
    job = Job(16)
    for k in range(16):
        job.fails(k, 10, 1)
        job.fake.streams[f"/containers/{job.ids[k]}/logs"] = [frames(1, f"{k}\n")] * 2
    from torchx.schedulers.kit.logs import LogQuery

    job.fake.calls.clear()
    replicas = [("r", k) for k in range(16)]
    opened = job.scheduler.open_logs(job.app_id, replicas, LogQuery(follow=True))
    assert job.fake.calls == ["containers"], "nothing is read before somebody asks for lines"
    assert [list(lines) for lines in opened] == [[f"{k}\n"] for k in range(16)]
    assert job.fake.calls.count("containers") == 1
