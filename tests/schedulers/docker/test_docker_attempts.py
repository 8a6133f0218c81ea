"""A retry policy of a job in containers: rejected policies, the containers, and the record of each attempt."""

from __future__ import annotations

import io
import tarfile
from typing import Any

import pytest

pytest.importorskip("docker")

from tests.schedulers.docker.fake_docker import FakeDocker, refusal
from torchx.errors import NotSupportedError, SpecError
from torchx.schedulers.docker import attempts, gangs
from torchx.schedulers.docker.containers import Job
from torchx.schedulers.docker.jobs import EngineJobs
from torchx.schedulers.docker_scheduler import DockerScheduler
from torchx.specs.api import AppDef, Resource, RetryPolicy, Role
from torchx.specs.wishes.retries import RETRY, read_attempts


class Engine(FakeDocker):
    """With files in containers, and limits that can be changed."""

    def __init__(self) -> None:
        super().__init__()
        self.files: dict[tuple[str, str], bytes] = {}
        self.limits: dict[str, dict[str, int]] = {}

    def put_archive(self, container_id: str, path: str, data: bytes) -> None:
        with tarfile.open(fileobj=io.BytesIO(data)) as tar:
            for member in tar:
                file = tar.extractfile(member)
                assert file is not None
                self.files[container_id, path + member.name] = file.read()

    def get_archive(self, container_id: str, path: str) -> Any:
        if (container_id, path) not in self.files:
            return super().get_archive(container_id, path)
        data, packed = self.files[container_id, path], io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as tar:
            member = tarfile.TarInfo(path.rpartition("/")[2])
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
        return io.BytesIO(packed.getvalue()), {"mtime": "1970-01-01T00:00:25Z"}

    def update_container(self, container_id: str, **limits: int) -> None:
        self.called("update_container")
        self.limits[container_id] = limits


def app(policy: str, n: int = 1, **fields: Any) -> AppDef:
    role = Role("r", "img", entrypoint="t", num_replicas=n, resource=Resource(1, 0, 100), **fields)
    return AppDef("job", [role], metadata={RETRY: policy})


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Engine:
    """Other processes can reach it; watchers are not started."""
    monkeypatch.setattr(EngineJobs, "place", lambda self: "here")
    monkeypatch.setattr(EngineJobs, "watch", lambda *_, **__: None)
    return Engine()


def submitted(engine: Engine, policy: str, n: int = 1) -> tuple[DockerScheduler, str]:
    scheduler = DockerScheduler("s", docker_client=engine)
    return scheduler, scheduler.submit(app(policy, n), {})


def ended(engine: Engine, scheduler: DockerScheduler, app_id: str, *codes: int) -> Any:
    """All replicas have ended with these codes, and the policy is evaluated."""
    for container_id, code in zip(list(engine.containers_made), codes, strict=True):
        engine.set(container_id, "exited", code)
    return attempts.attempt_ended(engine, job_of(scheduler, app_id))


def job_of(scheduler: DockerScheduler, app_id: str) -> Job:
    return scheduler._on_engine.listed()[app_id]


@pytest.mark.parametrize(
    ("policy", "hint"), [("node:1:avoid", "`node:1`"), ("timeout:free:checkpoint", "`timeout:free`")]
)
def test_what_an_engine_cannot_keep_is_refused(engine: Engine, policy: str, hint: str) -> None:
    """A dry run rejects it, with what would work."""
    with pytest.raises(SpecError, match="cannot keep") as error:
        DockerScheduler("s", docker_client=engine).submit_dryrun(app(policy), {})
    assert hint in (error.value.hint or "")


def test_a_job_without_a_watcher_can_have_no_policy() -> None:
    """As with a client that the program has created; roles that restart on their own are rejected, too."""
    with pytest.raises(NotSupportedError, match="no watcher could apply the retry policy"):
        DockerScheduler("s", docker_client=FakeDocker()).submit_dryrun(app("error:1"), {})


