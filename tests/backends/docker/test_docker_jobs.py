"""Jobs on a real engine: they run, they are found again from any shell, and nothing of them is left in the end."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from tests.backends.docker.conftest import (
    PATIENCE_S,
    Job,
    at,
    ended,
    lines,
    put_file,
    role_of,
    running,
    state_of,
    wrote,
)
from tests.backends.shell import Shell
from torchx.errors import BackendError, NotFoundError
from torchx.schedulers.api import Stream
from torchx.schedulers.docker import logs as docker_logs
from torchx.schedulers.docker_scheduler import LABEL_APP_ID, NETWORK, DockerScheduler, ensure_network, has_docker
from torchx.schedulers.kit.logs import LogQuery
from torchx.specs.api import AppDef, AppState, BindMount, DeviceMount, Resource, RetryPolicy, VolumeMount
from torchx.specs.failures import parse_failure


def of_job(scheduler: DockerScheduler, app_id: str) -> tuple[list[dict], list[dict]]:
    """The containers and networks that the engine has of a job."""
    api = scheduler._docker_client.api
    filters = {"label": [f"{LABEL_APP_ID}={app_id}"]}
    return api.containers(all=True, filters=filters), api.networks(filters=filters)


def test_echo_in_eight_replicas_from_shell_to_shell(docker_image: str, shell: Shell) -> None:
    """Each verb works from a process of its own: run, list, status, log, describe, delete."""
    handle = shell.launch(
        *("-s", "local_docker", "--workspace=", "--wait"),
        *("utils.echo", "--image", docker_image, "--num_replicas", "8", "--msg", "hello"),
    )
    try:
        assert handle in shell.torchx("list", "-s", "local_docker")
        status = shell.torchx("status", handle)
        assert "SUCCEEDED" in status
        assert "echo: 8 SUCCEEDED" in status
        assert sorted(shell.torchx("log", handle).splitlines()) == [f"echo/{k} hello" for k in range(8)]
        assert "hello" in shell.torchx("describe", handle)
    finally:
        shell.torchx("delete", handle)
    assert handle not in shell.torchx("list", "-s", "local_docker")


def test_a_submission_that_fails_half_way_leaves_nothing(scheduler: DockerScheduler, docker_image: str) -> None:
    """The third container cannot start: the first two and the network are removed, and the error names what failed."""
    bad = role_of("true", name="bad", image=docker_image)
    bad.entrypoint = "/no/such/program"
    info = scheduler.submit_dryrun(AppDef("half", [role_of("sleep 600", 2, image=docker_image), bad]), {})
    with pytest.raises(BackendError, match=r"bad-0. could not be started: its entrypoint is not a program") as error:
        scheduler.schedule(info)
    assert "program of this machine" in error.value.hint
    assert of_job(scheduler, info.request.app_id) == ([], [])


@pytest.mark.parametrize(
    ("role", "says"),
    [
        (
            {"image": "127.0.0.1:1/no/image:1"},
            r"127\.0\.0\.1:1/no/image:1. is not on the engine's machine and cannot be",
        ),
        ({"resource": Resource(cpu=1, gpu=1, memMB=64)}, "cannot give it the GPUs"),
        ({"resource": Resource(cpu=4096, gpu=0, memMB=64)}, "more CPUs than the engine's machine has"),
        ({"mounts": [BindMount(f"/no/such/folder-{time.time_ns()}", "/mnt")]}, "what it mounts does not exist"),
        ({"mounts": [DeviceMount("/dev/no-such", "/dev/x")]}, "a device that it mounts does not exist"),
    ],
    ids=["image", "gpu", "cpus", "bind", "device"],
)
def test_what_cannot_start_is_said(scheduler: DockerScheduler, docker_image: str, role: dict, says: str) -> None:
    """The reason in our words, the engine's own behind it, and a hint; nothing is left."""
    info = scheduler.submit_dryrun(AppDef("cannot", [role_of("true", **{"image": docker_image, **role})]), {})
    with pytest.raises(BackendError, match=says) as error:
        scheduler.schedule(info)
    assert error.value.hint
    assert of_job(scheduler, info.request.app_id) == ([], [])


