"""`local_docker`: rendered requests, facts from the engine's answers, and failing calls."""

from __future__ import annotations

import io
import itertools
import json
import time
from datetime import datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any

import pytest

from torchx.errors import BackendError, ConfigError, NotFoundError, SpecError, TransientError
from torchx.schedulers import docker_scheduler
from torchx.schedulers.docker.request import render_job
from torchx.schedulers.docker_scheduler import (
    CONTAINER_STATE,
    LABEL_APP_ID,
    LABEL_REPLICA_ID,
    LABEL_ROLE_NAME,
    NAME_RULE,
    DockerContainer,
    DockerJob,
    Opts,
    create_scheduler,
)
from torchx.schedulers.kit.logs import LogQuery
from torchx.specs.api import (
    AppDef,
    AppState,
    BindMount,
    DeviceMount,
    Resource,
    Role,
    VolumeMount,
    macros,
)


def role(name: str = "r", n: int = 1, **fields: Any) -> Role:
    fields.setdefault("resource", Resource(cpu=2, gpu=0, memMB=512))
    return Role(name, "img", entrypoint="prog", args=["--id", macros.replica_id], num_replicas=n, **fields)


def render(*roles: Role, environ: dict[str, str] | None = None, **opts: Any) -> DockerJob:
    return render_job(AppDef("app", list(roles)), "app-1", Opts(**opts), session="s", environ=environ or {})


@pytest.fixture
def fake() -> Any:
    """An engine in memory."""
    pytest.importorskip("docker")
    from tests.schedulers.docker.fake_docker import FakeDocker

    return FakeDocker()


@pytest.fixture
def scheduler(fake: Any) -> Any:
    """A scheduler for that engine."""
    return create_scheduler("s", docker_client=fake)


class Broken(io.BytesIO):
    """A stream whose connection breaks at its end."""

    def read(self, size: int | None = -1, /) -> bytes:
        from urllib3.exceptions import ProtocolError

        data = super().read(size)
        if not data:
            raise ProtocolError("Connection broken: IncompleteRead(0 bytes read)")
        return data


class Silent(io.BytesIO):
    """A stream that does not go on, and that the engine does not end: the client's limit is reached."""

    def read(self, size: int | None = -1, /) -> bytes:
        from urllib3.exceptions import ReadTimeoutError

        data = super().read(size)
        if not data:
            raise ReadTimeoutError(None, "/logs", "Read timed out.")
        return data


