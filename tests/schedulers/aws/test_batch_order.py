"""Roles in order on Batch: their requests, what the nodes run, and the verdict on what they leave."""

from __future__ import annotations

import base64
import json
import os
import random
import subprocess
import sys
import time
import zlib

import pytest

pytest.importorskip("botocore")

from tests.schedulers.aws.batch_cloud import refusal
from tests.schedulers.aws.test_aws_batch_scheduler import nodes, request, role, scheduler, submit
from torchx.errors import NotSupportedError
from torchx.schedulers.aws import logs
from torchx.schedulers.aws.batch import order, order_node
from torchx.specs import AppDef, AppState, Ready
from torchx.specs.failures import parse_failure
from torchx.specs.wishes.retries import RETRY
from torchx.specs.wishes.timeouts import TIMEOUT

GROUP = "/aws/batch/job"


def server(*args, **more):
    return role(*args, name="server", **{"n": 2, "port_map": {"http": 8000}, "ready": Ready(http="/health"), **more})


def driver(*args, **more):
    return role(*args, name="driver", after=["server"], ends_job=True, **more)


# -- requests ---------------------------------------------------------------------------------------------


def test_what_is_submitted_is_described():
    """Words, variables, and the order of the roles; the nodes replace the macros of addresses."""
    batch = scheduler()
    first = server("--port", "${role.server.port.http}", env={"ME": "${role.server.host} ${replica_id}"})
    second = driver("${role.server.hosts}", "$${HOME}", env={"A": "1"})
    found = batch.describe(submit(batch, first, second)).roles
    for given, role_ in zip((first, second), found, strict=True):
        for field in ("name", "args", "env", "num_replicas", "after", "ready", "ends_job", "port_map", "image"):
            expected = (
                ["${role.server.hosts}", "${HOME}"] if (field, given) == ("args", second) else getattr(given, field)
            )
            assert getattr(role_, field) == expected, field


def test_one_replica_is_a_node_of_its_own(caplog):
    """Its probe needs the program that the definition carries; the submission says what the image needs."""
    job = request(server(n=1))
    assert job.job_def["nodeProperties"]["numNodes"] == 1
    assert "python3" in caplog.text
    with pytest.raises(NotSupportedError, match="single containers only"):
        request(server(n=1), compute="fargate", execution_role_arn="arn:aws:iam::123456789012:role/r")


def test_five_roles_fit_into_a_definition():
    """Batch takes 24 KiB; only the main node's role has the part that decides."""
    roles = [server(n=1), *(role("x" * 100, name=f"r{k}", after=["server"], ready=Ready(log="up")) for k in range(4))]
    job = request(*roles)
    assert len(json.dumps(job.job_def)) < 24 << 10
    texts = [zlib.decompress(base64.b85decode(node["container"]["command"][3])) for node in nodes(job)]
    assert [b"class Job" in text for text in texts] == [True, False, False, False, False]


def test_what_restarts_is_refused():
    with pytest.raises(NotSupportedError, match="in order together"):
        request(server(restarts_after=True), driver())
    app = AppDef("a", [server(), driver()], metadata={RETRY: "standard, total:30m", TIMEOUT: "5m"})
    with pytest.raises(NotSupportedError, match="in order together"):
        scheduler().submit_dryrun(app, {"queue": "q"})


def test_both_sides_have_the_same_constants():
    """The text on the nodes stands alone."""
    assert (order_node.STOPPED, order_node.UNREADY, order_node.MARK) == (order.STOPPED, order.UNREADY, logs.MARK)


# -- the program on the nodes -----------------------------------------------------------------------------