def test_submitting_twice_starts_once(scheduler: DockerScheduler, docker_image: str) -> None:
    """A request that is scheduled again, running or ended, is the same job: nothing is started."""
    info = scheduler.submit_dryrun(AppDef("twice", [role_of("echo once", 2, image=docker_image)]), {})
    app_id = scheduler.schedule(info)
    ids = {c["Id"] for c in of_job(scheduler, app_id)[0]}
    assert scheduler.schedule(info) == app_id
    ended(scheduler, app_id)
    assert scheduler.schedule(info) == app_id
    assert {c["Id"] for c in of_job(scheduler, app_id)[0]} == ids
    assert lines(scheduler, app_id) == ["once\n"]


def test_a_lost_answer_is_made_good(scheduler: DockerScheduler, docker_image: str) -> None:
    """Containers of an attempt that did not get to starting them are taken, not made a second time."""
    info = scheduler.submit_dryrun(AppDef("lost", [role_of("echo x", 2, image=docker_image)]), {})
    job = info.request
    first = job.containers[0]
    client = scheduler._docker_client
    client.networks.create(job.app_id, labels={LABEL_APP_ID: job.app_id})
    made = client.containers.create(first.image, first.command, **first.kwargs)
    assert scheduler.schedule(info) == job.app_id
    assert ended(scheduler, job.app_id).state is AppState.SUCCEEDED
    containers, networks = of_job(scheduler, job.app_id)
    assert len(containers) == 2
    assert made.id in {c["Id"] for c in containers}
    assert len(networks) == 1


def test_the_failed_replica_is_named_with_its_traceback(scheduler: DockerScheduler, submit: Job) -> None:
    """The replica that failed first explains the job, whatever its number and however the others end."""
    program = "import os,time; r=os.environ['R']; time.sleep(0 if r=='2' else 600); raise ValueError(f'from {r}')"
    began = time.time()
    app_id = submit(f'R=${{replica_id}} exec python3 -c "{program}"', 3)
    found = ended(scheduler, app_id)
    assert found.state is AppState.FAILED
    assert found.msg.startswith("r/2: exit code 1: ValueError: from 2")
    failure = parse_failure(found.structured_error_msg)
    assert failure is not None
    assert failure.traceback.startswith("Traceback (most recent call last):")
    assert failure.exit_code == 1
    assert found.ended_at is not None
    assert int(began) <= found.ended_at <= time.time()


def test_torchelastic_error_file_is_read_out_of_the_container(scheduler: DockerScheduler, submit: Job) -> None:
    """What a replica writes to its TORCHELASTIC_ERROR_FILE is the cause, though stderr says other things."""
    error = {
        "message": {"message": "RuntimeError: told", "extraInfo": {"py_callstack": "Traceback: here", "timestamp": "0"}}
    }
    app_id = submit(
        'printf %s "$ERROR" > "$TORCHELASTIC_ERROR_FILE"; echo noise >&2; exit 3', env={"ERROR": json.dumps(error)}
    )
    found = ended(scheduler, app_id)
    assert found.msg == "r/0: exit code 3: RuntimeError: told"
    failure = parse_failure(found.structured_error_msg)
    assert failure is not None
    assert failure.traceback == "Traceback: here"


def test_out_of_memory_is_the_cause(scheduler: DockerScheduler, submit: Job, eventually) -> None:
    """A replica that needs more memory than its role asked for is said to be out of memory."""
    # Of memory that ran out after its first process has ended, an engine may hear too late.
    program = "python3 -c 'x = bytearray(10**9)'; code=$?; until test -e /tmp/go; do sleep 0.1; done; exit $code"
    app_id = submit(program, resource=Resource(cpu=1, gpu=0, memMB=64))
    filters = {"event": ["oom"], "label": [f"{LABEL_APP_ID}={app_id}"]}
    api = scheduler._docker_client.api
    since = int(time.time()) - 3600
    eventually(lambda: list(api.events(since=since, until=int(time.time()) + 1, filters=filters)), timeout_s=PATIENCE_S)
    put_file(scheduler, f"{app_id}-r-0", "go")
    found = ended(scheduler, app_id)
    assert found.state is AppState.FAILED
    assert "out of memory: the container reached its limit of 64 MiB" in found.msg


