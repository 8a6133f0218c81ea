"""Roles of an LSF job that wait for others: the script of its replicas, run by bash with stand-ins for LSF's commands."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from torchx.errors import NotSupportedError
from torchx.schedulers.kit.shell import read_script
from torchx.schedulers.kit.verdict import describe, state_of
from torchx.schedulers.lsf import replicas
from torchx.schedulers.lsf.answers import Exit, facts_of
from torchx.schedulers.lsf.order import mark_files, read_marks
from torchx.schedulers.lsf.parse import Row, job_name
from torchx.schedulers.lsf_scheduler import LsfScheduler
from torchx.specs import AppDef, Ready, Resource, Role

UP = "echo it is up"
STAYS = "exec tail -f /dev/null"
BJOBS = "#!/bin/sh\ncat table\n"
BKILL = '#!/bin/bash\nfor job; do kill -TERM -- "-$job"; done 2>/dev/null\ntrue\n'


def role(name: str, script: str, n: int = 1, **more: Any) -> Role:
    return Role(
        name, "", entrypoint="sh", args=["-c", script], num_replicas=n, **{"resource": Resource(1, 0, 1), **more}
    )


def server(script: str = f"{UP}; {STAYS}", n: int = 1, **more: Any) -> Role:
    return role("s", script, n, **{"ready": Ready(log="it is up", within="50s"), **more})


def trainer(script: str = "true", n: int = 1, **more: Any) -> Role:
    return role("t", script, n, **{"after": ["s"], "ends_job": True, **more})


def run(folder: Path, *roles: Role, hosts: str = "h1") -> list[int]:
    """Exit codes of all replicas; each is a process group, with its own id as LSF's id of the job."""
    (folder / "bin").mkdir()
    for name, text in (("bjobs", BJOBS), ("bkill", BKILL)):
        (folder / "bin" / name).write_text(text)
        (folder / "bin" / name).chmod(0o755)
    request = LsfScheduler("s").submit_dryrun(AppDef("job", list(roles)), {}).request
    script = request.replicas().replace('read -rt "$1" _', "read -rt 0.02 _")
    (folder / "replicas.sh").write_text(script)
    env = {**os.environ, "PATH": f"{folder}/bin:{os.environ['PATH']}", "LSB_MCPU_HOSTS": f"{hosts} 8"}
    started = []
    for index, one in enumerate(roles):
        for k in range(one.num_replicas):
            words = f"LSB_JOBID=$$; export LSB_JOBID; echo $$,{job_name(request.app_id, index, one.name, k)} >>table"
            argv = ["bash", "-c", f"{words}; exec bash replicas.sh {index} {k}"]
            started.append(subprocess.Popen(argv, cwd=folder, env=env, start_new_session=True))
    return [process.wait(50) for process in started]


NEVER = "touch began; exit 3"


@pytest.mark.parametrize(
    ("roles", "codes", "late"),
    [
        ([trainer(), server(n=2)], [0, 143, 143], None),
        ([server(), trainer("exit 3")], [143, 3], None),
        ([server(ready=None), trainer()], [143, 0], None),
        ([server("touch here", ready=Ready(file="here")), trainer("test -e here")], [0, 0], None),
        ([server("exit 4"), trainer(NEVER)], [4, 1], None),
        ([server("echo bad"), trainer(NEVER)], [0, 1], "0 0 early \tbad"),
        (
            [server(f"echo load; {STAYS}", ready=Ready(tcp="9", within="1s")), trainer(NEVER)],
            [143, 1],
            "0 0 late Connection refused\tload",
        ),
        (
            [
                server(f"[ $TORCHX_REPLICA_ID = 0 ] || {UP}; {STAYS}", 2, ready=Ready(log="is up", at_least=1)),
                trainer(),
            ],
            [143, 143, 0],
            None,
        ),
        (
            [
                server(),
                trainer(f"echo on; [ $TORCHX_REPLICA_ID = 0 ] || {STAYS}", 2, ends_job=False),
                role("d", "until [ -s t/0/exit ] && [ -s t/1/stdout.log ]; do :; done", ends_job=True),
            ],
            [143, 0, 143, 0],
            None,
        ),
    ],
    ids=["listed-first", "driver-fails", "no-probe", "file", "fails", "early", "late", "one-of-two", "another-ends"],
)
def test_what_happens(roles: list[Role], codes: list[int], late: str | None, tmp_path: Path) -> None:
    """Exit codes in order; 1 is that of a replica that was ended while it waited: its program did not start."""
    found = run(tmp_path, *roles, hosts="localhost")
    assert found == codes
    path = tmp_path / "late"
    assert (path.read_text().strip("\n") if path.exists() else None) == late
    assert not (tmp_path / "began").exists()