def test_only_the_whole_job_starts_again(engine: Engine) -> None:
    """A role that restarts on its own is rejected."""
    with pytest.raises(SpecError, match="starts the whole job again"):
        DockerScheduler("s", docker_client=engine).submit_dryrun(app("error:1", retry_policy=RetryPolicy.REPLICA), {})


def test_a_policy_goes_into_the_rules_of_the_containers(engine: Engine) -> None:
    """The engine does not restart, programs get the path of the progress file, and the dry run shows the policy."""
    scheduler = DockerScheduler("s", docker_client=engine)
    request = scheduler.submit_dryrun(app("standard", max_retries=3), {}).request
    kwargs: Any = request.containers[0].kwargs
    assert kwargs["restart_policy"] is None
    assert kwargs["environment"]["TORCHX_PROGRESS"] == "/tmp/torchx_progress"
    assert "retry: preempted:free, node:5, oom:2:mem*1.5, timeout:free, network:3, unknown:1, error:0" in str(request)
    scheduler, app_id = submitted(engine, "error:1")
    assert gangs.rules_of(job_of(scheduler, app_id)).policy == "error:1"
    plain = scheduler.submit_dryrun(AppDef("job", app("").roles), {}).request
    labels: Any = plain.containers[0].kwargs["labels"]
    assert "policy" not in labels[gangs.LABEL_RULES] and "retry" not in str(plain)


def test_an_attempt_is_written_down_once(engine: Engine) -> None:
    """Repeated calls return the record until the containers have been restarted."""
    scheduler, app_id = submitted(engine, "error:1", 2)
    first = ended(engine, scheduler, app_id, 3, 0)
    assert (first.kind, first.cause, first.again, first.ended) == ("error", "r/0: exit code 3", True, 20.0)
    assert ended(engine, scheduler, app_id, 3, 0) == first
    (text,) = engine.files.values()
    assert read_attempts(text.decode().splitlines()) == [first]
    described: Any = scheduler.describe(app_id)
    (shown,) = described.attempts
    assert shown == first


def test_an_attempt_begins_when_its_containers_were_started(engine: Engine) -> None:
    """They were created once, and the engine's events tell only ends: an attempt must not count those before it."""
    scheduler, app_id = submitted(engine, "error:5")
    (made,) = engine.containers_made.values()
    found = []
    for began, end in ((11, 20), (22, 30)):
        made["inspect"]["State"]["StartedAt"] = f"1970-01-01T00:00:{began}Z"
        engine.streams["/events"] = [
            b'{"status": "die", "id": "%s", "timeNano": %d000000000}\n' % (made["Id"].encode(), end)
        ]
        found.append(ended(engine, scheduler, app_id, 3))
        made["Names"] = [f"{made['Names'][0]}.app1"]
    assert [(one.started, one.ended) for one in found] == [(11.0, 20.0), (22.0, 30.0)]


def test_more_memory_is_given_to_all_containers(engine: Engine) -> None:
    """1.5 times the request, then 1.5 times that; progress resets the budget."""
    scheduler, app_id = submitted(engine, "oom:2:mem*1.5", 2)
    for made in engine.containers_made.values():
        made["inspect"]["State"]["OOMKilled"] = True
    found = ended(engine, scheduler, app_id, 137, 137)
    assert (found.kind, found.memory, found.progress) == ("oom", 1.5, False)
    assert list(engine.limits.values()) == [{"mem_limit": 150 << 20, "memswap_limit": 150 << 20}] * 2
    for container_id, made in engine.containers_made.items():
        made["Names"] = [f"{made['Names'][0]}.app1"]
        engine.files[container_id, "/tmp/torchx_progress"] = b""
    found = ended(engine, scheduler, app_id, 137, 137)
    assert (found.memory, found.progress) == (2.25, True)
    assert engine.limits["id001"] == {"mem_limit": 225 << 20, "memswap_limit": 225 << 20}