class TestRender:
    def test_a_container(self) -> None:
        """All arguments of `containers.create`."""
        [container] = render(role(env={"A": macros.app_id})).containers
        labels = container.kwargs.pop("labels")
        assert (container.image, container.command) == ("img", ["prog", "--id", "0"])
        assert container.kwargs == {
            "name": "app-1-r-0",
            "hostname": "r-0",
            "environment": {
                "TORCHX_IMAGE": "img",
                "TORCHX_RANK0_HOST": "r-0",
                "TORCHELASTIC_ERROR_FILE": "/tmp/torchx_error.json",
                "TORCHX_STEPS": "/tmp/torchx_steps",
                "TORCHX_REPLICA_ID": "0",
                "TORCHX_ROLE_NAME": "r",
                "A": "app-1",
            },
            "network": "app-1",
            "networking_config": {"app-1": {"Aliases": ["r-0", "app-1-r-0"]}},
            "entrypoint": [""],
            "mounts": [],
            "devices": [],
            "nano_cpus": 2_000_000_000,
            "mem_limit": 512 << 20,
            "memswap_limit": 512 << 20,
            "shm_size": 512 << 20,
            "device_requests": [],
            "ports": {},
            "restart_policy": None,
            "privileged": False,
        }
        assert isinstance(labels, dict)
        assert labels[LABEL_APP_ID] == "app-1"
        assert json.loads(labels["torchx.pytorch.org/roles"]) == [["r", 1, None]]

    def test_it_is_what_the_client_takes(self) -> None:
        """The `docker` package accepts every argument."""
        models = pytest.importorskip("docker.models.containers")
        everything = role(
            mounts=[
                BindMount("/a", "/b", read_only=True),
                VolumeMount("v", "/c"),
                DeviceMount("/dev/null", "/dev/x", "r"),
            ],
            resource=Resource(cpu=1, gpu=2, memMB=10, devices={"vpc.amazonaws.com/efa": 1}),
            port_map={"http": 80},
            max_retries=2,
        )
        [container] = render(everything, privileged=True).containers
        made = models._create_container_args({**container.kwargs, "version": "1.41", "image": "i", "command": ["c"]})
        host = made["host_config"]
        assert host["Mounts"] == [
            {"Type": "bind", "Source": "/a", "Target": "/b", "ReadOnly": True},
            {"Type": "volume", "Source": "v", "Target": "/c", "ReadOnly": False},
        ]
        assert [(d["PathOnHost"], d["CgroupPermissions"]) for d in host["Devices"]] == [
            ("/dev/null", "r"),
            ("/dev/infiniband/uverbs0", "rwm"),
        ]
        assert host["DeviceRequests"][0]["Count"] == 2
        assert host["DeviceRequests"][0]["Capabilities"] == [["compute", "utility"]]
        assert host["PortBindings"] == {"80/tcp": [{"HostIp": "127.0.0.1", "HostPort": ""}]}
        assert host["RestartPolicy"] == {"Name": "on-failure", "MaximumRetryCount": 2}
        assert host["Privileged"] is True
        assert made["networking_config"]["EndpointsConfig"] == {"app-1": {"Aliases": ["r-0", "app-1-r-0"]}}

    def test_environment(self) -> None:
        """Copied variables, then those of the option, then the role's: the later wins."""
        environ = {"NCCL_A": "shell", "NCCL_B": "shell", "NCCL_C": "shell", "HOME": "/root"}
        [container] = render(
            role(env={"NCCL_C": "role"}), environ=environ, copy_env=["NCCL_*"], env={"NCCL_B": "opt", "NCCL_C": "opt"}
        ).containers
        env: Any = container.kwargs["environment"]
        assert {k: v for k, v in env.items() if k in environ} == {"NCCL_A": "shell", "NCCL_B": "opt", "NCCL_C": "role"}

    @pytest.mark.parametrize(
        ("roles", "gpus"),
        [
            ([role(resource=Resource(cpu=1, gpu=2, memMB=1))], [{"count": 2}]),
            (
                [role(n=2, resource=Resource(cpu=1, gpu=2, memMB=1))],
                [{"device_ids": ["0", "1"]}, {"device_ids": ["2", "3"]}],
            ),
            (
                [
                    role("a", resource=Resource(cpu=1, gpu=1, memMB=1)),
                    role("b"),
                    role("c", resource=Resource(cpu=1, gpu=1, memMB=1)),
                ],
                [{"device_ids": ["0"]}, None, {"device_ids": ["1"]}],
            ),
        ],
        ids=["alone", "two replicas", "two roles"],
    )
    def test_gpus_are_shared_out(self, roles: list[Role], gpus: list[dict | None]) -> None:
        """A single replica gets any GPUs; several get different ones."""
        found = [c.kwargs["device_requests"] for c in render(*roles).containers]
        assert found == [[{**g, "capabilities": [["compute", "utility"]]}] if g else [] for g in gpus]

    def test_a_role_without_limits(self) -> None:
        """Only /dev/shm is limited, at more than the engine's 64 MB."""
        [container] = render(role(resource=Resource(cpu=-1, gpu=-1, memMB=-1))).containers
        assert not {"nano_cpus", "mem_limit", "memswap_limit"} & set(container.kwargs)
        assert container.kwargs["shm_size"] == 8 << 30

    def test_host_names(self) -> None:
        """They are DNS labels; rank 0 is that of the replica's own role."""
        made = render(role("Data_Loader", 2), role("trainer")).containers
        assert [c.kwargs["hostname"] for c in made] == ["data-loader-0", "data-loader-1", "trainer-0"]
        assert [c.kwargs["environment"]["TORCHX_RANK0_HOST"] for c in made] == ["data-loader-0"] * 2 + ["trainer-0"]  # type: ignore[index]  # a dict
        [long] = render(role("x" * 100)).containers
        assert len(str(long.kwargs["hostname"])) <= 63

    def test_roles_that_cannot_be_told_apart(self) -> None:
        """Two roles with the same host name are rejected."""
        with pytest.raises(SpecError, match="`a_b` and `A-b` would share the host name `a-b`"):
            render(role("a_b"), role("A-b"))

    def test_it_is_linear(self) -> None:
        """Ten thousand replicas are rendered, and three of them printed."""
        job = render(role(n=10_000))
        assert len(job.containers) == 10_000
        assert "... and 9,997 more" in str(job)
        assert len(str(job)) < 5_000