def test_addresses(tmp_path: Path) -> None:
    """Hosts are those that LSF has chosen; replicas on one host have different ports."""
    given = 'echo ${role.s.hosts} ${role.s.host} ${role.s.port.rpc} "$TORCHX_HOSTS_T $S it\'s"'
    ports = {"http": 8000, "rpc": 9000}
    roles = [server(f"{given}; {UP}; {STAYS}", 2, port_map=ports), trainer(given, env={"S": "${role.s.host}"})]
    assert run(tmp_path, *roles)[-1] == 0
    outputs = [(tmp_path / path / "stdout.log").read_text().splitlines()[0] for path in ("s/0", "s/1", "t/0")]
    assert outputs == [f"h1:8000,h1:8001 h1 {port} h1 {s}it's" for port, s in ((9000, " "), (9001, " "), (9000, "h1 "))]


def test_jobs_without_order_have_none_of_it() -> None:
    """Their script has replica.sh without the lines for an order."""
    lines = read_script(replicas.__file__, "replica.sh").strip().split("\n")
    script = LsfScheduler("s").submit_dryrun(AppDef("a", [role("r", "true")]), {}).request.replicas()
    assert "\n".join(line for line in lines if "@ORDER@" not in line) + "\ncase" in script
    assert "torchx_await" not in script


@pytest.mark.parametrize(
    ("more", "cfg", "why"),
    [
        ({"restarts_after": True}, {}, "role `s` has `restarts_after`: on LSF"),
        ({"ready": Ready(file="up")}, {"host_network": True}, "role `s` is ready by a file"),
        ({}, {"docker": True}, "need the network of their hosts"),
    ],
)
def test_what_is_refused(more: dict[str, Any], cfg: dict[str, Any], why: str) -> None:
    """What LSF cannot do."""
    app = AppDef("a", [server(**more), trainer()])
    for one in app.roles:
        one.image = "img:1"
    with pytest.raises(NotSupportedError, match=why):
        LsfScheduler("s").submit_dryrun(app, cfg)


@pytest.mark.parametrize(
    ("stats", "texts", "said", "states"),
    [
        ("RUN RUN", {}, "s/0: waits until all replicas have a host", "PENDING PENDING"),
        ("RUN RUN", {"order/began.0.0": "0 5"}, "t/0: waits for s to be ready (0 of 1)", "RUNNING PENDING"),
        ("RUN RUN", {"order/began.0.0": "0 5", "order/ready.0.0": "0 6", "order/began.1.0": "0 6"}, "<NONE>", "RUNNING RUNNING"),
        ("EXIT DONE", {"order/ready.0.0": "0 6", "finished": "1"}, "<NONE>", "CANCELLED SUCCEEDED"),
        ("EXIT RUN", {"order/began.1.0": "0 6", "finished": "1"}, "<NONE>", "CANCELLED SUCCEEDED"),
        ("EXIT EXIT", {"late": "0 0 late status 503\tno disk\n"}, "role s was not ready within 50s: log `it is up`: status 503; its last words: no disk", "CANCELLED CANCELLED"),
        ("DONE EXIT", {"late": "0 0 early \tbad\n"}, "role s ended before it was ready: log `it is up`; its last words: bad", "SUCCEEDED CANCELLED"),
        ("RUN RUN", {"late": "7 x", "order/began.0.0": "x"}, "t/0: waits for s", "RUNNING PENDING"),
    ],
)  # fmt: skip
def test_what_is_reported(stats: str, texts: dict[str, str], said: str, states: str) -> None:
    """States of the replicas, and why the job waits or has failed; `list` agrees."""
    roles = [server(), trainer()]
    assert set(texts) <= set(mark_files(roles))
    rows = [
        Row(str(index), stat, "a", index, 0, exit_code="143" if stat == "EXIT" else "", hosts=("h",))
        for index, stat in enumerate(stats.split())
    ]
    exits = {(row.role, 0): Exit(143, True, 9.0) for row in rows if row.stat == "EXIT"}
    facts = facts_of("a", rows, roles=roles, exits=exits, marks=read_marks(roles, texts))
    found = describe(facts)
    assert found.msg == said or found.msg.startswith(f"{said} ")
    assert " ".join(r.state.name for of in found.roles_statuses for r in of.replicas) == states
    assert state_of(facts) is found.state
    assert ('"timeout"' in found.structured_error_msg) == ("status" in str(texts) or "bad" in str(texts))