def test_an_engine_that_gives_no_more_memory_ends_the_job(engine: Engine) -> None:
    """The status reports why."""
    scheduler, app_id = submitted(engine, "oom:2:mem*1.5")
    engine.faults["update_container"] = [refusal(500, "not enough")]
    for made in engine.containers_made.values():
        made["inspect"]["State"]["OOMKilled"] = True
    found = ended(engine, scheduler, app_id, 137)
    assert (found.again, found.why) == (False, "oom: the engine rejected the higher memory limit: not enough")


def test_the_same_failure_twice_ends_it(engine: Engine) -> None:
    """Each attempt's own output counts, not that of the previous one."""
    scheduler, app_id = submitted(engine, "error:5")
    (container_id,) = engine.containers_made

    def log(*lines: str) -> bytes:
        said = [f"1970-01-01T00:00:{line}\n".encode() for line in lines]
        return b"".join(b"\2\0\0\0" + len(text).to_bytes(4, "big") + text for text in said)

    path = f"/containers/{container_id}/logs"
    first = "12Z Traceback (most recent call last):", '12Z   File "t.py", line 1, in f', "12Z ValueError: bad 1"
    second = "32Z Traceback (most recent call last):", '32Z   File "t.py", line 9, in g', "32Z KeyError: 'x'"
    digests, starts = [], ("11", "31", "51")
    for start, lines in zip(starts, [first, [*first, *second], [*first, *second]], strict=True):
        made = engine.containers_made[container_id]
        made["Names"] = [f"/{app_id}-r-0" + (f".app{len(digests)}" if digests else "")]
        engine.streams[path] = [log(*lines), log()]
        engine.set(container_id, "exited", 1)
        made["inspect"]["State"] |= {"StartedAt": f"1970-01-01T00:00:{start}Z"}
        made["inspect"]["State"] |= {"FinishedAt": f"1970-01-01T00:00:{int(start) + 9}Z"}
        digests.append(attempts.attempt_ended(engine, job_of(scheduler, app_id)))
    assert [bool(a.digest) for a in digests] == [True, True, False]
    assert "bad 1" in digests[0].cause and "KeyError" in digests[1].cause
    assert digests[2].cause == "r/0: exit code 1"


def test_cancelling_ends_a_job_that_is_not_decided_yet(engine: Engine) -> None:
    """A failed container is marked, too, so that the policy cannot restart it."""
    scheduler, app_id = submitted(engine, "error:1", 2)
    for container_id in engine.containers_made:
        engine.set(container_id, "exited", 3)
    scheduler.cancel(app_id)
    names = [made["Names"][0] for made in engine.containers_made.values()]
    assert all(name.endswith(".cancelled") for name in names)
    assert not gangs.next_step(job_of(scheduler, app_id)).ask


def test_a_policy_that_could_not_be_asked_is_said(engine: Engine) -> None:
    """If the evaluating process fails, the job has ended, and the status reports that."""
    scheduler, app_id = submitted(engine, "error:1")
    (made,) = engine.containers_made.values()
    engine.set(made["Id"], "exited", 3)
    made["Names"] = [f"{made['Names'][0]}.final"]
    found: Any = scheduler.describe(app_id)
    assert "its retry policy could not be evaluated" in found.msg
    name, made["Names"] = made["Names"], [made["Names"][0].replace(".final", ".late.silent.final")]
    assert "retry policy" not in scheduler.describe(app_id).msg, "a watchdog has ended it: no policy was asked"
    made["Names"] = name
    attempts.attempt_ended(engine, job_of(scheduler, app_id))
    found = scheduler.describe(app_id)
    assert "could not be asked" not in found.msg


def test_a_watcher_starts_for_a_lone_container_with_a_policy(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise no process would restart it."""
    watched: list[str] = []
    monkeypatch.setattr(
        EngineJobs, "watch", lambda _, app_id, *__, later=False: None if later else watched.append(app_id)
    )
    _, app_id = submitted(engine, "error:1")
    assert watched == [app_id]
    DockerScheduler("s", docker_client=engine).submit(AppDef("job", app("").roles), {})
    assert watched == [app_id]