class TestDryrun:
    def test_it_needs_no_engine(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The request is rendered and printed without an engine or a client."""
        monkeypatch.setenv("DOCKER_HOST", "unix:///no/such.sock")
        scheduler = create_scheduler("s")
        info = scheduler.submit_dryrun(AppDef("My App!", [role()]), {})
        assert NAME_RULE.obeys(info.request.app_id)
        assert "prog --id 0" in str(info)
        scheduler.close()

    def test_it_reads_well(self) -> None:
        """Limits have readable units, and empty fields are left out."""
        assert str(render(role(n=2, mounts=[BindMount("/a", "/b")]))).splitlines()[:8] == [
            "app_id: app-1",
            "network: app-1",
            "role r: 2 containers",
            "  app-1-r-0: prog --id 0",
            "    image: img",
            '    mounts: [{"Type":"bind","Source":"/a","Target":"/b","ReadOnly":false}]',
            "    shm_size: 512 MiB",
            "    nano_cpus: 2 CPUs",
        ]

    def test_secrets_are_masked(self) -> None:
        """In the text, the repr, and the label with the role."""
        job = render(
            role(env={"HF_TOKEN": "hush", "URL": "http://me:hush@host"}),
            environ={"A_KEY": "x"},
            env={"API_KEY": "hush"},
        )
        job.containers[0].command += ["--password", "hush"]
        assert "hush" not in f"{job}{job!r}{job.containers[0]!r}"
        labels: Any = job.containers[0].kwargs["labels"]
        assert "hush" not in json.dumps(labels)

    def test_images_are_pushed_only_if_asked(self) -> None:
        """Without `image_repo` the local image is used by its id; with it, it is pushed as well."""
        app = AppDef("a", [role()])
        app.roles[0].image = "sha256:" + "1" * 64
        scheduler = create_scheduler("s")
        plain = scheduler.submit_dryrun(app, {}).request
        assert (plain.containers[0].image, plain.images_to_push) == (app.roles[0].image, {})
        pushed = scheduler.submit_dryrun(app, {"image_repo": "reg/x"}).request
        assert pushed.containers[0].image == app.roles[0].image == "sha256:" + "1" * 64
        assert list(pushed.images_to_push) == [app.roles[0].image]

    def test_the_old_dataclasses(self) -> None:
        """Programs can construct them as before."""
        container = DockerContainer(image="i", command=["c"], kwargs={"name": "n"})
        assert DockerJob("a", [container]).containers == [container]
        assert docker_scheduler._to_str(b"x") == docker_scheduler._to_str("x") == "x"
        assert set(CONTAINER_STATE) == {"created", "dead", "paused", "removing", "restarting", "running"}


class TestSubmission:
    def test_rank_0_starts_first(self, scheduler: Any, fake: Any) -> None:
        """All containers are created before one is started."""
        scheduler.submit(AppDef("a", [role(n=3)]), {})
        done = [c for c in fake.calls if c in ("create", "start", "create network")]
        assert done == ["create network", "create", "create", "create", "start", "start", "start"]

    @pytest.mark.parametrize(
        ("call", "at"), [("create network", 0), ("create", 0), ("create", 2), ("start", 0), ("start", 2)]
    )
    def test_a_failure_leaves_nothing(self, scheduler: Any, fake: Any, call: str, at: int) -> None:
        """Wherever the engine fails, the error reports it, and everything that was created is removed."""
        from tests.schedulers.docker.fake_docker import refusal

        fake.faults[call] = [*[None] * at, refusal(500, "no space left on device")]
        with pytest.raises(BackendError, match="the engine's disk is full") as error:
            scheduler.submit(AppDef("a", [role(n=3)]), {})
        assert error.value.hint == "`docker system df` shows what fills it"
        assert (fake.containers_made, fake.networks_made) == ({}, {})

    @pytest.mark.parametrize("call", ["create", "start"])
    def test_an_engine_that_goes_away_is_one_error(self, scheduler: Any, fake: Any, call: str) -> None:
        """In the middle of a submission: the error says what failed, and nothing is left."""
        import requests

        fake.faults[call] = [None, requests.ConnectionError("('Connection aborted.', OSError(104, 'reset'))")]
        with pytest.raises(TransientError, match=r"could not be submitted: .* no longer answers: reset"):
            scheduler.submit(AppDef("a", [role(n=2)]), {})
        assert (fake.containers_made, fake.networks_made) == ({}, {})

    def test_an_interruption_leaves_nothing(self, scheduler: Any, fake: Any) -> None:
        """Ctrl-C between two containers."""
        fake.faults["start"] = [None, KeyboardInterrupt()]
        with pytest.raises(KeyboardInterrupt):
            scheduler.submit(AppDef("a", [role(n=2)]), {})
        assert (fake.containers_made, fake.networks_made) == ({}, {})

    def test_a_missing_image_is_pulled_once(self, scheduler: Any, fake: Any) -> None:
        """Several roles use it, and it is pulled once; its digest is recorded."""
        app = AppDef("a", [role("a", 2), role("b")])
        for r in app.roles:
            r.image = "reg/other"
        info = scheduler.submit_dryrun(app, {})
        scheduler.schedule(info)
        assert fake.calls.count("pull") == 1
        assert info.submission.image_digests == dict.fromkeys("ab", f"reg/other@sha256:{'c' * 64}")

    def test_a_pull_that_breaks_off(self, scheduler: Any, fake: Any) -> None:
        """The engine reports it within its answer, and the message has its reason."""
        fake.pull_ends_with = "write /var/lib/docker/tmp/x: no space left on device"
        app = AppDef("a", [role()])
        app.roles[0].image = "reg/other"
        with pytest.raises(BackendError, match=r"`reg/other` .* cannot be pulled: .*no space left on device") as error:
            scheduler.submit(app, {})
        assert "docker system df" in error.value.hint

    def test_an_image_id_is_not_pulled(self, scheduler: Any, fake: Any) -> None:
        """Registries do not resolve image ids."""
        app = AppDef("a", [role()])
        app.roles[0].image = "sha256:" + "9" * 64
        with pytest.raises(BackendError, match="is not on the engine's machine"):
            scheduler.submit(app, {})
        assert "pull" not in fake.calls

    def test_a_grace_period_is_a_number_of_seconds(self, scheduler: Any) -> None:
        """It cannot be negative."""
        with pytest.raises(ConfigError, match="`cancel_grace_s` is `-1`"):
            scheduler.submit_dryrun(AppDef("a", [role()]), {"cancel_grace_s": -1})

    def test_no_engine_any_more(self, scheduler: Any, fake: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        """An engine that has answered before is retried, and then reported as gone."""
        import requests

        now = [0.0]
        monkeypatch.setattr(time, "monotonic", lambda: now[0])
        monkeypatch.setattr(time, "sleep", lambda s: now.__setitem__(0, now[0] + s))
        refused = requests.ConnectionError("('Connection aborted.', ConnectionRefusedError(111, 'Connection refused'))")
        fake.faults["containers"] = [refused] * 3
        assert scheduler.list() == []
        fake.faults["containers"] = [refused] * 1000
        with pytest.raises(TransientError, match="no longer answers: Connection refused"):
            scheduler.describe("x")
        assert 14 < now[0] < 17

    def test_close(self, scheduler: Any, fake: Any) -> None:
        """A client that was passed in stays open."""
        scheduler.list()
        scheduler.close()
        assert fake.closed == 0


class TestAnswers:
    """Descriptions of a job's containers."""

    def test_states(self, scheduler: Any, fake: Any) -> None:
        """Running, done, failed: combined by one rule, with the cause of the replica that failed first."""
        app_id = scheduler.submit(AppDef("a", [role(n=3)]), {})
        assert scheduler.describe(app_id).state is AppState.RUNNING
        ids = sorted(fake.containers_made)
        fake.set(ids[0], "exited", 0)
        assert scheduler.describe(app_id).state is AppState.RUNNING
        fake.set(ids[1], "exited", 3)
        found = scheduler.describe(app_id)
        assert found.state is AppState.FAILED
        assert found.msg.startswith("r/")
        assert found.msg.endswith(": exit code 3; 1 replica is still running: see `torchx cancel`")
        fake.set(ids[2], "exited", 0)
        found = scheduler.describe(app_id)
        assert "still run" not in found.msg
        assert found.ended_at == 20

    def test_the_first_to_end_explains(self, scheduler: Any, fake: Any) -> None:
        """By the engine's events; without them, a replica that a signal has ended is the last choice."""
        app_id = scheduler.submit(AppDef("a", [role(n=3)]), {})
        by_k = {c["Labels"][LABEL_REPLICA_ID]: i for i, c in fake.containers_made.items()}
        for k, code in (("0", 137), ("1", 1), ("2", 2)):
            fake.set(by_k[k], "exited", code)
        assert scheduler.describe_many([app_id])[app_id].msg == "r/1: exit code 1"
        ends = [{"id": by_k[k], "timeNano": at * 10**9} for k, at in (("2", 15), ("0", 16), ("1", 16))]
        fake.containers_made[by_k["2"]]["inspect"]["State"]["FinishedAt"] = "1970-01-01T00:00:15Z"
        for remembered in (ends, ends[1:]):  # it forgets the first events first
            fake.streams["/events"] = ["".join(json.dumps(e) + "\n" for e in remembered).encode()]
            found = scheduler.describe(app_id)
            assert (found.msg, found.ended_at) == ("r/2: exit code 2", 16)

    def test_out_of_memory(self, scheduler: Any, fake: Any) -> None:
        """The engine's details report it."""
        app_id = scheduler.submit(AppDef("a", [role()]), {})
        [container_id] = fake.containers_made
        fake.set(container_id, "exited", 137)
        details = fake.containers_made[container_id]["inspect"]
        details["State"]["OOMKilled"] = True
        details["HostConfig"] = {"Memory": 64 << 20}
        assert (
            "killed by SIGKILL: out of memory: the container reached its limit of 64 MiB"
            in scheduler.describe(app_id).msg
        )

    def test_elastic(self, scheduler: Any, fake: Any) -> None:
        """A role with `min_replicas` continues without some."""
        app_id = scheduler.submit(AppDef("a", [role(n=2, min_replicas=1)]), {})
        fake.set(next(iter(fake.containers_made)), "exited", 1)
        assert scheduler.describe(app_id).state is AppState.RUNNING

    def test_a_removed_container(self, scheduler: Any, fake: Any) -> None:
        """UNKNOWN while others run; afterwards the job has failed. Roles are derived from what is left."""
        app_id = scheduler.submit(AppDef("a", [role(n=2)]), {})
        by_k = {c["Labels"][LABEL_REPLICA_ID]: i for i, c in fake.containers_made.items()}
        del fake.containers_made[by_k["0"]]
        found = scheduler.describe(app_id)
        assert [r.state for r in found.roles_statuses[0].replicas] == [AppState.UNKNOWN, AppState.RUNNING]
        assert [(r.name, r.num_replicas) for r in found.roles] == [("r", 2)]
        fake.set(by_k["1"], "exited", 0)
        found = scheduler.describe(app_id)
        assert found.state is AppState.FAILED
        assert "r/0: its container was removed" in found.msg
        with pytest.raises(NotFoundError, match=r"r/0 of .* was removed, and its log with it"):
            list(scheduler.log_iter(app_id, "r", 0))
        with pytest.raises(NotFoundError, match=r"r/7 of .* does not exist"):
            list(scheduler.log_iter(app_id, "r", 7))

    def test_a_submission_that_was_killed(self, scheduler: Any, fake: Any) -> None:
        """Containers that are not started for long are a failed job; at first they are a submission in progress."""
        from torchx.schedulers.docker.answers import facts_of
        from torchx.schedulers.docker.containers import jobs_of
        from torchx.schedulers.kit.verdict import describe

        app_id = scheduler.submit(AppDef("a", [role(n=2)]), {})
        first, second = fake.containers_made
        del fake.containers_made[second]
        fake.containers_made[first]["State"] = "created"
        job = jobs_of(fake.containers(all=True, filters={"label": []}))[app_id]
        assert describe(facts_of(job, now=11)).state is AppState.SUBMITTED
        late = describe(facts_of(job, now=1000))
        assert late.state is AppState.FAILED
        assert "cut short" in late.msg

    def test_cancel_and_delete(self, scheduler: Any, fake: Any) -> None:
        """Running containers are marked and stopped, ended ones are not; delete removes all, without errors."""
        app_id = scheduler.submit(AppDef("a", [role(n=2)]), {})
        first = next(iter(fake.containers_made))
        fake.set(first, "exited", 0)
        scheduler.cancel(app_id)
        scheduler.cancel(app_id)
        states = {r.state for r in scheduler.describe(app_id).roles_statuses[0].replicas}
        assert states == {AppState.SUCCEEDED, AppState.CANCELLED}
        assert scheduler.describe(app_id).state is AppState.CANCELLED
        assert fake.calls.count("stop") == 1
        scheduler.delete(app_id)
        assert (fake.containers_made, fake.networks_made) == ({}, {})

    def test_delete_in_the_same_moment_as_somebody_else(
        self, scheduler: Any, fake: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A conflict in the engine is retried; an error is not."""
        from tests.schedulers.docker.fake_docker import refusal
        from torchx.schedulers.docker import client

        pauses: list[int] = []
        monkeypatch.setattr(client, "pause", pauses.append)
        app_id = scheduler.submit(AppDef("a", [role()]), {})
        busy = refusal(500, "unable to remove filesystem for x: unlinkat /y: directory not empty")
        fake.faults["remove_container"] = [refusal(500, "no")]
        with pytest.raises(BackendError, match="could not be deleted: no"):
            scheduler.delete(app_id)
        assert pauses == []
        fake.faults["remove_container"] = [busy] * 100
        with pytest.raises(BackendError, match="directory not empty"):
            scheduler.delete(app_id)
        assert pauses == list(range(5))
        fake.faults["remove_container"] = [busy] * 2
        scheduler.delete(app_id)
        assert fake.containers_made == {}

    def test_other_peoples_containers(self, scheduler: Any, fake: Any) -> None:
        """Containers with only some of the labels do not belong to a job."""
        scheduler.submit(AppDef("a", [role()]), {})
        [made] = fake.containers_made.values()
        for labels in ({LABEL_APP_ID: "x"}, {LABEL_APP_ID: "y", LABEL_ROLE_NAME: "r", LABEL_REPLICA_ID: "one"}):
            fake.containers_made[str(labels)] = {**made, "Id": "other", "Labels": labels}
        assert [(job.name, job.state) for job in scheduler.list()] == [("a", AppState.RUNNING)]
        assert scheduler.list()[0].app_handle.startswith("local_docker://s/a-")

    @pytest.mark.parametrize("cut", ["ended", "broken", "silent"])
    @pytest.mark.parametrize("since", ["whole seconds", "nanoseconds"])
    def test_a_log_that_was_cut_is_read_on(
        self, scheduler: Any, fake: Any, since: str, cut: str, monkeypatch: Any
    ) -> None:
        """If the engine closes the stream or dies, no line is lost or repeated."""
        from torchx.schedulers.docker import logs as docker_logs

        monkeypatch.setattr(docker_logs, "pause", lambda attempt: None)

        def frame(second: int, text: str, stream: int = 1) -> bytes:
            fraction = f".{second:09d}" if since == "nanoseconds" else ""
            line = f"1970-01-01T00:00:{second // 2:02}{fraction}Z {text}".encode()
            return bytes([stream, 0, 0, 0]) + len(line).to_bytes(4, "big") + line

        app_id = scheduler.submit(AppDef("a", [role()]), {})
        [container_id] = fake.containers_made
        frames = [frame(s, f"{s}\n", 1 + s % 2) for s in range(2, 8)]
        path = f"/containers/{container_id}/logs"
        begin = b"".join(frames[:3])
        fake.streams[path] = [
            {"ended": io.BytesIO, "broken": Broken, "silent": Silent}[cut](begin),
            b"".join(frames[2:5]) if since == "nanoseconds" else b"".join(frames[:5]),
            b"".join(frames),
        ]
        found = []
        for line in scheduler.log_iter(app_id, "r", 0, should_tail=True):
            found.append(line)
            if line == "6\n":
                fake.set(container_id, "exited", 0)
        assert found == [f"{s}\n" for s in range(2, 8)]
        assert fake.asked_to_follow == [1, 1, 0], "once it has ended there is nothing to follow, and all is there"
        fake.streams[path] = [b"".join(frames)]
        limits = {"since": datetime.fromtimestamp(2, timezone.utc), "until": datetime.fromtimestamp(3, timezone.utc)}
        assert list(scheduler.log_iter(app_id, "r", 0, regex="[4-7]", **limits)) == ["4\n", "5\n"]

    def test_a_log_that_does_not_end(self, scheduler: Any, fake: Any, monkeypatch: Any) -> None:
        """Podman sometimes follows the log of an ended container forever: without lines, the state is checked again.

        A job that is silent for long stays followed, with longer and longer limits until the next line.
        """
        from torchx.schedulers.docker import logs as docker_logs

        pauses: list[int] = []
        monkeypatch.setattr(docker_logs, "pause", pauses.append)
        clock = itertools.count(step=100)
        monkeypatch.setattr(docker_logs, "time", SimpleNamespace(monotonic=lambda: next(clock)))
        app_id = scheduler.submit(AppDef("a", [role()]), {})
        [container_id] = fake.containers_made
        line = b"1970-01-01T00:00:02.5Z last\n"
        text = b"\1\0\0\0" + len(line).to_bytes(4, "big") + line
        fake.streams[f"/containers/{container_id}/logs"] = [Silent() for _ in range(8)] + [Silent(text), text]
        for found in scheduler.log_iter(app_id, "r", 0, should_tail=True):
            assert found == "last\n"
            fake.set(container_id, "exited", 0)
        assert fake.asked_to_follow == [1] * 9 + [0]
        assert fake.log_limits == [60, 120, 240, 480, 960, 1920, 3600, 3600, 3600, None]
        assert set(pauses) == {0}, "silence is not a failure of the engine"

    def test_the_run_before_the_last_restart(self, scheduler: Any, fake: Any, caplog: Any) -> None:
        """From the end of the run before to the current start; all earlier runs if the engine has lost the events."""

        def frame(second: int) -> bytes:
            line = f"1970-01-01T00:00:{second:02}.5Z line {second}\n".encode()
            return b"\1\0\0\0" + len(line).to_bytes(4, "big") + line

        app_id = scheduler.submit(AppDef("a", [role()]), {})
        [container_id] = fake.containers_made
        inspected = fake.containers_made[container_id]["inspect"]
        inspected["State"]["StartedAt"] = "1970-01-01T00:00:06Z"

        def shown(*ends: int, **query: Any) -> list[str]:
            fake.streams[f"/containers/{container_id}/logs"] = [b"".join(map(frame, range(1, 9)))]
            fake.streams["/events"] = [b"".join(b'{"timeNano": %d}\n' % (end * 10**9) for end in ends)]
            return list(scheduler.open_logs(app_id, [("r", 0)], LogQuery(previous=True, **query))[0])

        with pytest.raises(NotFoundError, match="not started again"):
            shown()
        inspected["RestartCount"] = 1
        assert shown(5) == [f"line {k}\n" for k in (1, 2, 3, 4, 5)]
        inspected["RestartCount"] = 2
        assert shown(3, 5) == ["line 3\n", "line 4\n", "line 5\n"]
        assert shown(3, 5, since=4.0, until=5.0, timestamps=True) == ["1970-01-01T00:00:04.500Z line 4\n"]
        assert not caplog.records
        assert shown(5) == [f"line {k}\n" for k in (1, 2, 3, 4, 5)]
        assert "no longer knows when earlier runs ended" in caplog.text


def test_the_network_of_another_submission_stays(fake: Any, scheduler: Any) -> None:
    """Without a free address range, networks of ended jobs go, but not one whose job has no containers yet."""
    from tests.schedulers.docker.fake_docker import refusal

    scheduler.submit(AppDef("ended", [role()]), {})
    for container in fake.containers_made:
        fake.set(container, "exited", 0)
    for name, age_s in (("another", 1), ("left", 3600)):
        fake.networks.create(name, labels={LABEL_APP_ID: name})
        created = datetime.fromtimestamp(time.time() - age_s, timezone(timedelta(hours=2)))
        next(n for n in fake.networks_made.values() if n["Name"] == name)["Created"] = created.isoformat()
    fake.faults["create network"] = [refusal(403, "could not find an available, non-overlapping IPv4 address pool")]
    app_id = scheduler.submit(AppDef("new", [role()]), {})
    assert {n["Name"] for n in fake.networks_made.values()} == {"another", app_id}


def test_an_interface_that_vanishes(fake: Any, scheduler: Any) -> None:
    """Podman lists the interfaces of the machine when it makes a network, and one of them may vanish meanwhile."""
    from tests.schedulers.docker.fake_docker import refusal

    said = "route ip+net: no such network interface"
    fake.faults["create network"] = [refusal(500, said)]
    app_id = scheduler.submit(AppDef("job", [role()]), {})
    assert {n["Name"] for n in fake.networks_made.values()} == {app_id}
    fake.faults["create network"] = [refusal(500, said), refusal(500, said)]
    with pytest.raises(BackendError, match="no such network interface"):
        scheduler.submit(AppDef("job", [role()]), {})


@pytest.mark.parametrize(
    ("entrypoint", "keep", "command"),
    [
        ("--model-id", False, ["--model-id", "/data"]),
        ("", False, ["/data"]),
        ("prog", True, ["prog", "/data"]),
        ("prog", False, None),
    ],
)
def test_the_program_of_the_image(entrypoint: str, keep: bool, command: list[str] | None) -> None:
    """An option, or nothing, cannot be a program: the image's ENTRYPOINT gets it; a run option keeps it for all."""
    from torchx.schedulers.docker.export import export

    given = role()
    given.entrypoint, given.args = entrypoint, ["/data"]
    job = render(given, keep_entrypoint=keep)
    container = job.containers[0]
    assert container.kwargs["entrypoint"] == ([""] if command is None else None)
    assert container.command == (command or ["prog", "/data"])
    assert ("(ENTRYPOINT of the image)" in str(job)) == (command is not None)
    service = export(job, {}).files["compose.yaml"]
    assert ("entrypoint:" in service) == (command is None)


def test_only_an_image_with_a_program_needs_no_entrypoint() -> None:
    """Other backends have to know what to run; the error for a program that is missing names the option."""
    from torchx.runner import get_runner
    from torchx.workspace.images.engine_errors import meaning_of

    app = AppDef("a", [Role("r", "img", entrypoint="", args=["/data"], resource=Resource(1, 0, 64))])
    with get_runner() as runner:
        assert "(ENTRYPOINT of the image) /data" in str(runner.dryrun(app, "local_docker"))
        for other in ("local_cwd", "slurm", "kubernetes"):
            with pytest.raises(SpecError, match="no entrypoint"):
                runner.dryrun(app, other)
    assert "keep_entrypoint" in meaning_of('exec: "--model-id": executable file not found in $PATH')[1]