def test_a_container_removed_behind_our_back(scheduler: DockerScheduler, submit: Job, meet: Path) -> None:
    """The job is still listed and described; the lost replica is told of, and has failed: the others are ended."""
    script = "trap 'until test -e /meet/go; do sleep 0.1; done; exit 0' TERM; echo ready; sleep 600 & wait $!"
    app_id = submit(script, 3, mounts=at(meet), cfg={"cancel_grace_s": 600})
    for k in range(3):
        wrote(scheduler, app_id, ["ready\n"], k)
    containers, _ = of_job(scheduler, app_id)
    lost = next(c for c in containers if c["Names"] == [f"/{app_id}-r-0"])
    scheduler._docker_client.api.remove_container(lost["Id"], force=True)
    found = scheduler.describe(app_id)
    assert found is not None
    assert state_of(found) == [AppState.UNKNOWN, AppState.RUNNING, AppState.RUNNING]
    assert "r/0: its container was removed" in found.msg
    assert [r.num_replicas for r in found.roles] == [3]
    assert app_id in {job.app_id for job in scheduler.list()}
    with pytest.raises(NotFoundError, match="was removed, and its log with it"):
        lines(scheduler, app_id)
    (meet / "go").touch()
    found = ended(scheduler, app_id)
    assert found.state is AppState.FAILED
    assert "r/0: its container was removed" in found.msg
    assert state_of(found) == [AppState.FAILED, AppState.CANCELLED, AppState.CANCELLED]


def test_replicas_find_each_other_by_name(scheduler: DockerScheduler, docker_image: str, meet: Path) -> None:
    """Replicas of all roles, by host name and by container name; rank 0's is in the environment."""
    ask = (
        "import os,socket,time\n"
        "for name in ['a-0','a-1','b-c-0',os.environ['APP']+'-b-c-0',os.environ['TORCHX_RANK0_HOST']]:\n"
        "    while True:\n"
        "        try: print(name.removeprefix(os.environ['APP']), socket.gethostbyname(name)); break\n"
        "        except OSError: time.sleep(.1)\n"
        "print(socket.gethostname(), os.environ['TORCHX_RANK0_HOST'])\n"
        "open('/meet/'+socket.gethostname(), 'w').close()\n"  # a name goes with its replica
        "while len(os.listdir('/meet')) < 3: time.sleep(.1)\n"
    )
    both = [
        role_of(f'exec python3 -c "{ask}"', n, name=name, image=docker_image, env={"APP": "${app_id}"}, mounts=at(meet))
        for name, n in (("a", 2), ("B_c", 1))
    ]
    app_id = scheduler.submit(AppDef("names", both), {})
    assert ended(scheduler, app_id).state is AppState.SUCCEEDED
    told = lines(scheduler, app_id, 1, "a")
    assert [line.split()[0] for line in told[:5]] == ["a-0", "a-1", "b-c-0", "-b-c-0", "a-0"]
    assert told[5] == "a-1 a-0\n"
    assert lines(scheduler, app_id, 0, "B_c")[5] == "b-c-0 b-c-0\n"