class Nodes:
    """The nodes of a job, as processes."""

    def __init__(self, *roles, constants=(), absent=(), python=sys.executable):
        self.port = random.randint(10_000, 30_000)
        self.processes = {}
        self.args = (constants, absent, python)
        for one in nodes(request(*roles)):
            first, _, last = one["targetNodes"].partition(":")
            for index in range(int(first), int(last) + 1):
                if index not in absent:
                    self.start(index, one["container"])

    def start(self, index, container):
        constants, _, python = self.args
        words = [python, *container["command"][1:]]
        text = zlib.decompress(base64.b85decode(words[3])).decode()
        for old, new in (("PORT, MARK = 29477", f"PORT, MARK = {self.port}"), *constants):
            assert old in text
            text = text.replace(old, new)
        words[3] = base64.b85encode(zlib.compress(text.encode())).decode()
        env = {"PATH": os.environ["PATH"], "AWS_BATCH_JOB_ID": f"job#{index}", "AWS_BATCH_JOB_NODE_INDEX": str(index)}
        env.update({one["name"]: one["value"] for one in container["environment"]})
        if index:
            env["AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS"] = "127.0.0.1"
        self.processes[index] = subprocess.Popen(
            words, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    def ended(self):
        """Exit codes, and outputs by node without the lines of the main node."""
        codes, said, self.marks = [], {}, []
        for index, process in self.processes.items():
            text, _ = process.communicate(timeout=120)
            lines = text.splitlines()
            self.marks += [line.partition(" ")[2] for line in lines if line.startswith(logs.MARK)]
            said[index] = [line for line in lines if not line.startswith(logs.MARK)]
            codes.append(process.returncode)
        return codes, said


def shell(script, **more):
    one = role("-c", script, **more)
    one.entrypoint = "sh"
    return one


STAYS = "trap 'exit 0' TERM; while :; do sleep 0.1; done"


def test_nodes_know_each_other():
    """By macros and variables, in words and in the environment; and a driver ends the job."""
    show = "echo $TORCHX_HOSTS_SERVER $ME $TORCHX_REPLICA_ID $TORCHX_RANK0_HOST"
    first = shell(f"{show}; {STAYS}", n=2, name="server", port_map={"http": 8000}, ready=Ready(log="^127.*[0-9]$"))
    first.env["ME"] = "${replica_id}:${role.server.host}:${role.server.port.http}"
    last = shell(f"{show} ${{role.server.hosts}} ${{role.driver.host}}", name="driver", after=["server"], ends_job=True)
    ran = Nodes(first, last)
    codes, said = ran.ended()
    both = "127.0.0.1:8000,127.0.0.1:8000"
    assert said[0][0] == f"{both} 0:127.0.0.1:8000 0 127.0.0.1"
    assert said[1][0] == f"{both} 1:127.0.0.1:8000 1 127.0.0.1"
    assert said[2] == [f"{both} 0 127.0.0.1 {both} 127.0.0.1"]
    assert codes == [0, order.STOPPED, 0]  # that of the main node is the job's
    assert {"ended 0 86", "ended 2 0", "ready 1"} <= set(ran.marks)


PROBES = [
    (Ready(tcp="http"), "exec python3 -m http.server --bind 127.0.0.1 PORT", 0, ""),
    (Ready(http="/"), "exec python3 -m http.server --bind 127.0.0.1 PORT", 0, ""),
    (
        Ready(http="/no", within="8s"),
        "exec python3 -m http.server --bind 127.0.0.1 PORT",
        87,
        "GET :http/no: status 404",
    ),
    (Ready(tcp="http", within="1s"), f"echo slow; {STAYS}", 87, "tcp http: Connection refused; its last words: slow"),
    (Ready(file="/tmp/torchx-no-such-file", within="1s"), STAYS, 87, "it does not exist"),
    (Ready(log="up [0-9]+"), "printf 'up '; sleep 0.3; printf '12'; sleep 5", 0, ""),
]


@pytest.mark.parametrize(("ready", "script", "code", "why"), PROBES)
def test_probes(ready, script, code, why):
    port = random.randint(10_000, 30_000)
    first = shell(script.replace("PORT", str(port)), name="server", port_map={"http": port}, ready=ready)
    ran = Nodes(first, shell("true", name="driver", after=["server"], ends_job=True))
    codes, _ = ran.ended()
    assert codes[0] == code
    assert why in " ".join(ran.marks)


def test_a_program_that_cannot_be_started():
    """Its exit code is the shell's, and its node says why."""
    one = role("x", name="a", ends_job=True)
    one.entrypoint = "/no/such/program"
    codes, said = (ran := Nodes(one, shell(STAYS, name="b"))).ended()
    assert codes == [127, order.STOPPED]
    assert "not found" in said[0][0]
    assert "ended 0 127" in ran.marks


def test_nodes_are_told_to_end():
    """One that waits leaves at once; programs get the signal."""
    ran = Nodes(
        shell(f"echo up; {STAYS}", name="a", ready=Ready(file="/no/such")), shell("true", name="b", after=["a"])
    )
    while "up" not in (ran.processes[0].stdout.readline()):
        pass
    for process in ran.processes.values():
        process.terminate()
    codes, _ = ran.ended()
    assert codes == [order.STOPPED, 143]


def test_nodes_that_are_lost_end_the_job():
    """One that never reports, and one that falls silent; the others end, and so do those whose main node is gone."""
    soon = [("REPORT_S, LOST_S, GRACE_S = 1800, 90, 30", "REPORT_S, LOST_S, GRACE_S = 2, 12, 5")]
    ran = Nodes(shell(STAYS, name="a"), shell(STAYS, n=2, name="b", after=["a"]), constants=soon, absent=[2])
    assert ran.ended()[0] == [order.STOPPED, order.STOPPED]
    assert "lost node 2 (b) does not report to the main node" in ran.marks
    for victim in (0, 1):
        last = "exec sleep 25"  # what is left of a node that is killed ends, too
        ran = Nodes(shell(f"echo a; {last}", name="a", ready=Ready(log="a")), shell(last, name="b"), constants=soon)
        time.sleep(1.5)
        ran.processes[victim].kill()
        codes, _ = ran.ended()
        assert codes[1 - victim] == order.STOPPED


def test_who_does_not_know_the_job_is_not_heard():
    """Neither wrong tokens nor other bytes disturb it."""
    import socket

    ran = Nodes(shell("sleep 3", name="a", ends_job=True), shell(STAYS, name="b"))
    for line in (b"{}", b'{"token": "x", "node": 1, "code": 3}', b"[" * 5000, b"\xff", b'{"token": "job", "node": 9}'):
        deadline = time.monotonic() + 60
        while True:
            try:
                link = socket.create_connection(("127.0.0.1", ran.port), 5)
                break
            except OSError:
                assert time.monotonic() < deadline
                time.sleep(0.1)
        with link:
            link.sendall(line + b"\n")
            assert link.makefile("rb").read() == b""
    assert ran.ended()[0] == [0, order.STOPPED]


# -- the verdict ------------------------------------------------------------------------------------------


def left(marks, *nodes_, state="FAILED", denied=False):
    """The answer on a job of two servers and a driver with these lines of its main node, and these exit codes."""
    batch = scheduler()
    app_id = submit(batch, server(), driver())
    batch.cloud.job(app_id).update(status=state, startedAt=1_700_000_000_000)
    for index, code in enumerate(nodes_):
        status = "RUNNING" if code is None else "FAILED" if code else "SUCCEEDED"
        container = {"logStreamName": f"s{index}"} | ({} if code is None else {"exitCode": code})
        batch.cloud.node(app_id, index).update(status=status, container=container, startedAt=1_700_000_000_000)
    batch.cloud.logs.streams[GROUP, "s0"] = [
        (1_700_000_001_000 + k, f"{logs.MARK} {mark}") for k, mark in enumerate(marks)
    ] + [(1_700_000_009_000, "bye")]
    if denied:
        batch.cloud.faults.append(("filter_log_events", refusal("AccessDeniedException", "no"), "before"))
    answer = batch.describe(app_id)
    return answer, " ".join(r.state.name for one in answer.roles_statuses for r in one.replicas), batch, app_id


def test_a_job_that_waits():
    answer, states, *_ = left(["began 0", "began 1", "ready 1"], None, None, None, state="RUNNING")
    assert (answer.state, states) == (AppState.RUNNING, "RUNNING RUNNING PENDING")
    assert "driver/0: waits for server to be ready (1 of 2)" in answer.msg
    assert [r.ready_at for r in answer.roles_statuses[0].replicas] == [None, 1_700_000_001.002]


def test_the_main_node_has_the_exit_code_of_the_job():
    """What became of its own program is in its log; without permission to search it, its exit code counts."""
    ends = ["began 0", "ended 2 0", "ends", "ended 0 86", "ended 1 86"]
    assert left(ends, 0, 86, 0, state="SUCCEEDED")[1] == "CANCELLED CANCELLED SUCCEEDED"
    assert left(ends, 0, 86, 0, state="SUCCEEDED", denied=True)[1] == "SUCCEEDED CANCELLED SUCCEEDED"
    assert left(["ended 0 0", "ended 2 3"], 86, 86, 3)[1] == "SUCCEEDED CANCELLED FAILED"


def test_a_job_that_ends():
    """The description of a node may be older than that of another: nobody is told of a cancellation."""
    answer, states, *_ = left(["began 0", "ended 0 86", "ended 2 0"], 0, 86, None, state="RUNNING")
    assert (answer.state, states) == (AppState.RUNNING, "CANCELLED CANCELLED PENDING")
    assert "cancelling" not in answer.msg


def test_a_job_that_was_cancelled():
    """A main program that has ended with 0 because of it counts as cancelled, as all others do."""
    batch = left(["began 0", "ended 0 0"], 0, 143, 143)[2]
    (app_id,) = (line.app_id for line in batch.list())
    for job in batch.cloud.jobs.values():
        job.update(status="FAILED", isTerminated=True)
    answer = batch.describe(app_id)
    assert answer.state is AppState.CANCELLED
    assert {r.state for one in answer.roles_statuses for r in one.replicas} == {AppState.CANCELLED}


@pytest.mark.parametrize("denied", [False, True])
def test_a_role_was_not_ready(denied):
    why = "role server was not ready within 5m: GET :http/health: status 503"
    answer, states, *_ = left(["began 0", f"unready {why}"], 87, 86, 86, denied=denied)
    assert (answer.state, states) == (AppState.FAILED, "CANCELLED CANCELLED CANCELLED")
    assert answer.msg == ("a role was not ready in time" if denied else why)
    assert parse_failure(answer.structured_error_msg).kind == "timeout"


def test_a_node_is_lost():
    answer, states, *_ = left(["lost node 2 (driver) does not report to the main node"], 86, 86, None)
    assert (answer.state, states.split()[:2]) == (AppState.FAILED, ["CANCELLED", "CANCELLED"])
    assert answer.msg.startswith("node 2 (driver) does not report")


def test_lines_of_the_main_node_are_not_shown():
    """Nor do lines of a program that only look like them confuse anybody."""
    marks = ["began 0", "ended 0 x", "ended 0", "began x", "", "ended 0 86"]
    _, states, batch, app_id = left(marks, 0, 86, 0, state="SUCCEEDED")
    assert states == "CANCELLED CANCELLED SUCCEEDED"
    assert list(batch.log_iter(app_id, "server", 0)) == ["bye\n"]


def test_jobs_without_an_order_ask_for_no_lines():
    batch = scheduler()
    app_id = submit(batch, role(n=2))
    batch.cloud.job(app_id)["status"] = "RUNNING"
    batch.describe(app_id)
    assert batch.cloud.count("filter_log_events") == 0
