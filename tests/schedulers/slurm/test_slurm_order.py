"""Roles of a Slurm job that wait for others: its script, run by bash with an ``srun`` that starts programs here."""

from __future__ import annotations

import re
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.schedulers.slurm.test_job_script import SRUN, run
from torchx.errors import NotSupportedError
from torchx.schedulers.batch import attempts
from torchx.schedulers.kit.shell import read_script
from torchx.schedulers.kit.verdict import describe
from torchx.schedulers.slurm import request
from torchx.schedulers.slurm.answers import Job, facts_of
from torchx.schedulers.slurm.events import parse_events
from torchx.schedulers.slurm.parse import JobRecord
from torchx.schedulers.slurm_scheduler import SlurmScheduler
from torchx.specs import AppDef, Ready, Resource, RetryPolicy, Role
from torchx.specs.tasks import TaskList

UP = "echo it is up"
STAYS = "exec tail -f /dev/null"
READY = Ready(log="it is up", within="50s")


def role(name: str, script: str, n: int = 1, **more: Any) -> Role:
    return Role(
        name, "", entrypoint="sh", args=["-c", script], num_replicas=n, **{"resource": Resource(1, 0, 1), **more}
    )


def server(script: str = f"{UP}; {STAYS}", n: int = 1, **more: Any) -> Role:
    return role("s", script, n, **{"ready": READY, **more})


def trainer(script: str = "true", n: int = 1, **more: Any) -> Role:
    return role("t", script, n, **{"after": ["s"], "ends_job": True, **more})


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, text in (("srun", SRUN), ("sleep", "#!/bin/sh\n")):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    monkeypatch.chdir(tmp_path)  # where the replicas run
    return folder


REPLICA: dict[str, Any] = {"max_retries": 1, "retry_policy": RetryPolicy.REPLICA}
FIRST = "mkdir first 2>/dev/null"
FAILS_ONCE = f"{UP}; {FIRST} && {{ until [ -e begun ]; do :; done; exit 5; }}; {STAYS}"
AGAIN = "up s/0|ready s/0|up t/0|down s/0 5|again s/0|up s/0|"


@pytest.mark.parametrize(
    ("roles", "code", "events"),
    [
        ([trainer(), server(n=2)], 0, "up s/0|up s/1|ready s/|ready s/|up t/0|down t/0 0|down s/. 143 stopped|down s/"),
        (
            [server(f"{UP}>&2; {STAYS}"), trainer("exit 3")],
            3,
            "up s/0|ready s/0|up t/0|down t/0 3|down s/0 143 stopped",
        ),
        (
            [server(ready=None), trainer(ends_job=False), role("d", "exit", after=["t"], ends_job=True)],
            0,
            "up s/0|up t/0|up d/0",
        ),
        (
            [server("echo > here", ready=Ready(file="here")), trainer("[ -e here ]")],
            0,
            "up s/0|down s/0 0|ready s/0|up t/0",
        ),
        ([server("exit 4"), trainer()], 4, "up s/0|down s/0 4|end 4 over"),
        ([server("echo bad"), trainer()], 1, "up s/0|down s/0 0|unready s/0 early .*\tbad|end 1 over"),
        (
            [server(f"echo load; {STAYS}", ready=Ready(tcp="9", within="1s"), max_retries=1), trainer()],
            1,
            "up s/0|unready s/0 late Connection refused\tload|down s/0 143 stopped|end 1 over",
        ),
        (
            [
                server(f"[ $TORCHX_REPLICA_ID = 0 ] || {UP}; {STAYS}", 2, ready=Ready(log="is up", at_least=1)),
                trainer(),
            ],
            0,
            "up s/0|up s/1|ready s/1|up t/0",
        ),
        (
            [server(f"{FIRST} && exit 5; {UP}; {STAYS}", **REPLICA), trainer()],
            0,
            "up s/0|down s/0 5|again s/0|up s/0|ready s/0|up t/0",
        ),
        (
            [server(FAILS_ONCE, **REPLICA), trainer("touch begun; until [ -e first/2 ]; do mkdir first/2; done")],
            0,
            "up s/0|ready s/0|up t/0",
        ),
        (
            [
                server(FAILS_ONCE, **REPLICA, restarts_after=True),
                trainer(f"[ -e begun ] || {{ touch begun; {STAYS}; }}"),
            ],
            0,
            f"{AGAIN}down t/0 143|waits t/0|ready s/0|up t/0|down t/0 0|down s/0 143 stopped|end 0 over",
        ),
        (
            [server(FAILS_ONCE, max_retries=1), trainer(f"[ -e begun ] || {{ touch begun; {STAYS}; }}")],
            0,
            "up s/0|ready s/0|up t/0",
        ),
    ],
    ids=[
        *("listed-first", "driver-fails", "no-probe", "file-at-the-end", "fails", "ends-early", "late", "one-of-two"),
        *("retried", "goes-on", "restarts-after", "application"),
    ],
)
def test_what_happens(roles: list[Role], code: int, events: str, programs: Path) -> None:
    """The events of a job, in order; those that follow may be left out."""
    found, _, folder = run(programs, *roles, nodes="localhost", replicas_per_node=4)
    lines = (line.partition(" ")[2] for line in (folder / "events").read_text().splitlines())
    seen = [line for line in lines if not line.startswith("start")]
    expected = events.split("|")
    assert found == code, seen
    assert len(seen) >= len(expected) and all(map(re.match, expected, seen)), seen