def test_environment_mounts_and_limits_arrive(
    scheduler: DockerScheduler, docker_image: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bind, volume and device mounts; read-only is; /dev/shm is as large as the memory; no more rights than needed."""
    (tmp_path / "data").write_text("from the host\n")
    monkeypatch.setenv("COPIED_A", "from the shell")
    monkeypatch.setenv("COPIED_B", "from the shell")
    volume = f"docker-tests-{tmp_path.name}"
    script = (
        "cat /in/data; (echo x > /in/data) 2>/dev/null || echo read-only; echo x > /vol/f && cat /vol/f; "
        "test -c /dev/torchx0 && echo device; echo $COPIED_A; echo $COPIED_B; echo $GIVEN; "
        "df -m /dev/shm | tail -1 | tr -s ' ' | cut -d' ' -f2; "
        "grep CapEff /proc/self/status | cut -f2"
    )
    role = role_of(
        script,
        image=docker_image,
        env={"COPIED_B": "from the role"},
        mounts=[
            BindMount(str(tmp_path), "/in", read_only=True),
            VolumeMount(volume, "/vol"),
            DeviceMount("/dev/null", "/dev/torchx0"),
        ],
    )
    try:
        app_id = scheduler.submit(AppDef("mounts", [role]), {"copy_env": ["COPIED_*"], "env": {"GIVEN": "by option"}})
        assert ended(scheduler, app_id).state is AppState.SUCCEEDED, lines(scheduler, app_id)
        *told, capabilities = [line.strip() for line in lines(scheduler, app_id)]
        assert told == [
            "from the host",
            "read-only",
            "x",
            "device",
            "from the shell",
            "from the role",
            "by option",
            "128",
        ]
        assert int(capabilities, 16) & (1 << 21) == 0  # CAP_SYS_ADMIN
        scheduler.delete(app_id)
    finally:
        scheduler._docker_client.api.remove_volume(volume)


def test_privileged_only_when_asked(scheduler: DockerScheduler, submit: Job) -> None:
    """With the option, a container has the capabilities of the engine's machine."""
    script = "grep CapEff /proc/self/status | cut -f2"
    asked, plain = submit(script, cfg={"privileged": True}), submit(script)
    for job in (asked, plain):
        ended(scheduler, job)
    found = [int(lines(scheduler, job)[0], 16) for job in (asked, plain)]
    assert found[0] & (1 << 21)
    assert not found[1] & (1 << 21)


def test_ports_are_published(scheduler: DockerScheduler, submit: Job, eventually) -> None:
    """The status says where a port of the role is reached, on the loopback address alone."""
    app_id = submit("cd /tmp; echo page > index.html; exec python3 -m http.server 8000", port_map={"http": 8000})

    def published() -> str | None:
        return running(scheduler, app_id).roles_statuses[0].replicas[0].hostaddr

    address = eventually(published, timeout_s=PATIENCE_S)
    assert address.startswith("127.0.0.1:")

    def page() -> bytes:
        try:
            with urllib.request.urlopen(f"http://{address}/", timeout=30) as answer:
                return answer.read()
        except OSError:
            return b""

    assert eventually(page, timeout_s=PATIENCE_S) == b"page\n"


def test_a_replica_is_tried_again(scheduler: DockerScheduler, submit: Job) -> None:
    """With the policy REPLICA a failed replica is started again, and the job may still succeed; attempts are told apart."""
    app_id = submit(
        "echo try; test -e /tmp/2 && exit 0; test -e /tmp/1 && touch /tmp/2; touch /tmp/1; exit 9",
        max_retries=3,
        retry_policy=RetryPolicy.REPLICA,
    )
    streamed = lines(scheduler, app_id, should_tail=True)
    found = ended(scheduler, app_id)
    assert found.state is AppState.SUCCEEDED
    assert found.num_restarts == 2
    assert streamed == lines(scheduler, app_id) == ["try\n"] * 3
    every, before = (
        list(scheduler.open_logs(app_id, [("r", 0)], LogQuery(timestamps=True, previous=previous))[0])
        for previous in (False, True)
    )
    assert before == every[1:2]
    assert every == sorted(every)
    assert all(re.fullmatch(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z try\n", line) for line in every)


def test_retries_are_used_up(scheduler: DockerScheduler, submit: Job) -> None:
    """After the last retry the job has failed, with the last exit code."""
    found = ended(scheduler, app_id := submit("exit 9", max_retries=1, retry_policy=RetryPolicy.REPLICA))
    assert found.state is AppState.FAILED
    assert found.msg == "r/0: exit code 9; after 1 restart"
    assert found.num_restarts == 1
    assert scheduler.exists(app_id)


def test_cancel_keeps_the_log_and_delete_removes_all(scheduler: DockerScheduler, submit: Job) -> None:
    """A cancelled job is CANCELLED, whatever its exit code; its log stays until it is deleted."""
    script = "trap 'echo bye; exit 0' TERM; echo hi; while :; do sleep 0.1; done"
    app_id = submit(script, 2, cfg={"cancel_grace_s": 600})
    for k in range(2):
        wrote(scheduler, app_id, ["hi\n"], k)
    scheduler.cancel(app_id)
    found = ended(scheduler, app_id)
    assert found.state is AppState.CANCELLED
    assert state_of(found) == [AppState.CANCELLED] * 2
    wrote(scheduler, app_id, ["hi\n", "bye\n"])
    scheduler.cancel(app_id)
    scheduler.delete(app_id)
    assert of_job(scheduler, app_id) == ([], [])
    assert scheduler.describe(app_id) is None


@pytest.mark.timeout(300)
def test_waiting_is_told_of_the_end(scheduler: DockerScheduler, submit: Job) -> None:
    """`wait_for_end` sleeps while the job runs, but not on after its end, nor when it has ended."""
    app_id = submit("sleep 2", 2)
    while not all(state.name == "SUCCEEDED" for state in state_of(scheduler.describe(app_id))):
        scheduler.wait_for_end(app_id, 3600)
    scheduler.wait_for_end(app_id, 3600)
    app_id = submit("sleep 600")
    begin = time.monotonic()
    scheduler.wait_for_end(app_id, 0.5)
    assert time.monotonic() - begin > 0.4


class TestLogs:
    def test_streams_are_told_apart(self, scheduler: DockerScheduler, submit: Job) -> None:
        """stdout, stderr, and both whole line by whole line."""
        app_id = submit("echo out; echo err >&2; printf 'no end'")
        ended(scheduler, app_id)
        assert lines(scheduler, app_id, streams=Stream.STDOUT) == ["out\n", "no end"]
        assert lines(scheduler, app_id, streams=Stream.STDERR) == ["err\n"]
        assert sorted(lines(scheduler, app_id)) == sorted(["out\n", "err\n", "no end"])
        assert lines(scheduler, app_id, regex="^e") == ["err\n"]

    def test_following_through_silence(
        self, scheduler: DockerScheduler, submit: Job, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A log that is silent for longer than one read may take is opened again, and no line is lost or repeated."""
        monkeypatch.setattr(docker_logs, "_SILENT_S", 0.4)
        app_id = submit("sleep 2; echo a; echo b; sleep 2; echo c; sleep 1; printf d", 2)
        assert lines(scheduler, app_id, 1, should_tail=True) == ["a\n", "b\n", "c\n", "d"]

    def test_following_is_complete(self, scheduler: DockerScheduler, submit: Job) -> None:
        """A follower that is there from the beginning sees every line, up to the last that was written."""
        app_id = submit("for i in $(seq 1 2000); do echo $i; done; sleep 1; echo last")
        assert lines(scheduler, app_id, should_tail=True) == [*(f"{i}\n" for i in range(1, 2001)), "last\n"]

    def test_long_lines_of_two_streams_stay_whole(self, scheduler: DockerScheduler, submit: Job) -> None:
        """The engine cuts lines at 16 kB and mixes the pieces of both streams; the reader puts them together."""
        program = (
            "import sys,threading\n"
            "def w(f,c): [f.write(c*70000+chr(10)) or f.flush() for _ in range(20)]\n"
            "t=[threading.Thread(target=w,args=a) for a in ((sys.stdout,'o'),(sys.stderr,'e'))]\n"
            "[x.start() for x in t]; [x.join() for x in t]\n"
        )
        app_id = submit(f'exec python3 -c "{program}"')
        ended(scheduler, app_id)
        found = lines(scheduler, app_id)
        assert sorted({(line[0], len(line), len(set(line))) for line in found}) == [("e", 70001, 2), ("o", 70001, 2)]
        assert len(found) == 40

    def test_since_and_until_cut_between_lines(self, scheduler: DockerScheduler, submit: Job) -> None:
        """Only lines of the time in between, to the fraction of a second."""
        from datetime import datetime

        app_id = submit("for i in 1 2 3 4; do echo $i; until test -e /tmp/$i; do sleep 0.01; done; done")
        between = []
        for i in range(1, 5):
            wrote(scheduler, app_id, [f"{k}\n" for k in range(1, i + 1)])
            between.append(datetime.now())
            put_file(scheduler, f"{app_id}-r-0", str(i))
        ended(scheduler, app_id)
        assert lines(scheduler, app_id, since=between[0], until=between[2]) == ["2\n", "3\n"]

    def test_other_bytes_than_text(self, scheduler: DockerScheduler, submit: Job) -> None:
        """What is no UTF-8 is shown as such; a carriage return ends no line."""
        app_id = submit(r"printf 'a\rb\n\377\n\303\251\n'")
        ended(scheduler, app_id)
        assert lines(scheduler, app_id) == ["a\rb\n", "\ufffd\n", "é\n"]

    def test_no_such_replica(self, scheduler: DockerScheduler, submit: Job) -> None:
        """The error names what there is."""
        app_id = submit("true")
        with pytest.raises(NotFoundError, match="does not exist"):
            lines(scheduler, app_id, 5)
        with pytest.raises(NotFoundError, match="has no job"):
            scheduler.log_iter("no-such-job", "r", 0)


def test_secrets_are_in_no_label(scheduler: DockerScheduler, docker_image: str) -> None:
    """Anybody who may list containers can read labels: credentials are masked in them, and in what a dryrun shows."""
    role = role_of("true --token hush-3", image=docker_image, env={"HF_TOKEN": "hush-1"})
    role.args += ["--token", "hush-2"]
    info = scheduler.submit_dryrun(AppDef("secret", [role]), {"env": {"API_KEY": "hush-4"}})
    assert "hush-1" not in str(info) + repr(info.request)
    assert "hush-4" not in str(info) + repr(info.request)
    app_id = scheduler.schedule(info)
    containers, _ = of_job(scheduler, app_id)
    labels = json.dumps([c["Labels"] for c in containers])
    assert "hush-1" not in labels
    assert "hush-2" not in labels
    assert "hush-4" not in labels


def test_the_engine_is_there(docker_image: str, scheduler: DockerScheduler) -> None:
    """`has_docker` says so, and `ensure_network` may be called twice."""
    assert has_docker()
    api = scheduler._docker_client.api
    before = [n["Name"] for n in api.networks()]
    ensure_network(scheduler._docker_client)
    ensure_network()
    assert [n["Name"] for n in api.networks()].count(NETWORK) == 1
    if NETWORK not in before:
        api.remove_network(NETWORK)


def test_no_engine_is_one_line(shell: Shell) -> None:
    """Without an engine there is one line with a hint, no traceback; and `has_docker` says so."""
    env = {**shell.env, "DOCKER_HOST": "unix:///no/such/docker.sock"}
    process = Shell(shell.cwd, env).start("list", "-s", "local_docker")
    _, err = process.communicate(timeout=300)
    assert process.returncode == 4
    assert [line.partition(":")[0] for line in err.splitlines()] == ["torchx", "hint"]
    assert "no Docker engine answers" in err
    ask = "from torchx.schedulers.docker_scheduler import has_docker; print(has_docker())"
    asked = subprocess.run([sys.executable, "-c", ask], env=env, capture_output=True, text=True, check=True)
    assert asked.stdout == "False\n"