def test_jobs_without_order_have_none_of_it() -> None:
    """Their script is that of job.sh without the lines for an order."""
    lines = read_script(request.__file__, "job.sh").partition("# @JOB@\n")[2].strip().split("\n")
    made = SlurmScheduler("s").submit_dryrun(AppDef("a", [role("r", "true")]), {}).request
    assert made.materialize().endswith("\n".join(line for line in lines if "@ORDER@" not in line) + "\n")
    assert "hold" not in made.materialize()


def test_addresses() -> None:
    """They are variables of the script, which knows the hosts; replicas on one host have different ports."""
    ports = {"http": 8000, "rpc": 9000}
    given = "${role.s.hosts} ${role.s.host} ${role.s.port.rpc} it's"
    roles = [server(given, 2, port_map=ports), trainer(given, env={"S": "${role.s.host}"})]
    made = SlurmScheduler("s").submit_dryrun(AppDef("a", roles), {"replicas_per_node": 2}).request.materialize()
    words = [line.strip() for line in made.split("\n") if line.lstrip().startswith("sh -c")]
    expected = [
        f"""sh -c "${{hosts[0]}}"' '"${{{own}}}"' {port} it'\\''s'"""
        for own, port in (("rank0[0]", 9000), ("host[$i]", 9001))
    ]
    assert words == [*expected, expected[0]]
    for line in ("listed=(:8000 :8001 '')", 'export TORCHX_HOSTS_S="${hosts[0]}"', 'export S="${rank0[0]}"'):
        assert line in made


def test_what_is_refused() -> None:
    """A file that only a container has; a task that is a single process."""
    slurm = SlurmScheduler("s")
    app = AppDef("a", [server(ready=Ready(file="up")), trainer()])
    for one in app.roles:
        one.image = "img:1"
    with pytest.raises(NotSupportedError, match="role `s` is ready by a file, which Slurm does not see in containers"):
        slurm.submit_dryrun(app, {"container": "pyxis"})
    alone = slurm.submit_dryrun(AppDef("a", [server()]), {})
    with pytest.raises(NotSupportedError, match="has no `ready`"):
        slurm.check_tasks(alone, TaskList(names=["x"], points=[["1"]]))


EVENTS = "1 start 0 7\n1 up s/0 n1\n"


@pytest.mark.parametrize(
    ("events", "state", "said", "states"),
    [
        ("", "RUNNING", "t/0: waits for s to be ready (0 of 1)", "RUNNING PENDING"),
        ("5 ready s/0\n5 up t/0 n2\n", "RUNNING", "<NONE>", "RUNNING RUNNING"),
        ("", "PENDING", "Slurm has not looked at it yet", "PENDING PENDING"),
        (
            "5 ready s/0\n5 up t/0 n2\n9 down t/0 143\n9 waits t/0\n9 up s/0 n1\n",
            "RUNNING",
            "t/0: waits",
            "RUNNING PENDING",
        ),
        (
            "5 ready s/0\n5 up t/0 n2\n9 down t/0 0\n9 down s/0 0 stopped\n",
            "COMPLETED",
            "<NONE>",
            "CANCELLED SUCCEEDED",
        ),
        (
            "5 unready s/0 late status 503\tno disk\n6 down s/0 143 stopped\n",
            "FAILED",
            "role s was not ready within 50s: log `it is up`: status 503; its last words: no disk",
            "CANCELLED CANCELLED",
        ),
        (
            "5 down s/0 0\n5 unready s/0 early \t\n",
            "FAILED",
            "role s ended before it was ready: log `it is up`",
            "SUCCEEDED CANCELLED",
        ),
        ("5 unready x/0 late \t\n", "FAILED", "role x was not ready", "CANCELLED CANCELLED"),
    ],
)
def test_what_is_reported(events: str, state: str, said: str, states: str) -> None:
    """States of the replicas, and why the job waits or has failed."""
    job = Job(app_id="7", records=[JobRecord(job_id="7", state=state)], events=parse_events(EVENTS + events))
    job.roles = [server(), trainer()]
    found = describe(facts_of(job))
    assert found.msg.startswith(said)
    assert " ".join(r.state.name for of in found.roles_statuses for r in of.replicas) == states
    assert ('"timeout"' in found.structured_error_msg) == ("unready" in events)


def answer(status: bytes) -> tuple[int, str]:
    """Exit code and output of a probe by HTTP, to a server with this answer; empty: to none."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        script = f"{read_script(attempts.__file__, 'probe.sh')}\nprobe http localhost {listening.getsockname()[1]} /up"
        if not status:
            listening.close()
        probe = subprocess.Popen(["bash", "-c", script], stdout=subprocess.PIPE, text=True)
        if status:
            with listening.accept()[0] as asking:
                asked = b""
                while not asked.endswith(b"\r\n\r\n"):
                    asked += asking.recv(1000)
                assert asked.startswith(b"GET /up HTTP/1.0\r\nHost: localhost:")
                asking.sendall(status)
        return probe.wait(), probe.communicate()[0].strip()


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (b"HTTP/1.1 200 OK\r\n\r\nbody", (0, "")),
        (b"HTTP/1.0 302\r\n\r\n", (0, "")),
        (b"HTTP/1.1 503 Not * yet\r\n\r\n", (1, "status 503")),
        (b"\x16\x03 $(x)\n", (1, "an answer that is not HTTP")),
        (b"\n", (1, "no answer")),
        (b"", (1, "Connection refused")),
    ],
)
def test_probes_by_http(status: bytes, expected: tuple[int, str]) -> None:
    """By status; what is printed is safe in a line of the job's events."""
    assert answer(status) == expected


@pytest.mark.parametrize("said", ["it is up\n", "it is up", "loading\r\nit is up\r\n"])
def test_probes_by_log(tmp_path: Path, said: str) -> None:
    """As on this machine: also in a line that is not complete, or ends as on Windows; in what is new in either log."""
    (tmp_path / "out").write_text("it is up\nloading\n")
    (tmp_path / "err").write_text(said)
    script = f"{read_script(attempts.__file__, 'probe.sh')}\nprobe log host 0 '^it is up$' out 9 err"
    for size, code in ((0, 0), (len(said), 1)):
        assert subprocess.run(["bash", "-c", f"{script} {size}"], cwd=tmp_path, check=False).returncode == code
